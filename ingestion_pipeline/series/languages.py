"""A chapter that was there gets a language that nobody had: an outbox row of its own."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter

from sqlalchemy import Connection, select

from ingestion_pipeline.series.chapter import Chapter
from ingestion_pipeline.series.latest import CHAPTER_COLUMNS, chapter_payload
from ingestion_pipeline.series.plan import ChapterKey, ChapterPlan
from ingestion_pipeline.store.insert import insert_into
from ingestion_pipeline.store.tables import chapter_sources, chapters, outbox, sources

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


def announce(connection: Connection, spoken: Spoken, *, now: datetime) -> None:
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
