"""Operator actions on extractions, by command or by job: each is audited with its actor.

Every refusal names the extraction and the cure, and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Row,
    RowMapping,
    ScalarSelect,
    Text,
    and_,
    cast,
    delete,
    exists,
    false,
    func,
    literal,
    null,
    or_,
    select,
    type_coerce,
    update,
)

from ingestion_pipeline.catalogs.datasets.dataset_items import UNLISTED
from ingestion_pipeline.catalogs.datasets.finishing import Ended, FinishReason, finish_extractions
from ingestion_pipeline.catalogs.datasets.item_changes import record_published
from ingestion_pipeline.catalogs.datasets.publishing import fill_incomplete
from ingestion_pipeline.catalogs.extraction.tasks import CONTENT_MISSING
from ingestion_pipeline.catalogs.extraction_states import update_extraction_tasks
from ingestion_pipeline.catalogs.states import (
    CRAWLING_STATES,
    EXTRACT_PAGE,
    FETCH_PAGE,
    MISSING_CODES,
    UNFINISHED_PAGES,
    DatasetStatus,
    ExtractionKind,
    ExtractionStatus,
    PageStatus,
    failure_code,
)
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source, SourceStatus
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.store.statements import audit, insert_into
from ingestion_pipeline.store.tables import (
    ACTIVE,
    CRAWLING,
    crawl_steps,
    data_items,
    datasets,
    extractions,
    pages,
    sources,
    tasks,
)
from ingestion_pipeline.store.types import Json, UtcDateTime
from ingestion_pipeline.tasks.ended_tasks import requeue_task
from ingestion_pipeline.tasks.errors import ErrorClass
from ingestion_pipeline.tasks.task import TaskStatus

ENDED_STATES = (ExtractionStatus.STALE, ExtractionStatus.CANCELLED)


class UnknownExtraction(LookupError):
    """No extraction has this id."""

    def __init__(self, extraction_id: int) -> None:
        super().__init__(f"there is no extraction {extraction_id}; `ingest extractions list` shows all")


class InvalidState(ValueError):
    """The extraction is not in a state for that action."""


def lock_extraction(connection: Connection, extraction_id: int) -> Row[Any]:
    """Return the extraction's row, locked, so that nobody ends or reopens it meanwhile."""
    query = select(extractions).where(extractions.c.id == extraction_id)
    row = connection.execute(query.with_for_update()).one_or_none()
    if row is None:
        raise UnknownExtraction(extraction_id)
    return row


def enabled_source(connection: Connection, row: Row[Any]) -> Source:
    """Return the extraction's source; raise if it is disabled: its tasks would wait for ever."""
    source = sources_by_id(connection, [row.source_id]).get(row.source_id)
    if source is None:
        raise UnknownSource(row.source_id)
    if source.status is SourceStatus.DISABLED:
        raise InvalidState(
            f"{source.id} is disabled, and nothing is fetched or read for it; `ingest sources enable {source.id}` first"
        )
    return source


def cancel(
    connection: Connection,
    extraction_id: int,
    *,
    actor: str,
    now: datetime,
    settings: Settings,
    random: Random,
    reason: str = "",
) -> Ended:
    """End the extraction, cancel its waiting tasks and revoke the claims of running ones.

    Workers stop at their next check, and nothing that they fetched is written.
    """
    row = lock_extraction(connection, extraction_id)
    if row.status not in CRAWLING_STATES:
        raise InvalidState(
            f"extraction {extraction_id} is {row.status} already;"
            f" `ingest extractions resume {extraction_id}` resumes it"
        )
    update_extraction_tasks(
        connection,
        tasks.c.source_id == row.source_id,
        tasks.c.tracking_id == row.tracking_id,
        values={
            "status": TaskStatus.CANCELLED.value,
            "fence": tasks.c.fence + 1,
            "lease_owner": None,
            "lease_until": None,
            "updated_at": now,
        },
    )
    message = f"cancelled by {actor}" + (f": {reason}" if reason else "")
    failure = {"class": ErrorClass.RESOURCE.value, "code": "cancelled", "message": message}
    finish = FinishReason(status=ExtractionStatus.CANCELLED, failure=failure, actor=actor)
    [ended] = finish_extractions(connection, {extraction_id: finish}, now=now, settings=settings, random=random)
    return ended


