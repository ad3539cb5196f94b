"""Every source as a line of a list: one query, and no more of each than is shown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, and_, case, select

from ingestion_pipeline.sources.polls import POLL
from ingestion_pipeline.sources.source import Kind, SourceStatus
from ingestion_pipeline.store.tables import sources, tasks
from ingestion_pipeline.work.task import TaskStatus

ROWS_AT_ONCE = 5_000
_UNPOLLED = (SourceStatus.DISABLED.value, SourceStatus.PENDING_VALIDATION.value)


class SourceLine(NamedTuple):
    """What a list shows of a source."""

    id: str
    platform: str | None
    tier: str
    tier_pinned: bool
    status: str
    record_count: int
    next_check_at: datetime | None
    url: str


def listed_sources(connection: Connection, *, kind: Kind | None = None) -> Iterator[SourceLine]:
    """All of them, or of one kind, by id; read as they are asked for."""
    query = _query().order_by(sources.c.id)
    if kind is not None:
        query = query.where(sources.c.kind == kind.value)
    found = connection.execute(query.execution_options(yield_per=ROWS_AT_ONCE))
    return map(SourceLine._make, found)


def _query() -> Select[Any]:
    """When it is polled next, as `Watched.next_check_at` has it."""
    next_check_at = case(
        (sources.c.status.in_(_UNPOLLED), None),
        (tasks.c.status == TaskStatus.PENDING.value, tasks.c.not_before),
        else_=sources.c.next_check_at,
    )
    shown = {name: sources.c[name] for name in SourceLine._fields if name != "next_check_at"}
    columns = [shown.get(name, next_check_at) for name in SourceLine._fields]
    poll = and_(tasks.c.source_id == sources.c.id, tasks.c.kind == POLL)
    return select(*columns).outerjoin(tasks, poll)
