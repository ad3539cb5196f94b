"""Due polls: indexed queries per tick, shards of runs, measured pace, and the ingestion backlog."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Select, and_, func, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.poll_tasks import POLL
from ingestion_pipeline.sources.source import SourceStatus, Tier
from ingestion_pipeline.store.tables import ACTIVE, FRONTIER, batch_items, sources, tasks
from ingestion_pipeline.tasks.errors import ErrorClass
from ingestion_pipeline.tasks.task import ASKED, TaskStatus

if TYPE_CHECKING:
    from ingestion_pipeline.settings.groups import Polling


def due_shards(connection: Connection, tier: Tier, *, now: datetime, shards: int) -> list[int]:
    """Return the shards of the tier that have a source due."""
    query = _due_polls(now, shards).where(tasks.c.priority == tier.priority)
    return [shard for _, shard in _shards(connection, query)]


def due_counts(connection: Connection, tier: Tier, *, now: datetime) -> dict[int, int]:
    """Return how many sources of the tier are due, by the hash of their host."""
    query = (
        select(tasks.c.shard, func.count())
        .where(
            ACTIVE, tasks.c.kind == POLL, tasks.c.not_before <= now, _claimable(now), tasks.c.priority == tier.priority
        )
        .group_by(tasks.c.shard)
    )
    return {hashed: count for hashed, count in connection.execute(query)}  # noqa: C416 - rows


def age_polls(connection: Connection, settings: Settings, now: datetime) -> int:
    """Raise the priority of polls long due, one tier each such time, so that none starves; return how many."""
    patience = timedelta(seconds=settings.polling.aged_seconds)
    is_cold = and_(tasks.c.priority == Tier.COLD.priority, tasks.c.not_before < now - patience)
    is_warm = and_(tasks.c.priority == Tier.WARM.priority, tasks.c.not_before < now - 2 * patience)
    aged = (
        select(tasks.c.id)
        .where(ACTIVE, tasks.c.kind == POLL, or_(is_cold, is_warm), tasks.c.status == TaskStatus.PENDING.value)
        .with_for_update(skip_locked=True)  # a locked one is about to be polled or moved
        .cte("aged")
    )
    statement = update(tasks).where(tasks.c.id.in_(select(aged.c.id)))
    return connection.execute(statement.values(priority=tasks.c.priority - 1)).rowcount


def unscheduled_shards(connection: Connection, *, now: datetime, shards: int) -> list[tuple[Tier, int]]:
    """Return the shards with due polls that should not wait for their tier's tick.

    Retries and claims of lost workers, released polls (a busy host, a pause that is over), and
    polls that an operator requested. Others become due all the time, a few every minute: for them
    the tick is soon enough.
    """
    is_waited_for = or_(tasks.c.attempts > 0, tasks.c.error_class == ErrorClass.RESOURCE.value, tasks.c.stage == ASKED)
    return _shards(connection, _due_polls(now, shards).where(is_waited_for))


def new_shards(connection: Connection, *, now: datetime, shards: int) -> list[tuple[Tier, int]]:
    """Return the shards of sources that wait for their first poll."""
    query = (
        select(tasks.c.priority, tasks.c.shard % shards)
        .join(sources, sources.c.id == tasks.c.source_id)
        .where(
            ACTIVE,
            tasks.c.kind == POLL,
            tasks.c.status == TaskStatus.PENDING.value,
            tasks.c.not_before <= now,
            sources.c.last_checked_at.is_(None),
        )
        .distinct()
    )
    return _shards(connection, query)


def source_counts(connection: Connection) -> tuple[int, int, datetime | None]:
    """Return the number of sources, of disabled ones, and when the newest was added."""
    query = select(
        func.count(),
        func.count().filter(sources.c.status == SourceStatus.DISABLED.value),
        func.max(sources.c.created_at),
    ).select_from(sources)
    total, disabled, newest = connection.execute(query).one()
    return total, disabled, newest


def _due_polls(now: datetime, shards: int) -> Select[Any, Any]:
    return (
        select(tasks.c.priority, tasks.c.shard % shards)
        .where(ACTIVE, tasks.c.kind == POLL, tasks.c.not_before <= now, _claimable(now))
        .distinct()
    )


def _claimable(now: datetime) -> ColumnElement[bool]:
    return or_(
        tasks.c.status == TaskStatus.PENDING.value,
        and_(tasks.c.status == TaskStatus.PROCESSING.value, tasks.c.lease_until < now),
    )


def _shards(connection: Connection, query: Select[Any, Any]) -> list[tuple[Tier, int]]:
    by_priority = {tier.priority: tier for tier in Tier}
    rows: list[tuple[int, int]] = [(row[0], row[1]) for row in connection.execute(query)]
    return [(by_priority[priority], shard) for priority, shard in sorted(rows)]


FIRST_PACE = 20.0  # sources a second, before one was measured: half of what a small machine does
FEWEST = 50  # fewest sources of a run; fewer do not justify its start
MEMORY = 0.7  # weight of the previous pace against a new measurement
PACE = "pace:"
MEASURED_FROM = 20  # sources; a run of fewer measures its own start


def run_size(pace: float | None, limits: "Polling") -> int:
    """Return how many sources a run can poll in its time, at the measured pace."""
    return max(ceil((pace or FIRST_PACE) * limits.run_seconds), FEWEST)


def known_pace(measurements: Mapping[str, float], tier: str | None) -> float | None:
    """Return the pace of the tier's last runs; without a tier or measurement, the best of all."""
    own = None if tier is None else measurements.get(pace_name(tier))
    paces = (value for name, value in measurements.items() if name.startswith(PACE))
    return max(paces, default=None) if own is None else own


