"""Reports of series: facts of series and chapters by id, and the events of the asset `chapters`.

An id that is unknown, or that was merged into another series, is refused with the cure.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal
from difflib import get_close_matches
from itertools import groupby
from operator import itemgetter
from statistics import median
from typing import Any

from sqlalchemy import CTE, ColumnElement, Connection, RowMapping, and_, func, or_, select, true

from ingestion_pipeline.engine.system_spec import AssetEvent, EventValue, Markdown, Url, moment, plain
from ingestion_pipeline.series.chapter_labels import number_text
from ingestion_pipeline.series.chapter_rows import IS_AVAILABLE, lock_series
from ingestion_pipeline.sources.lookup import canonical_series_id, named_series
from ingestion_pipeline.store.tables import chapter_sources, chapters, follows, series, sources


class UnknownSeries(LookupError):
    """No series has this id."""

    def __init__(self, series_id: str, existing_ids: Iterable[str]) -> None:
        close = get_close_matches(series_id, list(existing_ids), n=3)
        cure = f"did you mean {' or '.join(close)}?" if close else "`ingest series list` shows all"
        super().__init__(f"there is no series {series_id!r}; {cure}")


class SeriesMerged(ValueError):
    """The series was merged into another."""

    def __init__(self, series_id: str, into: str) -> None:
        super().__init__(f"{series_id!r} was merged into {into!r}; use that id")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesFacts:
    """A series for display, with the current counts."""

    id: str
    title: str
    latest_chapter: Decimal | None
    last_chapter_at: datetime | None
    merged_into: str | None
    chapters: int
    withdrawn: int
    sources: int
    followers: int


def lock_live(connection: Connection, series_ids: Collection[str]) -> None:
    """Lock these series; raise if one does not exist or was merged away."""
    merged = lock_series(connection, series_ids)
    for series_id in series_ids:
        if series_id in merged:
            raise SeriesMerged(series_id, merged[series_id])
        _check_exists(connection, series_id)


def _check_exists(connection: Connection, series_id: str) -> None:
    if connection.execute(select(series.c.id).where(series.c.id == series_id)).first() is None:
        raise UnknownSeries(series_id, connection.execute(select(series.c.id)).scalars())


def list_series(connection: Connection, series_id: str | None = None) -> list[SeriesFacts]:
    """Return every series by id, or the given one."""
    is_rejected = chapters.c.rejected_at.is_not(None)
    of_source = canonical_series_id(named_series())
    counts = {
        "chapters": _counts(connection, chapters.c.series_id, IS_AVAILABLE & ~is_rejected),
        "withdrawn": _counts(connection, chapters.c.series_id, is_rejected),
        "sources": _counts(connection, of_source, sources.c.kind == "series"),
        "followers": _counts(connection, follows.c.series_id, true()),
    }
    names = ("id", "title", "latest_chapter", "last_chapter_at", "merged_into")
    query = select(*(series.c[name] for name in names)).order_by(series.c.id)
    if series_id is not None:
        query = query.where(series.c.id == series_id)
    all_facts: list[SeriesFacts] = []
    for row in connection.execute(query).mappings():
        facts: dict[str, Any] = {**row, **{name: by_id.get(row["id"], 0) for name, by_id in counts.items()}}
        all_facts.append(SeriesFacts(**facts))
    return all_facts


def _counts(connection: Connection, by: ColumnElement[Any], where: ColumnElement[bool]) -> dict[str, int]:
    """Return the number of rows for each value of `by`."""
    query = select(by, func.count()).where(where).group_by(by)
    return {row[0]: row[1] for row in connection.execute(query)}


def get_series(connection: Connection, series_id: str) -> SeriesFacts:
    """Return the series with this id, merged away or not."""
    _check_exists(connection, series_id)
    return list_series(connection, series_id)[0]


def merged_from(connection: Connection, series_id: str) -> list[str]:
    """Return the series that were merged into this one."""
    query = select(series.c.id).where(series.c.merged_into == series_id).order_by(series.c.id)
    return list(connection.execute(query).scalars())


@dataclass(frozen=True, slots=True, kw_only=True)
class ChapterFacts:
    """A chapter for display; `sources` are those that list it."""

    key: str
    number: Decimal | None
    title: str | None
    published_at: datetime | None
    first_detected_at: datetime
    rejected_at: datetime | None
    sources: list[str]


def chapters_of_series(connection: Connection, series_id: str) -> list[ChapterFacts]:
    """Return every available chapter and every withdrawn one, highest number first."""
    names = ("key", "number", "title", "published_at", "first_detected_at", "rejected_at")
    held = (chapter_sources.c.chapter_id == chapters.c.id) & chapter_sources.c.available
    query = (
        select(chapters.c.id, *(chapters.c[name] for name in names), chapter_sources.c.source_id)
        .outerjoin(chapter_sources, held)
        .where(chapters.c.series_id == series_id)
        .order_by(chapters.c.number.desc().nulls_last(), chapters.c.id, chapter_sources.c.source_id)
    )
    chapters_by_id: dict[int, ChapterFacts] = {}
    for row in connection.execute(query).mappings():
        values: dict[str, Any] = {name: row[name] for name in names}
        chapter = chapters_by_id.setdefault(row["id"], ChapterFacts(**values, sources=[]))
        if row["source_id"] is not None:
            chapter.sources.append(row["source_id"])
    return [chapter for chapter in chapters_by_id.values() if chapter.sources or chapter.rejected_at]


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
    has_chapters: bool = True  # now or earlier


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
    return SourceReport(
        **facts,
        newest=newest,
        delay_minutes=delay_minutes(newest, synced_at=rows[0]["synced_at"]),
        has_chapters=rows[0]["available"] is not None,
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


def chapter_events(connection: Connection, source_ids: Collection[str]) -> list[AssetEvent]:
    """Return the event of each source."""
    return [chapter_event(report) for report in reports(connection, source_ids)]


def chapter_event(report: SourceReport) -> AssetEvent:
    """Return the event of the source's chapters and of what happened since its last event."""
    metadata: dict[str, EventValue] = {
        "newest": Markdown(chapter_table(report.newest)),
        "outcome": report.outcome[:2_000],
        "series": report.series_title[:200],
        "url": Url(report.url),
        "tier": report.tier,
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
    return AssetEvent(asset="chapters", partition=report.source_id, metadata=metadata, has_data=report.has_chapters)


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
