"""What can be wrong with chapters although every run succeeded: gaps, quarantines, silence."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import Connection, func

from ingestion_pipeline.series.numbers import is_special, missing_numbers
from ingestion_pipeline.series.reporting import chapter_numbers
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Source, Tier
from ingestion_pipeline.sources.health import SHOWN, Finding
from ingestion_pipeline.sources.lookup import list_sources
from ingestion_pipeline.sources.scheduling.tiers import is_stale
from ingestion_pipeline.sources.source import QUARANTINED
from ingestion_pipeline.store.tables import sources


def gaps(connection: Connection, series_id: str | None = None) -> list[Finding]:
    """Series with whole numbers missing between the first and the latest chapter, or the one."""
    found: list[Finding] = []
    for one, all_numbers in chapter_numbers(connection, series_id).items():
        # an extra neither opens a gap nor stands for the chapter it belongs to
        numbers = [n for n in all_numbers if not is_special(n)] or [Decimal(0)]
        skipped = max(int(numbers[0]) - 1, 0)  # what lies before its first chapter is no gap
        missing = [n + skipped for n in missing_numbers([n - skipped for n in numbers])]
        if missing:
            shown = ", ".join(map(str, missing[:SHOWN])) + (", ..." if len(missing) > SHOWN else "")
            found.append(Finding(subject=one, message=f"missing: {shown}"))
    return found


def quarantined(connection: Connection) -> list[Finding]:
    """Sources whose last listing was not believed: empty after full, or a large drop."""
    return [
        Finding(subject=source.id, message=source.last_outcome or "")
        for source in list_sources(
            connection, sources.c.last_outcome.startswith(QUARANTINED), kind=Kind.SERIES
        )
    ]


def stale(connection: Connection, *, now: datetime, settings: Settings) -> list[Finding]:
    """Sources that should have succeeded several times by now and did not."""
    shortest = min(settings.interval_seconds(Kind.SERIES.value, tier.value) for tier in Tier)
    patience = timedelta(seconds=shortest) * settings.ingest.stale_factor
    last = func.coalesce(sources.c.last_success_at, sources.c.created_at)
    return [
        Finding(subject=source.id, message=_since(source))
        # only those that may be: a run asks this of ten thousand
        for source in list_sources(connection, last < now - patience, kind=Kind.SERIES)
        if is_stale(source, now=now, settings=settings)
    ]


def _since(source: Source) -> str:
    last = source.last_success_at
    success = f"last success {last:%Y-%m-%d %H:%M} UTC" if last else "never succeeded"
    return f"{success}; {source.last_outcome or 'not polled yet'}"
