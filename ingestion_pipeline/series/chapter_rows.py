"""Statements on series, their latest chapter, chapters and chapter sources; one function, one statement."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal
from typing import Any

from orjson import Fragment
from sqlalchemy import ColumnElement, Connection, String, Text, and_, exists, func, literal, or_, select, update

from ingestion_pipeline.series.chapter import Chapter, Release, as_stored, release_from_dict
from ingestion_pipeline.store.statements import NewRows, columns_of, insert_into, insert_missing, row_source
from ingestion_pipeline.store.tables import chapter_sources, chapters, series
from ingestion_pipeline.store.types import ExactDecimal, Id, UtcDateTime

# A source has the chapter.
IS_AVAILABLE = exists().where(chapter_sources.c.chapter_id == chapters.c.id, chapter_sources.c.available)


@dataclass(frozen=True, slots=True)
class StoredRelease:
    """An existing chapter source."""

    chapter_id: int
    fingerprint: str
    available: bool
    missed_listings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VanishedLink:
    """An available chapter source that a complete listing lacks."""

    id: int
    missed_listings: int


def among(connection: Connection, column: ColumnElement[int], ids: Collection[int]) -> ColumnElement[bool]:
    """Return a condition for any number of ids: chapters times followers exceed every IN list."""
    batch = row_source(connection, {"id": Id}, [(id_,) for id_ in sorted(ids)], "among")
    return column.in_(select(batch.c.id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """State before a silent sync: the latest number, and since when the series is watched."""

    latest: Decimal | None
    since: datetime | None


def ensure_series(connection: Connection, titles: Mapping[str, str], *, now: datetime) -> set[str]:
    """Insert the missing series; return their ids."""
    if not titles:
        return set()
    batch = row_source(connection, {"id": String(120), "title": Text()}, sorted(titles.items()), "given")
    missing = select(batch.c.id, batch.c.title, literal(now, UtcDateTime())).where(
        ~exists().where(series.c.id == batch.c.id)
    )
    statement = (
        insert_into(connection, series)
        .from_select(["id", "title", "created_at"], missing.order_by(batch.c.id))
        .on_conflict_do_nothing(index_elements=["id"])
    )
    return set(connection.execute(statement.returning(series.c.id)).scalars())


def lock_series(connection: Connection, ids: Collection[str]) -> dict[str, str]:
    """Lock these series in one order; return those that were merged away, and into which."""
    query = select(series.c.id, series.c.merged_into).where(series.c.id.in_(list(ids)))
    rows = connection.execute(query.order_by(series.c.id).with_for_update())
    return {id_: into for id_, into in rows if into is not None}


def stored_links(connection: Connection, pairs: Collection[tuple[str, int]]) -> dict[tuple[str, int], StoredRelease]:
    """Return the existing chapter sources of these (source, chapter id)."""
    rows = _links_by_pair(connection, pairs, [column.name for column in fields(StoredRelease)])
    return {pair: StoredRelease(*values) for pair, values in rows.items()}


def stored_releases(connection: Connection, pairs: Collection[tuple[str, int]]) -> dict[tuple[str, int], list[Release]]:
    """Return the releases of these chapter sources, by (source, chapter id)."""
    rows = _links_by_pair(connection, pairs, ["releases"])
    return {pair: [release_from_dict(fields) for fields in releases] for pair, (releases,) in rows.items()}


def _links_by_pair(
    connection: Connection, pairs: Collection[tuple[str, int]], names: Sequence[str]
) -> dict[tuple[str, int], Sequence[Any]]:
    """Return these columns of the chapter sources, by (source, chapter id).

    Queried by the pair and not through the chapters: without statistics, as after a first sync,
    PostgreSQL joins the three tables by a nested loop.
    """
    if not pairs:
        return {}
    link = chapter_sources.c
    batch = row_source(connection, {"source_id": String(120), "chapter_id": Id}, sorted(pairs), "given")
    query = select(link.source_id, link.chapter_id, *(link[name] for name in names)).join(
        batch, and_(link.source_id == batch.c.source_id, link.chapter_id == batch.c.chapter_id)
    )
    rows: Sequence[Any] = connection.execute(query).all()
    return {(source_id, chapter_id): values for source_id, chapter_id, *values in rows}


def vanished_links(
    connection: Connection, complete: Mapping[str, str], listed: Collection[tuple[str, str, str]]
) -> dict[str, list[VanishedLink]]:
    """Return the available links that a complete listing of a series lacks, by source.

    The difference is taken in Python: SQLite would join with the batch by a nested loop.
    """
    if not complete:
        return {}
    query = (
        select(
            chapter_sources.c.source_id,
            chapters.c.series_id,
            chapters.c.key,
            chapter_sources.c.id,
            chapter_sources.c.missed_listings,
        )
        .join(chapters, chapters.c.id == chapter_sources.c.chapter_id)
        .where(chapter_sources.c.source_id.in_(list(complete)), chapter_sources.c.available)
    )
    vanished: dict[str, list[VanishedLink]] = defaultdict(list)
    for source_id, series_id, key, link_id, missed in connection.execute(query).all():
        is_listed = (source_id, series_id, key) in listed
        if complete[source_id] == series_id and not is_listed:
            vanished[source_id].append(VanishedLink(id=link_id, missed_listings=missed))
    return vanished


def insert_chapters(
    connection: Connection, new_chapters: Mapping[tuple[str, str], Chapter], *, now: datetime
) -> dict[tuple[str, str], int]:
    """Insert the missing chapters; return the ids of those that this insert created."""
    values = [
        (series_id, key, chapter.number, chapter.leading.title, chapter.leading.published_at)
        for (series_id, key), chapter in sorted(new_chapters.items(), key=lambda item: item[0])
    ]
    new = NewRows(
        table=chapters,
        columns=columns_of(chapters, ("series_id", "key", "number", "title", "published_at")),
        rows=values,
        identity=("series_id", "key"),
        shared={"first_detected_at": (UtcDateTime(), now)},
    )
    made = insert_missing(connection, new, returning=("id", "series_id", "key"))
    return {(series_id, key): id_ for id_, series_id, key in made}


def chapter_ids(connection: Connection, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Return the ids of existing chapters, by (series, key)."""
    by = (chapters.c.id, chapters.c.series_id, chapters.c.key)
    return {(series_id, key): id_ for id_, series_id, key in chapters_by_key(connection, keys, *by)}


