"""What an operator may do to an extraction, by command or by job: each audited with who did it.

Every function refuses with a sentence that names the extraction and the cure, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from random import Random
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, exists, false, func, null, or_, select, update

from ingestion_pipeline.catalogs.datasets.carry_over import UNLISTED
from ingestion_pipeline.catalogs.datasets.finishing import (
    EXTRACTION_TASKS,
    Ended,
    FinishReason,
    finish_extractions,
)
from ingestion_pipeline.catalogs.datasets.publishing import Built, fill_incomplete
from ingestion_pipeline.catalogs.extraction.tasks import CONTENT_MISSING
from ingestion_pipeline.catalogs.operations.requeue import Requeued, requeue
from ingestion_pipeline.catalogs.states import (
    CRAWLING_STATES,
    MISSING_CODES,
    UNFINISHED_PAGES,
    DatasetStatus,
    ExtractionKind,
    ExtractionStatus,
    PageStatus,
)
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source, SourceStatus
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.tables import (
    CRAWLING,
    FRONTIER,
    data_items,
    datasets,
    extractions,
    pages,
    tasks,
)
from ingestion_pipeline.tasks.errors import ErrorClass
from ingestion_pipeline.tasks.task import TaskStatus

ENDED_STATES = (ExtractionStatus.STALE, ExtractionStatus.CANCELLED)


class UnknownExtraction(LookupError):
    """No extraction has this id."""

    def __init__(self, extraction_id: int) -> None:
        super().__init__(
            f"there is no extraction {extraction_id}; `ingest extractions list` shows all"
        )


class Unfit(ValueError):
    """The extraction is not in a state for that."""


def find(connection: Connection, extraction_id: int) -> Row[Any]:
    """The extraction's row, locked: nobody ends or opens it meanwhile."""
    query = select(extractions).where(extractions.c.id == extraction_id)
    row = connection.execute(query.with_for_update()).one_or_none()
    if row is None:
        raise UnknownExtraction(extraction_id)
    return row


def source_of(connection: Connection, row: Row[Any]) -> Source:
    """The extraction's source."""
    found = sources_by_id(connection, [row.source_id]).get(row.source_id)
    if found is None:
        raise UnknownSource(row.source_id)
    return found


def refuse_disabled(source: Source) -> None:
    """Raise if nobody works for the source: what was begun for it would wait for ever."""
    if source.status is SourceStatus.DISABLED:
        raise Unfit(
            f"{source.id} is disabled, and nothing is fetched or read for it;"
            f" `ingest sources enable {source.id}` first"
        )


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
    """It has ended, its waiting work is cancelled, and whoever works on it loses the claim.

    That stops them at their next check, and nothing that they bring is written.
    """
    row = find(connection, extraction_id)
    if row.status not in CRAWLING_STATES:
        raise Unfit(
            f"extraction {extraction_id} is {row.status} already;"
            f" `ingest extractions resume {extraction_id}` would go on with it"
        )
    _take_away(connection, row, now=now)
    said = f"cancelled by {actor}" + (f": {reason}" if reason else "")
    failure = {"class": ErrorClass.RESOURCE.value, "code": "cancelled", "message": said}
    ending = FinishReason(status=ExtractionStatus.CANCELLED, failure=failure, actor=actor)
    [ended] = finish_extractions(
        connection, {extraction_id: ending}, now=now, settings=settings, random=random
    )
    return ended


def _take_away(connection: Connection, row: Row[Any], *, now: datetime) -> None:
    active = (
        select(tasks.c.id)
        .where(
            FRONTIER,
            tasks.c.kind.in_(EXTRACTION_TASKS),
            tasks.c.source_id == row.source_id,
            tasks.c.tracking_id == row.tracking_id,
        )
        .order_by(tasks.c.id)
        .with_for_update()
        .cte("active")
    )
    connection.execute(
        update(tasks)
        .where(tasks.c.id.in_(select(active.c.id)))
        .values(
            status=TaskStatus.CANCELLED.value,
            fence=tasks.c.fence + 1,
            lease_owner=None,
            lease_until=None,
            updated_at=now,
        )
    )


