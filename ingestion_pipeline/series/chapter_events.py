"""Reports of a source since its last report, as events of the asset `chapters`: the numbers that Dagster plots."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal
from itertools import groupby
from operator import itemgetter
from statistics import median

from sqlalchemy import CTE, Connection, RowMapping, and_, func, or_, select

from ingestion_pipeline.engine.asset_events import AssetEvent, EventValue, Markdown, Url, moment, plain
from ingestion_pipeline.series.numbers import number_text
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
    newest: Sequence[ListedChapter]
    delay_minutes: float | None


def reports(connection: Connection, source_ids: Collection[str]) -> list[SourceReport]:
    """Return the report of each of these sources, by one query: a row per chapter shown."""
    listed = _listed(source_ids)
    query = (
        select(
            sources.c.id.label("source_id"),
            func.coalesce(series.c.title, sources.c.name, sources.c.id).label("series_title"),
            sources.c.url,
            sources.c.tier,
            func.coalesce(sources.c.last_outcome, "not polled yet").label("outcome"),
            sources.c.unreported_polls.label("polls"),
            sources.c.unreported_changes.label("changes"),
            sources.c.unreported_updated.label("updated"),
            sources.c.unreported_withdrawn.label("withdrawn"),
            series.c.latest_chapter,
            sources.c.synced_at,
            func.coalesce(listed.c.new, 0).label("new"),
            func.coalesce(listed.c.total, 0).label("total"),
            *(listed.c[name] for name in ("number", "title", "published_at", "detected_at", "is_new", "available")),
        )
        .select_from(sources)
        .outerjoin(series, series.c.id == canonical_series_id(named_series()))
        .outerjoin(listed, and_(listed.c.source_id == sources.c.id, listed.c.place <= SHOWN_CHAPTERS))
        .where(sources.c.id.in_(list(source_ids)))
        .order_by(sources.c.id, listed.c.place)
    )
    rows = connection.execute(query).mappings()
    return [_report(list(group)) for _, group in groupby(rows, itemgetter("source_id"))]


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
    names = [column.name for column in fields(ListedChapter)]
    newest = [ListedChapter(**{name: row[name] for name in names}) for row in rows if row["available"]]
    facts = {column.name: rows[0][column.name] for column in fields(SourceReport) if column.name in rows[0]}
    return SourceReport(**facts, newest=newest, delay_minutes=delay_minutes(newest, synced_at=rows[0]["synced_at"]))


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


def chapter_events(connection: Connection, source_ids: Collection[str]) -> list[AssetEvent]:
    """Return the event of each source."""
    return [chapter_event(report) for report in reports(connection, source_ids)]


def chapter_event(report: SourceReport) -> AssetEvent:
    """Return the event of the source's chapters and of what happened since its last event."""
    metadata: dict[str, EventValue] = {
        "outcome": report.outcome[:2_000],
        "series": report.series_title[:200],
        "url": Url(report.url),
        "tier": report.tier,
        "newest": Markdown(chapter_table(report.newest)),
        "polled": report.polls,
        "changed": report.changes,
        "new": report.new,
        "updated": report.updated,
        "withdrawn": report.withdrawn,
        "total": report.total,
    }
    # Unknown numbers are left out: a zero would be plotted.
    if report.latest_chapter is not None:
        metadata["latest_chapter"] = float(report.latest_chapter)
    if report.delay_minutes is not None:
        metadata["delay_minutes"] = round(report.delay_minutes, 1)
    return AssetEvent(asset="chapters", partition=report.source_id, metadata=metadata)


def chapter_table(chapters: Sequence[ListedChapter]) -> str:
    """Return the chapters as a Markdown table, in the order given."""
    if not chapters:
        return "no chapters"
    lines = ["| chapter | title | published (UTC) | detected (UTC) | |", "|--:|---|---|---|---|"]
    for chapter in chapters:
        number = "" if chapter.number is None else number_text(chapter.number)
        cells = (number, plain(chapter.title), moment(chapter.published_at), moment(chapter.detected_at))
        lines.append(f"| {' | '.join(cells)} | {'**new**' if chapter.is_new else ''} |")
    return "\n".join(lines)
