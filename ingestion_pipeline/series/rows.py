"""Statements on series, chapters and chapter sources; one function, one statement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orjson import Fragment
from sqlalchemy import Connection, String, Text, and_, exists, func, literal, or_, select, update

from ingestion_pipeline.series.chapter import Chapter, Release, as_stored, release_from_dict
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.inserts import NewRows, insert_into, insert_missing
from ingestion_pipeline.store.tables import chapter_sources, chapters, series
from ingestion_pipeline.store.types import ExactDecimal, Id, Json, UtcDateTime


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRow:
    """A chapter source to be written."""

    chapter_id: int
    source_id: str
    chapter: Chapter
    ingestion_id: int | None = None


def ensure_series(connection: Connection, titles: Mapping[str, str], *, now: datetime) -> set[str]:
    """Insert the missing series; return their ids."""
    if not titles:
        return set()
    columns = {"id": String(120), "title": Text()}
    batch = row_source(connection, columns, sorted(titles.items()), "given")
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
    """Return the existing chapter sources of these (source, chapter id).

    Queried by the pair and not through the chapters: without statistics, as after a first sync,
    PostgreSQL joins the three tables by a nested loop.
    """
    if not pairs:
        return {}
    columns = {"source_id": String(120), "chapter_id": Id}
    batch = row_source(connection, columns, sorted(pairs), "given")
    query = select(
        chapter_sources.c.source_id,
        chapter_sources.c.chapter_id,
        chapter_sources.c.fingerprint,
        chapter_sources.c.available,
        chapter_sources.c.missed_listings,
    ).join(
        batch,
        and_(chapter_sources.c.source_id == batch.c.source_id, chapter_sources.c.chapter_id == batch.c.chapter_id),
    )
    return {
        (source_id, chapter_id): StoredRelease(
            chapter_id=chapter_id, fingerprint=print_, available=available, missed_listings=missed
        )
        for source_id, chapter_id, print_, available, missed in connection.execute(query).all()
    }


def stored_releases(connection: Connection, pairs: Collection[tuple[str, int]]) -> dict[tuple[str, int], list[Release]]:
    """Return the releases of these chapter sources, by (source, chapter id)."""
    if not pairs:
        return {}
    columns = {"source_id": String(120), "chapter_id": Id}
    batch = row_source(connection, columns, sorted(pairs), "given")
    query = select(chapter_sources.c.source_id, chapter_sources.c.chapter_id, chapter_sources.c.releases).join(
        batch,
        and_(chapter_sources.c.source_id == batch.c.source_id, chapter_sources.c.chapter_id == batch.c.chapter_id),
    )
    return {
        (source_id, chapter_id): [release_from_dict(fields) for fields in releases]
        for source_id, chapter_id, releases in connection.execute(query).all()
    }


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


_NEW_CHAPTER = {
    "series_id": String(120),
    "key": Text(),
    "number": ExactDecimal(),
    "title": Text(),
    "published_at": UtcDateTime(),
}


def insert_chapters(
    connection: Connection, new_chapters: Mapping[tuple[str, str], Chapter], *, now: datetime
) -> dict[tuple[str, str], int]:
    """Insert the missing chapters; return the ids of those that this insert created."""
    values = [
        (series_id, key, chapter.number, chapter.title, chapter.published_at)
        for (series_id, key), chapter in sorted(new_chapters.items(), key=lambda item: item[0])
    ]
    new = NewRows(
        table=chapters,
        columns=_NEW_CHAPTER,
        rows=values,
        identity=("series_id", "key"),
        shared={"first_detected_at": (UtcDateTime(), now)},
    )
    made = insert_missing(connection, new, returning=("id", "series_id", "key"))
    return {(series_id, key): id_ for id_, series_id, key in made}


def chapter_ids(connection: Connection, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Return the ids of existing chapters, by (series, key)."""
    if not keys:
        return {}
    columns = {"series_id": String(120), "key": Text()}
    batch = row_source(connection, columns, sorted(keys), "given")
    query = select(chapters.c.id, chapters.c.series_id, chapters.c.key).join(
        batch, and_(chapters.c.series_id == batch.c.series_id, chapters.c.key == batch.c.key)
    )
    return {(series_id, key): id_ for id_, series_id, key in connection.execute(query).all()}


_LINK = {
    "chapter_id": Id,
    "source_id": String(120),
    "url": Text(),
    "source_chapter_id": Text(),
    "volume": Text(),
    "language": Text(),
    "scanlation_group": Text(),
    "releases": Json,
    "fingerprint": String(64),
    "ingestion_id": Id,
}


def _link_values(row: LinkRow) -> tuple[Any, ...]:
    chapter = row.chapter
    releases, print_ = as_stored(chapter)
    return (
        row.chapter_id,
        row.source_id,
        chapter.url,
        chapter.source_chapter_id,
        chapter.volume,
        chapter.language,
        chapter.scanlation_group,
        Fragment(releases),
        print_,
        row.ingestion_id,
    )


def insert_links(connection: Connection, new: Sequence[LinkRow], *, now: datetime) -> None:
    """Insert chapter sources, detected now."""
    links = NewRows(
        table=chapter_sources,
        columns=_LINK,
        rows=[_link_values(row) for row in new],
        identity=("source_id", "chapter_id"),
        shared={"detected_at": (UtcDateTime(), now)},
    )
    insert_missing(connection, links)


def update_links(connection: Connection, changed: Sequence[LinkRow]) -> None:
    """Write what the sources state now; `detected_at` stays."""
    if not changed:
        return
    batch = row_source(connection, _LINK, [_link_values(row) for row in changed], "given")
    values = {name: batch.c[name] for name in _LINK if name not in {"chapter_id", "source_id"}}
    connection.execute(
        update(chapter_sources)
        .where(chapter_sources.c.source_id == batch.c.source_id, chapter_sources.c.chapter_id == batch.c.chapter_id)
        .values(**values, available=True, missed_listings=0, last_seen_at=None)
    )


def improve_chapters(connection: Connection, facts: Mapping[int, Chapter]) -> None:
    """Write the title and date that a source states; None overwrites nothing."""
    changes = [(id_, chapter.title, chapter.published_at) for id_, chapter in sorted(facts.items())]
    changes = [row for row in changes if row[1] is not None or row[2] is not None]
    if not changes:
        return
    columns = {"id": Id, "title": Text(), "published_at": UtcDateTime()}
    batch = row_source(connection, columns, changes, "given")
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
    columns = {"id": Id, "last_seen_at": UtcDateTime()}
    batch = row_source(connection, columns, [(link.id, at) for link, at in missed], "given")
    connection.execute(
        update(chapter_sources)
        .where(chapter_sources.c.id == batch.c.id)
        .values(missed_listings=chapter_sources.c.missed_listings + 1, last_seen_at=batch.c.last_seen_at)
    )


def mark_unavailable(connection: Connection, gone: Sequence[VanishedLink]) -> None:
    """Mark links that their source no longer lists; the rows stay."""
    if not gone:
        return
    batch = row_source(connection, {"id": Id}, [(link.id,) for link in gone], "given")
    connection.execute(
        update(chapter_sources)
        .where(chapter_sources.c.id == batch.c.id)
        .values(missed_listings=chapter_sources.c.missed_listings + 1, available=False)
    )
