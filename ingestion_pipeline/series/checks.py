"""Checks for chapter data that is wrong although runs succeed: gaps, quarantines, staleness."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, Select, distinct, func, select

from ingestion_pipeline.series.chapter import missing_numbers
from ingestion_pipeline.series.chapter_labels import is_special
from ingestion_pipeline.series.chapter_rows import IS_AVAILABLE
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Source, Tier
from ingestion_pipeline.sources.lookup import list_sources
from ingestion_pipeline.sources.scheduling.tiers import STALE_FACTOR, is_stale
from ingestion_pipeline.sources.source import QUARANTINED
from ingestion_pipeline.sources.status import MAX_SUMMARY_FINDINGS, Finding
from ingestion_pipeline.store.tables import chapter_sources, chapters, sources

MAX_RANGE = 1_000  # chapters of one release


def gaps(connection: Connection, series_id: str | None = None) -> list[Finding]:
    """Return the series that miss whole numbers between their first and latest chapter."""
    findings: list[Finding] = []
    for id_, all_numbers in chapter_numbers(connection, series_id).items():
        # an extra neither opens a gap nor replaces the chapter it belongs to
        numbers = [n for n in all_numbers if not is_special(n)] or [Decimal(0)]
        skipped = max(int(numbers[0]) - 1, 0)  # numbers before the first chapter are no gap
        missing = [n + skipped for n in missing_numbers([n - skipped for n in numbers])]
        if missing:
            listed = ", ".join(map(str, missing[:MAX_SUMMARY_FINDINGS]))
            more = ", ..." if len(missing) > MAX_SUMMARY_FINDINGS else ""
            findings.append(Finding(subject=id_, message=f"missing: {listed}{more}"))
    return findings


def chapter_numbers(connection: Connection, series_id: str | None = None) -> dict[str, list[Decimal]]:
    """Return the numbers of available chapters, ascending, by series; none withdrawn, of a range each whole one."""
    query = (
        select(chapters.c.series_id, chapters.c.number, chapters.c.key)
        .where(chapters.c.number.is_not(None), chapters.c.rejected_at.is_(None), IS_AVAILABLE)
        .order_by(chapters.c.series_id, chapters.c.number)
    )
    if series_id is not None:
        query = query.where(chapters.c.series_id == series_id)
    numbers: dict[str, list[Decimal]] = {}
    for id_, number, key in connection.execute(query):
        last = min(Decimal(key.partition("-")[2] or number), number + MAX_RANGE)
        numbers.setdefault(id_, []).extend([number, *map(Decimal, range(int(number) + 1, int(last) + 1))])
    return numbers


def quarantined(connection: Connection) -> list[Finding]:
    """Return sources whose last listing was quarantined: empty after full, or a large drop."""
    return [
        Finding(subject=source.id, message=source.last_outcome or "")
        for source in list_sources(connection, sources.c.last_outcome.startswith(QUARANTINED), kind=Kind.SERIES)
    ]


def stale(connection: Connection, *, now: datetime, settings: Settings) -> list[Finding]:
    """Return sources that should have succeeded several times by now and did not."""
    shortest = min(settings.interval_seconds(Kind.SERIES.value, tier.value) for tier in Tier)
    patience = timedelta(seconds=shortest) * STALE_FACTOR
    last = func.coalesce(sources.c.last_success_at, sources.c.created_at)
    return [
        Finding(subject=source.id, message=_since(source))
        # only candidates: a run checks ten thousand sources
        for source in list_sources(connection, last < now - patience, kind=Kind.SERIES)
        if is_stale(source, now=now, settings=settings)
    ]


def _since(source: Source) -> str:
    last = source.last_success_at
    success = f"last success {last:%Y-%m-%d %H:%M} UTC" if last else "never succeeded"
    return f"{success}; {source.last_outcome or 'not polled yet'}"


CHANGES = select(chapter_sources.c.source_id, chapter_sources.c.detected_at, chapters.c.published_at).join_from(
    chapter_sources, chapters, chapters.c.id == chapter_sources.c.chapter_id
)


def coverage_query(ids: Sequence[str]) -> Select[Any, int, int]:
    """Select the whole numbers listed, of those between the lowest and the highest."""
    number = chapters.c.number
    return (
        select(chapter_sources.c.source_id, func.count(distinct(number)), func.max(number) - func.min(number) + 1)
        .join(chapters, chapters.c.id == chapter_sources.c.chapter_id)
        .where(
            chapter_sources.c.source_id.in_(ids),
            chapter_sources.c.available,
            number == func.floor(func.coalesce(number, 0)),  # SQLite's takes no null
        )
        .group_by(chapter_sources.c.source_id)
    )
