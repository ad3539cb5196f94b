"""Moves of chapter sources between chapters: merges, splits, and corrected numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, RowMapping, and_, delete, func, or_, select, update

from ingestion_pipeline.series import rows
from ingestion_pipeline.series.chapter import (
    Chapter,
    Release,
    chapter_of,
    own_id,
    release_from_dict,
    with_stored_releases,
)
from ingestion_pipeline.series.plan import ChapterPlan
from ingestion_pipeline.series.rows import LinkRow, StoredRelease, VanishedLink
from ingestion_pipeline.sources.canonical_series import canonical_series_id, named_series
from ingestion_pipeline.sources.poll_tasks import interrupt_polls
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.tables import chapter_sources, chapters, sources
from ingestion_pipeline.store.types import Id


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateLinks:
    """Two chapter sources of one source that belong to the same chapter after a merge."""

    key: str
    duplicate: RowMapping
    survivor: RowMapping


def shared_chapters(connection: Connection, old: str, new: str) -> dict[int, int]:
    """Return the chapters of `old` whose key `new` has, too: id in `old`, id in `new`."""
    twin = chapters.alias()
    query = select(chapters.c.id, twin.c.id).join(twin, twin.c.key == chapters.c.key)
    rows = connection.execute(query.where(chapters.c.series_id == old, twin.c.series_id == new))
    return {old_id: new_id for old_id, new_id in rows}  # noqa: C416 - rows, not pairs, to a type checker


def move_links(connection: Connection, pairs: Mapping[int, int], *, of: Collection[str] | None = None) -> int:
    """Move the chapter sources of each chapter to its counterpart; return how many.

    `of` limits it to these sources. Where the source already has a row there, one row keeps the
    releases of both.
    """
    if not pairs:
        return 0
    _merge_links(connection, _duplicate_links(connection, pairs, of))
    batch = row_source(connection, {"old": Id, "new": Id}, sorted(pairs.items()), "given")
    statement = update(chapter_sources).where(chapter_sources.c.chapter_id == batch.c.old)
    if of is not None:
        statement = statement.where(chapter_sources.c.source_id.in_(list(of)))
    return connection.execute(statement.values(chapter_id=batch.c.new)).rowcount


def _duplicate_links(
    connection: Connection, pairs: Mapping[int, int], of: Collection[str] | None
) -> list[DuplicateLinks]:
    batch = row_source(connection, {"old": Id, "new": Id}, sorted(pairs.items()), "given")
    other = chapter_sources.alias()
    query = (
        select(chapters.c.key, chapter_sources.c.id, other.c.id)
        .join(chapters, chapters.c.id == chapter_sources.c.chapter_id)
        .join(batch, batch.c.old == chapter_sources.c.chapter_id)
        .join(other, and_(other.c.chapter_id == batch.c.new, other.c.source_id == chapter_sources.c.source_id))
    )
    if of is not None:
        query = query.where(chapter_sources.c.source_id.in_(list(of)))
    rows = connection.execute(query).all()
    link_ids = [id_ for _, duplicate, survivor in rows for id_ in (duplicate, survivor)]
    held = select(chapter_sources).where(chapter_sources.c.id.in_(link_ids))
    links = {row["id"]: row for row in connection.execute(held).mappings()}
    return [
        DuplicateLinks(key=key, duplicate=links[duplicate], survivor=links[survivor])
        for key, duplicate, survivor in rows
    ]


def _merge_links(connection: Connection, pairs: Sequence[DuplicateLinks]) -> None:
    """Write all releases to the surviving row, with the newer values, and delete the duplicate."""
    rows.update_links(connection, [_merged_link(pair) for pair in pairs])
    for pair in pairs:
        there = pair.survivor["available"] or pair.duplicate["available"]
        current = pair.survivor if pair.survivor["available"] == there else pair.duplicate
        connection.execute(
            update(chapter_sources)
            .where(chapter_sources.c.id == pair.survivor["id"])
            .values(
                available=there,
                missed_listings=current["missed_listings"],
                last_seen_at=current["last_seen_at"],
                detected_at=min(pair.survivor["detected_at"], pair.duplicate["detected_at"]),
            )
        )
    gone = [pair.duplicate["id"] for pair in pairs]
    connection.execute(delete(chapter_sources).where(chapter_sources.c.id.in_(gone)))


def _merged_link(pair: DuplicateLinks) -> LinkRow:
    older, newer = sorted((pair.survivor, pair.duplicate), key=_recency)
    newer_releases = [release_from_dict(fields) for fields in newer["releases"]]
    older_releases = [release_from_dict(fields) for fields in older["releases"]]
    return LinkRow(
        chapter_id=pair.survivor["chapter_id"],
        source_id=pair.survivor["source_id"],
        chapter=with_stored_releases(chapter_of(pair.key, newer_releases), older_releases),
    )


def _recency(link: RowMapping) -> tuple[bool, datetime, int]:
    return link["available"], link["detected_at"], len(link["releases"])


def recount_chapters(connection: Connection, source_ids: Collection[str], *, now: datetime) -> None:
    """Update the sources' record counts; polls that rely on a changed count start again.

    The caller has locked their polls.
    """
    count = (
        select(func.count())
        .select_from(chapter_sources)
        .join(chapters, chapters.c.id == chapter_sources.c.chapter_id)
        .where(
            chapter_sources.c.source_id == sources.c.id,
            chapter_sources.c.available,
            chapters.c.series_id == canonical_series_id(named_series()),
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
    """Return the sources that list or listed a chapter of these series."""
    query = (
        select(chapter_sources.c.source_id)
        .distinct()
        .join(chapters, chapters.c.id == chapter_sources.c.chapter_id)
        .where(chapters.c.series_id.in_(list(series_ids)))
    )
    return set(connection.execute(query).scalars())


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


def find_renumbered(connection: Connection, plans: Sequence[ChapterPlan]) -> None:
    """Add to the plans what is now listed under another number: links to withdraw, and no news."""
    open_plans = [plan for plan in plans if _may_correct(plan)]
    if not open_plans:
        return
    suspects = _suspects(connection, open_plans)
    for plan in open_plans:
        mine = [suspect for suspect in suspects if suspect.source_id == plan.listing.source.id]
        _correct(plan, [suspect for suspect in mine if suspect.series_id == plan.series_id])


def listed_keys(plan: ChapterPlan) -> dict[str, set[str]]:
    """Return the keys under which the listing has each release, by the source's own id."""
    keys: dict[str, set[str]] = {}
    for chapter in plan.chapters:
        for release in chapter.releases:
            keys.setdefault(own_id(release), set()).add(chapter.key)
    keys.pop("", None)
    return keys


