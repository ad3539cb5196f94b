"""The numbers as Prometheus text (exposition format 0.0.4). Pure.

Gauges but for what only grows: polls are counted for good, with their source's row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ingestion_pipeline.upkeep.numbers import Numbers
from ingestion_pipeline.upkeep.queues import Queue
from ingestion_pipeline.websites.metrics import PhaseMetrics

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
