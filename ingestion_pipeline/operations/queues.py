"""Queues: the tasks that have not ended, by kind, and the backlog of overdue work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, func, select

from ingestion_pipeline.settings.groups import HealthLimits as Limits
from ingestion_pipeline.sources.health import Facts, is_late, overdue
from ingestion_pipeline.sources.scheduling.due import INGESTING
from ingestion_pipeline.sources.source import SourceStatus
from ingestion_pipeline.store.tables import ACTIVE, batch_items, tasks
from ingestion_pipeline.tasks.task import TaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The tasks of one kind that have not ended; `oldest_due_seconds` is 0 if none is due."""

    kind: str
    due: int
    later: int
    running: int
    lost: int
    retries: int
    oldest_due_seconds: float

    @property
    def depth(self) -> int:
        """Return the number of all tasks that have not ended."""
        return self.due + self.later + self.running + self.lost


def queues(connection: Connection, *, now: datetime) -> tuple[Queue, ...]:
    """Return the queue of every kind of task that has not ended, by name."""
    is_pending = tasks.c.status == TaskStatus.PENDING.value
    is_running = tasks.c.status == TaskStatus.PROCESSING.value
    is_due = and_(is_pending, tasks.c.not_before <= now)
    counts: dict[str, Any] = {
        "due": func.count().filter(is_due),
        "later": func.count().filter(and_(is_pending, tasks.c.not_before > now)),
        "running": func.count().filter(and_(is_running, tasks.c.lease_until >= now)),
        "lost": func.count().filter(and_(is_running, tasks.c.lease_until < now)),
        "retries": func.coalesce(func.sum(tasks.c.attempts).filter(is_pending), 0),
        "oldest": func.min(tasks.c.not_before).filter(is_due),
    }
    query = (
        select(tasks.c.kind, *(column.label(name) for name, column in counts.items()))
        .where(ACTIVE)
        .group_by(tasks.c.kind)
        .order_by(tasks.c.kind)
    )
    return tuple(_queue(row, now) for row in connection.execute(query).mappings())


def _queue(row: Mapping[Any, Any], now: datetime) -> Queue:
    oldest: datetime | None = row["oldest"]
    return Queue(
        kind=row["kind"],
        **{name: int(row[name]) for name in ("due", "later", "running", "lost", "retries")},
        oldest_due_seconds=0.0 if oldest is None else (now - oldest).total_seconds(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Counts and ages in seconds of waiting work; 0 if nothing waits.

    `overdue` are polls that no run has claimed within an interval or `health.late_seconds`,
    `ingestion_lag_seconds` is how long the oldest fetched response waits to be ingested.
    """

    due: int
    overdue: int
    oldest_overdue_seconds: float
    waiting_to_ingest: int
    ingestion_lag_seconds: float


def backlog(
    connection: Connection, sources: Sequence[Facts], queues: Sequence[Queue], *, now: datetime, limits: Limits
) -> Backlog:
    """Return the backlog; `sources` are all there are, `queues` the tasks that have not ended."""
    ages = [overdue(source, now) for source in sources if is_polled(source)]
    late = [overdue(source, now) for source in sources if is_polled(source) and is_late(source, now, limits)]
    query = select(func.count(), func.min(batch_items.c.fetched_at)).select_from(batch_items)
    fetched, oldest = connection.execute(query).one()
    ingesting = [queue for queue in queues if queue.kind in INGESTING]
    since_fetch = 0.0 if oldest is None else (now - oldest).total_seconds()
    return Backlog(
        due=sum(age >= timedelta(0) for age in ages),
        overdue=len(late),
        oldest_overdue_seconds=max((age.total_seconds() for age in late), default=0.0),
        waiting_to_ingest=fetched + sum(queue.due for queue in ingesting),
        ingestion_lag_seconds=max([since_fetch, *(queue.oldest_due_seconds for queue in ingesting)]),
    )


def is_polled(facts: Facts) -> bool:
    """Return whether the source waits for a poll."""
    is_on = facts.status in {SourceStatus.ACTIVE, SourceStatus.OPEN}
    return is_on and facts.poll is TaskStatus.PENDING