def chapters_by_key(
    connection: Connection, keys: Collection[tuple[str, str]], *columns: ColumnElement[Any]
) -> Sequence[Any]:
    """Return these columns of the existing chapters of these (series, key)."""
    if not keys:
        return []
    batch = row_source(connection, {"series_id": String(120), "key": Text()}, sorted(keys), "given")
    query = select(*columns).join(batch, and_(chapters.c.series_id == batch.c.series_id, chapters.c.key == batch.c.key))
    return connection.execute(query).all()


_LINK_TEXTS = ("url", "source_chapter_id", "volume", "language", "scanlation_group")
_LINK = columns_of(
    chapter_sources, ("chapter_id", "source_id", *_LINK_TEXTS, "releases", "fingerprint", "ingestion_id")
)
LinkRow = tuple[Any, ...]  # values of `_LINK`


def link_row(chapter_id: int, source_id: str, chapter: Chapter, ingestion_id: int | None = None) -> LinkRow:
    """Return a chapter source to be written."""
    releases, print_ = as_stored(chapter)
    texts = (getattr(chapter.leading, name) for name in _LINK_TEXTS)
    return (chapter_id, source_id, *texts, Fragment(releases), print_, ingestion_id)


def insert_links(connection: Connection, new: Sequence[LinkRow], *, now: datetime) -> None:
    """Insert chapter sources, detected now."""
    links = NewRows(
        table=chapter_sources,
        columns=_LINK,
        rows=new,
        identity=("source_id", "chapter_id"),
        shared={"detected_at": (UtcDateTime(), now)},
    )
    insert_missing(connection, links)


def update_links(connection: Connection, changed: Sequence[LinkRow]) -> None:
    """Write what the sources state now; `detected_at` stays."""
    if not changed:
        return
    batch = row_source(connection, _LINK, changed, "given")
    values = {name: batch.c[name] for name in _LINK if name not in {"chapter_id", "source_id"}}
    connection.execute(
        update(chapter_sources)
        .where(chapter_sources.c.source_id == batch.c.source_id, chapter_sources.c.chapter_id == batch.c.chapter_id)
        .values(**values, available=True, missed_listings=0, last_seen_at=None)
    )


