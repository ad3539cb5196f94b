"""How the house does, in numbers: queues, runs, polls, money, what was saved, and who is how well.

Counts of the whole are of what is kept: finished tasks for an hour, failed ones for a week, and so
on (`retention.*`). Each is one grouped statement; nothing is counted by walking through rows here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, and_, func, select

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.health import Health
from ingestion_pipeline.store.tables import (
    ACTIVE,
    ENDED,
    OPEN,
    UNHANDLED,
    UNSENT,
    dead_letters,
    extractions,
    model_calls,
    notices,
    outbox,
    pages,
    runs,
    sources,
    tasks,
)
from ingestion_pipeline.upkeep.coverage import MONTH
from ingestion_pipeline.upkeep.house import Budget, last_pulse, month_budget
from ingestion_pipeline.upkeep.standing import Standing
from ingestion_pipeline.websites.metrics import PhaseMetrics, phase_metrics
from ingestion_pipeline.work.task import TaskStatus

DAY = timedelta(days=1)
_BY_MODELS = ("cheap_model", "strong_model")  # rungs that a model was asked for


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """The runs of one job that ended within a day."""

    job: str
    ended: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Polls:
    """All polls of all sources, for good; those that found nothing new cost no reading."""

    ended: int
    changed: int
    failed: int

    @property
    def unchanged(self) -> int:
        """Answered by a 304, or by content that is as it was; walks that go on are among them."""
        return max(self.ended - self.changed - self.failed, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUse:
    """What models were asked in 30 days, and what they were not asked."""

    calls: int
    failed: int
    saved_by_cache: int
    saved_by_unchanged: int
    saved_by_rules: int
    cost_usd: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Everything that is counted, at one moment."""

    now: datetime
    health: Mapping[Health, int]
    queues: tuple[Queue, ...]
    ended: Mapping[tuple[str, str, str], int]
    letters: Mapping[str, int]
    runs: tuple[RunTimes, ...]
    polls: Polls
    models: ModelUse
    budget: Budget
    phases: tuple[PhaseMetrics, ...]
    outbox: int
    notices_pending: int
    pulse: datetime | None


def numbers(
    connection: Connection, settings: Settings, found: Iterable[Standing], *, now: datetime
) -> Numbers:
    """All of it; `found` are the standings of every source."""
    words = Counter(one.health for one in found)
    waiting = select(func.count()).select_from(outbox).where(UNHANDLED)
    unsent = select(func.count()).select_from(notices).where(UNSENT)
    return Numbers(
        now=now,
        health={word: words.get(word, 0) for word in Health},
        queues=queues(connection, now=now),
        ended=_ended(connection),
        letters=_letters(connection),
        runs=_runs(connection, now),
        polls=_polls(connection),
        models=_models(connection, now),
        budget=month_budget(connection, settings, now=now),
        phases=tuple(phase_metrics(connection, now=now)),
        outbox=connection.execute(waiting).scalar_one(),
        notices_pending=connection.execute(unsent).scalar_one(),
        pulse=last_pulse(connection),
    )


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


def _ended(connection: Connection) -> dict[tuple[str, str, str], int]:
    """Tasks that ended and are kept, by kind, status and class of error."""
    error = func.coalesce(tasks.c.error_class, "none")
    query = (
        select(tasks.c.kind, tasks.c.status, error, func.count())
        .where(ENDED)
        .group_by(tasks.c.kind, tasks.c.status, error)
        .order_by(tasks.c.kind, tasks.c.status, error)
    )
    return {(kind, status, said): n for kind, status, said, n in connection.execute(query)}


def _letters(connection: Connection) -> dict[str, int]:
    query = (
        select(dead_letters.c.error_class, func.count())
        .where(OPEN)
        .group_by(dead_letters.c.error_class)
        .order_by(dead_letters.c.error_class)
    )
    return {row[0]: row[1] for row in connection.execute(query)}


def _runs(connection: Connection, now: datetime) -> tuple[RunTimes, ...]:
    query = select(runs.c.job, runs.c.started_at, runs.c.ended_at).where(
        runs.c.ended_at > now - DAY
    )
    spans: dict[str, list[float]] = {}
    for job, began, ended in connection.execute(query):
        spans.setdefault(job, []).append((ended - began).total_seconds())
    return tuple(
        RunTimes(job=job, ended=len(some), seconds=sum(some)) for job, some in sorted(spans.items())
    )


def _polls(connection: Connection) -> Polls:
    columns = (sources.c.poll_count, sources.c.change_count, sources.c.strike_count)
    query = select(*(func.coalesce(func.sum(one), 0) for one in columns))
    ended, changed, failed = map(int, connection.execute(query).one())
    return Polls(ended=ended, changed=changed, failed=failed)


def _models(connection: Connection, now: datetime) -> ModelUse:
    is_cached = model_calls.c.status == "cached"
    query = select(
        func.count().filter(~is_cached),
        func.count().filter(model_calls.c.status == "failed"),
        func.count().filter(is_cached),
        func.coalesce(func.sum(model_calls.c.cost_usd), 0),
    ).where(model_calls.c.created_at > now - MONTH)
    calls, failed, cached, cost = connection.execute(query).one()
    unchanged, by_rules = _spared_pages(connection, now)
    return ModelUse(
        calls=calls,
        failed=failed,
        saved_by_cache=cached,
        saved_by_unchanged=unchanged,
        saved_by_rules=by_rules,
        cost_usd=Decimal(str(cost)),
    )


def _spared_pages(connection: Connection, now: datetime) -> tuple[int, int]:
    """Pages of the last day's extractions that are as they were, and those that rules read."""
    is_carried = and_(pages.c.status != "ERROR", pages.c.carried_from != pages.c.id)
    is_read = and_(pages.c.carried_from.is_(None), pages.c.rung.not_in(_BY_MODELS))
    query = (
        select(
            func.count().filter(is_carried),
            func.count().filter(is_read),
        )
        .select_from(pages)
        .join(extractions, extractions.c.id == pages.c.extraction_id)
        .where(extractions.c.created_at > now - DAY)
    )
    unchanged, by_rules = connection.execute(query).one()
    return unchanged, by_rules
