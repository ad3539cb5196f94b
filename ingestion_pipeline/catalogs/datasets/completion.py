"""Whether an extraction is complete, stale, or goes on: decided from durable rows, every 2 minutes.

| looks | changed | waiting tasks | then |
|---|---|---|---|
| complete | not for `quiet_seconds` | none | COMPLETE (of an API at once) |
| complete | | some | goes on |
| incomplete | not for `stale_seconds`, nor since the last retry was due | whatever | STALE |
| a root given up, alone | | whatever | STALE |
| of an API any page given up | | whatever | CANCELLED |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, select

from ingestion_pipeline.catalogs.datasets.finishing import (
    COMPLETE,
    EXTRACTION_TASKS,
    STALE_CODE,
    Ended,
    FinishReason,
    fail_root_pages,
    failed_finish,
    finish_extractions,
)
from ingestion_pipeline.catalogs.datasets.progress import (
    Running,
    progress,
    running,
    write_summaries,
)
from ingestion_pipeline.catalogs.extraction.tasks import wake_for_models
from ingestion_pipeline.catalogs.states import ExtractionKind, ExtractionStatus, lock_rows
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.protocol import FETCH_PAGE
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.settings.systems import Extraction
from ingestion_pipeline.store.tables import FRONTIER, tasks
from ingestion_pipeline.tasks.errors import ErrorClass
from ingestion_pipeline.tasks.task import TaskStatus

LOOKED_AT_ONCE = 200  # extractions whose pages one statement counts


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionProgress:
    """All that decides about an extraction."""

    kind: ExtractionKind
    unfinished: int
    total: int
    has_pending: bool
    quiet_for: timedelta
    since_retry: timedelta | None = None  # negative while a page waits for its next attempt
    failure: Mapping[str, Any] | None = None


def decide(standing: ExtractionProgress, *, limits: Extraction) -> FinishReason | None:
    """How the extraction ends now; None if it goes on."""
    if standing.failure is not None:
        return failed_finish(standing.kind, standing.failure)
    if standing.unfinished or not standing.total:
        return _stale(standing, limits)
    is_quiet = standing.quiet_for >= timedelta(seconds=limits.quiet_seconds)
    may_end = is_quiet or standing.kind is ExtractionKind.API
    return COMPLETE if may_end and not standing.has_pending else None


def _stale(standing: ExtractionProgress, limits: Extraction) -> FinishReason | None:
    stalled_for = standing.quiet_for
    if standing.since_retry is not None:
        stalled_for = min(stalled_for, standing.since_retry)
    if stalled_for < timedelta(seconds=limits.stale_seconds):
        return None
    said = f"{standing.unfinished} of {standing.total} pages were left and nothing changed for"
    failure = {
        "class": ErrorClass.RESOURCE.value,
        "code": STALE_CODE,
        "message": f"{said} {standing.quiet_for.total_seconds() / 3600:.1f} hours",
    }
    return FinishReason(status=ExtractionStatus.STALE, failure=failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    """What a look at all extractions came to."""

    running: int
    changed: int
    ended: Sequence[Ended]


def update_completions(
    shop: RunContext, *, source_ids: Collection[str] | None = None
) -> Completions:
    """Every running extraction's summary is as its pages are, and those that are over have ended.

    What waited for a model is due again, if there is one by now. A transaction for many summaries,
    and one for each end: a large dataset holds up nobody.
    """
    wake_for_models(shop)
    with shop.store.read() as connection:
        found = running(connection, source_ids=source_ids)
    changed, ended = 0, list[Ended]()
    for first in range(0, len(found), LOOKED_AT_ONCE):
        some = found[first : first + LOOKED_AT_ONCE]
        with shop.store.begin() as connection:
            now = shop.store.clock.now(connection)
            look = _CompletionCheck(connection, some, now=now)
            changed += look.write()
            endings = look.endings(shop.settings)
        for id_ in endings:
            ended += _finish(shop, id_)
    return Completions(running=len(found), changed=changed, ended=ended)


def _finish(shop: RunContext, extraction_id: int) -> list[Ended]:
    """It ends, if that is still so: something may have been added since it was looked at."""
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        lock_rows(connection, [extraction_id])
        look = _CompletionCheck(
            connection, running(connection, extraction_id=extraction_id), now=now
        )
        look.write()
        endings = look.endings(shop.settings)
        return finish_extractions(
            connection, endings, now=now, settings=shop.settings, random=shop.random
        )


class _CompletionCheck:
    """At some running extractions, in one transaction."""

    def __init__(self, connection: Connection, found: Sequence[Running], *, now: datetime) -> None:
        self._connection = connection
        self._found = found
        self._now = now
        self._progress = progress(connection, [row.id for row in found])
        self._changed_at: dict[int, datetime] = {}

    def write(self) -> int:
        """The summaries that have changed are written; how many."""
        stored = {id_: one.as_stored() for id_, one in self._progress.items()}
        changed = {row.id: stored[row.id] for row in self._found if row.summary != stored[row.id]}
        write_summaries(self._connection, changed, now=self._now)
        self._changed_at = {
            row.id: self._now if row.id in changed else row.changed_at for row in self._found
        }
        return len(changed)

    def endings(self, settings: Settings) -> dict[int, FinishReason]:
        """How each of those that are over ends."""
        pending = _pending(self._connection, self._found)
        patience = timedelta(seconds=settings.crawl.longest_wait_seconds)
        roots = fail_root_pages(self._connection, [row.id for row in self._found])
        endings: dict[int, FinishReason] = {}
        for row in self._found:
            far, changed_at = self._progress[row.id], self._changed_at[row.id]
            retry_at = pending.get(row.id)
            standing = ExtractionProgress(
                kind=row.kind,
                unfinished=far.unfinished,
                total=sum(far.pages.values()),
                has_pending=row.id in pending,
                quiet_for=self._now - changed_at,
                since_retry=retry_at and self._now - min(retry_at, changed_at + patience),
                failure=roots[row.id][1] if row.id in roots else None,
            )
            if (ending := decide(standing, limits=settings.extraction)) is not None:
                endings[row.id] = ending
        return endings


def _pending(connection: Connection, found: Sequence[Running]) -> dict[int, datetime | None]:
    """Those of these that have a task which waits or runs; by source, as the index has it.

    With when the last of the pages that wait to be fetched is due; a reading that waits for a model
    may wait for ever.
    """
    ids = {row.tracking_id: row.id for row in found}
    retry_at = func.max(tasks.c.not_before).filter(
        tasks.c.kind == FETCH_PAGE, tasks.c.status == TaskStatus.PENDING.value
    )
    query = select(tasks.c.tracking_id, retry_at).where(
        FRONTIER,
        tasks.c.kind.in_(EXTRACTION_TASKS),
        tasks.c.source_id.in_({row.source_id for row in found}),
        tasks.c.tracking_id.in_(list(ids)),
    )
    grouped = connection.execute(query.group_by(tasks.c.tracking_id))
    return {ids[tracking_id]: due_at for tracking_id, due_at in grouped}
