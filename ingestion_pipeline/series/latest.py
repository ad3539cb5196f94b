"""The series' latest chapter, and the outbox rows of new chapters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

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
    """The latest chapter is the highest that some source still has, since it was detected.

    What an operator has withdrawn is not there, whoever lists it.
    """
    for series_id in sorted(ids):
        is_available = exists().where(
            chapter_sources.c.chapter_id == chapters.c.id, chapter_sources.c.available
        )
        query = (
            select(chapters.c.number, chapters.c.first_detected_at)
            .where(
                chapters.c.series_id == series_id,
                chapters.c.number.is_not(None),
                chapters.c.rejected_at.is_(None),
                is_available,
            )
            .order_by(chapters.c.number.desc())
            .limit(1)
        )
        number, detected_at = connection.execute(query).one_or_none() or (None, None)
        connection.execute(
            update(series)
            .where(series.c.id == series_id, series.c.latest_chapter.is_distinct_from(number))
            .values(latest_chapter=number, last_chapter_at=detected_at)
        )


def rejected(connection: Connection, keys: Collection[tuple[str, str]]) -> set[str]:
    """Of these (series, key), the series whose chapter an operator has withdrawn."""
    if not keys:
        return set()
    columns = {"series_id": String(120), "key": Text()}
    given = row_source(connection, columns, sorted(keys), "given")
    query = (
        select(chapters.c.series_id)
        .join(given, and_(chapters.c.series_id == given.c.series_id, chapters.c.key == given.c.key))
        .where(chapters.c.rejected_at.is_not(None))
    )
    return set(connection.execute(query).scalars())


CHAPTER_COLUMNS = (
    chapters.c.id,
    chapters.c.series_id,
    chapters.c.key,
    chapters.c.number,
    chapters.c.title,
)


def chapter_payload(row: Any, source_id: str) -> dict[str, Any]:  # noqa: ANN401 - any such row
    """What the outbox says of a chapter, given its `CHAPTER_COLUMNS`."""
    return {
        "series_id": row.series_id,
        "chapter_id": row.id,
        "number": None if row.number is None else f"{row.number:f}",
        "title": row.title,
        "source_id": source_id,
    }


def announce(connection: Connection, loud: Mapping[tuple[str, str], str], *, now: datetime) -> None:
    """One outbox row per new chapter (series, key), naming the source that brought it."""
    if not loud:
        return
    columns = {"series_id": String(120), "key": Text()}
    given = row_source(connection, columns, sorted(loud), "given")
    query = select(*CHAPTER_COLUMNS).join(
        given, and_(chapters.c.series_id == given.c.series_id, chapters.c.key == given.c.key)
    )
    found = [
        {
            "subject_kind": "chapter",
            "subject_id": str(row.id),
            "payload": chapter_payload(row, loud[row.series_id, row.key]),
            "created_at": now,
        }
        for row in connection.execute(query)
    ]
    connection.execute(insert(outbox), found)
