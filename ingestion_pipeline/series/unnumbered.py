"""Oneshots and notes that two sources list: one chapter, if title and time say so.

A chapter without a number is known by the id that its source gave it, which no other source shares.
Another source's is the same one only with an equal title, published within three days of it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select

from ingestion_pipeline.series.chapter import Chapter, own_id
from ingestion_pipeline.series.plan import ChapterKey, ChapterPlan
from ingestion_pipeline.store.tables import chapter_sources, chapters

SAME_WITHIN = timedelta(hours=72)


@dataclass(slots=True, kw_only=True)
class Oneshot:
    """An unnumbered chapter, and what each of its sources calls it."""

    key: ChapterKey
    id: int | None
    title: str
    published_at: datetime | None
    names: dict[str, str] = field(default_factory=dict[str, str])  # source id: its own id


def recognise(
    connection: Connection, plans: Sequence[ChapterPlan], ids: Mapping[ChapterKey, int]
) -> dict[ChapterKey, int]:
    """Unnumbered chapters that no key finds are listed under the key of the one they are.

    The ids of those that are there already. Costs nothing where every new chapter has a number.
    """
    seekers = [
        plan
        for plan in plans
        if any(one.number is None and (plan.series_id, one.key) not in ids for one in plan.chapters)
    ]
    if not seekers:
        return {}
    known = _oneshots(connection, seekers)
    for plan in seekers:
        plan.chapters = [
            one
            if one.number is not None or (plan.series_id, one.key) in ids
            else _recognised(one, plan, known)
            for one in plan.chapters
        ]
    return {one.key: one.id for one in known if one.id is not None}


def _recognised(chapter: Chapter, plan: ChapterPlan, known: list[Oneshot]) -> Chapter:
    source_id, name = plan.listing.source.id, own_id(chapter.releases[0])
    mine = [one for one in known if one.key[0] == plan.series_id]
    same = [one for one in mine if one.names.get(source_id) == name]
    same += [one for one in mine if source_id not in one.names and is_same(one, chapter)]
    if not same:
        key = (plan.series_id, chapter.key)
        same = [
            Oneshot(
                key=key,
                id=None,
                title=plain_title(chapter.title),
                published_at=chapter.published_at,
            )
        ]
        known.extend(same)
    same[0].names[source_id] = name
    return replace(chapter, key=same[0].key[1])


def is_same(one: Oneshot, chapter: Chapter) -> bool:
    """Whether another source's unnumbered chapter is this one; the unknown is never the same."""
    if one.published_at is None or chapter.published_at is None or not one.title:
        return False
    is_near = abs(one.published_at - chapter.published_at) <= SAME_WITHIN
    return is_near and one.title == plain_title(chapter.title)


def plain_title(title: str | None) -> str:
    """The title's letters and digits: case, width, spaces and punctuation differ by site."""
    text = unicodedata.normalize("NFKC", title or "").casefold()
    return "".join(c for c in text if c.isalnum())


def _oneshots(connection: Connection, plans: Sequence[ChapterPlan]) -> list[Oneshot]:
    """Every unnumbered chapter of the plans' series, oldest first."""
    own = func.coalesce(chapter_sources.c.source_chapter_id, chapter_sources.c.url)
    query = (
        select(
            chapters.c.id,
            chapters.c.series_id,
            chapters.c.key,
            chapters.c.title,
            chapters.c.published_at,
            chapter_sources.c.source_id,
            own,
        )
        .outerjoin(chapter_sources, chapter_sources.c.chapter_id == chapters.c.id)
        .where(
            chapters.c.series_id.in_({plan.series_id for plan in plans}),
            chapters.c.number.is_(None),
        )
        .order_by(chapters.c.id)
    )
    found: dict[int, Oneshot] = {}
    for id_, series_id, key, title, published_at, source_id, name in connection.execute(query):
        one = found.setdefault(
            id_,
            Oneshot(
                key=(series_id, key),
                id=id_,
                title=plain_title(title),
                published_at=published_at,
            ),
        )
        if source_id is not None:
            one.names[source_id] = name or ""
    return list(found.values())