def improve_chapters(connection: Connection, facts: Mapping[int, tuple[str | None, datetime | None]]) -> None:
    """Write the title and date that sources state, by chapter; None overwrites nothing."""
    changes = [(id_, title, at) for id_, (title, at) in sorted(facts.items()) if title is not None or at is not None]
    if not changes:
        return
    batch = row_source(connection, columns_of(chapters, ("id", "title", "published_at")), changes, "given")
    title = func.coalesce(batch.c.title, chapters.c.title)
    published_at = func.coalesce(batch.c.published_at, chapters.c.published_at)
    connection.execute(
        update(chapters)
        .where(
            chapters.c.id == batch.c.id,
            or_(chapters.c.title.is_distinct_from(title), chapters.c.published_at.is_distinct_from(published_at)),
        )
        .values(title=title, published_at=published_at)
    )


def note_missing(connection: Connection, missed: Sequence[tuple[VanishedLink, datetime]]) -> None:
    """Count a complete listing that lacked these links, and store when they were last seen."""
    if not missed:
        return
    rows = [(link.id, at) for link, at in missed]
    batch = row_source(connection, columns_of(chapter_sources, ("id", "last_seen_at")), rows, "given")
    connection.execute(
        update(chapter_sources)
        .where(chapter_sources.c.id == batch.c.id)
        .values(missed_listings=chapter_sources.c.missed_listings + 1, last_seen_at=batch.c.last_seen_at)
    )


def mark_unavailable(connection: Connection, gone: Sequence[VanishedLink]) -> None:
    """Mark links that their source no longer lists; the rows stay."""
    if not gone:
        return
    statement = update(chapter_sources).where(among(connection, chapter_sources.c.id, [link.id for link in gone]))
    connection.execute(statement.values(missed_listings=chapter_sources.c.missed_listings + 1, available=False))


def raise_latest(connection: Connection, latest: Mapping[str, tuple[Decimal, datetime]]) -> None:
    """Set latest chapter and its time where the number exceeds the current latest."""
    if not latest:
        return
    columns = {"id": String(120), "number": ExactDecimal(), "at": UtcDateTime()}
    batch = row_source(connection, columns, [(id_, *highest) for id_, highest in sorted(latest.items())], "given")
    connection.execute(
        update(series)
        .where(
            series.c.id == batch.c.id, or_(series.c.latest_chapter.is_(None), series.c.latest_chapter < batch.c.number)
        )
        .values(latest_chapter=batch.c.number, last_chapter_at=batch.c.at)
    )


def recompute_latest(connection: Connection, ids: Collection[str]) -> None:
    """Set the latest to the highest available chapter, with its time of detection.

    Chapters that an operator rejected do not count, whoever lists them.
    """
    for series_id in sorted(ids):
        query = (
            select(chapters.c.number, chapters.c.first_detected_at)
            .where(
                chapters.c.series_id == series_id,
                chapters.c.number.is_not(None),
                chapters.c.rejected_at.is_(None),
                IS_AVAILABLE,
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


def baselines(connection: Connection, ids: Collection[str]) -> dict[str, Baseline]:
    """Return the baseline of silent syncs of these series; a series without chapters has none."""
    if not ids:
        return {}
    query = select(series.c.id, series.c.latest_chapter, series.c.created_at).where(
        series.c.id.in_(list(ids)), exists().where(chapters.c.series_id == series.c.id)
    )
    return {id_: Baseline(latest=number, since=at) for id_, number, at in connection.execute(query)}


def highest_numbers(connection: Connection, source_ids: Collection[str]) -> dict[tuple[str, str], Decimal]:
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
    """Mark chapters whose followers were not notified."""
    if ids:
        connection.execute(update(chapters).where(among(connection, chapters.c.id, ids)).values(unannounced=True))


def take_unannounced(connection: Connection, ids: Collection[int]) -> set[tuple[str, str]]:
    """Clear the mark of these chapters; return the (series, key) of those that had it."""
    if not ids:
        return set()
    is_marked = among(connection, chapters.c.id, ids) & chapters.c.unannounced & chapters.c.rejected_at.is_(None)
    statement = update(chapters).where(is_marked).values(unannounced=False)
    made = connection.execute(statement.returning(chapters.c.series_id, chapters.c.key))
    return {(series_id, key) for series_id, key in made}