def resume(connection: Connection, extraction_id: int, *, actor: str, now: datetime) -> Requeued:
    """A stale or cancelled extraction goes on: pages without a live task have one again."""
    row = find(connection, extraction_id)
    source = source_of(connection, row)
    refuse_disabled(source)
    if row.status in CRAWLING_STATES:
        return requeue(
            connection, row.id, row.tracking_id, source, now=now
        )  # what was orphaned is found again, and the rest left as it is
    if row.status not in ENDED_STATES:
        raise Unfit(
            f"extraction {extraction_id} is {row.status}, and there is nothing to go on with;"
            f" `ingest extractions retry {extraction_id}` tries its failed pages again"
        )
    _reset(connection, row, _hindrances(row))
    return _reopen(connection, row, "extraction.resume", actor=actor, now=now)


def retry(connection: Connection, extraction_id: int, *, actor: str, now: datetime) -> Requeued:
    """Failed pages are visited or read again, and pages without data are read again.

    An extraction that has ended is opened for it, and ends again; one that goes on stays as it is.
    What it has published stays as it is, and shown: the retry builds a version after it.
    """
    row = find(connection, extraction_id)
    refuse_disabled(source_of(connection, row))
    if not _reset(connection, row, _failed_pages(row)):
        raise Unfit(
            f"extraction {extraction_id} has no page that failed or gave no data;"
            f" `ingest extractions rerun {extraction_id}` reads all its pages again"
        )
    return _reopen(connection, row, "extraction.retry", actor=actor, now=now)


def retry_page(
    connection: Connection, extraction_id: int, page_id: int, *, actor: str, now: datetime
) -> Requeued:
    """As `retry`, for one page that failed; the others stay as they are."""
    row = find(connection, extraction_id)
    refuse_disabled(source_of(connection, row))
    refuse_running(connection, row.source_id, other_than=row.id)
    is_it = and_(pages.c.id == page_id, pages.c.status == PageStatus.ERROR.value)
    if not _reset(connection, row, is_it):
        raise Unfit(f"page {page_id} of extraction {extraction_id} has not failed; discard it")
    return _reopen(connection, row, "extraction.retry_page", actor=actor, now=now)


def _hindrances(row: Row[Any]) -> Any:  # noqa: ANN401 - a SQL condition
    """What would end it again at once is tried again: a failed root, of an API any failed page.

    And what nobody has looked for, since the list that leads to it was not got.
    """
    if row.kind == ExtractionKind.API.value:
        return pages.c.status == PageStatus.ERROR.value
    is_unlisted = func.coalesce(pages.c.failure["code"].as_string(), "") == UNLISTED["code"]
    other = pages.alias("other")
    alone = ~exists(
        select(other.c.id).where(
            other.c.extraction_id == row.id, other.c.status != PageStatus.ERROR.value
        )
    )
    return and_(pages.c.status == PageStatus.ERROR.value, or_(alone, is_unlisted))


def _failed_pages(row: Row[Any]) -> Any:  # noqa: ANN401 - a SQL condition
    statuses = [PageStatus.ERROR.value, PageStatus.EXTRACTED_NO_DATA.value]
    if row.kind != ExtractionKind.RERUN.value:
        return pages.c.status.in_(statuses)
    # A rerun asks nobody: what it had not to read is not its business.
    return and_(pages.c.status.in_(statuses), _was_read())


def _was_read() -> Any:  # noqa: ANN401 - a SQL condition
    """Whether somebody has tried to read what is stored of the page, or carried it over."""
    tried = or_(
        pages.c.status == PageStatus.EXTRACTED_NO_DATA.value,
        pages.c.reading_at.is_not(None),
        pages.c.read_as.is_not(None),
    )
    return and_(pages.c.snapshot_id.is_not(None), tried)


