"""Metrics: counts of queues, runs, polls and models, as Prometheus text (format 0.0.4).

All are gauges except polls, which only grow: they are counted with their source's row.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import Connection, and_, func, select

from ingestion_pipeline.engine.system_spec import Metric, Sample
from ingestion_pipeline.operations.alerts import Budget, last_heartbeat, month_budget
from ingestion_pipeline.operations.freshness import MONTH, Attainment, attainments
from ingestion_pipeline.operations.source_health import SourceFacts
from ingestion_pipeline.registry import ingesting_kinds, systems
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.settings.groups import HealthLimits as Limits
from ingestion_pipeline.sources.source import SourceStatus
from ingestion_pipeline.sources.status import Facts, Health, is_late, overdue
from ingestion_pipeline.store.tables import (
    OPEN,
    UNHANDLED,
    UNSENT,
    batch_items,
    dead_letters,
    extractions,
    model_calls,
    notices,
    outbox,
    pages,
    runs,
    sources,
)
from ingestion_pipeline.tasks.ended_tasks import ended_totals
from ingestion_pipeline.tasks.queue import Queue, queues
from ingestion_pipeline.tasks.task import TaskStatus


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
    ingesting = [queue for queue in queues if queue.kind in ingesting_kinds()]
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


DAY = timedelta(days=1)
_BY_MODELS = ("cheap_model", "strong_model")  # extraction methods that call a model


@dataclass(frozen=True, slots=True)
class Polls:
    """All polls of all sources ever; unchanged ones cost no parsing."""

    ended: int
    changed: int
    failed: int

    @property
    def unchanged(self) -> int:
        """Return the polls answered by a 304 or by the same content, running crawls included."""
        return max(self.ended - self.changed - self.failed, 0)


@dataclass(frozen=True, slots=True)
class ModelUse:
    """The model calls of 30 days, and those that were saved."""

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
    dead_letters: Mapping[str, int]
    runs: Mapping[str, Sequence[float]]  # by job the durations of those that ended within a day
    polls: Polls
    models: ModelUse
    budget: Budget
    systems: tuple[Metric, ...]
    objectives: tuple[Attainment, ...]
    outbox: int
    notices_pending: int
    last_tick: datetime | None
    backlog: Backlog


def numbers(connection: Connection, settings: Settings, statuses: Iterable[SourceFacts], *, now: datetime) -> Numbers:
    """Return all numbers; `statuses` are those of every source."""
    statuses = list(statuses)
    words = Counter(status.health for status in statuses)
    waiting_tasks = queues(connection, now=now)
    waiting = select(func.count()).select_from(outbox).where(UNHANDLED)
    unsent = select(func.count()).select_from(notices).where(UNSENT)
    return Numbers(
        now=now,
        health={word: words.get(word, 0) for word in Health},
        queues=waiting_tasks,
        ended={ended: total.tasks for ended, total in ended_totals(connection).items()},
        dead_letters=_dead_letter_counts(connection),
        runs=_runs(connection, now),
        polls=_polls(connection),
        models=_models(connection, now),
        budget=month_budget(connection, settings, now=now),
        systems=tuple(metric for system in systems() if system.metrics for metric in system.metrics(connection, now)),
        objectives=tuple(attainments(connection, settings, now=now)),
        outbox=connection.execute(waiting).scalar_one(),
        notices_pending=connection.execute(unsent).scalar_one(),
        last_tick=last_heartbeat(connection),
        backlog=backlog(
            connection, [status.facts for status in statuses], waiting_tasks, now=now, limits=settings.health
        ),
    )


def _dead_letter_counts(connection: Connection) -> dict[str, int]:
    query = (
        select(dead_letters.c.error_class, func.count())
        .where(OPEN)
        .group_by(dead_letters.c.error_class)
        .order_by(dead_letters.c.error_class)
    )
    return {row[0]: row[1] for row in connection.execute(query)}


def _runs(connection: Connection, now: datetime) -> dict[str, list[float]]:
    query = select(runs.c.job, runs.c.started_at, runs.c.ended_at).where(runs.c.ended_at > now - DAY)
    spans: dict[str, list[float]] = {}
    for job, began, ended in connection.execute(query.order_by(runs.c.job)):
        spans.setdefault(job, []).append((ended - began).total_seconds())
    return spans


def _polls(connection: Connection) -> Polls:
    columns = (sources.c.poll_count, sources.c.change_count, sources.c.strike_count)
    query = select(*(func.coalesce(func.sum(column), 0) for column in columns))
    return Polls(*map(int, connection.execute(query).one()))


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
    return ModelUse(calls, failed, cached, unchanged, by_rules, Decimal(str(cost)))


def _spared_pages(connection: Connection, now: datetime) -> tuple[int, int]:
    """Return the unchanged pages of a day's extractions, and those that rules extracted."""
    is_carried = and_(pages.c.status != "ERROR", pages.c.carried_from != pages.c.id)
    is_read = and_(pages.c.carried_from.is_(None), pages.c.extraction_method.not_in(_BY_MODELS))
    query = (
        select(func.count().filter(is_carried), func.count().filter(is_read))
        .select_from(pages)
        .join(extractions, extractions.c.id == pages.c.extraction_id)
        .where(extractions.c.created_at > now - DAY)
    )
    unchanged, by_rules = connection.execute(query).one()
    return unchanged, by_rules


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "ingestion_"


