"""How the house does, in numbers: queues, runs, polls, money, what was saved, and who is how well.

Tasks and polls are counted of all times, dead letters as long as they are kept, runs of a day and
model calls of a month. Each is one grouped statement, and none walks through rows here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import Connection, and_, func, select

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.health import Health
from ingestion_pipeline.store.tables import (
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
)
from ingestion_pipeline.upkeep.backlog import Backlog, backlog
from ingestion_pipeline.upkeep.coverage import MONTH
from ingestion_pipeline.upkeep.house import Budget, last_pulse, month_budget
from ingestion_pipeline.upkeep.queues import Queue, queues
from ingestion_pipeline.upkeep.standing import SourceFacts
from ingestion_pipeline.websites.metrics import PhaseMetrics, phase_metrics
from ingestion_pipeline.work.totals import ended_totals

DAY = timedelta(days=1)
_BY_MODELS = ("cheap_model", "strong_model")  # rungs that a model was asked for


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
    backlog: Backlog


def numbers(
    connection: Connection, settings: Settings, found: Iterable[SourceFacts], *, now: datetime
) -> Numbers:
    """All of it; `found` are the standings of every source."""
    found = list(found)
    words = Counter(one.health for one in found)
    waiting_tasks = queues(connection, now=now)
    waiting = select(func.count()).select_from(outbox).where(UNHANDLED)
    unsent = select(func.count()).select_from(notices).where(UNSENT)
    return Numbers(
        now=now,
        health={word: words.get(word, 0) for word in Health},
        queues=waiting_tasks,
        ended=_ended(connection),
        letters=_dead_letter_counts(connection),
        runs=_runs(connection, now),
        polls=_polls(connection),
        models=_models(connection, now),
        budget=month_budget(connection, settings, now=now),
        phases=tuple(phase_metrics(connection, now=now)),
        outbox=connection.execute(waiting).scalar_one(),
        notices_pending=connection.execute(unsent).scalar_one(),
        pulse=last_pulse(connection),
        backlog=backlog(
            connection,
            [one.facts for one in found],
            waiting_tasks,
            now=now,
            limits=settings.health,
        ),
    )


def _ended(connection: Connection) -> dict[tuple[str, str, str], int]:
    """Return how many tasks ever ended, by kind, status and class of error."""
    return {ended: total.tasks for ended, total in ended_totals(connection).items()}


def _dead_letter_counts(connection: Connection) -> dict[str, int]:
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