def _lost_items(row: Row[Any]) -> Any:  # noqa: ANN401 - a SQL condition
    """Pages whose items are no longer kept, since their dataset was an old one: read again."""
    own = and_(data_items.c.dataset_id == _own_dataset(row.id), data_items.c.page_id == pages.c.id)
    base = and_(
        data_items.c.dataset_id == row.base_dataset_id,
        data_items.c.page_id == pages.c.carried_from,
    )
    return and_(pages.c.item_count > 0, ~exists().where(own), ~exists().where(base))


def _reset(connection: Connection, row: Row[Any], chosen: Any) -> int:  # noqa: ANN401
    """The chosen pages wait: to be read if that was what failed, else to be visited.

    What is no longer stored, or states no record any more, is visited again; of a rerun nothing is.
    """
    code = func.coalesce(pages.c.failure["code"].as_string(), "")
    is_gone = code.in_([CONTENT_MISSING, *MISSING_CODES])
    is_rerun = row.kind == ExtractionKind.RERUN.value
    may_be_read = _was_read() if is_rerun else and_(_was_read(), ~is_gone)
    cleared = {
        "failure": null(),
        "item_count": null(),
        "rung": null(),
        "read_as": null(),
        "carried_from": null(),
        "reading_at": null(),
        "read_at": null(),
    }
    of_it = and_(pages.c.extraction_id == row.id, chosen)
    reset = 0
    for is_chosen, status in (
        (and_(of_it, may_be_read), PageStatus.DOWNLOADED),
        (and_(of_it, false() if is_rerun else ~may_be_read), PageStatus.WAITING),
    ):
        statement = update(pages).where(is_chosen).values(status=status.value, **cleared)
        reset += connection.execute(statement).rowcount
    return reset


def _reopen(
    connection: Connection, row: Row[Any], action: str, *, actor: str, now: datetime
) -> Requeued:
    """The extraction goes on; its next end is told again."""
    refuse_running(connection, row.source_id, other_than=row.id)
    source = source_of(connection, row)
    _reset(connection, row, _lost_items(row))
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
            # One that was merely confirmed belongs to another extraction: nothing is added to it.
            dataset_id=_own_dataset(row.id),
            base_dataset_id=_kept_base(_stand_on_published(connection, row)),
        )
    )
    _forget_kept(connection, row.id)
    connection.execute(
        update(datasets)
        .where(
            datasets.c.extraction_id == row.id,
            datasets.c.status != DatasetStatus.PUBLISHED.value,
        )
        .values(status=DatasetStatus.BUILDING.value, findings=null())
    )
    done = requeue(connection, row.id, row.tracking_id, source, now=now)
    detail = {"source": row.source_id, "was": row.status, "fetch": done.fetched, "read": done.read}
    subject = f"extraction:{row.id}"
    audit(connection, actor=actor, action=action, subject=subject, now=now, detail=detail)
    return done


def _forget_kept(connection: Connection, extraction_id: int) -> None:
    """What the open pages had of the time before is not theirs while somebody looks for new."""
    is_open = and_(pages.c.extraction_id == extraction_id, pages.c.status.in_(UNFINISHED_PAGES))
    unpublished = select(datasets.c.id).where(
        datasets.c.extraction_id == extraction_id,
        datasets.c.status != DatasetStatus.PUBLISHED.value,
    )
    connection.execute(
        delete(data_items).where(
            data_items.c.dataset_id.in_(unpublished),
            data_items.c.page_id.in_(select(pages.c.id).where(is_open)),
        )
    )
    connection.execute(update(pages).where(is_open).values(carried_from=null(), item_count=null()))


