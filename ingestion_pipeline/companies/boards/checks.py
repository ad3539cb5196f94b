"""What can be wrong with boards although every run succeeded: drops, lost fields, silence."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select

from ingestion_pipeline.companies.states import ListingDecision, ListingStatus
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.sources.health import Finding
from ingestion_pipeline.sources.lookup import list_sources
from ingestion_pipeline.sources.source import QUARANTINED, SourceStatus
from ingestion_pipeline.store.tables import job_listings, listing_sources, sources

LOST = "have lost their"  # as quarantine.py words it
ENOUGH = 5  # judged jobs; of fewer it is no wonder that none fits


def dropped(connection: Connection) -> list[Finding]:
    """Boards whose last listing was not believed: empty after full, or a large drop."""
    return [one for one in _quarantined(connection) if LOST not in one.message]


def lost_fields(connection: Connection) -> list[Finding]:
    """Boards whose last listing was not believed since a field of most jobs is gone."""
    return [one for one in _quarantined(connection) if LOST in one.message]


def _quarantined(connection: Connection) -> list[Finding]:
    condition = sources.c.last_outcome.startswith(QUARANTINED)
    found = list_sources(connection, condition, kind=Kind.JOB_BOARD)
    return [Finding(subject=one.id, message=one.last_outcome or "") for one in found]


def stale(connection: Connection, *, now: datetime, settings: Settings) -> list[Finding]:
    """Boards without a successful poll for long, and boards that failures have disabled."""
    since = now - timedelta(seconds=settings.boards.stale_seconds)
    last = func.coalesce(sources.c.last_success_at, sources.c.created_at)
    silent = list_sources(
        connection,
        last < since,
        sources.c.status != SourceStatus.DISABLED.value,
        kind=Kind.JOB_BOARD,
    )
    given_up = list_sources(
        connection,
        sources.c.status == SourceStatus.DISABLED.value,
        sources.c.status_reason.startswith("disabled"),  # by polling.py: no operator's word
        kind=Kind.JOB_BOARD,
    )
    return [
        Finding(
            subject=one.id,
            message=one.status_reason or f"{_since(one.last_success_at)}; {one.last_outcome}",
        )
        for one in [*silent, *given_up]
    ]


def _since(moment: datetime | None) -> str:
    return f"last success {moment:%Y-%m-%d %H:%M} UTC" if moment else "never succeeded"


def all_filtered(connection: Connection) -> list[Finding]:
    """Boards whose jobs are all filtered: the wrong board, or a filter that is too strict."""
    links = listing_sources.c
    is_filtered = job_listings.c.verdict == ListingDecision.FILTERED.value
    query = (
        select(links.source_id, func.count())
        .join(job_listings, job_listings.c.id == links.listing_id)
        .where(
            links.available,
            job_listings.c.status == ListingStatus.OPEN.value,
            job_listings.c.verdict.is_not(None),
        )
        .group_by(links.source_id)
        .having(func.count() >= ENOUGH, func.count().filter(~is_filtered) == 0)
        .order_by(links.source_id)
    )
    return [
        Finding(
            subject=source_id,
            message=f"all {count} judged jobs are filtered: `ingest explain job_listings:ID`",
        )
        for source_id, count in connection.execute(query)
    ]
