"""What people are told when an extraction ends: one notice for each end, and none twice."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from random import Random
from typing import Any

from sqlalchemy import Connection, Row, and_, exists, func, null, or_, select, update

from ingestion_pipeline.catalogs.datasets.carry_over import NOT_GOT
from ingestion_pipeline.catalogs.datasets.progress import progress, write_summaries
from ingestion_pipeline.catalogs.datasets.publishing import (
    Built,
    DatasetEnd,
    end_dataset,
    is_built,
    leave_incomplete,
)
from ingestion_pipeline.catalogs.recipes.next_pages import StepKind
from ingestion_pipeline.catalogs.states import (
    CRAWLING_STATES,
    EXTRACT_PAGE,
    UNFINISHED_PAGES,
    DatasetStatus,
    ExtractionKind,
    ExtractionStatus,
    PageStatus,
)
from ingestion_pipeline.engine.crawling.protocol import FETCH_PAGE
from ingestion_pipeline.notices.message import EXTRACTION, write_notice
from ingestion_pipeline.reading.llm.ledger import costs
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import crawls
from ingestion_pipeline.sources.poll_tasks import lock_polls
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.locking import lock_rows
from ingestion_pipeline.store.tables import (
    CRAWLING,
    FRONTIER,
    audit_log,
    crawl_steps,
    extractions,
    pages,
    sources,
    tasks,
)
from ingestion_pipeline.tasks.errors import WALL_CODES, ErrorClass
from ingestion_pipeline.tasks.task import TaskStatus

REOPENED = ("extraction.resume", "extraction.retry")  # what an operator does to one that has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFacts:
    """What the notice says."""

    extraction_id: int
    source_id: str
    status: ExtractionStatus
    page_count: int
    failed_pages: int
    reason: str | None
    dataset: DatasetEnd | None
    left_pages: int = 0
    missing: Sequence[str] = ()


def tell_end(connection: Connection, facts: EndFacts, *, now: datetime) -> bool:
    """Whoever wants to hear of extractions is told of this end; False if they were already."""
    statement = (
        update(extractions)
        .where(extractions.c.id == facts.extraction_id, extractions.c.notified_at.is_(None))
        .values(notified_at=now)
    )
    if not connection.execute(statement).rowcount:
        return False
    cost = sum(
        (line.cost_usd for line in costs(connection, extraction_id=facts.extraction_id)), Decimal(0)
    )
    subject_id = _subject_id(connection, facts.extraction_id)
    return write_notice(connection, EXTRACTION, subject_id, payload_of(facts, cost), now=now)


def _subject_id(connection: Connection, extraction_id: int) -> str:
    """The extraction's id; its second end, after somebody opened it again, is a subject apart."""
    query = select(func.count()).where(
        audit_log.c.subject == f"extraction:{extraction_id}", audit_log.c.action.in_(REOPENED)
    )
    times: int = connection.execute(query).scalar_one()
    return f"{extraction_id}:{times + 1}" if times else str(extraction_id)


def payload_of(facts: EndFacts, cost_usd: Decimal) -> dict[str, Any]:
    """The notice's words for people and facts for programs."""
    word = facts.status.value.lower()
    dataset = facts.dataset
    left = f", {facts.left_pages} left" if facts.left_pages else ""
    lines = [f"{facts.page_count} pages, {facts.failed_pages} failed{left}"]
    if dataset is not None:
        lines.append(_dataset_line(dataset))
        lines += [f"- {one['message']}" for one in dataset.findings]
        lines += _kept_line(facts.extraction_id, dataset)
    lines += _missing_lines(facts)
    if facts.reason is not None:
        lines.append(f"why: {facts.reason}")
    if cost_usd:
        lines.append(f"language models: {cost_usd:.4f} dollars")
    if facts.status is not ExtractionStatus.COMPLETE:
        lines.append(f"`ingest extractions resume {facts.extraction_id}` goes on with it")
    elif dataset is not None and dataset.status is DatasetStatus.QUARANTINED:
        lines.append(f"`ingest extractions publish {facts.extraction_id}` accepts it all the same")
    return {
        "source_id": facts.source_id,
        "title": f"{facts.source_id}: extraction {facts.extraction_id} is {word}",
        "text": "\n".join(lines),
        "extraction_id": facts.extraction_id,
        "status": facts.status.value,
        "pages": facts.page_count,
        "failed_pages": facts.failed_pages,
        "missing": list(facts.missing),
        "reason": facts.reason,
        "cost_usd": f"{cost_usd:f}",
        "dataset": None if dataset is None else _dataset_facts(dataset),
    }


