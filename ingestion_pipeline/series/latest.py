"""The series' latest chapter, and the outbox rows of new chapters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from decimal import Decimal

from sqlalchemy import Connection, String, Text, and_, exists, insert, or_, select, update

from ingestion_pipeline.store.rows import row_source
from ingestion_pipeline.store.tables import chapter_sources, chapters, outbox, series
from ingestion_pipeline.store.types import ExactDecimal, UtcDateTime


def raise_latest(connection: Connection, latest: Mapping[str, tuple[Decimal, datetime]]) -> None:
    """Where the number exceeds the latest chapter, it is the latest now, since the given time."""
    if not latest:
        return
    columns = {"id": String(120), "number": ExactDecimal(), "at": UtcDateTime()}
    given_rows = [(id_, number, at) for id_, (number, at) in sorted(latest.items())]
    given = row_source(connection, columns, given_rows, "given")
    connection.execute(
        update(series)
        .where(
            series.c.id == given.c.id,
            or_(series.c.latest_chapter.is_(None), series.c.latest_chapter < given.c.number),
        )
        .values(latest_chapter=given.c.number, last_chapter_at=given.c.at)
    )


def recompute_latest(connection: Connection, ids: Collection[str]) -> None:
    """The latest chapter is the highest that some source still has, since it was detected."""
    for series_id in sorted(ids):
        is_available = exists().where(
            chapter_sources.c.chapter_id == chapters.c.id, chapter_sources.c.available
        )
        query = (
            select(chapters.c.number, chapters.c.first_detected_at)
            .where(chapters.c.series_id == series_id, chapters.c.number.is_not(None), is_available)
            .order_by(chapters.c.number.desc())
            .limit(1)
        )
        number, detected_at = connection.execute(query).one_or_none() or (None, None)
        connection.execute(
            update(series)
            .where(series.c.id == series_id, series.c.latest_chapter.is_distinct_from(number))
            .values(latest_chapter=number, last_chapter_at=detected_at)
        )


def announce(connection: Connection, loud: Mapping[tuple[str, str], str], *, now: datetime) -> None:
    """One outbox row per new chapter (series, key), naming the source that brought it."""
    if not loud:
        return
    columns = {"series_id": String(120), "key": Text()}
    given = row_source(connection, columns, sorted(loud), "given")
    query = select(
        chapters.c.id, chapters.c.series_id, chapters.c.key, chapters.c.number, chapters.c.title
    ).join(given, and_(chapters.c.series_id == given.c.series_id, chapters.c.key == given.c.key))
    found = [
        {
            "subject_kind": "chapter",
            "subject_id": str(id_),
            "payload": {
                "series_id": series_id,
                "chapter_id": id_,
                "number": None if number is None else f"{number:f}",
                "title": title,
                "source_id": loud[series_id, key],
            },
            "created_at": now,
        }
        for id_, series_id, key, number, title in connection.execute(query)
    ]
    connection.execute(insert(outbox), found)
