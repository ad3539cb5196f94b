"""The latest chapter of a series, and the outbox rows of new chapters and languages."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, String, Text, Update, and_, exists, func, or_, select, update

from ingestion_pipeline.series.chapter import Chapter
from ingestion_pipeline.series.plan import Baseline, ChapterKey, ChapterPlan
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import chapter_sources, chapters, outbox, series, sources
from ingestion_pipeline.store.types import ExactDecimal, Id, UtcDateTime


def raise_latest(connection: Connection, latest: Mapping[str, tuple[Decimal, datetime]]) -> None:
    """Set latest chapter and its time where the number exceeds the current latest."""
    if not latest:
        return
    columns = {"id": String(120), "number": ExactDecimal(), "at": UtcDateTime()}
    given_rows = [(id_, number, at) for id_, (number, at) in sorted(latest.items())]
    batch = row_source(connection, columns, given_rows, "given")
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
        is_available = exists().where(chapter_sources.c.chapter_id == chapters.c.id, chapter_sources.c.available)
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
    """Return the series of those (series, key) whose chapter an operator has rejected."""
    if not keys:
        return set()
    columns = {"series_id": String(120), "key": Text()}
    batch = row_source(connection, columns, sorted(keys), "given")
    query = (
        select(chapters.c.series_id)
        .join(batch, and_(chapters.c.series_id == batch.c.series_id, chapters.c.key == batch.c.key))
        .where(chapters.c.rejected_at.is_not(None))
    )
    return set(connection.execute(query).scalars())


CHAPTER_COLUMNS = (chapters.c.id, chapters.c.series_id, chapters.c.key, chapters.c.number, chapters.c.title)


def chapter_payload(row: Any, source_id: str) -> dict[str, Any]:  # noqa: ANN401 - any such row
    """Return the outbox payload of a chapter, from a row of its `CHAPTER_COLUMNS`."""
    return {
        "series_id": row.series_id,
        "chapter_id": row.id,
        "number": None if row.number is None else f"{row.number:f}",
        "title": row.title,
        "source_id": source_id,
    }


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
        connection.execute(_flagged(connection, ids, unannounced=True))


def take_unannounced(connection: Connection, ids: Collection[int]) -> set[tuple[str, str]]:
    """Clear the mark of these chapters; return the (series, key) of those that had it."""
    if not ids:
        return set()
    statement = _flagged(connection, ids, unannounced=False).where(
        chapters.c.unannounced, chapters.c.rejected_at.is_(None)
    )
    made = connection.execute(statement.returning(chapters.c.series_id, chapters.c.key))
    return {(series_id, key) for series_id, key in made}


def _flagged(connection: Connection, ids: Collection[int], *, unannounced: bool) -> Update:
    batch = row_source(connection, {"id": Id}, [(id_,) for id_ in sorted(ids)], "given")
    changed = update(chapters).where(chapters.c.id.in_(select(batch.c.id)))
    return changed.values(unannounced=unannounced)


def announce(
    connection: Connection,
    news: Mapping[tuple[str, str], str],
    *,
    revealed: Collection[tuple[str, str]] = (),
    now: datetime,
) -> None:
    """Write one outbox row per chapter (series, key), naming the source that listed it.

    A `revealed` chapter is sent to those who followed the series when it was first detected.
    """
    if not news:
        return
    columns = {"series_id": String(120), "key": Text()}
    batch = row_source(connection, columns, sorted(news), "given")
    query = select(*CHAPTER_COLUMNS, chapters.c.first_detected_at).join(
        batch, and_(chapters.c.series_id == batch.c.series_id, chapters.c.key == batch.c.key)
    )
    rows = [
        {
            "subject_kind": "chapter",
            "subject_id": str(row.id),
            "payload": chapter_payload(row, news[row.series_id, row.key])
            | ({"followed_by": row.first_detected_at.isoformat()} if (row.series_id, row.key) in revealed else {}),
            "created_at": now,
        }
        for row in connection.execute(query)
    ]
    put_in_outbox(connection, rows)


def put_in_outbox(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Upsert these outbox rows; a row that was handled is handled again."""
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
class LanguageNews:
    """The source of a language that is new to a chapter.

    `suppressed_at` is when a silent first sync listed it before.
    """

    source_id: str
    suppressed_at: datetime | None = None


NewLanguages = dict[Pair, LanguageNews]