def _dataset_line(dataset: DatasetEnd) -> str:
    if dataset.is_confirmed:
        return f"version {dataset.version} of the dataset still holds: {dataset.items} items"
    return f"version {dataset.version} of the dataset, {dataset.status}: {dataset.items} items"


def _kept_line(extraction_id: int, dataset: DatasetEnd) -> list[str]:
    if not dataset.kept:
        return []
    cure = f"`ingest extractions retry {extraction_id}` visits them again"
    return [f"{dataset.kept} items are those of the time before: their pages failed; {cure}"]


def _missing_lines(facts: EndFacts) -> list[str]:
    """Return the pages that were not got, each with the reason; of many, the first."""
    more = facts.failed_pages + facts.left_pages - len(facts.missing)
    lines = [f"missing: {page}" for page in facts.missing]
    if more > 0 and lines:
        cure = f"`ingest extractions pages {facts.extraction_id}` shows all"
        lines.append(f"and {more} more; {cure}")
    return lines


def _dataset_facts(dataset: DatasetEnd) -> dict[str, Any]:
    return {
        "id": dataset.id,
        "version": dataset.version,
        "status": dataset.status.value,
        "items": dataset.items,
        "flagged": dataset.flagged,
        "findings": [dict(one) for one in dataset.findings],
        "is_confirmed": dataset.is_confirmed,
        "kept": dataset.kept,
    }