def _fresh(plan: ChapterPlan) -> list[Chapter]:
    return [*plan.new_links, *plan.returned]


def _may_correct(plan: ChapterPlan) -> bool:
    """Return whether the listing may hold a corrected number.

    Something must be new; and something must have vanished, or the window must overlap the one
    before. In a window that is all new every chapter may have the same address, or ids by position.
    """
    fresh = len(_fresh(plan))
    if plan.listing.is_complete:
        return bool(fresh and plan.vanished)
    return bool(plan.listing.source.record_count) and 0 < fresh < len(plan.chapters)


def _suspects(connection: Connection, plans: Sequence[ChapterPlan]) -> list[Suspect]:
    """Return links that complete listings lack, and links that windows show among new chapters."""
    gone = [link.id for plan in plans for link in plan.vanished]
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
        for id_, source_id, series_id, chapter_id, key, missed, is_rejected, releases in (connection.execute(query))
    ]


def _correct(plan: ChapterPlan, suspects: Collection[Suspect]) -> None:
    """Withdraw what moved to another number; a number that is still listed is no mistake."""
    keys = listed_keys(plan)
    listed = {chapter.key for chapter in plan.chapters}
    announced: set[str] = set()
    for suspect in suspects:
        moved = [release for release in suspect.releases if len(keys.get(own_id(release), ())) == 1]
        if not moved or suspect.key in listed:
            continue
        _remove_releases(plan, suspect, [release for release in suspect.releases if release not in moved])
        if not suspect.is_rejected:  # followers were not notified of a rejected one
            announced |= {own_id(release) for release in moved}
    plan.renumbered = {chapter.key for chapter in plan.new_links if _has_only(chapter, announced)}


def _remove_releases(plan: ChapterPlan, suspect: Suspect, left: Sequence[Release]) -> None:
    if not left:
        plan.disproved.add(suspect.id)
        if not plan.listing.is_complete:
            plan.vanished.append(VanishedLink(id=suspect.id, missed_listings=suspect.missed_listings))
    elif not plan.listing.is_complete:
        link = StoredRelease(chapter_id=suspect.chapter_id, fingerprint="", available=True, missed_listings=0)
        plan.changed_links.append((chapter_of(suspect.key, left), link))


def _has_only(chapter: Chapter, own_ids: Collection[str]) -> bool:
    return all(own_id(release) in own_ids for release in chapter.releases)