def new_languages(
    connection: Connection, plans: Sequence[ChapterPlan], ids: Mapping[ChapterKey, int], created: Container[ChapterKey]
) -> NewLanguages:
    """Return languages that are new to existing chapters, before the plans are written.

    Silent syncs do not count. A chapter that is itself new is announced as such, and a renumbered
    one is not news.
    """
    brought: dict[Pair, list[str]] = {}
    for plan in plans:
        if not plan.announces_all:
            continue
        for chapter_id, chapter in _existing_chapters(plan, ids, created):
            for language in {release.language for release in chapter.releases if release.language}:
                brought.setdefault((chapter_id, language), []).append(plan.listing.source.id)
    if not brought:
        return {}
    existing = _languages(connection, {chapter_id for chapter_id, _ in brought})
    # the announced languages of a chapter whose sources were all split off are unknown
    chapters_with_languages = {chapter_id for chapter_id, _ in existing}
    return {
        pair: news
        for pair, source_ids in brought.items()
        if pair[0] in chapters_with_languages and (news := _news(source_ids, existing.get(pair, {})))
    }


def _news(source_ids: Sequence[str], existing: Mapping[str, datetime | None]) -> LanguageNews | None:
    """Return the source that brings a new language; None if a source announced it before."""
    if None in existing.values():
        return None
    first = next((id_ for id_ in source_ids if id_ not in existing), None)
    earliest = min((at for at in existing.values() if at is not None), default=None)
    return LanguageNews(first, earliest) if first is not None else None


def _existing_chapters(
    plan: ChapterPlan, ids: Mapping[ChapterKey, int], created: Container[ChapterKey]
) -> list[tuple[int, Chapter]]:
    """Return the chapters the plan writes that existed before, with their ids."""
    new = [
        (ids[plan.series_id, chapter.key], chapter)
        for chapter in plan.new_links
        if (plan.series_id, chapter.key) not in created and chapter.key not in plan.renumbered
    ]
    return [*new, *((link.chapter_id, chapter) for chapter, link in plan.changed_links)]


def _languages(
    connection: Connection, chapter_ids: set[int]
) -> dict[tuple[int, str | None], dict[str, datetime | None]]:
    """Return the sources that list or listed each (chapter, language); None is a language, too.

    The value is the time at which a silent first sync added it to an existing chapter, else None.
    """
    link = chapter_sources.c
    came_with_first_sync = (link.detected_at <= sources.c.synced_at) & (link.detected_at > chapters.c.first_detected_at)
    query = (
        select(link.chapter_id, link.source_id, link.releases, link.detected_at, came_with_first_sync)
        .join(chapters, chapters.c.id == link.chapter_id)
        .outerjoin(sources, sources.c.id == link.source_id)
        .where(link.chapter_id.in_(sorted(chapter_ids)))
    )
    languages: dict[tuple[int, str | None], dict[str, datetime | None]] = {}
    for chapter_id, source_id, releases, detected_at, is_suppressed in connection.execute(query):
        for release in releases:
            holders = languages.setdefault((chapter_id, release["language"]), {})
            holders[source_id] = detected_at if is_suppressed else None
    return languages


def announce_languages(connection: Connection, languages: NewLanguages, *, now: datetime) -> None:
    """Write one outbox row per chapter and language, only once; none for a rejected chapter."""
    if not languages:
        return
    query = select(*CHAPTER_COLUMNS).where(
        chapters.c.id.in_({chapter_id for chapter_id, _ in languages}), chapters.c.rejected_at.is_(None)
    )
    chapters_by_id = {row.id: row for row in connection.execute(query)}
    new = [
        {
            "subject_kind": CHAPTER_LANGUAGE,
            "subject_id": f"{chapter_id}:{language}",
            "payload": chapter_payload(chapters_by_id[chapter_id], brought.source_id)
            | {"language": language}
            | _followed_by(brought),
            "created_at": now,
        }
        for (chapter_id, language), brought in sorted(languages.items(), key=itemgetter(0))
        if chapter_id in chapters_by_id
    ]
    if new:
        insert = insert_into(connection, outbox).on_conflict_do_nothing(index_elements=["subject_kind", "subject_id"])
        connection.execute(insert, new)


def _followed_by(brought: LanguageNews) -> dict[str, str]:
    """Limit news that a silent sync suppressed to those who followed at that time."""
    at = brought.suppressed_at
    return {} if at is None else {"followed_by": at.isoformat()}