SYSTEM = "system"
STALE_CODE = "stale"  # of the failure of an extraction whose last pages nobody gets
NAMED_PAGES = 10  # in a notice
EXTRACTION_TASKS = (FETCH_PAGE, EXTRACT_PAGE)
ROOTS = (StepKind.FETCH_ROOT.value, StepKind.FETCH_VIA_API.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishReason:
    """How an extraction is to end; without a `failure` it is complete, or a person's wish."""

    status: ExtractionStatus
    failure: Mapping[str, Any] | None = None
    actor: str = SYSTEM


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An extraction that has just ended: complete, or not, and then why; and what it built."""

    id: int
    source_id: str
    kind: ExtractionKind
    status: ExtractionStatus
    failure: Mapping[str, Any] | None
    page_count: int
    dataset: DatasetEnd | None

    @property
    def is_complete(self) -> bool:
        """Whether it got through."""
        return self.status is ExtractionStatus.COMPLETE

    @property
    def is_shown(self) -> bool:
        """Whether what it built, or found unchanged, is published."""
        return self.dataset is not None and self.dataset.status is DatasetStatus.PUBLISHED


COMPLETE = FinishReason(status=ExtractionStatus.COMPLETE)


def budget_finish(message: str) -> FinishReason:
    """No money is left for it: whoever is told so by a model's budget ends the extraction thus."""
    failure = {"class": ErrorClass.RESOURCE.value, "code": "over_budget", "message": message}
    return FinishReason(status=ExtractionStatus.CANCELLED, failure=failure)


def finish_extractions(
    connection: Connection,
    endings: Mapping[int, FinishReason],
    *,
    now: datetime,
    settings: Settings,
    random: Random,
) -> list[Ended]:
    """Those of these that still go on have ended; what another has ended is left as it is."""
    rows = {id_: _end(connection, id_, endings[id_], now=now) for id_ in sorted(endings)}
    found = [(row, endings[id_]) for id_, row in rows.items() if row is not None]
    left = [row for row, ending in found if ending.status is not ExtractionStatus.COMPLETE]
    cancel_waiting(connection, {row.tracking_id: row.source_id for row in left}, now=now)
    over: list[tuple[Ended, FinishReason]] = []
    for row, ending in found:
        dataset = _dataset(connection, row, ending, settings=settings, now=now)
        over.append((_ended(row, ending, dataset), ending))
    far = progress(connection, [ended.id for ended, _ in over]) if over else {}
    for ended, _ in over:
        far[ended.id].missing += far[ended.id].unfinished if ended.is_shown else 0
    write_summaries(connection, {id_: one.as_stored() for id_, one in far.items()}, now=now)
    # All of them before the first source is written: as whoever registers sources does it.
    source_ids = [ended.source_id for ended, _ in over]
    lock_polls(connection, source_ids)
    lock_rows(connection, sources.c.id, source_ids)
    for ended, ending in over:
        if ended.kind is not ExtractionKind.RERUN:  # which says nothing about the source
            _tell_source(connection, ended, now=now, settings=settings, random=random)
        _note(connection, ended, ending, now=now)
        tell_end(connection, _facts(connection, ended), now=now)
    return [ended for ended, _ in over]


def _end(
    connection: Connection, extraction_id: int, ending: FinishReason, *, now: datetime
) -> Row[Any] | None:
    """The extraction's row, if it was still going on: of two who end it, one gets it."""
    statement = (
        update(extractions)
        .where(extractions.c.id == extraction_id, CRAWLING)
        .values(
            status=ending.status.value,
            failure=dict(ending.failure) if ending.failure else null(),
            finished_at=now,
            updated_at=now,
        )
        .returning(*extractions.c)
    )
    return connection.execute(statement).one_or_none()


def cancel_waiting(connection: Connection, ended: Mapping[str, str], *, now: datetime) -> None:
    """The waiting tasks of these are cancelled; what is being worked on ends by itself.

    Each extraction is given by its tracking id, with its source.
    """
    if not ended:
        return
    waiting = (
        select(tasks.c.id)
        .where(
            FRONTIER,
            tasks.c.kind.in_(EXTRACTION_TASKS),
            tasks.c.source_id.in_(set(ended.values())),
            tasks.c.tracking_id.in_(list(ended)),
            tasks.c.status == TaskStatus.PENDING.value,
        )
        .order_by(tasks.c.id)  # as every statement locks tasks: no two wait for each other
        .with_for_update()
        .cte("waiting")
    )
    connection.execute(
        update(tasks)
        .where(tasks.c.id.in_(select(waiting.c.id)))
        .values(status=TaskStatus.CANCELLED.value, updated_at=now)
    )


def _dataset(
    connection: Connection,
    row: Row[Any],
    ending: FinishReason,
    *,
    settings: Settings,
    now: datetime,
) -> DatasetEnd | None:
    built = Built(
        extraction_id=row.id,
        source_id=row.source_id,
        entity_type=row.entity_type,
        base_id=row.base_dataset_id,
    )
    # An API's list without one of its pages looks like a shorter list.
    is_stale = ending.failure is not None and ending.failure["code"] == STALE_CODE
    is_partial = is_stale and row.kind != ExtractionKind.API.value
    if ending.status is ExtractionStatus.COMPLETE or (is_partial and is_built(connection, row.id)):
        return end_dataset(connection, built, settings=settings, now=now)
    return leave_incomplete(connection, built)


def _ended(row: Row[Any], ending: FinishReason, dataset: DatasetEnd | None) -> Ended:
    return Ended(
        id=row.id,
        source_id=row.source_id,
        kind=ExtractionKind(row.kind),
        status=ending.status,
        failure=ending.failure,
        page_count=row.page_count + (0 if dataset is None else dataset.unlisted),
        dataset=dataset,
    )


def failed_finishes(
    connection: Connection, extraction_ids: Collection[int]
) -> dict[int, FinishReason]:
    """How those of these end that cannot become complete any more."""
    failures = fail_root_pages(connection, extraction_ids)
    return {id_: failed_finish(kind, failure) for id_, (kind, failure) in failures.items()}


def failed_finish(kind: str, failure: Mapping[str, Any]) -> FinishReason:
    """What was given up is the end of an API's; else somebody may go on later."""
    is_api = kind == ExtractionKind.API.value
    status = ExtractionStatus.CANCELLED if is_api else ExtractionStatus.STALE
    return FinishReason(status=status, failure=failure)


def fail_root_pages(
    connection: Connection, extraction_ids: Collection[int]
) -> dict[int, tuple[str, Mapping[str, Any]]]:
    """Of those that go on: kind and failure of what was given up, and nothing replaces.

    Of an API that is any page: a list without one of its pages looks like a shorter list. Else it
    is a root that nothing came of. A page in ERROR has used up its attempts, or cannot be got at
    all: a retry would still wait.
    """
    if not extraction_ids:
        return {}
    other = pages.alias("other")
    has_others = exists().where(
        other.c.extraction_id == extractions.c.id, other.c.status != PageStatus.ERROR.value
    )
    is_lost_root = and_(
        crawl_steps.c.kind.in_(ROOTS), crawl_steps.c.parent_id.is_(None), ~has_others
    )
    query = (
        select(extractions.c.id, extractions.c.kind, pages.c.failure)
        .join(pages, pages.c.extraction_id == extractions.c.id)
        .join(crawl_steps, crawl_steps.c.id == pages.c.step_id)
        .where(
            extractions.c.id.in_(list(extraction_ids)),
            extractions.c.status.in_(CRAWLING_STATES),
            pages.c.status == PageStatus.ERROR.value,
            or_(extractions.c.kind == ExtractionKind.API.value, is_lost_root),
        )
        .order_by(pages.c.id.desc())  # so that the first of them is told
    )
    unknown = {"class": ErrorClass.PERMANENT.value, "code": "error", "message": "a page failed"}
    return {row.id: (row.kind, row.failure or unknown) for row in connection.execute(query)}


def _tell_source(
    connection: Connection, ended: Ended, *, now: datetime, settings: Settings, random: Random
) -> None:
    """The source's row says what its extraction came to."""
    if (failure := ended.failure) is not None and not ended.is_shown:
        is_wall = failure["code"] in WALL_CODES
        kind = str(failure["code"]).replace("_", " ")
        word = "failed" if failure["class"] != ErrorClass.RESOURCE.value else ended.status.lower()
        walk = crawls.FailedWalk(
            source_id=ended.source_id,
            outcome=f"extraction {ended.id} {word}: {failure['message']}",
            error_class=failure["class"],
            # what robots.txt forbids, a pause that was asked for, or an operator: nobody's fault
            is_strike=failure["class"] != ErrorClass.RESOURCE.value,
            wall=f"behind a {kind}: {failure['message']}" if is_wall else None,
        )
        crawls.fail(connection, walk, now=now, settings=settings, random=random)
        return
    new, failed, left = _counts(connection, ended.id)
    got = ended.page_count - failed - left
    crawls.complete(
        connection,
        ended.source_id,
        outcome=f"extraction {ended.id}: {ended.page_count} pages, {new} new, {failed} failed"
        + (f", {left} left" if left else ""),
        records=got if ended.dataset is None else ended.dataset.items,
        has_news=new > 0,
        now=now,
    )


def _counts(connection: Connection, extraction_id: int) -> tuple[int, int, int]:
    """How many pages said something new, how many failed, and how many were left."""
    query = select(
        func.count().filter(pages.c.outcome == "new"),
        func.count().filter(pages.c.status == PageStatus.ERROR.value),
        func.count().filter(pages.c.status.in_(UNFINISHED_PAGES)),
    ).where(pages.c.extraction_id == extraction_id)
    new, failed, left = connection.execute(query).one()
    return new, failed, left


def _missing_pages(connection: Connection, extraction_id: int) -> list[str]:
    """Return the first pages that were not got or read, each with the reason."""
    reason = func.coalesce(pages.c.failure["message"].as_string(), "it still waits")
    query = (
        select(pages.c.url, reason.label("reason"))
        .where(pages.c.extraction_id == extraction_id, pages.c.status.in_(NOT_GOT))
        .order_by(pages.c.id)
        .limit(NAMED_PAGES)
    )
    return [f"{row.url}: {row.reason}" for row in connection.execute(query)]


def _note(connection: Connection, ended: Ended, ending: FinishReason, *, now: datetime) -> None:
    """The audit log says how it ended, by whom, and what became of its dataset."""
    dataset = ended.dataset
    detail: dict[str, Any] = {"source": ended.source_id}
    if ended.failure is not None:
        detail["reason"] = ended.failure["message"]
    if dataset is not None:
        detail |= {"dataset": dataset.id, "version": dataset.version, "is": dataset.status.value}
        detail |= {"findings": list(dataset.findings)} if dataset.findings else {}
    audit(
        connection,
        actor=ending.actor,
        action=f"extraction.{ended.status.lower()}",
        subject=f"extraction:{ended.id}",
        now=now,
        detail=detail,
    )


def _facts(connection: Connection, ended: Ended) -> EndFacts:
    _, failed, left = _counts(connection, ended.id)
    return EndFacts(
        extraction_id=ended.id,
        source_id=ended.source_id,
        status=ended.status,
        page_count=ended.page_count,
        failed_pages=failed,
        left_pages=left,
        missing=_missing_pages(connection, ended.id),
        reason=None if ended.failure is None else str(ended.failure["message"]),
        dataset=ended.dataset,
    )
