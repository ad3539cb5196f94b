"""Queries on series and their chapters by id, and the errors of unknown or merged series."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from sqlalchemy import Connection, func, select, true
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.series.chapter_rows import IS_AVAILABLE, lock_series
from ingestion_pipeline.sources.canonical_series import canonical_series_id, named_series
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