def exposition(snapshot: Numbers) -> str:
    """Return all metrics as text that ends with a line break, as the format requires."""
    return "".join(metric_text(metric) for metric in metrics(snapshot) if metric.samples)


def metrics(snapshot: Numbers) -> Iterable[Metric]:
    """Yield every metric, in the order in which they are documented."""
    yield from _of_sources(snapshot)
    yield from _of_objectives(snapshot)
    yield from _of_queues(snapshot)
    yield from _of_runs(snapshot)
    yield from _of_models(snapshot)
    yield from snapshot.systems
    behind = snapshot.backlog
    yield _gauge("polls_overdue", "Polls that no run has claimed in time.", behind.overdue)
    oldest = behind.oldest_overdue_seconds
    yield _gauge("polls_oldest_overdue_seconds", "How long the oldest of these waits.", oldest)
    lag = behind.ingestion_lag_seconds
    yield _gauge("ingestion_lag_seconds", "How long the oldest fetched response waits to be ingested.", lag)
    yield _gauge("outbox_rows", "Outbox rows that are not notices yet.", snapshot.outbox)
    yield _gauge("notices_pending", "Notices that are not sent yet.", snapshot.notices_pending)
    ticked_at = snapshot.last_tick and snapshot.last_tick.timestamp()
    yield _gauge("daemon_last_tick_seconds", "When the daemon last ticked, since 1970.", ticked_at)
    yield _gauge("taken_at_seconds", "When this was counted, since 1970.", snapshot.now.timestamp())


def _gauge(name: str, meaning: str, value: float | None) -> Metric:
    return Metric(name, meaning, () if value is None else (({}, value),))


def _samples(label: str, values: Mapping[str, float]) -> tuple[Sample, ...]:
    return tuple(({label: name}, float(value)) for name, value in values.items())


def _of_sources(snapshot: Numbers) -> Iterable[Metric]:
    health = {health.value: count for health, count in snapshot.health.items()}
    yield Metric("sources", "Sources by health.", _samples("health", health))
    polls = snapshot.polls
    ends = {"changed": polls.changed, "unchanged": polls.unchanged, "failed": polls.failed}
    meaning = "Polls that ended, by outcome; an unchanged one needs no parsing."
    yield Metric("polls_total", meaning, _samples("outcome", ends), "counter")


def _of_objectives(snapshot: Numbers) -> Iterable[Metric]:
    shares = {attained.source_id: attained.share for attained in snapshot.objectives}
    left = {attained.source_id: attained.budget_left for attained in snapshot.objectives}
    meaning = "Share of 30 days in which a source was within its max_delay."
    yield Metric("freshness_attainment_30d", meaning, _samples("source", shares))
    yield Metric("freshness_budget_left", "Share of its error budget that is left.", _samples("source", left))


def _of_queues(snapshot: Numbers) -> Iterable[Metric]:
    states = ("due", "later", "running", "lost")
    depth = tuple(
        ({"kind": queue.kind, "state": state}, float(getattr(queue, state)))
        for queue in snapshot.queues
        for state in states
    )
    yield Metric("queue_depth", "Tasks that have not ended, by kind and state.", depth)
    oldest = _samples("kind", {queue.kind: queue.oldest_due_seconds for queue in snapshot.queues})
    yield Metric("queue_oldest_due_seconds", "How long the oldest due task waits.", oldest)
    retries = _samples("kind", {queue.kind: queue.retries for queue in snapshot.queues})
    yield Metric("queue_retries", "Attempts that waiting tasks have used.", retries)
    ended = tuple(
        ({"kind": kind, "status": status.lower(), "error_class": error}, float(count))
        for (kind, status, error), count in snapshot.ended.items()
    )
    yield Metric("tasks_ended", "Tasks that ever ended, by status and class.", ended)
    by_class = _samples("error_class", snapshot.dead_letters)
    yield Metric("dead_letters_open", "Dead letters that are neither replayed nor discarded.", by_class)


def _of_runs(snapshot: Numbers) -> Iterable[Metric]:
    counts = _samples("job", {job: len(seconds) for job, seconds in snapshot.runs.items()})
    yield Metric("runs_ended_24h", "Runs that ended within a day.", counts)
    spans = _samples("job", {job: sum(seconds) for job, seconds in snapshot.runs.items()})
    yield Metric("run_seconds_24h", "Total duration of the runs of a day.", spans)


def _of_models(snapshot: Numbers) -> Iterable[Metric]:
    use = snapshot.models
    outcomes = {"answered": use.calls - use.failed, "failed": use.failed}
    yield Metric("model_calls_30d", "Requests to models in 30 days.", _samples("outcome", outcomes))
    saved = {"cache": use.saved_by_cache, "unchanged": use.saved_by_unchanged, "rules": use.saved_by_rules}
    yield Metric(
        "model_calls_saved",
        "Requests that were saved: by cached answers of 30 days, by pages of a day that did not"
        " change, or that rules extracted.",
        _samples("by", saved),
    )
    yield _gauge("model_cost_30d_usd", "Cost of models in 30 days.", float(use.cost_usd))
    budget = snapshot.budget
    yield _gauge("model_month_usd", "Cost of models this month.", float(budget.held_usd))
    limit = None if budget.limit_usd is None else float(budget.limit_usd)
    yield _gauge("model_month_limit_usd", "Monthly budget for models.", limit)


def metric_text(metric: Metric) -> str:
    """Return the metric as text: help, type, and a line for each value."""
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
