"""Reports of analyses for people: the state of each, and visibility over time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, RowMapping, func, select

from ingestion_pipeline.store.tables import website_analyses, website_rankings
from ingestion_pipeline.websites.states import PHASES, AnalysisStatus, Phase

HISTORY_DAYS = 180  # of a plot


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedDay:
    """How visible a business was on a day; shares from 0 to 1."""

    day: date
    visibility: float
    score: int
    by_provider: Mapping[str, Mapping[str, Any]]
    competitors: Mapping[str, Mapping[str, Any]]
    cost_usd: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisReport:
    """One analysis, which of its phases ended lately, and the history before it."""

    id: int
    source_id: str
    url: str
    status: AnalysisStatus
    progress_percent: int
    progress_message: str | None
    failure: str | None
    created_at: datetime
    finished_at: datetime | None
    info: Mapping[str, Any]
    prompts: Sequence[Mapping[str, Any]]
    analysis: Mapping[str, Any]
    phase_times: Mapping[str, Mapping[str, Any]]
    ended: Sequence[Phase]
    history: Sequence[RankedDay]


def reports_since(
    connection: Connection, *, since: datetime, source_ids: Collection[str] | None = None, limit: int
) -> list[AnalysisReport]:
    """Return the analyses that were updated since then, oldest first."""
    query = select(website_analyses).where(website_analyses.c.updated_at >= since)
    if source_ids is not None:
        query = query.where(website_analyses.c.source_id.in_(list(source_ids)))
    rows = connection.execute(query.order_by(website_analyses.c.id).limit(limit)).mappings().all()
    return [_report(connection, row, since) for row in rows]


def latest_reports(
    connection: Connection, source_ids: Collection[str], *, is_complete: bool = False
) -> dict[str, AnalysisReport]:
    """Return the last analysis of each of these sources; the last complete one if requested."""
    newest = select(func.max(website_analyses.c.id)).where(website_analyses.c.source_id.in_(list(source_ids)))
    if is_complete:
        newest = newest.where(website_analyses.c.status == AnalysisStatus.COMPLETED.value)
    query = select(website_analyses).where(website_analyses.c.id.in_(newest.group_by(website_analyses.c.source_id)))
    rows = connection.execute(query).mappings().all()
    return {row["source_id"]: _report(connection, row, None) for row in rows}


def history_of(connection: Connection, business_id: int) -> list[RankedDay]:
    """Return the rankings of a business, oldest first."""
    names = [column.name for column in fields(RankedDay)]
    query = (
        select(*(website_rankings.c[name] for name in names))
        .where(website_rankings.c.business_id == business_id)
        .order_by(website_rankings.c.day.desc())
        .limit(HISTORY_DAYS)
    )
    rows = connection.execute(query).all()
    return [RankedDay(**dict(zip(names, row, strict=True))) for row in reversed(rows)]


def _report(connection: Connection, row: RowMapping, since: datetime | None) -> AnalysisReport:
    business_id = row["business_id"]
    taken = ("id", "source_id", "url", "progress_percent", "progress_message", "failure")
    taken += ("created_at", "finished_at")
    return AnalysisReport(
        status=AnalysisStatus(row["status"]),
        info=row["info"] or {},
        prompts=row["prompts"] or (),
        analysis=row["analysis"] or {},
        phase_times=row["phase_times"],
        ended=[phase for phase in PHASES if _has_ended(row["phase_times"].get(phase.queue), since)],
        history=[] if business_id is None else history_of(connection, business_id),
        **{name: row[name] for name in taken},
    )


def _has_ended(times: Mapping[str, Any] | None, since: datetime | None) -> bool:
    if times is None or "ended" not in times:
        return False
    return since is None or datetime.fromisoformat(times["ended"]) >= since


ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibilityRow:
    """How visible the business is to one provider, or to all; shares from 0 to 1.

    A provider that answered nothing has no numbers. `competitors` are by name the share of the same
    answers that name each, the most visible first.
    """

    provider: str
    prompts: int
    answers: int
    visibility: float | None = None
    unprompted: float | None = None
    best_rank: int | None = None
    mean_rank: float | None = None
    score: int | None = None
    competitors: Mapping[str, float] = field(default_factory=dict[str, float])
    failure: str | None = None


def visibility_rows(report: AnalysisReport) -> list[VisibilityRow]:
    """Return a row for all providers together, then one for each; none if incomplete."""
    analysis = report.analysis
    return list(_rows(analysis, prompts=len(report.prompts))) if analysis else []


def _rows(analysis: Mapping[str, Any], *, prompts: int) -> Iterator[VisibilityRow]:
    failures: Mapping[str, str] = analysis.get("failures", {})
    by_provider: Mapping[str, Mapping[str, Any]] = analysis["by_provider"]
    providers = len(by_provider.keys() | failures.keys())
    yield _row(ALL, {**analysis["overall"], "competitors": analysis["competitors"]}, prompts * providers)
    for name, facts in by_provider.items():
        yield _row(name, facts, prompts, failures.get(name))
    for name in failures.keys() - by_provider.keys():
        yield VisibilityRow(provider=name, prompts=prompts, answers=0, failure=failures[name])


def _row(provider: str, facts: Mapping[str, Any], prompts: int, failure: str | None = None) -> VisibilityRow:
    others: Mapping[str, Mapping[str, Any]] = facts.get("competitors", {})
    shares = {name: float(other["visibility"]) for name, other in others.items()}
    taken = ("answers", "visibility", "unprompted", "best_rank", "score")
    return VisibilityRow(
        provider=provider,
        prompts=prompts,
        competitors=dict(sorted(shares.items(), key=lambda pair: -pair[1])),
        failure=failure,
        mean_rank=facts.get("mean_rank"),  # old rankings have none
        **{name: facts[name] for name in taken},
    )