def resume(connection: Connection, extraction_id: int, *, actor: str, now: datetime) -> Requeued:
    """Resume a stale or cancelled extraction: pages without a live task get one again."""
    row = lock_extraction(connection, extraction_id)
    source = enabled_source(connection, row)
    if row.status in CRAWLING_STATES:
        return requeue(connection, row.id, row.tracking_id, source, now=now)  # only orphaned pages get a new task
    if row.status not in ENDED_STATES:
        raise InvalidState(
            f"extraction {extraction_id} is {row.status}, and there is nothing to resume;"
            f" `ingest extractions retry {extraction_id}` tries its failed pages again"
        )
    _reset(connection, row, _blocking_pages(row))
    return _reopen(connection, row, source, "extraction.resume", actor=actor, now=now)


def retry(connection: Connection, extraction_id: int, *, actor: str, now: datetime) -> Requeued:
    """Fetch or extract failed pages again, and extract pages without data again.

    An extraction that has ended is reopened, and ends again; a running one stays as it is. What it
    has published stays published: the retry builds the next version.
    """
    row = lock_extraction(connection, extraction_id)
    source = enabled_source(connection, row)
    if not _reset(connection, row, _failed_pages(row)):
        raise InvalidState(
            f"extraction {extraction_id} has no page that failed or gave no data;"
            f" `ingest extractions rerun {extraction_id}` reads all its pages again"
        )
    return _reopen(connection, row, source, "extraction.retry", actor=actor, now=now)


def retry_page(connection: Connection, extraction_id: int, page_id: int, *, actor: str, now: datetime) -> Requeued:
    """Retry one failed page like `retry`; the others stay as they are."""
    row = lock_extraction(connection, extraction_id)
    source = enabled_source(connection, row)
    refuse_running(connection, row.source_id, other_than=row.id)
    is_it = and_(pages.c.id == page_id, pages.c.status == PageStatus.ERROR.value)
    if not _reset(connection, row, is_it):
        raise InvalidState(f"page {page_id} of extraction {extraction_id} has not failed; discard it")
    return _reopen(connection, row, source, "extraction.retry_page", actor=actor, now=now)


def _blocking_pages(row: Row[Any]) -> ColumnElement[bool]:
    """Match pages that would end it again at once: a failed root, of an API any failed page.

    Also pages that nothing has looked for, since the list that leads to them failed.
    """
    if row.kind == ExtractionKind.API.value:
        return pages.c.status == PageStatus.ERROR.value
    is_unlisted = failure_code(pages) == UNLISTED["code"]
    other = pages.alias("other")
    alone = ~exists(select(other.c.id).where(other.c.extraction_id == row.id, other.c.status != PageStatus.ERROR.value))
    return and_(pages.c.status == PageStatus.ERROR.value, or_(alone, is_unlisted))


def _failed_pages(row: Row[Any]) -> ColumnElement[bool]:
    statuses = [PageStatus.ERROR.value, PageStatus.EXTRACTED_NO_DATA.value]
    if row.kind != ExtractionKind.RERUN.value:
        return pages.c.status.in_(statuses)
    # A rerun sends no requests: only pages that it was to extract are retried.
    return and_(pages.c.status.in_(statuses), _was_read())


def _was_read() -> ColumnElement[bool]:
    """Match pages whose stored content was extracted, in vain or not, or carried over."""
    tried = or_(
        pages.c.status == PageStatus.EXTRACTED_NO_DATA.value,
        pages.c.read_started_at.is_not(None),
        pages.c.reader_hash.is_not(None),
    )
    return and_(pages.c.snapshot_id.is_not(None), tried)


def _lost_items(row: Row[Any]) -> ColumnElement[bool]:
    """Match pages whose items were deleted with an old dataset: they are extracted again."""
    own = and_(data_items.c.dataset_id == _own_dataset(row.id), data_items.c.page_id == pages.c.id)
    base = and_(data_items.c.dataset_id == row.base_dataset_id, data_items.c.page_id == pages.c.carried_from)
    return and_(pages.c.item_count > 0, ~exists().where(own), ~exists().where(base))


_RESULTS = ("failure", "item_count", "extraction_method", "reader_hash", "carried_from", "read_started_at", "read_at")


def _reset(connection: Connection, row: Row[Any], chosen: ColumnElement[bool]) -> int:
    """Let the chosen pages wait: to be extracted if that failed, else to be fetched.

    Pages that are no longer stored, or state no record any more, are fetched again; of a rerun none is.
    """
    is_gone = failure_code(pages).in_([CONTENT_MISSING, *MISSING_CODES])
    is_rerun = row.kind == ExtractionKind.RERUN.value
    may_be_read = _was_read() if is_rerun else and_(_was_read(), ~is_gone)
    cleared = dict.fromkeys(_RESULTS, null())
    of_it = and_(pages.c.extraction_id == row.id, chosen)
    reset = 0
    for is_chosen, status in (
        (may_be_read, PageStatus.DOWNLOADED),
        (false() if is_rerun else ~may_be_read, PageStatus.WAITING),
    ):
        statement = update(pages).where(of_it, is_chosen).values(status=status.value, **cleared)
        reset += connection.execute(statement).rowcount
    return reset


