"""Decide from stored rows, every 2 minutes, whether an extraction is complete, stale or running.

| looks | changed | waiting tasks | then |
|---|---|---|---|
| complete | not for `quiet_seconds` | none | COMPLETE (of an API at once) |
| complete | | some | keeps running |
| incomplete | not for `stale_seconds`, nor since the last retry was due | any | STALE |
| only a root, which failed | | any | STALE |
| of an API any failed page | | any | CANCELLED |
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, func, select

from ingestion_pipeline.catalogs.datasets.finishing import (
    COMPLETE,
    STALE_CODE,
    Ended,
    FinishReason,
    failed_finish,
    finish_extractions,
    root_failures,
)
from ingestion_pipeline.catalogs.datasets.progress import progress, running, write_summaries
from ingestion_pipeline.catalogs.extraction.tasks import wake_for_models
from ingestion_pipeline.catalogs.states import EXTRACTION_TASKS, FETCH_PAGE, ExtractionKind, ExtractionStatus, lock_rows
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.settings.systems import Extraction
from ingestion_pipeline.store.tables import FRONTIER, tasks
from ingestion_pipeline.tasks.errors import ErrorClass
from ingestion_pipeline.tasks.task import TaskStatus

CHECKED_AT_ONCE = 200  # extractions whose pages one statement counts


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionProgress:
    """Everything that the decision about an extraction depends on."""

    kind: ExtractionKind
    unfinished: int
    total: int
    has_pending: bool
    quiet_for: timedelta
    since_retry: timedelta | None = None  # negative while a page waits for its next attempt
    failure: Mapping[str, Any] | None = None


def decide(state: ExtractionProgress, *, limits: Extraction) -> FinishReason | None:
    """Return how the extraction finishes now; None if it keeps running."""
    if state.failure is not None:
        return failed_finish(state.kind, state.failure)
    if not state.unfinished and state.total:
        is_quiet = state.quiet_for >= timedelta(seconds=limits.quiet_seconds)
        may_end = is_quiet or state.kind is ExtractionKind.API
        return COMPLETE if may_end and not state.has_pending else None
    stalled_for = state.quiet_for if state.since_retry is None else min(state.quiet_for, state.since_retry)
    if stalled_for < timedelta(seconds=limits.stale_seconds):
        return None
    summary = f"{state.unfinished} of {state.total} pages were left and nothing changed for"
    failure = {
        "class": ErrorClass.RESOURCE.value,
        "code": STALE_CODE,
        "message": f"{summary} {state.quiet_for.total_seconds() / 3600:.1f} hours",
    }
    return FinishReason(status=ExtractionStatus.STALE, failure=failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    """The result of a check of all running extractions."""

    running: int
    changed: int
    ended: Sequence[Ended]


def update_completions(ctx: RunContext, *, source_ids: Collection[str] | None = None) -> Completions:
    """Update every running extraction's summary, and finish those that are over.

    Pages that waited for a model become due again if there is one by now. One transaction covers
    many summaries, but each finish has its own, so that a large dataset blocks no other.
    """
    wake_for_models(ctx)
    with ctx.store.read() as connection:
        active = running(connection, source_ids=source_ids)
    changed, ended = 0, list[Ended]()
    for first in range(0, len(active), CHECKED_AT_ONCE):
        batch = active[first : first + CHECKED_AT_ONCE]
        with ctx.store.begin() as connection:
            now = ctx.store.clock.now(connection)
            written, finishes = _check(connection, batch, now=now, settings=ctx.settings)
            changed += written
        for id_ in finishes:
            ended += _finish(ctx, id_)
    return Completions(running=len(active), changed=changed, ended=ended)


def _finish(ctx: RunContext, extraction_id: int) -> list[Ended]:
    """Finish the extraction if that is still right: pages may have been added meanwhile."""
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        lock_rows(connection, [extraction_id])
        active = running(connection, extraction_id=extraction_id)
        _, finishes = _check(connection, active, now=now, settings=ctx.settings)
        return finish_extractions(connection, finishes, now=now, settings=ctx.settings, random=ctx.random)


def _check(
    connection: Connection, active: Sequence[Row[Any]], *, now: datetime, settings: Settings
) -> tuple[int, dict[int, FinishReason]]:
    """Write the summaries that have changed; return their number, and how each extraction that is over finishes."""
    counts = progress(connection, [row.id for row in active])
    stored = {id_: entry.as_stored() for id_, entry in counts.items()}
    changed = {row.id: stored[row.id] for row in active if row.summary != stored[row.id]}
    write_summaries(connection, changed, now=now)
    pending = _pending(connection, active)
    patience = timedelta(seconds=settings.crawl.longest_wait_seconds)
    roots = root_failures(connection, [row.id for row in active])
    finishes: dict[int, FinishReason] = {}
    for row in active:
        changed_at = now if row.id in changed else row.changed_at or row.created_at
        retry_at = pending.get(row.id)
        state = ExtractionProgress(
            kind=ExtractionKind(row.kind),
            unfinished=counts[row.id].unfinished,
            total=sum(counts[row.id].pages.values()),
            has_pending=row.id in pending,
            quiet_for=now - changed_at,
            since_retry=retry_at and now - min(retry_at, changed_at + patience),
            failure=roots[row.id][1] if row.id in roots else None,
        )
        if (finish := decide(state, limits=settings.extraction)) is not None:
            finishes[row.id] = finish
    return len(changed), finishes


def _pending(connection: Connection, active: Sequence[Row[Any]]) -> dict[int, datetime | None]:
    """Return the extractions with a waiting or running task; by source, as the index has it.

    The value is when the last page that waits to be fetched is due; a page that waits for a model
    may wait for ever.
    """
    ids = {row.tracking_id: row.id for row in active}
    retry_at = func.max(tasks.c.not_before).filter(
        tasks.c.kind == FETCH_PAGE, tasks.c.status == TaskStatus.PENDING.value
    )
    query = select(tasks.c.tracking_id, retry_at).where(
        FRONTIER,
        tasks.c.kind.in_(EXTRACTION_TASKS),
        tasks.c.source_id.in_({row.source_id for row in active}),
        tasks.c.tracking_id.in_(list(ids)),
    )
    grouped = connection.execute(query.group_by(tasks.c.tracking_id))
    return {ids[tracking_id]: due_at for tracking_id, due_at in grouped}
