"""Reports of a source since its last report: the numbers that Dagster plots."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import groupby
from operator import itemgetter
from statistics import median

from sqlalchemy import CTE, Connection, RowMapping, and_, func, or_, select

from ingestion_pipeline.sources.canonical_series import canonical_series_id, named_series
from ingestion_pipeline.store.tables import chapter_sources, chapters, series, sources

SHOWN_CHAPTERS = 10  # of a source, in a preview and in the median of the delay


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedChapter:
    """A chapter in a report; `is_new` since the last report."""

    number: Decimal | None
    title: str | None
    published_at: datetime | None
    detected_at: datetime
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """One source's state, and what changed since its last report."""

    source_id: str
    series_title: str
    url: str
    tier: str
    outcome: str
    polls: int
    changes: int
    new: int
    updated: int
    withdrawn: int
    total: int
    latest_chapter: Decimal | None
    last_changed_at: datetime | None
    newest: Sequence[ListedChapter]
    delay_minutes: float | None


def reports(connection: Connection, source_ids: Collection[str]) -> list[SourceReport]:
    """Return the report of each of these sources, by one query: a row per chapter shown."""
    listed = _listed(source_ids)
    query = (
        select(
            sources.c.id,
            func.coalesce(series.c.title, sources.c.name, sources.c.id).label("series_title"),
            sources.c.url,
            sources.c.tier,
            func.coalesce(sources.c.last_outcome, "not polled yet").label("outcome"),
            sources.c.unreported_polls,
            sources.c.unreported_changes,
            sources.c.unreported_updated,
            sources.c.unreported_withdrawn,
            series.c.latest_chapter,
            sources.c.last_changed_at,
            sources.c.synced_at,
            listed,
        )
        .select_from(sources)
        .outerjoin(series, series.c.id == canonical_series_id(named_series()))
        .outerjoin(listed, and_(listed.c.source_id == sources.c.id, listed.c.place <= SHOWN_CHAPTERS))
        .where(sources.c.id.in_(list(source_ids)))
        .order_by(sources.c.id, listed.c.place)
    )
    rows = connection.execute(query).mappings()
    return [_report(list(group)) for _, group in groupby(rows, itemgetter("id"))]


def _listed(source_ids: Collection[str]) -> CTE:
    """Return the chapters these sources list, numbered by detection, the latest first."""
    links = chapter_sources.c
    is_new = or_(sources.c.reported_at.is_(None), links.detected_at > sources.c.reported_at)
    latest_first = (
        links.available.desc(),
        links.detected_at.desc(),
        chapters.c.number.desc().nulls_last(),
        chapters.c.id.desc(),
    )
    return (
        select(
            links.source_id,
            links.detected_at,
            links.available,
            is_new.label("is_new"),
            chapters.c.number,
            chapters.c.title,
            chapters.c.published_at,
            func.row_number().over(partition_by=links.source_id, order_by=latest_first).label("place"),
            func.count().filter(is_new).over(partition_by=links.source_id).label("new"),
            func.count().filter(links.available).over(partition_by=links.source_id).label("total"),
        )
        .join(chapters, chapters.c.id == links.chapter_id)
        .join(sources, sources.c.id == links.source_id)
        .where(links.source_id.in_(list(source_ids)), chapters.c.rejected_at.is_(None))
        .cte("listed")
    )


def _report(rows: Sequence[RowMapping]) -> SourceReport:
    first = rows[0]
    newest = [
        ListedChapter(
            number=row["number"],
            title=row["title"],
            published_at=row["published_at"],
            detected_at=row["detected_at"],
            is_new=bool(row["is_new"]),
        )
        for row in rows
        if row["available"]
    ]
    return SourceReport(
        source_id=first["id"],
        series_title=first["series_title"],
        url=first["url"],
        tier=first["tier"],
        outcome=first["outcome"],
        polls=first["unreported_polls"],
        changes=first["unreported_changes"],
        new=first["new"] or 0,
        updated=first["unreported_updated"],
        withdrawn=first["unreported_withdrawn"],
        total=first["total"] or 0,
        latest_chapter=first["latest_chapter"],
        last_changed_at=first["last_changed_at"],
        newest=newest,
        delay_minutes=delay_minutes(newest, synced_at=first["synced_at"]),
    )


def delay_minutes(newest: Sequence[ListedChapter], *, synced_at: datetime | None) -> float | None:
    """Return the median time from publication to detection of new chapters, None if unknown.

    The backlog of a first sync says nothing about our speed, nor does a date in the future.
    """
    delays = [
        (chapter.detected_at - chapter.published_at).total_seconds() / 60
        for chapter in newest
        if chapter.is_new and chapter.published_at and synced_at and chapter.detected_at > synced_at
    ]
    past_delays = [minutes for minutes in delays if minutes >= 0]
    return median(past_delays) if past_delays else None


def chapter_numbers(connection: Connection, series_id: str | None = None) -> dict[str, list[Decimal]]:
    """Return the numbers of available chapters, ascending, by series; none withdrawn."""
    is_available = and_(chapter_sources.c.chapter_id == chapters.c.id, chapter_sources.c.available)
    query = (
        select(chapters.c.series_id, chapters.c.number)
        .where(chapters.c.number.is_not(None), chapters.c.rejected_at.is_(None))
        .where(select(chapter_sources.c.id).where(is_available).exists())
        .order_by(chapters.c.series_id, chapters.c.number)
    )
    if series_id is not None:
        query = query.where(chapters.c.series_id == series_id)
    numbers: dict[str, list[Decimal]] = {}
    for id_, number in connection.execute(query):
        numbers.setdefault(id_, []).append(number)
    return numbers
