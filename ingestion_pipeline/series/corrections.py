"""What a source corrects itself: the release that was chapter 450 yesterday is chapter 45 today.

The release is the same by the source's own id, or by its address where there is no id. That it has
another number now is proof that the old one was wrong: there is no second listing to wait for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, or_, select

from ingestion_pipeline.series.chapter import Chapter, chapter_of, own_id, release_from_dict
from ingestion_pipeline.series.plan import ChapterPlan
from ingestion_pipeline.series.release import Release
from ingestion_pipeline.series.rows import StoredRelease, VanishedLink
from ingestion_pipeline.store.tables import chapter_sources, chapters


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """An available chapter source whose number its source may have corrected."""

    id: int
    source_id: str
    series_id: str
    chapter_id: int
    key: str
    missed_listings: int
    is_rejected: bool
    releases: Sequence[Release]


def find(connection: Connection, plans: Sequence[ChapterPlan]) -> None:
    """The plans withdraw what is listed under another number, and know what is no news."""
    open_plans = [plan for plan in plans if _may_correct(plan)]
    if not open_plans:
        return
    suspects = _suspects(connection, open_plans)
    for plan in open_plans:
        mine = [one for one in suspects if one.source_id == plan.listing.source.id]
        _correct(plan, [one for one in mine if one.series_id == plan.series_id])


def listed_keys(plan: ChapterPlan) -> dict[str, set[str]]:
    """Under which keys the listing has each release, by the source's own id."""
    found: dict[str, set[str]] = {}
    for chapter in plan.chapters:
        for release in chapter.releases:
            found.setdefault(own_id(release), set()).add(chapter.key)
    found.pop("", None)
    return found


def _fresh(plan: ChapterPlan) -> list[Chapter]:
    return [*plan.new_links, *plan.returned]


def _may_correct(plan: ChapterPlan) -> bool:
    """Something has come; and something has gone, or the window overlaps the one before.

    A window that is all new may give every chapter the same address, or ids by position.
    """
    fresh = len(_fresh(plan))
    if plan.listing.is_complete:
        return bool(fresh and plan.vanished)
    return bool(plan.listing.source.record_count) and 0 < fresh < len(plan.chapters)


def _suspects(connection: Connection, plans: Sequence[ChapterPlan]) -> list[Suspect]:
    """What complete listings lack, and what windows show among their new chapters."""
    gone = [one.id for plan in plans for one in plan.vanished]
    own_ids = {
        own_id(release)
        for plan in plans
        if not plan.listing.is_complete
        for chapter in _fresh(plan)
        for release in chapter.releases
    }
    own = func.coalesce(chapter_sources.c.source_chapter_id, chapter_sources.c.url)
    query = (
        select(
            chapter_sources.c.id,
            chapter_sources.c.source_id,
            chapters.c.series_id,
            chapters.c.id,
            chapters.c.key,
            chapter_sources.c.missed_listings,
            chapters.c.rejected_at.is_not(None),
            chapter_sources.c.releases,
        )
        .join(chapters, chapters.c.id == chapter_sources.c.chapter_id)
        .where(
            chapter_sources.c.source_id.in_([plan.listing.source.id for plan in plans]),
            chapter_sources.c.available,
            or_(chapter_sources.c.id.in_(gone), own.in_(sorted(own_ids))),
        )
    )
    return [
        Suspect(
            id=id_,
            source_id=source_id,
            series_id=series_id,
            chapter_id=chapter_id,
            key=key,
            missed_listings=missed,
            is_rejected=bool(is_rejected),
            releases=[release_from_dict(fields) for fields in releases],
        )
        for id_, source_id, series_id, chapter_id, key, missed, is_rejected, releases in (
            connection.execute(query)
        )
    ]


def _correct(plan: ChapterPlan, suspects: Collection[Suspect]) -> None:
    """An old number that is still listed is no mistake, whatever became of its releases."""
    keys = listed_keys(plan)
    listed = {chapter.key for chapter in plan.chapters}
    told: set[str] = set()
    for one in suspects:
        moved = [release for release in one.releases if len(keys.get(own_id(release), ())) == 1]
        if not moved or one.key in listed:
            continue
        _take_away(plan, one, [release for release in one.releases if release not in moved])
        if not one.is_rejected:  # of what an operator withdrew, nobody was told in time
            told |= {own_id(release) for release in moved}
    plan.renumbered = {chapter.key for chapter in plan.new_links if _is_within(chapter, told)}


def _take_away(plan: ChapterPlan, one: Suspect, left: Sequence[Release]) -> None:
    if not left:
        plan.disproved.add(one.id)
        if not plan.listing.is_complete:
            plan.vanished.append(VanishedLink(id=one.id, missed_listings=one.missed_listings))
    elif not plan.listing.is_complete:
        link = StoredRelease(
            chapter_id=one.chapter_id, fingerprint="", available=True, missed_listings=0
        )
        plan.changed_links.append((chapter_of(one.key, left), link))


def _is_within(chapter: Chapter, told: Collection[str]) -> bool:
    return all(own_id(release) in told for release in chapter.releases)
