"""A chapter that was there gets a language that nobody had: an outbox row of its own."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection, select

from ingestion_pipeline.series.chapter import Chapter
from ingestion_pipeline.series.latest import CHAPTER_COLUMNS, chapter_payload
from ingestion_pipeline.series.plan import ChapterKey, Plan
from ingestion_pipeline.store.insert import insert_into
from ingestion_pipeline.store.tables import chapter_sources, chapters, outbox

CHAPTER_LANGUAGE = "chapter_language"

Spoken = dict[tuple[int, str], str]  # (chapter id, language): the source that brought it


def new_languages(
    connection: Connection,
    plans: Sequence[Plan],
    ids: Mapping[ChapterKey, int],
    created: Container[ChapterKey],
) -> Spoken:
    """What sources that are no first sync bring in a language that no source had, before it is so.

    A chapter that is itself new is told as such, and what was only renumbered is no news.
    """
    brought: Spoken = {}
    for plan in plans:
        if not plan.is_loud:
            continue
        for chapter_id, chapter in _standing(plan, ids, created):
            for release in chapter.releases:
                if release.language:
                    pair = (chapter_id, release.language)
                    brought.setdefault(pair, plan.listing.source.id)
    if not brought:
        return {}
    known = _languages(connection, {chapter_id for chapter_id, _ in brought})
    # of a chapter whose sources were all split off nobody knows what it was told in
    told_in = {chapter_id for chapter_id, _ in known}
    return {
        pair: source_id
        for pair, source_id in brought.items()
        if pair[0] in told_in and pair not in known
    }


def _standing(
    plan: Plan, ids: Mapping[ChapterKey, int], created: Container[ChapterKey]
) -> list[tuple[int, Chapter]]:
    """What the plan writes of chapters that were there, by their ids."""
    new = [
        (ids[plan.series_id, chapter.key], chapter)
        for chapter in plan.new_links
        if (plan.series_id, chapter.key) not in created and chapter.key not in plan.renumbered
    ]
    return [*new, *((known.chapter_id, chapter) for chapter, known in plan.changed_links)]


def _languages(connection: Connection, chapter_ids: set[int]) -> set[tuple[int, str | None]]:
    """The languages that the chapters have or had, by any source; none is one of them."""
    query = select(chapter_sources.c.chapter_id, chapter_sources.c.releases).where(
        chapter_sources.c.chapter_id.in_(sorted(chapter_ids))
    )
    return {
        (chapter_id, release["language"])
        for chapter_id, releases in connection.execute(query)
        for release in releases
    }


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
            "payload": chapter_payload(found[chapter_id], source_id) | {"language": language},
            "created_at": now,
        }
        for (chapter_id, language), source_id in sorted(spoken.items())
        if chapter_id in found
    ]
    if new:
        insert = insert_into(connection, outbox).on_conflict_do_nothing(
            index_elements=["subject_kind", "subject_id"]
        )
        connection.execute(insert, new)
