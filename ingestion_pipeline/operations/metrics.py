"""The numbers as Prometheus text (exposition format 0.0.4). Pure.

Gauges but for what only grows: polls are counted for good, with their source's row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import Connection, and_, func, select

from ingestion_pipeline.operations.alerts import Budget, last_pulse, month_budget
from ingestion_pipeline.operations.health import MONTH, SourceFacts
from ingestion_pipeline.operations.queues import Backlog, Queue, backlog, queues
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
from ingestion_pipeline.tasks.results import ended_totals
from ingestion_pipeline.websites.metrics import PhaseMetrics, phase_metrics

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


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "ingestion_"

Sample = tuple[Mapping[str, str], float]


@dataclass(frozen=True, slots=True)
class Metric:
    """One name with its meaning and its values by label; a name without a value is left out."""

    name: str
    help: str
    samples: tuple[Sample, ...]
    kind: str = "gauge"


def exposition(found: Numbers) -> str:
    """All metrics, each under its own name once; it ends with a line break, as it must."""
    return "".join(metric_text(one) for one in metrics(found) if one.samples)


def metrics(found: Numbers) -> Iterable[Metric]:
    """Every metric, in the order in which they are documented."""
    yield from _of_sources(found)
    yield from _of_queues(found)
    yield from _of_runs(found)
    yield from _of_models(found)
    yield from _of_phases(found.phases)
    behind = found.backlog
    yield _one("polls_overdue", "Polls that nobody has come for in time.", behind.overdue)
    oldest = behind.oldest_overdue_seconds
    yield _one("polls_oldest_overdue_seconds", "How long the oldest of these waits.", oldest)
    lag = behind.ingestion_lag_seconds
    yield _one("ingestion_lag_seconds", "How long the oldest fetched thing is no row yet.", lag)
    yield _one("outbox_rows", "Outbox rows that are no notices yet.", found.outbox)
    yield _one("notices_pending", "Notices that are not sent yet.", found.notices_pending)
    ticks = () if found.pulse is None else (({}, found.pulse.timestamp()),)
    yield Metric("daemon_last_tick_seconds", "When the daemon last ticked, since 1970.", ticks)
    yield _one("taken_at_seconds", "When this was counted, since 1970.", found.now.timestamp())


def _one(name: str, meaning: str, value: float) -> Metric:
    return Metric(name, meaning, (({}, value),))


def _of_sources(found: Numbers) -> Iterable[Metric]:
    words = tuple(({"health": word.value}, float(n)) for word, n in found.health.items())
    yield Metric("sources", "Sources by how well they are.", words)
    ends = {
        "changed": found.polls.changed,
        "unchanged": found.polls.unchanged,
        "failed": found.polls.failed,
    }
    samples = tuple(({"outcome": name}, float(count)) for name, count in ends.items())
    meaning = "Polls that ended, by outcome; an unchanged one cost no reading."
    yield Metric("polls_total", meaning, samples, "counter")


def _of_queues(found: Numbers) -> Iterable[Metric]:
    states = ("due", "later", "running", "lost")
    depth = tuple(
        ({"kind": one.kind, "state": state}, float(getattr(one, state)))
        for one in found.queues
        for state in states
    )
    yield Metric("queue_depth", "Tasks that have not ended, by kind and state.", depth)
    yield _by_kind("queue_oldest_due_seconds", "How long the oldest due task waits.", found.queues)
    yield _by_kind("queue_retries", "Attempts that waiting tasks have behind them.", found.queues)
    ended = tuple(
        ({"kind": kind, "status": status.lower(), "error_class": error}, float(count))
        for (kind, status, error), count in found.ended.items()
    )
    yield Metric("tasks_ended", "Tasks that ever ended, by status and class.", ended)
    letters = tuple(({"error_class": name}, float(n)) for name, n in found.letters.items())
    yield Metric("dead_letters_open", "Dead letters that nobody has decided.", letters)


_QUEUE_FIELDS = {
    "queue_oldest_due_seconds": "oldest_due_seconds",
    "queue_retries": "retries",
}


def _by_kind(name: str, meaning: str, queues: Iterable[Queue]) -> Metric:
    values = tuple(({"kind": one.kind}, float(getattr(one, _QUEUE_FIELDS[name]))) for one in queues)
    return Metric(name, meaning, values)


def _of_runs(found: Numbers) -> Iterable[Metric]:
    counts = tuple(({"job": one.job}, float(one.ended)) for one in found.runs)
    spans = tuple(({"job": one.job}, one.seconds) for one in found.runs)
    yield Metric("runs_ended_24h", "Runs that ended within a day.", counts)
    yield Metric("run_seconds_24h", "How long the runs of a day took together.", spans)


def _of_models(found: Numbers) -> Iterable[Metric]:
    use = found.models
    asked = {"answered": use.calls - use.failed, "failed": use.failed}
    yield Metric(
        "model_calls_30d",
        "Requests to models in 30 days.",
        tuple(({"outcome": name}, float(count)) for name, count in asked.items()),
    )
    saved = {
        "cache": use.saved_by_cache,
        "unchanged": use.saved_by_unchanged,
        "rules": use.saved_by_rules,
    }
    yield Metric(
        "model_calls_saved",
        "Requests that were not made: kept answers of 30 days; pages of a day that did not change"
        " or that rules read.",
        tuple(({"by": name}, float(count)) for name, count in saved.items()),
    )
    yield _one("model_cost_30d_usd", "What models took in 30 days.", float(use.cost_usd))
    budget = found.budget
    yield _one("model_month_usd", "What models hold of this month.", float(budget.held_usd))
    limit = () if budget.limit_usd is None else (({}, float(budget.limit_usd)),)
    yield Metric("model_month_limit_usd", "What they may take in a month.", limit)


_PHASE_COUNTS = ("waiting", "running", "lost", "succeeded", "failed")


def _of_phases(phases: Iterable[PhaseMetrics]) -> Iterable[Metric]:
    phases = tuple(phases)
    counts = tuple(
        ({"phase": one.queue, "state": state}, float(getattr(one, state)))
        for one in phases
        for state in _PHASE_COUNTS
    )
    yield Metric("website_phase_tasks", "Analyses of websites by phase and state.", counts)
    for field, meaning in (
        ("retries", "Attempts beyond the first, of tasks that ended."),
        ("success_rate", "Share of successes among what ended."),
        ("waiting_seconds", "Mean time of waiting of the newest analyses."),
        ("processing_seconds", "Mean time of working of the newest analyses."),
    ):
        values = tuple(
            ({"phase": one.queue}, float(value))
            for one in phases
            if (value := getattr(one, field)) is not None
        )
        yield Metric(f"website_phase_{field}", meaning, values)


def metric_text(metric: Metric) -> str:
    """The metric as it is scraped: meaning, kind, and a line for each value."""
    name = PREFIX + metric.name
    lines = [f"# HELP {name} {_escaped(metric.help)}", f"# TYPE {name} {metric.kind}"]
    lines += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in metric.samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = (f'{key}="{_escaped(value, quote=True)}"' for key, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str, *, quote: bool = False) -> str:
    plain = text.replace("\\", "\\\\").replace("\n", "\\n")
    return plain.replace('"', '\\"') if quote else plain


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
