"""Chapter sources that go from one chapter to another, and what has to be counted anew."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, RowMapping, and_, delete, func, select, update

from ingestion_pipeline.series import rows
from ingestion_pipeline.series.chapter import chapter_of, release_from_dict, with_known_releases
from ingestion_pipeline.series.rows import LinkRow
from ingestion_pipeline.sources.belonging import home_of, named_series
from ingestion_pipeline.sources.polls import interrupt_polls
from ingestion_pipeline.store.rows import row_source
from ingestion_pipeline.store.tables import chapter_sources, chapters, sources
from ingestion_pipeline.store.types import Id


@dataclass(frozen=True, slots=True, kw_only=True)
class Twins:
    """Two rows of one source for what is one chapter now."""

    key: str
    going: RowMapping
    staying: RowMapping


def pairs_of(connection: Connection, old: str, new: str) -> dict[int, int]:
    """The chapters of one series that the other has too, by id."""
    twin = chapters.alias()
    query = select(chapters.c.id, twin.c.id).join(twin, twin.c.key == chapters.c.key)
    found = connection.execute(query.where(chapters.c.series_id == old, twin.c.series_id == new))
    return {one: other for one, other in found}  # noqa: C416 - rows, not pairs, to a type checker


def move_links(
    connection: Connection, pairs: Mapping[int, int], *, of: Collection[str] | None = None
) -> int:
    """The chapter sources of each chapter belong to its twin; of all sources, or of these.

    How many. Where the source has a row there already, one row holds the releases of both.
    """
    if not pairs:
        return 0
    _unite(connection, _twins(connection, pairs, of))
    given = row_source(connection, {"old": Id, "new": Id}, sorted(pairs.items()), "given")
    statement = update(chapter_sources).where(chapter_sources.c.chapter_id == given.c.old)
    if of is not None:
        statement = statement.where(chapter_sources.c.source_id.in_(list(of)))
    return connection.execute(statement.values(chapter_id=given.c.new)).rowcount


def _twins(
    connection: Connection, pairs: Mapping[int, int], of: Collection[str] | None
) -> list[Twins]:
    given = row_source(connection, {"old": Id, "new": Id}, sorted(pairs.items()), "given")
    other = chapter_sources.alias()
    query = (
        select(chapters.c.key, chapter_sources.c.id, other.c.id)
        .join(chapters, chapters.c.id == chapter_sources.c.chapter_id)
        .join(given, given.c.old == chapter_sources.c.chapter_id)
        .join(
            other,
            and_(
                other.c.chapter_id == given.c.new, other.c.source_id == chapter_sources.c.source_id
            ),
        )
    )
    if of is not None:
        query = query.where(chapter_sources.c.source_id.in_(list(of)))
    found = connection.execute(query).all()
    wanted = [id_ for _, going, staying in found for id_ in (going, staying)]
    held = select(chapter_sources).where(chapter_sources.c.id.in_(wanted))
    links = {row["id"]: row for row in connection.execute(held).mappings()}
    return [
        Twins(key=key, going=links[going], staying=links[staying]) for key, going, staying in found
    ]


def _unite(connection: Connection, twins: Sequence[Twins]) -> None:
    """The row that stays holds every release, and what the newer of the two says of each."""
    rows.update_links(connection, [_united(one) for one in twins])
    for one in twins:
        there = one.staying["available"] or one.going["available"]
        standing = one.staying if one.staying["available"] == there else one.going
        connection.execute(
            update(chapter_sources)
            .where(chapter_sources.c.id == one.staying["id"])
            .values(
                available=there,
                missed_listings=standing["missed_listings"],
                last_seen_at=standing["last_seen_at"],
                detected_at=min(one.staying["detected_at"], one.going["detected_at"]),
            )
        )
    gone = [one.going["id"] for one in twins]
    connection.execute(delete(chapter_sources).where(chapter_sources.c.id.in_(gone)))


def _united(one: Twins) -> LinkRow:
    older, newer = sorted((one.staying, one.going), key=_recency)
    shown = [release_from_dict(fields) for fields in newer["releases"]]
    known = [release_from_dict(fields) for fields in older["releases"]]
    return LinkRow(
        chapter_id=one.staying["chapter_id"],
        source_id=one.staying["source_id"],
        chapter=with_known_releases(chapter_of(one.key, shown), known),
    )


def _recency(link: RowMapping) -> tuple[bool, datetime, int]:
    return link["available"], link["detected_at"], len(link["releases"])


def count_anew(connection: Connection, source_ids: Collection[str], *, now: datetime) -> None:
    """How many chapters each source has in its series; a poll that counts on another begins again.

    The caller has locked their polls.
    """
    count = (
        select(func.count())
        .select_from(chapter_sources)
        .join(chapters, chapters.c.id == chapter_sources.c.chapter_id)
        .where(
            chapter_sources.c.source_id == sources.c.id,
            chapter_sources.c.available,
            chapters.c.series_id == home_of(named_series()),
        )
        .correlate(sources)
        .scalar_subquery()
    )
    statement = (
        update(sources)
        .where(sources.c.id.in_(list(source_ids)), sources.c.record_count != count)
        .values(record_count=count, updated_at=now)
        .returning(sources.c.id)
    )
    changed = list(connection.execute(statement).scalars())
    interrupt_polls(connection, changed, now=now)


def linked_sources(connection: Connection, series_ids: Collection[str]) -> set[str]:
    """The sources that have or had a chapter of these series."""
    query = (
        select(chapter_sources.c.source_id)
        .distinct()
        .join(chapters, chapters.c.id == chapter_sources.c.chapter_id)
        .where(chapters.c.series_id.in_(list(series_ids)))
    )
    return set(connection.execute(query).scalars())
