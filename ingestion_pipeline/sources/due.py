"""What is due: one indexed query for a tick, whatever the number of sources."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, and_, func, or_, select
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.sources.polls import POLL
from ingestion_pipeline.sources.source import Tier
from ingestion_pipeline.store.tables import ACTIVE, sources, tasks
from ingestion_pipeline.work.task import TaskStatus


def due_shards(connection: Connection, tier: Tier, *, now: datetime, shards: int) -> list[int]:
    """The shards of the tier that have a source due."""
    query = (
        select(tasks.c.shard % shards)
        .where(
            ACTIVE,
            tasks.c.kind == POLL,
            tasks.c.priority == tier.priority,
            tasks.c.not_before <= now,
            _claimable(now),
        )
        .distinct()
    )
    return sorted(connection.execute(query).scalars())


def unscheduled_shards(
    connection: Connection, *, now: datetime, shards: int
) -> list[tuple[Tier, int]]:
    """Where polls wait that no schedule will remember soon: retries that are due, dead workers'."""
    query = (
        select(tasks.c.priority, tasks.c.shard % shards)
        .where(
            ACTIVE,
            tasks.c.kind == POLL,
            tasks.c.attempts > 0,
            tasks.c.not_before <= now,
            _claimable(now),
        )
        .distinct()
    )
    by_priority = {tier.priority: tier for tier in Tier}
    found = connection.execute(query).all()
    return sorted((by_priority[priority], shard) for priority, shard in found)


def new_shards(connection: Connection, *, now: datetime, shards: int) -> list[tuple[Tier, int]]:
    """The shards of sources that wait for their first poll."""
    query = (
        select(tasks.c.priority, tasks.c.shard % shards)
        .join(sources, sources.c.id == tasks.c.source_id)
        .where(
            ACTIVE_POLL,
            tasks.c.not_before <= now,
            sources.c.last_checked_at.is_(None),
        )
        .distinct()
    )
    by_priority = {tier.priority: tier for tier in Tier}
    found = connection.execute(query).all()
    return sorted((by_priority[priority], shard) for priority, shard in found)


ACTIVE_POLL = and_(tasks.c.kind == POLL, tasks.c.status == TaskStatus.PENDING.value)


def census(connection: Connection) -> tuple[int, int, datetime | None]:
    """How many sources there are, how many of them disabled, and when the newest was added."""
    query = select(
        func.count(),
        func.count().filter(sources.c.status == "disabled"),
        func.max(sources.c.created_at),
    ).select_from(sources)
    total, disabled, newest = connection.execute(query).one()
    return total, disabled, newest


def _claimable(now: datetime) -> ColumnElement[bool]:
    return or_(
        tasks.c.status == TaskStatus.PENDING.value,
        and_(tasks.c.status == TaskStatus.PROCESSING.value, tasks.c.lease_until < now),
    )
