"""Health checks of companies and job boards."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Select, func, null, select

from ingestion_pipeline.companies.boards.listing_rows import STALE_AFTER
from ingestion_pipeline.companies.records import Completeness, ListingDecision, ListingStatus
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Tier
from ingestion_pipeline.sources.lookup import list_sources
from ingestion_pipeline.sources.scheduling.tiers import STALE_FACTOR, is_stale
from ingestion_pipeline.sources.source import QUARANTINED, SourceStatus
from ingestion_pipeline.sources.status import Finding
from ingestion_pipeline.store.tables import companies, job_listings, listing_sources, sources


def thin_companies(connection: Connection) -> list[Finding]:
    """Return companies whose pages state too little."""
    query = select(companies.c.id, companies.c.website, companies.c.quality).where(companies.c.analyzed_at.is_not(None))
    analysed = connection.execute(query.order_by(companies.c.id))
    return [
        Finding(subject=row.id, message=f"{row.website} lacks {', '.join(row.quality['missing'])}")
        for row in analysed
        if row.quality.get("level") == Completeness.THIN.value
    ]


def stale_companies(connection: Connection, *, now: datetime, settings: Settings) -> list[Finding]:
    """Return companies that should have been analysed several times by now and were not."""
    shortest = min(settings.interval_seconds(Kind.COMPANY.value, tier.value) for tier in Tier)
    patience = timedelta(seconds=shortest) * STALE_FACTOR
    last = func.coalesce(sources.c.last_success_at, sources.c.created_at)
    return [
        Finding(subject=source.id, message=source.last_outcome or "not polled yet")
        for source in list_sources(connection, last < now - patience, kind=Kind.COMPANY)
        if is_stale(source, now=now, settings=settings)
    ]


LOST = "have lost their"  # part of the quarantine reason in plan.py
MIN_EVALUATED = 5  # evaluated jobs; fewer may all be filtered by chance


def dropped(connection: Connection) -> list[Finding]:
    """Return boards whose last poll was quarantined: empty after full, or a large drop."""
    return [finding for finding in _quarantined(connection) if LOST not in finding.message]


def lost_fields(connection: Connection) -> list[Finding]:
    """Return boards whose last poll was quarantined because most jobs lost a field."""
    return [finding for finding in _quarantined(connection) if LOST in finding.message]


def _quarantined(connection: Connection) -> list[Finding]:
    condition = sources.c.last_outcome.startswith(QUARANTINED)
    quarantined = list_sources(connection, condition, kind=Kind.JOB_BOARD)
    return [Finding(subject=source.id, message=source.last_outcome or "") for source in quarantined]


def stale_boards(connection: Connection, *, now: datetime) -> list[Finding]:
    """Return boards without a successful poll for long, and boards disabled after failures."""
    since = now - STALE_AFTER
    last = func.coalesce(sources.c.last_success_at, sources.c.created_at)
    overdue = list_sources(
        connection, last < since, sources.c.status != SourceStatus.DISABLED.value, kind=Kind.JOB_BOARD
    )
    disabled = list_sources(
        connection,
        sources.c.status == SourceStatus.DISABLED.value,
        sources.c.status_reason.startswith("disabled"),  # prefix of the reasons that polling sets
        kind=Kind.JOB_BOARD,
    )
    return [
        Finding(
            subject=source.id,
            message=source.status_reason or f"{_since(source.last_success_at)}; {source.last_outcome}",
        )
        for source in [*overdue, *disabled]
    ]


def _since(moment: datetime | None) -> str:
    return f"last success {moment:%Y-%m-%d %H:%M} UTC" if moment else "never succeeded"


def all_filtered(connection: Connection) -> list[Finding]:
    """Return boards whose jobs are all filtered: the wrong board, or too strict a filter."""
    links = listing_sources.c
    is_filtered = job_listings.c.decision == ListingDecision.FILTERED.value
    query = (
        select(links.source_id, func.count())
        .join(job_listings, job_listings.c.id == links.listing_id)
        .where(links.available, job_listings.c.status == ListingStatus.OPEN.value, job_listings.c.decision.is_not(None))
        .group_by(links.source_id)
        .having(func.count() >= MIN_EVALUATED, func.count().filter(~is_filtered) == 0)
        .order_by(links.source_id)
    )
    return [
        Finding(subject=source_id, message=f"all {count} evaluated jobs are filtered: `ingest explain job_listings:ID`")
        for source_id, count in connection.execute(query)
    ]


# A board states no time of day, so a change is when it was detected.
CHANGES = select(listing_sources.c.source_id, listing_sources.c.first_seen_at, null())


def coverage_query(ids: Sequence[str]) -> Select[Any, int, int]:
    """Select the listed jobs that have a description, of all it lists."""
    has_description = func.count().filter(listing_sources.c.stated.contains("d"))
    return (
        select(listing_sources.c.source_id, has_description, func.count())
        .where(listing_sources.c.source_id.in_(ids), listing_sources.c.available)
        .group_by(listing_sources.c.source_id)
    )