def _reopen(
    connection: Connection, row: Row[Any], source: Source, action: str, *, actor: str, now: datetime
) -> Requeued:
    """Reopen the extraction; its next finish notifies again."""
    refuse_running(connection, row.source_id, other_than=row.id)
    _reset(connection, row, _lost_items(row))
    base = _rebase_on_published(connection, row)
    connection.execute(
        update(extractions)
        .where(extractions.c.id == row.id)
        .values(
            status=ExtractionStatus.IN_PROGRESS.value,
            failure=null(),
            finished_at=null(),
            notified_at=null(),
            changed_at=now,
            updated_at=now,
            # A confirmed dataset belongs to another extraction: nothing is added to it.
            dataset_id=_own_dataset(row.id),
            # Unless retention has deleted it.
            base_dataset_id=select(datasets.c.id).where(datasets.c.id == base).scalar_subquery(),
        )
    )
    _drop_kept_items(connection, row.id)
    connection.execute(
        update(datasets)
        .where(datasets.c.extraction_id == row.id, datasets.c.status != DatasetStatus.PUBLISHED.value)
        .values(status=DatasetStatus.BUILDING.value, findings=null())
    )
    done = requeue(connection, row.id, row.tracking_id, source, now=now)
    detail = {"source": row.source_id, "was": row.status, "fetch": done.fetched, "read": done.read}
    subject = f"extraction:{row.id}"
    audit(connection, actor=actor, action=action, subject=subject, now=now, detail=detail)
    return done


def _drop_kept_items(connection: Connection, extraction_id: int) -> None:
    """Delete earlier items of the open pages, since these are fetched or extracted again."""
    is_open = and_(pages.c.extraction_id == extraction_id, pages.c.status.in_(UNFINISHED_PAGES))
    unpublished = select(datasets.c.id).where(
        datasets.c.extraction_id == extraction_id, datasets.c.status != DatasetStatus.PUBLISHED.value
    )
    connection.execute(
        delete(data_items).where(
            data_items.c.dataset_id.in_(unpublished), data_items.c.page_id.in_(select(pages.c.id).where(is_open))
        )
    )
    connection.execute(update(pages).where(is_open).values(carried_from=null(), item_count=null()))


def _rebase_on_published(connection: Connection, row: Row[Any]) -> int | None:
    """Return the dataset from which pages that are not extracted again take their items.

    If its own was published, that one: its pages point at themselves, and the next version takes
    their items from there.
    """
    newest = select(datasets.c.id, datasets.c.status).where(datasets.c.extraction_id == row.id)
    own = connection.execute(newest.order_by(datasets.c.version.desc()).limit(1)).one_or_none()
    if own is None or own.status != DatasetStatus.PUBLISHED.value:
        return row.base_dataset_id
    has_items = exists().where(data_items.c.dataset_id == own.id, data_items.c.page_id == pages.c.id)
    is_done = pages.c.status.in_([PageStatus.SUCCESS.value, PageStatus.ERROR.value])
    connection.execute(
        update(pages).where(pages.c.extraction_id == row.id, is_done, has_items).values(carried_from=pages.c.id)
    )
    return own.id


def _own_dataset(extraction_id: int) -> ScalarSelect[int]:
    query = select(datasets.c.id).where(datasets.c.extraction_id == extraction_id)
    return query.order_by(datasets.c.version.desc()).limit(1).scalar_subquery()


def refuse_running(connection: Connection, source_id: str, *, other_than: int | None = None) -> None:
    """Raise if the source has another running extraction: it has one at a time."""
    query = select(extractions.c.id).where(CRAWLING, extractions.c.source_id == source_id)
    for id_ in connection.execute(query).scalars():
        if id_ != other_than:
            raise InvalidState(
                f"extraction {id_} of {source_id} is still running, and a source has one at a time;"
                f" wait for it, or `ingest extractions cancel {id_}`"
            )


