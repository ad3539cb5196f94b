"""The tasks that have not ended, by kind: what is due, comes later, is at work, is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, func, select

from ingestion_pipeline.store.tables import ACTIVE, tasks
from ingestion_pipeline.work.task import TaskStatus


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
