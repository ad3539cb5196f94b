"""Every source's facts and word by one query: no configuration is read, and no history walked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, case, or_, select

from ingestion_pipeline.catalogs.operating.held_back import (
    held_back,
    held_reason,
    last_shown_at,
    missing_reason,
    with_missing_pages,
)
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.health import (
    NEVER,
    PLACES,
    Facts,
    Health,
    HealthState,
    HealthStatus,
    ReportedHealth,
    health_of,
)
from ingestion_pipeline.sources.polling import interval
from ingestion_pipeline.sources.polls import POLL
from ingestion_pipeline.sources.source import QUARANTINED, Kind, SourceStatus, Tier
from ingestion_pipeline.store.rows import making_rows
from ingestion_pipeline.store.tables import source_health, sources, tasks
from ingestion_pipeline.work.errors import ErrorClass
from ingestion_pipeline.work.task import TaskStatus

ROWS_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """A source, what was told of it, and how well it is now."""

    facts: Facts
    told: ReportedHealth
    verdict: HealthStatus

    @property
    def health(self) -> Health:
        """The word."""
        return self.verdict.health


def standings(
    connection: Connection, settings: Settings, *, now: datetime, ids: Collection[str] | None = None
) -> list[SourceFacts]:
    """Every source, or these, the worst first."""
    those = [] if ids is None else [sources.c.id.in_(list(ids))]
    with making_rows():
        return sorted(_standings(connection, settings, now, those), key=badness)


def notable(connection: Connection, settings: Settings, *, now: datetime) -> list[SourceFacts]:
    """Those whose state may have to change: who fails, is left alone, held back, or was unwell."""
    is_notable = or_(
        sources.c.failure_count > 0,
        sources.c.last_outcome.startswith(QUARANTINED),
        sources.c.id.in_(held_back("source_id")),
        sources.c.id.in_(select(with_missing_pages().subquery("incomplete").c.source_id)),
        sources.c.status != SourceStatus.ACTIVE.value,
        tasks.c.error_class == ErrorClass.RESOURCE.value,
        source_health.c.state != HealthState.WELL.value,
    )
    return list(_standings(connection, settings, now, [is_notable]))


def badness(one: SourceFacts) -> tuple[int, int, datetime, str]:
    """The order of those who are looked at: by word, by failures, then who waits longest."""
    facts = one.facts
    since = facts.last_success_at or facts.created_at
    return PLACES[one.health], -facts.failure_count, since, facts.id


def _standings(
    connection: Connection, settings: Settings, now: datetime, those: Sequence[ColumnElement[bool]]
) -> Iterator[SourceFacts]:
    waits = {
        (kind.value, tier.value): interval(kind, tier, settings) for kind in Kind for tier in Tier
    }
    factor = settings.ingest.stale_factor
    query = _query(those).execution_options(yield_per=ROWS_AT_ONCE)
    for row in connection.execute(query):
        facts = _facts(row, waits[row.kind, row.tier], factor)
        told = NEVER if row.state is None else _reported(row)
        verdict = health_of(facts, told=told, now=now, limits=settings.health)
        yield SourceFacts(facts=facts, told=told, verdict=verdict)


_OF_A_SOURCE = (
    *("id", "kind", "tier", "status", "status_reason", "failure_count", "last_outcome"),
    *("last_error_class", "last_success_at", "created_at"),
)


def _query(those: Sequence[ColumnElement[bool]]) -> Select[Any]:
    poll, told = tasks.c, source_health.c
    held = held_back("source_id", "version", "extraction_id", "findings").subquery("held")
    incomplete = with_missing_pages().subquery("incomplete")
    shown_at = case((told.state != HealthState.WELL.value, last_shown_at(sources.c.id)))
    return (
        select(
            *(sources.c[name] for name in _OF_A_SOURCE),
            poll.status.label("poll"),
            poll.not_before,
            poll.lease_until,
            poll.error_class,
            poll.error_code,
            told.state,
            told.since,
            told.changes,
            told.success_before,
            held.c.version.label("held"),
            held.c.extraction_id.label("of"),
            held.c.findings,
            shown_at.label("shown_at"),
            incomplete.c.extraction_id.label("incomplete"),
            incomplete.c.missing,
        )
        .outerjoin(tasks, and_(tasks.c.source_id == sources.c.id, tasks.c.kind == POLL))
        .outerjoin(source_health, source_health.c.source_id == sources.c.id)
        .outerjoin(held, held.c.source_id == sources.c.id)
        .outerjoin(incomplete, incomplete.c.source_id == sources.c.id)
        .where(*those)
    )


def _facts(row: Any, wait: timedelta, factor: float) -> Facts:  # noqa: ANN401 - a row
    return Facts(
        id=row.id,
        kind=Kind(row.kind),
        tier=Tier(row.tier),
        status=SourceStatus(row.status),
        status_reason=row.status_reason,
        failure_count=row.failure_count,
        error_class=row.last_error_class,
        last_outcome=row.last_outcome,
        last_success_at=row.last_success_at,
        created_at=row.created_at,
        interval=wait,
        patience=wait * factor,
        poll=None if row.poll is None else TaskStatus(row.poll),
        due_at=row.not_before,
        lease_until=row.lease_until,
        held_by=row.error_code if row.error_class == ErrorClass.RESOURCE.value else None,
        held_back=None if row.held is None else held_reason(row.held, row.of, row.findings),
        missing=None if row.missing is None else missing_reason(row.incomplete, row.missing),
        shown_at=row.shown_at,
    )


def _reported(row: Any) -> ReportedHealth:  # noqa: ANN401 - a row
    return ReportedHealth(
        state=HealthState(row.state),
        since=row.since,
        changes=row.changes,
        success_before=row.success_before,
    )
