"""Analyses as people look at them: what was done for each, and visibility over time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
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
    """One analysis as it stands, which of its phases ended of late, and what was before it."""

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
    connection: Connection,
    *,
    since: datetime,
    source_ids: Collection[str] | None = None,
    limit: int,
) -> list[AnalysisReport]:
    """The analyses that were worked on since then, the oldest first."""
    query = select(website_analyses).where(website_analyses.c.updated_at >= since)
    if source_ids is not None:
        query = query.where(website_analyses.c.source_id.in_(list(source_ids)))
    rows = connection.execute(query.order_by(website_analyses.c.id).limit(limit)).mappings().all()
    return [_report(connection, row, since) for row in rows]


def latest_reports(
    connection: Connection, source_ids: Collection[str], *, is_complete: bool = False
) -> dict[str, AnalysisReport]:
    """The last analysis of each of these sources that has one; the last complete one, if asked."""
    newest = select(func.max(website_analyses.c.id)).where(
        website_analyses.c.source_id.in_(list(source_ids))
    )
    if is_complete:
        newest = newest.where(website_analyses.c.status == AnalysisStatus.COMPLETED.value)
    query = select(website_analyses).where(
        website_analyses.c.id.in_(newest.group_by(website_analyses.c.source_id))
    )
    rows = connection.execute(query).mappings().all()
    return {row["source_id"]: _report(connection, row, None) for row in rows}


def history_of(connection: Connection, business_id: int) -> list[RankedDay]:
    """The rankings of a business, the oldest first."""
    names = [one.name for one in fields(RankedDay)]
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
        ended=[one for one in PHASES if _has_ended(row["phase_times"].get(one.queue), since)],
        history=[] if business_id is None else history_of(connection, business_id),
        **{name: row[name] for name in taken},
    )


def _has_ended(times: Mapping[str, Any] | None, since: datetime | None) -> bool:
    if times is None or "ended" not in times:
        return False
    return since is None or datetime.fromisoformat(times["ended"]) >= since