def publish(connection: Connection, extraction_id: int, *, actor: str, now: datetime) -> int:
    """Publish the extraction's quarantined or incomplete dataset anyway; return its version.

    For pages that an incomplete one did not reach, it shows what was known before.
    """
    row = lock_extraction(connection, extraction_id)
    query = select(datasets).where(datasets.c.id == row.dataset_id)
    dataset = connection.execute(query.with_for_update()).one_or_none()
    if dataset is None or dataset.status not in {DatasetStatus.QUARANTINED, DatasetStatus.INCOMPLETE}:
        state = "has no dataset" if dataset is None else f"has a dataset that is {dataset.status}"
        raise InvalidState(
            f"extraction {extraction_id} {state}; only a quarantined or incomplete one can be"
            " published, and `ingest extractions list` shows which are"
        )
    _refuse_hidden(connection, extraction_id, dataset)
    values: dict[str, object] = {"status": DatasetStatus.PUBLISHED.value, "published_at": now}
    items = dataset.item_count
    if dataset.status == DatasetStatus.INCOMPLETE.value:
        counts = fill_incomplete(connection, dataset.id, row, now=now)
        items = counts.items
        values |= {"item_count": counts.items, "flagged_count": counts.flagged}
    connection.execute(update(datasets).where(datasets.c.id == dataset.id).values(**values))
    record_published(connection, dataset.id, now=now, is_decided=True)
    connection.execute(update(sources).where(sources.c.id == row.source_id).values(record_count=items, updated_at=now))
    detail = {"source": row.source_id, "version": dataset.version, "findings": dataset.findings}
    subject = f"extraction:{extraction_id}"
    audit(connection, actor=actor, action="dataset.publish", subject=subject, now=now, detail=detail)
    return dataset.version


def _refuse_hidden(connection: Connection, extraction_id: int, dataset: Row[Any]) -> None:
    """Raise if a newer version is published: publishing this one would change nothing."""
    newest = connection.execute(
        select(func.max(datasets.c.version)).where(
            datasets.c.source_id == dataset.source_id, datasets.c.status == DatasetStatus.PUBLISHED.value
        )
    ).scalar_one()
    if newest is not None and newest > dataset.version:
        raise InvalidState(
            f"version {newest} is published, and version {dataset.version} of extraction"
            f" {extraction_id} is older; `ingest extractions rerun {extraction_id} --publish` makes"
            " a newer one"
        )


def requeue_dead_letter(connection: Connection, dead_letter: RowMapping, now: datetime) -> str:
    """Queue the page and its task again; an ended extraction is reopened for this page alone."""
    payload = dead_letter["payload"]
    query = select(extractions.c.status).where(extractions.c.id == payload["extraction"])
    # Locked, so that it does not end meanwhile.
    is_over = connection.execute(query.with_for_update()).scalar() not in CRAWLING_STATES
    if is_over or dead_letter["error_code"] in MISSING_CODES:  # extracting it again would not help
        return _reopened(connection, dead_letter, now)
    outcome = requeue_task(connection, dead_letter, now)
    if outcome == "queued":
        status = PageStatus.WAITING if dead_letter["task_kind"] == FETCH_PAGE else PageStatus.DOWNLOADED
        failed = update(pages).where(pages.c.id == payload["page"], pages.c.status == PageStatus.ERROR.value)
        connection.execute(failed.values(status=status.value, failure=null()))
        reset = update(tasks).where(tasks.c.id == dead_letter["task_id"])
        connection.execute(reset.values(state=null()))  # the patience for retries starts again, too
    return outcome