def _stand_on_published(connection: Connection, row: Row[Any]) -> int | None:
    """The dataset that pages which are not read again have their items from.

    If its own was published, that one: its pages point at themselves, and the next version takes
    their items from there.
    """
    newest = select(datasets.c.id, datasets.c.status).where(datasets.c.extraction_id == row.id)
    own = connection.execute(newest.order_by(datasets.c.version.desc()).limit(1)).one_or_none()
    if own is None or own.status != DatasetStatus.PUBLISHED.value:
        return row.base_dataset_id
    has_items = exists().where(
        data_items.c.dataset_id == own.id, data_items.c.page_id == pages.c.id
    )
    is_done = pages.c.status.in_([PageStatus.SUCCESS.value, PageStatus.ERROR.value])
    connection.execute(
        update(pages)
        .where(pages.c.extraction_id == row.id, is_done, has_items)
        .values(carried_from=pages.c.id)
    )
    return own.id


def _own_dataset(extraction_id: int) -> Any:  # noqa: ANN401 - a SQL expression
    query = select(datasets.c.id).where(datasets.c.extraction_id == extraction_id)
    return query.order_by(datasets.c.version.desc()).limit(1).scalar_subquery()


def _kept_base(dataset_id: int | None) -> Any:  # noqa: ANN401 - a SQL expression
    """The dataset, unless it was too old to be kept."""
    return select(datasets.c.id).where(datasets.c.id == dataset_id).scalar_subquery()


def refuse_running(
    connection: Connection, source_id: str, *, other_than: int | None = None
) -> None:
    """Raise if the source has another extraction under way: it has one at a time."""
    query = select(extractions.c.id).where(CRAWLING, extractions.c.source_id == source_id)
    ids: Sequence[int] = connection.execute(query).scalars().all()
    for id_ in ids:
        if id_ != other_than:
            raise Unfit(
                f"extraction {id_} of {source_id} goes on, and a source has one at a time;"
                f" wait for it, or `ingest extractions cancel {id_}`"
            )


_HELD = (DatasetStatus.QUARANTINED.value, DatasetStatus.INCOMPLETE.value)


def publish(connection: Connection, extraction_id: int, *, actor: str, now: datetime) -> int:
    """The extraction's quarantined or incomplete dataset is shown all the same; its version.

    Of pages that an incomplete one did not get to, it shows what was known before.
    """
    row = find(connection, extraction_id)
    query = select(datasets).where(datasets.c.id == row.dataset_id)
    found = connection.execute(query.with_for_update()).one_or_none()
    if found is None or found.status not in _HELD:
        state = "has no dataset" if found is None else f"has a dataset that is {found.status}"
        raise Unfit(
            f"extraction {extraction_id} {state}; only a quarantined or incomplete one can be"
            " published, and `ingest extractions list` shows which are"
        )
    _refuse_hidden(connection, extraction_id, found)
    values: dict[str, object] = {"status": DatasetStatus.PUBLISHED.value, "published_at": now}
    if found.status == DatasetStatus.INCOMPLETE.value:
        counts = fill_incomplete(connection, found.id, _built(row), now=now)
        values |= {"item_count": counts.items, "flagged_count": counts.flagged}
    connection.execute(update(datasets).where(datasets.c.id == found.id).values(**values))
    detail = {"source": row.source_id, "version": found.version, "findings": found.findings}
    subject = f"extraction:{extraction_id}"
    audit(
        connection,
        actor=actor,
        action="dataset.publish",
        subject=subject,
        now=now,
        detail=detail,
    )
    return found.version


def _built(row: Row[Any]) -> Built:
    return Built(
        extraction_id=row.id,
        source_id=row.source_id,
        entity_type=row.entity_type,
        base_id=row.base_dataset_id,
    )


def _refuse_hidden(connection: Connection, extraction_id: int, found: Row[Any]) -> None:
    """Raise if a newer version is shown: to publish this one would change nothing."""
    newest = connection.execute(
        select(func.max(datasets.c.version)).where(
            datasets.c.source_id == found.source_id,
            datasets.c.status == DatasetStatus.PUBLISHED.value,
        )
    ).scalar_one()
    if newest is not None and newest > found.version:
        raise Unfit(
            f"version {newest} is shown, and version {found.version} of extraction {extraction_id}"
            f" is older; `ingest extractions rerun {extraction_id} --publish` makes a newer one"
        )
