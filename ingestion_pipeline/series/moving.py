"""Chapter sources that go from one chapter to another, and what has to be counted anew."""

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
    with_known_releases,
)
from ingestion_pipeline.series.plan import ChapterPlan
from ingestion_pipeline.series.rows import LinkRow, StoredRelease, VanishedLink
from ingestion_pipeline.sources.canonical_series import home_of, named_series
from ingestion_pipeline.sources.poll_tasks import interrupt_polls
from ingestion_pipeline.store.bulk import row_source
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
