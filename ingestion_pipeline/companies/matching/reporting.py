"""Reports on matches for the UI and the CLI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, func, select

from ingestion_pipeline.companies.matching.match_rows import NEW
from ingestion_pipeline.companies.states import ListingDecision, ListingStatus
from ingestion_pipeline.store.tables import companies, job_listings, job_matches, listing_sources

SHOWN_MATCHES = 20
MIN_EVALUATED = 5  # fewer listings may all be filtered by chance
BIN_WIDTH = 10  # of the histogram of scores


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchReport:
    """A board's open listings by decision, and its best matches.

    `filtered_by` counts the filtered by reason, `scores` the scored by tens.
    """

    source_id: str
    listings: int
    waiting: int
    filtered: int
    skipped: int
    matched: int
    filtered_by: Mapping[str, int]
    scores: Mapping[int, int]
    best: Sequence[Mapping[str, Any]]


def match_report(connection: Connection, source_id: str) -> MatchReport:
    """Return the current report of the board."""
    decisions, reasons, scores = _counted(connection, source_id)
    matched = decisions[ListingDecision.MATCHED.value]
    return MatchReport(
        source_id=source_id,
        listings=decisions.total(),
        waiting=decisions[None],
        filtered=decisions[ListingDecision.FILTERED.value],
        skipped=decisions[ListingDecision.SKIPPED.value],
        matched=matched,
        filtered_by=dict(reasons.most_common()),
        scores=dict(sorted(scores.items())),
        best=list_matches(connection, source_id=source_id, limit=SHOWN_MATCHES) if matched else (),
    )


def _counted(connection: Connection, source_id: str) -> tuple[Counter[str | None], Counter[str], Counter[int]]:
    """Return counts by decision, by filter reason and by tens of the score, in one query."""
    reason = job_listings.c.filter_result["rejected_by"].as_string()
    score = job_listings.c.match_result["score"].as_integer()
    query = (
        select(job_listings.c.decision, reason, score, func.count())
        .join(listing_sources, listing_sources.c.listing_id == job_listings.c.id)
        .where(listing_sources.c.source_id == source_id, job_listings.c.status == ListingStatus.OPEN.value)
        .group_by(job_listings.c.decision, reason, score)
    )
    decisions: Counter[str | None] = Counter()
    reasons: Counter[str] = Counter()
    scores: Counter[int] = Counter()
    for decision, why, scored, number in connection.execute(query):
        decisions[decision] += number
        if decision == ListingDecision.FILTERED.value and why:
            reasons[why] += number
        if scored is not None:
            scores[min(scored // BIN_WIDTH, 9) * BIN_WIDTH] += number
    return decisions, reasons, scores


def list_matches(connection: Connection, *, source_id: str | None = None, limit: int = 100) -> list[Mapping[str, Any]]:
    """Return the current matches, best first."""
    query = _matches().where(job_matches.c.status == NEW)
    if source_id is not None:
        query = query.where(job_matches.c.source_id == source_id)
    rank = func.coalesce(job_matches.c.rank_score, job_matches.c.score)
    newest = (job_matches.c.created_at.desc(), job_matches.c.id)
    order = (job_matches.c.score.desc(), rank.desc(), *newest)
    return [dict(row) for row in connection.execute(query.order_by(*order).limit(limit)).mappings()]


def _matches() -> Select[Any]:
    match_columns = ("score", "rank_score", "priority", "reason", "method", "skills_matched", "skills_missing")
    listing_columns = ("title", "url", "location", "posted_at")
    company = func.coalesce(companies.c.name, job_listings.c.company_name).label("company")
    return (
        select(
            job_matches.c.listing_id,
            *(job_matches.c[name] for name in match_columns),
            *(job_listings.c[name] for name in listing_columns),
            company,
            job_matches.c.source_id,
            job_matches.c.created_at,
        )
        .join(job_listings, job_listings.c.id == job_matches.c.listing_id)
        .outerjoin(companies, companies.c.id == job_matches.c.company_id)
    )


def explained(connection: Connection, listing_id: int) -> RowMapping:
    """Return a listing's evaluation; raise LookupError if there is no such listing."""
    names = ("decision", "evaluated_at", "filter_result", "match_result", "quality")
    query = select(*(job_listings.c[name] for name in names))
    result = connection.execute(query.where(job_listings.c.id == listing_id)).mappings()
    row = result.one_or_none()
    if row is None:
        raise LookupError(f"there is no listing {listing_id}; `ingest listings list` shows which there are")
    return row