def claim_size(pace: float | None, limits: "Polling") -> int:
    """Return how many polls a run claims at a time: no more than it can finish in its time."""
    return min(run_size(pace, limits), limits.batch_size)


def shard_count(due: int, *, pace: float | None, limits: "Polling") -> int:
    """Return how many runs share the due polls, so that each ends in time, within the settings."""
    needed = ceil(due / run_size(pace, limits))
    return min(max(needed, limits.shards), max(limits.most_shards, limits.shards))


def shards_of(due: Mapping[int, int], shards: int) -> list[int]:
    """Return the shards that have work, of the due sources counted by the hash of their host."""
    return sorted({hashed % shards for hashed in due})


def measured_pace(before: float | None, *, polls: int, seconds: float) -> float | None:
    """Return the pace updated by a run; a run that is too small leaves it unchanged."""
    if polls < MEASURED_FROM or seconds <= 0:
        return before
    now = polls / seconds
    return now if before is None else MEMORY * before + (1 - MEMORY) * now


def pace_name(tier: str) -> str:
    """Return the name under which a tier's pace is stored."""
    return f"{PACE}{tier}"


# Tasks that ingest what polls and crawls fetched; pages that wait to be fetched do not count.
INGESTING = ("extract_page", "job")


@dataclass(frozen=True, slots=True)
class IngestionBacklog:
    """A backlog of fetched feeds above the limit of the settings."""

    waiting: int
    limit: int

    def __str__(self) -> str:
        return (
            f"polling is paused: {self.waiting:,} or more readings wait to be ingested"
            f" (polling.backlog_limit {self.limit:,}); it resumes when there are fewer"
        )


def backlog(
    connection: Connection, *, now: datetime, limit: int, kinds: Sequence[str] = INGESTING
) -> IngestionBacklog | None:
    """Return the backlog that pauses polling, or None; tasks that wait for a model or a budget do not count."""
    fetched = select(batch_items.c.task_id).limit(limit + 1).subquery()
    waiting = connection.execute(select(func.count()).select_from(fetched)).scalar_one()
    for kind in kinds:
        if waiting > limit:
            break
        due = select(tasks.c.id).where(FRONTIER, tasks.c.kind == kind, tasks.c.not_before <= now)
        rest = due.limit(limit + 1 - waiting).subquery()
        waiting += connection.execute(select(func.count()).select_from(rest)).scalar_one()
    return IngestionBacklog(waiting, limit) if waiting > limit else None
