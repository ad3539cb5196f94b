"""What became of visited pages: rows, set by set, in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Integer, String, case, func, select, update

from ingestion_pipeline.catalogs.crawl.frontier import PagePlan
from ingestion_pipeline.catalogs.readings.carrying import ActiveExtraction
from ingestion_pipeline.catalogs.recipes.steps import Followed
from ingestion_pipeline.catalogs.states import (
    CRAWLING_STATES,
    EXTRACT_PAGE,
    NO_LINKS,
    OPEN_PAGES,
    ExtractionKind,
    PageStatus,
)
from ingestion_pipeline.pages.crawled import PageDone, PageFailed, PageOutcomes
from ingestion_pipeline.store.rows import row_source
from ingestion_pipeline.store.tables import extractions, pages, sources
from ingestion_pipeline.store.types import Id, Json, UtcDateTime
from ingestion_pipeline.work.errors import WorkError
from ingestion_pipeline.work.queue import Spawning, continue_all
from ingestion_pipeline.work.task import NewTask


def failure_reason(error: WorkError) -> dict[str, str]:
    """Why a page was not got, for programs and for people."""
    return {"class": error.error_class.value, "code": error.code, "message": error.text}


LEADS_NOWHERE = {"class": "no_data", "code": NO_LINKS, "message": "it leads to no page"}
_VISIT_COLUMNS = {
    "id": Id,
    "status": String(20),
    "snapshot_id": Id,
    "outcome": String(10),
    "failure": Json,
    "size_bytes": Integer(),
    "elapsed_ms": Integer(),
    "visited_at": UtcDateTime(),
}


def write_visits(connection: Connection, outcomes: PageOutcomes, *, now: datetime) -> set[int]:
    """Each page's row says what became of it; the ids of those that are now to be read.

    Only a page that is still to be visited changes: what was read meanwhile stays as it is.
    """
    rows = [_done_row(done, snapshot_id, now=now) for done, snapshot_id in outcomes.done]
    rows += [_failed_row(one, PageStatus.WAITING, None) for one in outcomes.waiting]
    rows += [_failed_row(one, PageStatus.ERROR, now) for one in outcomes.failed]
    if not rows:
        return set()
    given = row_source(connection, _VISIT_COLUMNS, rows, "given")
    was_visited = given.c.visited_at.is_not(None)
    values = {name: given.c[name] for name in ("status", "outcome", "failure", "elapsed_ms")}
    changed = connection.execute(
        update(pages)
        .where(pages.c.id == given.c.id, pages.c.status.in_(OPEN_PAGES))
        .values(
            **values,
            snapshot_id=func.coalesce(given.c.snapshot_id, pages.c.snapshot_id),
            size_bytes=given.c.size_bytes,
            visited_at=case((was_visited, given.c.visited_at), else_=pages.c.visited_at),
        )
        .returning(pages.c.id, pages.c.status)
    )
    return {id_ for id_, status in changed if status == PageStatus.DOWNLOADED.value}


def begin_readings(
    connection: Connection,
    done: Iterable[PageDone],
    page_ids: Collection[int],
    going_on: Mapping[int, ActiveExtraction],
    *,
    now: datetime,
) -> None:
    """Each of these pages, if its extraction goes on, has a task that reads it; one statement."""
    wanted: list[Spawning] = []
    for one in done:
        plan: PagePlan = one.work.plan
        if plan.page_id not in page_ids or plan.extraction_id not in going_on:
            continue
        child = NewTask(
            kind=EXTRACT_PAGE,
            dedupe_key=f"{plan.extraction_id}:{plan.page_id}",
            not_before=now,
            priority=one.task.priority,
            shard=one.work.source.shard,
            source_id=one.work.source.id,
            url=one.work.visit.url,
            payload={"page": plan.page_id, "extraction": plan.extraction_id},
        )
        wanted.append(Spawning(parent=one.task, child=child))
    continue_all(connection, wanted, now=now)


def _done_row(done: PageDone, snapshot_id: int, *, now: datetime) -> tuple[Any, ...]:
    plan: PagePlan = done.work.plan
    followed: Followed = done.followed
    status = PageStatus.DOWNLOADED if followed.is_detail else PageStatus.SUCCESS
    outcome = "new" if done.is_new else "same"
    timing = (done.size_bytes, done.elapsed_ms, now)
    leads_nowhere = not followed.pages and not followed.is_detail
    note = dict(LEADS_NOWHERE) if leads_nowhere else None
    return (plan.page_id, status.value, snapshot_id, outcome, note, *timing)


def _failed_row(
    one: PageFailed, status: PageStatus, visited_at: datetime | None
) -> tuple[Any, ...]:
    plan: PagePlan = one.work.plan
    reason = failure_reason(one.error)
    return (plan.page_id, status.value, None, None, reason, None, None, visited_at)


def lock_extractions(
    connection: Connection, ids: Collection[int], *, now: datetime
) -> dict[int, ActiveExtraction]:
    """Nobody else adds to these, or ends them, during this transaction; those that go on."""
    if not ids:
        return {}
    columns = ("id", "source_id", "kind", "entity_type", "base_dataset_id", "recipe", "status")
    query = select(*(extractions.c[name] for name in columns), sources.c.config).join(sources)
    locked = query.where(extractions.c.id.in_(list(ids))).order_by(extractions.c.id)
    rows = connection.execute(locked.with_for_update(of=extractions)).all()
    connection.execute(
        update(extractions).where(extractions.c.id.in_(list(ids))).values(updated_at=now)
    )
    return {
        row.id: ActiveExtraction(
            id=row.id,
            source_id=row.source_id,
            kind=ExtractionKind(row.kind),
            entity_type=row.entity_type,
            base_dataset_id=row.base_dataset_id,
            config=row.config,
            recipe=row.recipe,
        )
        for row in rows
        if row.status in CRAWLING_STATES
    }


def touched(outcomes: PageOutcomes) -> set[int]:
    """The extractions whose pages these are."""
    works = [done.work for done, _ in outcomes.done]
    works += [one.work for one in (*outcomes.waiting, *outcomes.failed)]
    plans: Sequence[PagePlan] = [work.plan for work in works]
    return {plan.extraction_id for plan in plans}
