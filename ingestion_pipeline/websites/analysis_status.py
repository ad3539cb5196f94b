"""Status of websites for operators: the state of each analysis, why it waits, and metrics of the phases."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, func, select

from ingestion_pipeline.engine.system_spec import Metric
from ingestion_pipeline.sources import Kind, Source, SourceStatus
from ingestion_pipeline.sources.status import Watched, reason, watched_source, watched_sources
from ingestion_pipeline.store.tables import ACTIVE, model_calls, tasks, website_analyses
from ingestion_pipeline.tasks.results import ended_totals
from ingestion_pipeline.tasks.task import TaskStatus
from ingestion_pipeline.websites.analysis_reports import AnalysisReport, latest_reports
from ingestion_pipeline.websites.states import IS_COMPLETE, KINDS, PHASES, AnalysisStatus, newest_analyses

MOST_LISTED = 1_000
NEVER_ANALYSED = "never-analysed"  # the state of a website without an analysis
ANSWERED_CALL = "settled"  # status of a model call that was answered
_LAST = ("id", "source_id", "status", "current_step", "progress_percent", "failure", "info", "finished_at")


class UnknownWebsite(LookupError):
    """No website has this id."""

    def __init__(self, source_id: str) -> None:
        super().__init__(f"there is no website {source_id!r}; `ingest websites list` shows all")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTask:
    """The task of the phase that an analysis is in."""

    status: TaskStatus
    attempts: int
    not_before: datetime
    lease_until: datetime | None
    updated_at: datetime
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebsiteReport:
    """A website's last analysis and its last complete one.

    `why` says what happens next. Cost and calls are those of the ledger, over all its analyses; the
    cost of unpriced calls is not known.
    """

    source: Source
    last: AnalysisReport | None
    complete: AnalysisReport | None
    why: str
    next_check_at: datetime | None
    cost_usd: Decimal
    calls: int
    unpriced: int


def list_websites(
    connection: Connection, *, now: datetime, max_attempts: int, status: str | None = None
) -> list[dict[str, Any]]:
    """Return every website, or those whose last analysis is in this state; by id."""
    last, waiting = _last(connection), _phase_tasks(connection)
    query = select(website_analyses.c.source_id, website_analyses.c.analysis)
    complete = connection.execute(query.where(website_analyses.c.id.in_(newest_analyses(IS_COMPLETE))))
    scores: dict[str, Mapping[str, Any]] = {id_: analysis["overall"] for id_, analysis in complete if analysis}
    rows = [
        _listed(
            watched,
            last.get(watched.source.id),
            scores.get(watched.source.id),
            _why(watched, last.get(watched.source.id), waiting.get(watched.source.id), now, max_attempts),
        )
        for watched in watched_sources(connection, kind=Kind.WEBSITE)
    ]
    return [row for row in rows if status in {None, row["status"]}][:MOST_LISTED]


def website_report(connection: Connection, source_id: str, *, now: datetime, max_attempts: int) -> WebsiteReport:
    """Return one website with the reports of its analyses."""
    watched = watched_source(connection, source_id)
    if watched is None or watched.source.kind is not Kind.WEBSITE:
        raise UnknownWebsite(source_id)
    last = _last(connection, website_analyses.c.source_id == source_id).get(source_id)
    task = _phase_tasks(connection, tasks.c.source_id == source_id).get(source_id)
    is_charged = (model_calls.c.status == ANSWERED_CALL) | (model_calls.c.cost_usd > 0)
    charged = select(model_calls.c.cost_usd).where(model_calls.c.source_id == source_id, is_charged)
    costs = list(connection.execute(charged).scalars())  # None where the price is not known
    return WebsiteReport(
        source=watched.source,
        last=latest_reports(connection, [source_id]).get(source_id),
        complete=latest_reports(connection, [source_id], is_complete=True).get(source_id),
        why=_why(watched, last, task, now, max_attempts),
        next_check_at=watched.next_check_at,
        cost_usd=sum((cost for cost in costs if cost is not None), Decimal(0)),
        calls=len(costs),
        unpriced=costs.count(None),
    )


def why_it_waits(task: PhaseTask | None, *, now: datetime, max_attempts: int, step: str = "") -> str:
    """Return why an analysis has not ended, as a sentence for people."""
    if task is None:
        return f"{step}: it has no task; `ingest dead-letters list` may have it"
    if task.status is TaskStatus.PROCESSING:
        if task.lease_until is not None and task.lease_until < now:
            return f"{step}: worker lost; the next run takes over"
        return f"{step}: running since {_at(task.updated_at)} (attempt {task.attempts})"
    because = f": {task.error}" if task.error else ""
    if task.not_before > now:
        tried = f", attempt {task.attempts} of {max_attempts} failed" if task.attempts else ""
        return f"{step}: waits until {_at(task.not_before)}{tried}{because}"
    return f"{step}: claimable since {_at(task.not_before)}; no run has had a free slot yet"


def _why(watched: Watched, last: RowMapping | None, task: PhaseTask | None, now: datetime, max_attempts: int) -> str:
    if last is None or watched.source.status is SourceStatus.DISABLED:
        return reason(watched.source, watched.poll, now=now, max_attempts=max_attempts)
    if not AnalysisStatus(last["status"]).is_final:
        return why_it_waits(task, now=now, max_attempts=max_attempts, step=last["current_step"])
    ended = f"failed: {last['failure']}" if last["failure"] else f"ended {_at(last['finished_at'])}"
    at = watched.next_check_at
    return f"{ended}; the next analysis starts {_at(at) if at else 'on request'}"


def _listed(watched: Watched, last: RowMapping | None, score: Mapping[str, Any] | None, why: str) -> dict[str, Any]:
    source = watched.source
    info: Mapping[str, Any] = (last["info"] if last else None) or {}
    return {
        "id": source.id,
        "url": source.url,
        "name": info.get("name") or source.name,
        "analysis": last["id"] if last else None,
        "status": last["status"] if last else NEVER_ANALYSED,
        "step": last["current_step"] if last else None,
        "progress_percent": last["progress_percent"] if last else 0,
        "visibility": score["visibility"] if score else None,
        "score": score["score"] if score else None,
        "finished_at": last["finished_at"] if last else None,
        "next_check_at": watched.next_check_at,
        "why": why,
    }


def _last(connection: Connection, *those: ColumnElement[bool]) -> dict[str, RowMapping]:
    """Return the last analysis of each website."""
    columns = (website_analyses.c[name] for name in _LAST)
    query = select(*columns).where(website_analyses.c.id.in_(newest_analyses(*those)))
    return {row["source_id"]: row for row in connection.execute(query).mappings()}


def _phase_tasks(connection: Connection, *those: ColumnElement[bool]) -> dict[str, PhaseTask]:
    """Return the active task of each website that has an unfinished analysis."""
    names = PhaseTask.__dataclass_fields__
    query = select(tasks.c.source_id, *(tasks.c[name] for name in names)).where(ACTIVE, tasks.c.kind.in_(KINDS), *those)
    return {
        row["source_id"]: PhaseTask(
            **{name: row[name] for name in names if name != "status"}, status=TaskStatus(row["status"])
        )
        for row in connection.execute(query).mappings()
    }


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


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
    none: dict[str, Any] = dict.fromkeys(("waiting", "running", "lost"), 0)
    return [
        PhaseMetrics(queue=phase.queue, **counts.get(phase.kind, none), **ends[phase.kind], **times[phase.queue])
        for phase in PHASES
    ]


def _counts(connection: Connection, now: datetime) -> dict[str, dict[str, Any]]:
    is_running = tasks.c.status == TaskStatus.PROCESSING.value
    active = {
        "waiting": func.count().filter(tasks.c.status == TaskStatus.PENDING.value),
        "running": func.count().filter(and_(is_running, tasks.c.lease_until >= now)),
        "lost": func.count().filter(and_(is_running, tasks.c.lease_until < now)),
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
    ends: dict[str, dict[str, Any]] = {}
    for kind, count in counts.items():
        ended = count["succeeded"] + count["failed"]
        ends[kind] = count | {"success_rate": round(count["succeeded"] / ended, 4) if ended else None}
    return ends


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
    spans = [
        (datetime.fromisoformat(times[end]) - datetime.fromisoformat(times[start])).total_seconds()
        for times in (of_phases.get(queue, {}) for of_phases in phase_times)
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
