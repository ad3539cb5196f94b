"""Metrics of the analysis phases: how many wait and run, how long they take, how they end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, func, select

from ingestion_pipeline.engine.system_spec import Metric
from ingestion_pipeline.store.tables import ACTIVE, tasks, website_analyses
from ingestion_pipeline.tasks.results import ended_totals
from ingestion_pipeline.tasks.task import TaskStatus
from ingestion_pipeline.websites.states import PHASES

KINDS = tuple(phase.kind for phase in PHASES)
MEASURED = 500  # newest analyses; older ones say little about the present


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMetrics:
    """One phase; times in seconds, means of the newest analyses, None if there are none.

    Successes, failures and retries are counted over all time. `waiting` can be claimed now or
    later; `lost` have a worker whose lease expired.
    """

    queue: str
    waiting: int
    running: int
    lost: int
    succeeded: int
    failed: int
    retries: int
    success_rate: float | None
    waiting_seconds: float | None
    processing_seconds: float | None


def phase_metrics(connection: Connection, *, now: datetime) -> list[PhaseMetrics]:
    """Return the metrics of every phase, in their order."""
    counts, ends, times = _counts(connection, now), _ends(connection), _times(connection)
    return [
        PhaseMetrics(queue=phase.queue, **counts.get(phase.kind, _NONE), **ends[phase.kind], **times[phase.queue])
        for phase in PHASES
    ]


_NONE: dict[str, Any] = dict.fromkeys(("waiting", "running", "lost"), 0)


def _counts(connection: Connection, now: datetime) -> dict[str, dict[str, Any]]:
    is_running = tasks.c.status == TaskStatus.PROCESSING.value
    active = {
        "waiting": func.count().filter(and_(ACTIVE, tasks.c.status == TaskStatus.PENDING.value)),
        "running": func.count().filter(and_(ACTIVE, is_running, tasks.c.lease_until >= now)),
        "lost": func.count().filter(and_(ACTIVE, is_running, tasks.c.lease_until < now)),
    }
    query = (
        select(tasks.c.kind, *(count.label(name) for name, count in active.items()))
        .where(ACTIVE, tasks.c.kind.in_(KINDS))
        .group_by(tasks.c.kind)
    )
    return {row["kind"]: {name: int(row[name]) for name in active} for row in connection.execute(query).mappings()}


def _ends(connection: Connection) -> dict[str, dict[str, Any]]:
    """Return how the phases' tasks ended, by kind, deleted tasks included."""
    counts = {kind: {"succeeded": 0, "failed": 0, "retries": 0} for kind in KINDS}
    names = {TaskStatus.SUCCESS.value: "succeeded", TaskStatus.FAILED.value: "failed"}
    for (kind, status, _), total in ended_totals(connection, KINDS).items():
        counts[kind]["retries"] += total.retries
        if status in names:
            counts[kind][names[status]] += total.tasks
    return {kind: count | {"success_rate": _rate(**count)} for kind, count in counts.items()}


def _rate(*, succeeded: int, failed: int, **_: int) -> float | None:
    ended = succeeded + failed
    return round(succeeded / ended, 4) if ended else None


def _times(connection: Connection) -> dict[str, dict[str, Any]]:
    query = select(website_analyses.c.phase_times).order_by(website_analyses.c.id.desc())
    phase_times: list[Mapping[str, Any]] = list(connection.execute(query.limit(MEASURED)).scalars())
    return {
        phase.queue: {
            "waiting_seconds": _mean(phase_times, phase.queue, "claimable", "began"),
            "processing_seconds": _mean(phase_times, phase.queue, "began", "ended"),
        }
        for phase in PHASES
    }


def _mean(phase_times: list[Mapping[str, Any]], queue: str, start: str, end: str) -> float | None:
    phases = [times[queue] for times in phase_times if queue in times]
    spans = [
        (datetime.fromisoformat(times[end]) - datetime.fromisoformat(times[start])).total_seconds()
        for times in phases
        if start in times and end in times
    ]
    return round(sum(spans) / len(spans), 3) if spans else None


_STATES = ("waiting", "running", "lost", "succeeded", "failed")


def metrics(connection: Connection, now: datetime) -> Iterator[Metric]:
    """Yield the metrics of the phases."""
    phases = phase_metrics(connection, now=now)
    counts = tuple(
        ({"phase": phase.queue, "state": state}, float(getattr(phase, state))) for phase in phases for state in _STATES
    )
    yield Metric("website_phase_tasks", "Analyses of websites by phase and state.", counts)
    for field, meaning in (
        ("retries", "Attempts beyond the first, of tasks that ended."),
        ("success_rate", "Share of successes among what ended."),
        ("waiting_seconds", "Mean waiting time of the newest analyses."),
        ("processing_seconds", "Mean processing time of the newest analyses."),
    ):
        values = tuple(
            ({"phase": phase.queue}, float(value)) for phase in phases if (value := getattr(phase, field)) is not None
        )
        yield Metric(f"website_phase_{field}", meaning, values)
