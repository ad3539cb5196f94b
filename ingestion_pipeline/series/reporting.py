"""What changed in a source since it was last reported: the numbers Dagster plots."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import Connection, and_, func, or_, select, update

from ingestion_pipeline.sources.belonging import home_of, named_series
from ingestion_pipeline.store.tables import chapter_sources, chapters, series, sources


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """One source's state, for people and plots."""

    source_id: str
    series_title: str
    url: str
    tier: str
    outcome: str
    new_chapters: int
    available_chapters: int
    latest_chapter: Decimal | None
    last_changed_at: datetime | None


def unreported(connection: Connection, *, limit: int) -> list[str]:
    """Series sources that changed since Dagster was last told, oldest change first."""
    query = (
        select(sources.c.id)
        .where(
            sources.c.kind == "series",
            sources.c.last_changed_at.is_not(None),
            or_(
                sources.c.reported_at.is_(None),
                sources.c.last_changed_at > sources.c.reported_at,
            ),
        )
        .order_by(sources.c.last_changed_at)
        .limit(limit)
        .with_for_update(skip_locked=True)  # another run may be telling of the same ones
    )
    return list(connection.execute(query).scalars())


def reports(connection: Connection, source_ids: Collection[str]) -> list[SourceReport]:
    """The report of each of these sources."""
    is_new = or_(
        sources.c.reported_at.is_(None), chapter_sources.c.detected_at > sources.c.reported_at
    )
    query = (
        select(
            sources.c.id,
            func.coalesce(series.c.title, sources.c.name, sources.c.id),
            sources.c.url,
            sources.c.tier,
            func.coalesce(sources.c.last_outcome, "not polled yet"),
            func.count(chapter_sources.c.id).filter(is_new),
            func.count(chapter_sources.c.id).filter(
                chapter_sources.c.available, chapters.c.rejected_at.is_(None)
            ),
            series.c.latest_chapter,
            sources.c.last_changed_at,
        )
        .select_from(sources)
        .outerjoin(series, series.c.id == home_of(named_series()))
        .outerjoin(chapter_sources, chapter_sources.c.source_id == sources.c.id)
        .outerjoin(chapters, chapters.c.id == chapter_sources.c.chapter_id)
        .where(sources.c.id.in_(list(source_ids)))
        .group_by(
            sources.c.id,
            series.c.title,
            sources.c.name,
            sources.c.url,
            sources.c.tier,
            sources.c.last_outcome,
            series.c.latest_chapter,
            sources.c.last_changed_at,
        )
        .order_by(sources.c.id)
    )
    rows = connection.execute(query)
    return [
        SourceReport(
            source_id=source_id,
            series_title=title,
            url=url,
            tier=tier,
            outcome=outcome,
            new_chapters=new,
            available_chapters=available,
            latest_chapter=latest,
            last_changed_at=changed_at,
        )
        for source_id, title, url, tier, outcome, new, available, latest, changed_at in rows
    ]


def mark_reported(connection: Connection, source_ids: Collection[str]) -> None:
    """Dagster has been told of everything up to their last change."""
    connection.execute(
        update(sources)
        .where(sources.c.id.in_(list(source_ids)), sources.c.last_changed_at.is_not(None))
        .values(reported_at=sources.c.last_changed_at)
    )


def chapter_numbers(
    connection: Connection, series_id: str | None = None
) -> dict[str, list[Decimal]]:
    """The numbers of available chapters, ascending, of every series or one; none withdrawn."""
    is_available = and_(chapter_sources.c.chapter_id == chapters.c.id, chapter_sources.c.available)
    query = (
        select(chapters.c.series_id, chapters.c.number)
        .where(chapters.c.number.is_not(None), chapters.c.rejected_at.is_(None))
        .where(select(chapter_sources.c.id).where(is_available).exists())
        .order_by(chapters.c.series_id, chapters.c.number)
    )
    if series_id is not None:
        query = query.where(chapters.c.series_id == series_id)
    found: dict[str, list[Decimal]] = {}
    for one, number in connection.execute(query):
        found.setdefault(one, []).append(number)
    return found
