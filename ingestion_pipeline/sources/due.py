"""What is due: one indexed query for a tick, whatever the number of sources."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Select, and_, func, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.polls import POLL
from ingestion_pipeline.sources.source import SourceStatus, Tier
from ingestion_pipeline.store.tables import ACTIVE, sources, tasks
from ingestion_pipeline.work.errors import ErrorClass
from ingestion_pipeline.work.task import ASKED, TaskStatus


def due_shards(connection: Connection, tier: Tier, *, now: datetime, shards: int) -> list[int]:
    """The shards of the tier that have a source due."""
    query = _due_polls(now, shards).where(tasks.c.priority == tier.priority)
    return [shard for _, shard in _shards(connection, query)]


def due_counts(connection: Connection, tier: Tier, *, now: datetime) -> dict[int, int]:
    """How many sources of the tier are due, by the hash of their host."""
    query = (
        select(tasks.c.shard, func.count())
        .where(
            ACTIVE,
            tasks.c.kind == POLL,
            tasks.c.not_before <= now,
            _claimable(now),
            tasks.c.priority == tier.priority,
        )
        .group_by(tasks.c.shard)
    )
    return {hashed: count for hashed, count in connection.execute(query)}  # noqa: C416 - rows


def age_polls(connection: Connection, settings: Settings, now: datetime) -> int:
    """Polls that have been due for long are served like WARM, then like HOT ones; how many moved.

    None waits for ever. However often it is asked, a poll moves up once for each such time.
    """
    patience = timedelta(seconds=settings.polling.aged_seconds)
    is_cold = and_(tasks.c.priority == Tier.COLD.priority, tasks.c.not_before < now - patience)
    is_warm = and_(tasks.c.priority == Tier.WARM.priority, tasks.c.not_before < now - 2 * patience)
    aged = (
        select(tasks.c.id)
        .where(
            ACTIVE,
            tasks.c.kind == POLL,
            or_(is_cold, is_warm),
            tasks.c.status == TaskStatus.PENDING.value,
        )
        .with_for_update(skip_locked=True)  # whoever has one is about to poll it, or to move it
        .cte("aged")
    )
    statement = update(tasks).where(tasks.c.id.in_(select(aged.c.id)))
    return connection.execute(statement.values(priority=tasks.c.priority - 1)).rowcount


def unscheduled_shards(
    connection: Connection, *, now: datetime, shards: int
) -> list[tuple[Tier, int]]:
    """Where polls are due that should not wait for their tier's tick.

    Retries and what dead workers held, what was given back (a busy host, a pause that is over), and
    what an operator asked for. The others are due all the time, a few every minute: for them the
    tick is soon enough.
    """
    is_waited_for = or_(
        tasks.c.attempts > 0,
        tasks.c.error_class == ErrorClass.RESOURCE.value,
        tasks.c.stage == ASKED,
    )
    return _shards(connection, _due_polls(now, shards).where(is_waited_for))


def new_shards(connection: Connection, *, now: datetime, shards: int) -> list[tuple[Tier, int]]:
    """The shards of sources that wait for their first poll."""
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


def census(connection: Connection) -> tuple[int, int, datetime | None]:
    """How many sources there are, how many of them disabled, and when the newest was added."""
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
    found: list[tuple[int, int]] = [(row[0], row[1]) for row in connection.execute(query)]
    return [(by_priority[priority], shard) for priority, shard in sorted(found)]
