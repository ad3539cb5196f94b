"""Status of websites for operators: the state of each analysis, and why it waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, func, select

from ingestion_pipeline.sources import Kind, Source, SourceStatus
from ingestion_pipeline.sources.status import Watched, reason, watched_source, watched_sources
from ingestion_pipeline.store.tables import ACTIVE, model_calls, tasks, website_analyses
from ingestion_pipeline.tasks.task import TaskStatus
from ingestion_pipeline.websites.metrics import KINDS
from ingestion_pipeline.websites.reporting import AnalysisReport, latest_reports
from ingestion_pipeline.websites.states import AnalysisStatus

MOST_LISTED = 1_000
NEVER_ANALYSED = "never-analysed"  # the state of a website without an analysis
ANSWERED_CALL = "settled"  # status of a model call that was answered
_LAST = (
    "id",
    "source_id",
    "status",
    "current_step",
    "progress_percent",
    "progress_message",
    "failure",
    "info",
    "finished_at",
)


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
    scores = _scores(connection)
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
    costs = _costs(connection, source_id)
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
    is_off = watched.source.status is SourceStatus.DISABLED
    if last is None or is_off:
        return reason(watched.source, watched.poll, now=now, max_attempts=max_attempts)
    if not AnalysisStatus(last["status"]).is_final:
        step = last["current_step"]
        return why_it_waits(task, now=now, max_attempts=max_attempts, step=step)
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
    newest = select(func.max(website_analyses.c.id)).where(*those)
    query = select(*(website_analyses.c[name] for name in _LAST)).where(
        website_analyses.c.id.in_(newest.group_by(website_analyses.c.source_id))
    )
    return {row["source_id"]: row for row in connection.execute(query).mappings()}


def _scores(connection: Connection) -> dict[str, Mapping[str, Any]]:
    """Return the scores of each website's last complete analysis."""
    newest = (
        select(func.max(website_analyses.c.id))
        .where(website_analyses.c.status == AnalysisStatus.COMPLETED.value)
        .group_by(website_analyses.c.source_id)
    )
    query = select(website_analyses.c.source_id, website_analyses.c.analysis)
    rows = connection.execute(query.where(website_analyses.c.id.in_(newest)))
    return {source_id: analysis["overall"] for source_id, analysis in rows if analysis}


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


def _costs(connection: Connection, source_id: str) -> list[Decimal | None]:
    """Return the cost of each call that was charged, None where its price is not known."""
    is_charged = (model_calls.c.status == ANSWERED_CALL) | (model_calls.c.cost_usd > 0)
    query = select(model_calls.c.cost_usd).where(model_calls.c.source_id == source_id, is_charged)
    return list(connection.execute(query).scalars())


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
