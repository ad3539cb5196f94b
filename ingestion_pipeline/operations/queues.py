"""The tasks that have not ended, by kind: what is due, comes later, is at work, is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, func, select

from ingestion_pipeline.settings.polling import Health as Limits
from ingestion_pipeline.sources.health import Facts, is_late, overdue
from ingestion_pipeline.sources.scheduling.due import INGESTING
from ingestion_pipeline.sources.source import SourceStatus
from ingestion_pipeline.store.tables import ACTIVE, batch_items, tasks
from ingestion_pipeline.tasks.task import TaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The tasks of one kind that have not ended; `oldest_due_seconds` is 0 where none is due."""

    kind: str
    due: int
    later: int
    running: int
    lost: int
    retries: int
    oldest_due_seconds: float

    @property
    def depth(self) -> int:
        """All that has not ended."""
        return self.due + self.later + self.running + self.lost


def queues(connection: Connection, *, now: datetime) -> tuple[Queue, ...]:
    """Every kind of task that has not ended, by name."""
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
        select(tasks.c.kind, *(one.label(name) for name, one in counts.items()))
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
    """Counts and ages in seconds; 0 where nothing waits.

    `overdue` are polls that nobody has come for within an interval or `health.late_seconds`,
    `ingestion_lag_seconds` is how long the oldest thing that was fetched waits to be rows.
    """

    due: int
    overdue: int
    oldest_overdue_seconds: float
    waiting_to_ingest: int
    ingestion_lag_seconds: float


def backlog(
    connection: Connection,
    sources: Sequence[Facts],
    queues: Sequence[Queue],
    *,
    now: datetime,
    limits: Limits,
) -> Backlog:
    """All of it; `sources` are all there are, `queues` the tasks that have not ended."""
    ages = [overdue(one, now) for one in sources if is_polled(one)]
    late = [overdue(one, now) for one in sources if is_polled(one) and is_late(one, now, limits)]
    query = select(func.count(), func.min(batch_items.c.fetched_at)).select_from(batch_items)
    fetched, oldest = connection.execute(query).one()
    ingesting = [one for one in queues if one.kind in INGESTING]
    since_fetch = 0.0 if oldest is None else (now - oldest).total_seconds()
    return Backlog(
        due=sum(age >= timedelta(0) for age in ages),
        overdue=len(late),
        oldest_overdue_seconds=max((age.total_seconds() for age in late), default=0.0),
        waiting_to_ingest=fetched + sum(one.due for one in ingesting),
        ingestion_lag_seconds=max([since_fetch, *(one.oldest_due_seconds for one in ingesting)]),
    )


def is_polled(facts: Facts) -> bool:
    """Whether somebody has to come for it."""
    is_on = facts.status in {SourceStatus.ACTIVE, SourceStatus.OPEN}
    return is_on and facts.poll is TaskStatus.PENDING
