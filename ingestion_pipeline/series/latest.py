"""The series' latest chapter, and the outbox rows of new chapters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    Connection,
    String,
    Text,
    Update,
    and_,
    exists,
    func,
    or_,
    select,
    update,
)

from ingestion_pipeline.series.plan import Baseline
from ingestion_pipeline.store.insert import insert_into
from ingestion_pipeline.store.rows import row_source
from ingestion_pipeline.store.tables import chapter_sources, chapters, outbox, series
from ingestion_pipeline.store.types import ExactDecimal, Id, UtcDateTime


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


def baselines(connection: Connection, ids: Collection[str]) -> dict[str, Baseline]:
    """Return what silent syncs of these series start from; a series without chapters has none."""
    if not ids:
        return {}
    query = select(series.c.id, series.c.latest_chapter, series.c.created_at).where(
        series.c.id.in_(list(ids)), exists().where(chapters.c.series_id == series.c.id)
    )
    return {id_: Baseline(latest=number, since=at) for id_, number, at in connection.execute(query)}


def highest_numbers(
    connection: Connection, source_ids: Collection[str]
) -> dict[tuple[str, str], Decimal]:
    """Return the highest number that each source ever had, by (source, series)."""
    if not source_ids:
        return {}
    by = (chapter_sources.c.source_id, chapters.c.series_id)
    query = (
        select(*by, func.max(chapters.c.number, type_=chapters.c.number.type))
        .join(chapters, chapters.c.id == chapter_sources.c.chapter_id)
        .where(chapter_sources.c.source_id.in_(list(source_ids)), chapters.c.number.is_not(None))
        .group_by(*by)
    )
    return {(source, home): number for source, home, number in connection.execute(query)}


def mark_unannounced(connection: Connection, ids: Collection[int]) -> None:
    """Keep in mind that nobody was told of these chapters."""
    if ids:
        connection.execute(_flagged(connection, ids, unannounced=True))


def reveal(connection: Connection, ids: Collection[int]) -> set[tuple[str, str]]:
    """Return the (series, key) of these chapters of which nobody was told; each of them once."""
    if not ids:
        return set()
    statement = _flagged(connection, ids, unannounced=False).where(
        chapters.c.unannounced, chapters.c.rejected_at.is_(None)
    )
    made = connection.execute(statement.returning(chapters.c.series_id, chapters.c.key))
    return {(series_id, key) for series_id, key in made}


def _flagged(connection: Connection, ids: Collection[int], *, unannounced: bool) -> Update:
    given = row_source(connection, {"id": Id}, [(id_,) for id_ in sorted(ids)], "given")
    changed = update(chapters).where(chapters.c.id.in_(select(given.c.id)))
    return changed.values(unannounced=unannounced)


def announce(
    connection: Connection,
    news: Mapping[tuple[str, str], str],
    *,
    revealed: Collection[tuple[str, str]] = (),
    now: datetime,
) -> None:
    """Write one outbox row per chapter (series, key), naming the source that brought it.

    Of a chapter that is `revealed` those are told who followed when it was first detected.
    """
    if not news:
        return
    columns = {"series_id": String(120), "key": Text()}
    given = row_source(connection, columns, sorted(news), "given")
    query = select(*CHAPTER_COLUMNS, chapters.c.first_detected_at).join(
        given, and_(chapters.c.series_id == given.c.series_id, chapters.c.key == given.c.key)
    )
    rows = [
        {
            "subject_kind": "chapter",
            "subject_id": str(row.id),
            "payload": chapter_payload(row, news[row.series_id, row.key])
            | (
                {"followed_by": row.first_detected_at.isoformat()}
                if (row.series_id, row.key) in revealed
                else {}
            ),
            "created_at": now,
        }
        for row in connection.execute(query)
    ]
    put_in_outbox(connection, rows)


def put_in_outbox(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write these rows of the outbox; one that was handled is handled again, as it is now."""
    if not rows:
        return
    statement = insert_into(connection, outbox)
    again = {name: statement.excluded[name] for name in ("payload", "created_at")}
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["subject_kind", "subject_id"], set_=again | {"handled_at": None}
        ),
        rows,
    )
