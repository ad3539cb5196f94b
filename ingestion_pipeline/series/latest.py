"""The series' latest chapter, and the outbox rows of new chapters."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from operator import itemgetter
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

from ingestion_pipeline.series.chapter import Chapter
from ingestion_pipeline.series.plan import Baseline, ChapterKey, ChapterPlan
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import chapter_sources, chapters, outbox, series, sources
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


CHAPTER_LANGUAGE = "chapter_language"

Pair = tuple[int, str]  # chapter id, language


@dataclass(frozen=True, slots=True)
class Brought:
    """Who brings a language to a chapter; and when a silent first sync had brought it before."""

    source_id: str
    suppressed_at: datetime | None = None


Spoken = dict[Pair, Brought]


def new_languages(
    connection: Connection,
    plans: Sequence[ChapterPlan],
    ids: Mapping[ChapterKey, int],
    created: Container[ChapterKey],
) -> Spoken:
    """What sources that are no first sync bring in a language that no source had, before it is so.

    A chapter that is itself new is told as such, and what was only renumbered is no news.
    """
    brought: dict[Pair, list[str]] = {}
    for plan in plans:
        if not plan.is_loud:
            continue
        for chapter_id, chapter in _standing(plan, ids, created):
            for language in {release.language for release in chapter.releases if release.language}:
                brought.setdefault((chapter_id, language), []).append(plan.listing.source.id)
    if not brought:
        return {}
    known = _languages(connection, {chapter_id for chapter_id, _ in brought})
    # of a chapter whose sources were all split off nobody knows what it was told in
    told_in = {chapter_id for chapter_id, _ in known}
    return {
        pair: news
        for pair, source_ids in brought.items()
        if pair[0] in told_in and (news := _news(source_ids, known.get(pair, {})))
    }


def _news(source_ids: Sequence[str], known: Mapping[str, datetime | None]) -> Brought | None:
    """Return who brings what no source had, but for silent first syncs of others; None: nobody."""
    if None in known.values():
        return None
    first = next((id_ for id_ in source_ids if id_ not in known), None)
    earliest = min((at for at in known.values() if at is not None), default=None)
    return Brought(first, earliest) if first is not None else None


def _standing(
    plan: ChapterPlan, ids: Mapping[ChapterKey, int], created: Container[ChapterKey]
) -> list[tuple[int, Chapter]]:
    """What the plan writes of chapters that were there, by their ids."""
    new = [
        (ids[plan.series_id, chapter.key], chapter)
        for chapter in plan.new_links
        if (plan.series_id, chapter.key) not in created and chapter.key not in plan.renumbered
    ]
    return [*new, *((known.chapter_id, chapter) for chapter, known in plan.changed_links)]


def _languages(
    connection: Connection, chapter_ids: set[int]
) -> dict[tuple[int, str | None], dict[str, datetime | None]]:
    """Return who has or had each language of the chapters; none is one of them.

    With the time at which a silent first sync brought it to a chapter that was there, else None.
    """
    link = chapter_sources.c
    is_silent = (link.detected_at <= sources.c.synced_at) & (
        link.detected_at > chapters.c.first_detected_at
    )
    query = (
        select(link.chapter_id, link.source_id, link.releases, link.detected_at, is_silent)
        .join(chapters, chapters.c.id == link.chapter_id)
        .outerjoin(sources, sources.c.id == link.source_id)
        .where(link.chapter_id.in_(sorted(chapter_ids)))
    )
    found: dict[tuple[int, str | None], dict[str, datetime | None]] = {}
    for chapter_id, source_id, releases, detected_at, is_suppressed in connection.execute(query):
        for release in releases:
            having = found.setdefault((chapter_id, release["language"]), {})
            having[source_id] = detected_at if is_suppressed else None
    return found


def announce_languages(connection: Connection, spoken: Spoken, *, now: datetime) -> None:
    """One outbox row per chapter and language, once for ever; none of a withdrawn chapter."""
    if not spoken:
        return
    query = select(*CHAPTER_COLUMNS).where(
        chapters.c.id.in_({chapter_id for chapter_id, _ in spoken}),
        chapters.c.rejected_at.is_(None),
    )
    found = {row.id: row for row in connection.execute(query)}
    new = [
        {
            "subject_kind": CHAPTER_LANGUAGE,
            "subject_id": f"{chapter_id}:{language}",
            "payload": chapter_payload(found[chapter_id], brought.source_id)
            | {"language": language}
            | _followed_by(brought),
            "created_at": now,
        }
        for (chapter_id, language), brought in sorted(spoken.items(), key=itemgetter(0))
        if chapter_id in found
    ]
    if new:
        insert = insert_into(connection, outbox).on_conflict_do_nothing(
            index_elements=["subject_kind", "subject_id"]
        )
        connection.execute(insert, new)


def _followed_by(brought: Brought) -> dict[str, str]:
    """Name who is told of what had come in silence: those who followed when it came."""
    at = brought.suppressed_at
    return {} if at is None else {"followed_by": at.isoformat()}
