"""How far the house is behind: polls that are due and overdue, readings that wait to be rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select

from ingestion_pipeline.settings.operating import Health as Limits
from ingestion_pipeline.sources.health import Facts, is_late, overdue
from ingestion_pipeline.sources.pressure import INGESTING
from ingestion_pipeline.sources.source import SourceStatus
from ingestion_pipeline.store.tables import batch_items
from ingestion_pipeline.upkeep.queues import Queue
from ingestion_pipeline.work.task import TaskStatus


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