def _reopened(connection: Connection, dead_letter: RowMapping, now: datetime) -> str:
    """Reopen the source's newest extraction for the page; older ones are not changed."""
    extraction_id, page_id = dead_letter["payload"]["extraction"], dead_letter["payload"]["page"]
    source_id = select(extractions.c.source_id).where(extractions.c.id == extraction_id).scalar_subquery()
    later = select(func.max(extractions.c.id)).where(
        extractions.c.source_id == source_id, extractions.c.id > extraction_id
    )
    if newer := connection.execute(later).scalar():
        return f"extraction {newer} is newer and covers the page; discard the dead letter"
    actor = f"dead letter {dead_letter['id']}"
    try:
        retry_page(connection, extraction_id, page_id, actor=actor, now=now)
    except (UnknownExtraction, InvalidState) as error:
        return str(error)
    return "queued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """How many pages wait again to be fetched, and how many to be extracted."""

    fetched: int
    read: int


def requeue(connection: Connection, extraction_id: int, tracking_id: str, source: Source, *, now: datetime) -> Requeued:
    """Ensure that every open page of the extraction has a live task; orphans wait again."""
    queue = _Queue(connection, extraction_id, tracking_id, source, now)
    queue.free_orphans()
    return Requeued(
        fetched=queue.fill(FETCH_PAGE, PageStatus.WAITING), read=queue.fill(EXTRACT_PAGE, PageStatus.DOWNLOADED)
    )


@dataclass(frozen=True, slots=True)
class _Queue:
    """The tasks of an extraction's open pages."""

    connection: Connection
    extraction_id: int
    tracking_id: str
    source: Source
    now: datetime

    def free_orphans(self) -> None:
        """Set pages in progress that no task works on back to waiting."""
        in_progress = (pages.c.extraction_id == self.extraction_id, pages.c.status == PageStatus.IN_PROGRESS.value)
        orphans = update(pages).where(*in_progress, ~self._has_live(FETCH_PAGE))
        self.connection.execute(orphans.values(status=PageStatus.WAITING.value))

    def fill(self, kind: str, status: PageStatus) -> int:
        """Ensure a live task of this kind for pages of this state; return how many were added."""
        return self._reactivate(kind, status) + self._insert(kind, status)

    def _reactivate(self, kind: str, status: PageStatus) -> int:
        """Reactivate each page's last cancelled task, which has its depth and parent."""
        last = (
            select(func.max(tasks.c.id).label("id"))
            # By the page's id, not by the dedupe key, which no index of ended tasks has: with
            # 100,000 pages each would be compared with each task.
            .join(pages, pages.c.id == tasks.c.payload["page"].as_integer())
            .where(
                pages.c.extraction_id == self.extraction_id,
                pages.c.status == status.value,
                tasks.c.source_id == self.source.id,
                tasks.c.kind == kind,
                tasks.c.tracking_id == self.tracking_id,
                tasks.c.status == TaskStatus.CANCELLED.value,
                ~self._has_live(kind),
            )
            .group_by(tasks.c.dedupe_key)
            .subquery("last")
        )
        statement = (
            update(tasks)
            .where(tasks.c.id.in_(select(last.c.id)))
            .values(
                status=TaskStatus.PENDING.value,
                attempts=0,
                not_before=self.now,
                fence=tasks.c.fence + 1,
                state=null(),
                error_class=null(),
                error_code=null(),
                error=null(),
                updated_at=self.now,
            )
        )
        return self.connection.execute(statement).rowcount

    def _insert(self, kind: str, status: PageStatus) -> int:
        build = func.jsonb_build_object if self.connection.dialect.name == "postgresql" else func.json_object
        moment = literal(self.now, UtcDateTime())
        slashes = func.length(crawl_steps.c.key) - func.length(func.replace(crawl_steps.c.key, "/", ""))
        values: dict[str, ColumnElement[Any]] = {
            "kind": literal(kind),
            "dedupe_key": self._dedupe_key(kind),
            "source_id": literal(self.source.id),
            "url": pages.c.url,
            "payload": type_coerce(build("page", pages.c.id, "extraction", literal(self.extraction_id)), Json),
            "status": literal(TaskStatus.PENDING.value),
            "priority": literal(self.source.tier.priority),
            "shard": literal(self.source.shard),
            "not_before": moment,
            "tracking_id": literal(self.tracking_id),
            "ancestry": literal([], Json),
            "spawn_depth": cast(slashes, Integer),  # its step's depth: the real one is unknown
            "created_at": moment,
            "updated_at": moment,
        }
        missing = (
            select(*(value.label(name) for name, value in values.items()))
            .join_from(pages, crawl_steps, crawl_steps.c.id == pages.c.step_id)
            .where(pages.c.extraction_id == self.extraction_id, pages.c.status == status.value, ~self._has_live(kind))
            .order_by(pages.c.id)
        )
        statement = insert_into(self.connection, tasks).from_select(list(values), missing)
        once = statement.on_conflict_do_nothing(index_elements=["kind", "dedupe_key"], index_where=ACTIVE)
        return self.connection.execute(once).rowcount

    def _dedupe_key(self, kind: str) -> ColumnElement[str]:
        own = pages.c.key if kind == FETCH_PAGE else cast(pages.c.id, Text)
        return literal(f"{self.extraction_id}:", Text) + own

    def _has_live(self, kind: str) -> ColumnElement[bool]:
        live = tasks.alias("live")
        return exists(
            select(live.c.id).where(
                live.c.ended_at.is_(None), live.c.kind == kind, live.c.dedupe_key == self._dedupe_key(kind)
            )
        ).correlate(pages)
