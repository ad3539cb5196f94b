"""Health checks of companies: thin data, stale analyses."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select

from ingestion_pipeline.companies.analysis.scoring import Completeness
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Tier
from ingestion_pipeline.sources.health import Finding
from ingestion_pipeline.sources.lookup import list_sources
from ingestion_pipeline.sources.scheduling.tiers import STALE_FACTOR, is_stale
from ingestion_pipeline.store.tables import companies, sources


def thin(connection: Connection) -> list[Finding]:
    """Return companies whose pages state too little."""
    query = select(companies.c.id, companies.c.website, companies.c.quality).where(companies.c.analyzed_at.is_not(None))
    analysed = connection.execute(query.order_by(companies.c.id))
    return [
        Finding(subject=row.id, message=f"{row.website} lacks {', '.join(row.quality['missing'])}")
        for row in analysed
        if row.quality.get("level") == Completeness.THIN.value
    ]


def stale(connection: Connection, *, now: datetime, settings: Settings) -> list[Finding]:
    """Return companies that should have been analysed several times by now and were not."""
    shortest = min(settings.interval_seconds(Kind.COMPANY.value, tier.value) for tier in Tier)
    patience = timedelta(seconds=shortest) * STALE_FACTOR
    last = func.coalesce(sources.c.last_success_at, sources.c.created_at)
    return [
        Finding(subject=source.id, message=source.last_outcome or "not polled yet")
        for source in list_sources(connection, last < now - patience, kind=Kind.COMPANY)
        if is_stale(source, now=now, settings=settings)
    ]
