"""From listings to rows: chapters, their sources, the series' latest, and the outbox.

Runs inside the caller's fenced transaction, over many sources at once, and writes only what
differs: a listing that says nothing new leaves `chapters` and `chapter_sources` untouched. Newness
comes from the insert itself. A series is locked while it is ingested, so that two sources that
deliver the same chapter at the same moment make one chapter, two chapter sources, one outbox row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal

from sqlalchemy import Connection

from ingestion_pipeline.pages.system import Ingested
from ingestion_pipeline.reading.reading import Reading
from ingestion_pipeline.series import latest, rows
from ingestion_pipeline.series.chapter import (
    Chapter,
    chapters_of,
    fingerprint,
    with_known_releases,
)
from ingestion_pipeline.series.quarantine import reason_to_quarantine
from ingestion_pipeline.series.release import Release
from ingestion_pipeline.series.rows import KnownLink, LinkRow, VanishedLink
from ingestion_pipeline.settings import Ingest, Settings
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.rows import making_rows

_ChapterKey = tuple[str, str]  # series id, chapter key


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceListing:
    """What one source lists of its series."""

    source: Source
    series_id: str
    chapters: Sequence[Chapter]
    is_complete: bool
    problems: int

    @classmethod
    def of(cls, source: Source, reading: Reading[Release]) -> SourceListing:
        """The listing a reading states; a part that could not be read makes it incomplete."""
        chapters, problems = chapters_of(reading.records, source_id=source.id)
        found = len(problems) + len(reading.problems)
        return cls(
            source=source,
            series_id=source.series_id or source.id,
            chapters=chapters,
            is_complete=reading.is_complete and not found,
            problems=found,
        )


@dataclass(slots=True, kw_only=True)
class _Plan:
    """What is to be written for one listing, decided before anything is."""

    listing: SourceListing
    vanished: Sequence[VanishedLink]
    quarantine: str | None
    believed_after: int  # complete listings in a row that lack a chapter
    new_links: list[Chapter] = field(default_factory=list[Chapter])
    changed_links: list[tuple[Chapter, KnownLink]] = field(
        default_factory=list[tuple[Chapter, KnownLink]]
    )

    @property
    def returned(self) -> list[Chapter]:
        return [chapter for chapter, known in self.changed_links if not known.available]

    @property
    def missing_once(self) -> list[VanishedLink]:
        return [one for one in self.vanished if not self._is_believed(one)]

    @property
    def withdrawn(self) -> list[VanishedLink]:
        return [one for one in self.vanished if self._is_believed(one)]

    def _is_believed(self, one: VanishedLink) -> bool:
        # An operator's word is the second listing; without it the second would be quarantined.
        is_accepted = self.listing.source.accepts_drop
        return is_accepted or one.missed_listings + 1 >= self.believed_after


@making_rows()
def ingest_listings(
    connection: Connection, listings: Sequence[SourceListing], *, now: datetime, settings: Settings
) -> list[Ingested]:
    """The listings are rows; one result per source, in the order given."""
    titles = {one.series_id: one.source.name or one.series_id for one in listings}
    rows.ensure_series(connection, titles, now=now)
    rows.lock_series(connection, titles.keys())
    keys = {(one.series_id, chapter.key) for one in listings for chapter in one.chapters}
    ids = rows.chapter_ids(connection, keys)
    plans = _plan(connection, listings, ids, settings.ingest)
    kept = [plan for plan in plans if plan.quarantine is None]
    chapter_ids, created = _write_chapters(connection, kept, ids, now=now)
    _write_links(connection, kept, chapter_ids, created, now=now)
    _raise_latest(connection, kept, now=now)
    _withdraw(connection, kept, now=now)
    _announce(connection, kept, set(created), now=now)
    return [_result(plan, now=now) for plan in plans]


def _plan(
    connection: Connection,
    listings: Sequence[SourceListing],
    ids: Mapping[_ChapterKey, int],
    limits: Ingest,
) -> list[_Plan]:
    known = rows.known_links(
        connection,
        {
            (one.source.id, ids[one.series_id, chapter.key])
            for one in listings
            for chapter in one.chapters
            if (one.series_id, chapter.key) in ids
        },
    )
    complete = {one.source.id: one.series_id for one in listings if one.is_complete}
    listed = {
        (one.source.id, one.series_id, chapter.key) for one in listings for chapter in one.chapters
    }
    vanished = rows.vanished_links(connection, complete, listed)
    plans: list[_Plan] = []
    for one in listings:
        gone = vanished.get(one.source.id, [])
        reason = reason_to_quarantine(
            listed=len(one.chapters),
            known=one.source.record_count,
            vanished=len(gone),
            accepts_drop=one.source.accepts_drop,
            limits=limits,
        )
        plan = _Plan(
            listing=one,
            vanished=[] if reason else gone,
            quarantine=reason,
            believed_after=limits.missing_listings,
        )
        if reason is None:
            _compare(plan, ids, known)
        plans.append(plan)
    _look_beyond_windows(connection, plans)
    return plans


def _compare(
    plan: _Plan, ids: Mapping[_ChapterKey, int], known: Mapping[tuple[str, int], KnownLink]
) -> None:
    for chapter in plan.listing.chapters:
        chapter_id = ids.get((plan.listing.series_id, chapter.key), 0)  # 0: no chapter has it
        link = known.get((plan.listing.source.id, chapter_id))
        if link is None:
            plan.new_links.append(chapter)
        elif _differs(chapter, link):
            plan.changed_links.append((chapter, link))


def _differs(chapter: Chapter, link: KnownLink) -> bool:
    is_there = link.available and not link.missed_listings
    return not is_there or link.fingerprint != fingerprint(chapter)


def _look_beyond_windows(connection: Connection, plans: Sequence[_Plan]) -> None:
    """A listing that is only a part proves nothing about the releases it does not show."""
    partial = [plan for plan in plans if plan.changed_links and not plan.listing.is_complete]
    stored = rows.stored_releases(
        connection,
        {
            (plan.listing.source.id, link.chapter_id)
            for plan in partial
            for _, link in plan.changed_links
        },
    )
    for plan in partial:
        source_id = plan.listing.source.id
        whole = [
            (with_known_releases(chapter, stored[source_id, link.chapter_id]), link)
            for chapter, link in plan.changed_links
        ]
        plan.changed_links = [(chapter, link) for chapter, link in whole if _differs(chapter, link)]


def _write_chapters(
    connection: Connection,
    plans: Sequence[_Plan],
    ids: Mapping[_ChapterKey, int],
    *,
    now: datetime,
) -> tuple[dict[_ChapterKey, int], dict[_ChapterKey, Chapter]]:
    """The ids of all chapters that get a link, and those of them that are new, as inserted."""
    wanted: dict[_ChapterKey, Chapter] = {}
    for plan in plans:
        for chapter in plan.new_links:
            key = (plan.listing.series_id, chapter.key)
            if key not in ids:
                wanted.setdefault(key, chapter)
    created = rows.insert_chapters(connection, wanted, now=now)
    elsewhere = rows.chapter_ids(connection, wanted.keys() - created.keys())
    return {**ids, **created, **elsewhere}, {key: wanted[key] for key in created}


def _write_links(
    connection: Connection,
    plans: Sequence[_Plan],
    chapter_ids: Mapping[_ChapterKey, int],
    created: Mapping[_ChapterKey, Chapter],
    *,
    now: datetime,
) -> None:
    new: list[LinkRow] = []
    changed: list[LinkRow] = []
    facts: dict[int, Chapter] = {}
    for plan in plans:
        source_id, series_id = plan.listing.source.id, plan.listing.series_id
        for chapter in plan.new_links:
            chapter_id = chapter_ids[series_id, chapter.key]
            new.append(LinkRow(chapter_id=chapter_id, source_id=source_id, chapter=chapter))
            if created.get((series_id, chapter.key)) is not chapter:
                facts[chapter_id] = _together(facts.get(chapter_id), chapter)
        for chapter, known in plan.changed_links:
            row = LinkRow(chapter_id=known.chapter_id, source_id=source_id, chapter=chapter)
            changed.append(row)
            facts[known.chapter_id] = _together(facts.get(known.chapter_id), chapter)
    rows.insert_links(connection, new, now=now)
    rows.update_links(connection, changed)
    rows.improve_chapters(connection, facts)


def _together(before: Chapter | None, chapter: Chapter) -> Chapter:
    """What two sources of one batch say of a chapter: the later word, where there is one."""
    if before is None:
        return chapter
    return replace(
        chapter,
        title=chapter.title or before.title,
        published_at=chapter.published_at or before.published_at,
    )


def _raise_latest(connection: Connection, plans: Sequence[_Plan], *, now: datetime) -> None:
    """The series' latest chapter is raised by what a source newly has, never lowered here.

    New to the source is enough: a chapter that all others had withdrawn is available again.
    """
    highest: dict[str, tuple[Decimal, datetime]] = {}
    for plan in plans:
        series_id = plan.listing.series_id
        for chapter in [*plan.new_links, *plan.returned]:
            if chapter.number is None:
                continue
            at = now if plan.listing.source.synced_at else _past(chapter.published_at, now)
            found = highest.get(series_id)
            if found is None or found[0] < chapter.number:
                highest[series_id] = (chapter.number, at)
    latest.raise_latest(connection, highest)


def _withdraw(connection: Connection, plans: Sequence[_Plan], *, now: datetime) -> None:
    """Missing once is noted; missing twice is gone, and the latest chapter is found anew."""
    missed = [
        (one, plan.listing.source.last_success_at or now)
        for plan in plans
        for one in plan.missing_once
    ]
    gone = [one for plan in plans for one in plan.withdrawn]
    rows.note_missing(connection, missed)
    rows.mark_unavailable(connection, gone)
    series = {plan.listing.series_id for plan in plans if plan.withdrawn}
    latest.recompute_latest(connection, series)


def _announce(
    connection: Connection, plans: Sequence[_Plan], created: set[_ChapterKey], *, now: datetime
) -> None:
    """One outbox row per new chapter, unless only first syncs deliver it: those are silent."""
    loud: dict[_ChapterKey, str] = {}
    for plan in plans:
        if plan.listing.source.synced_at is None:
            continue
        for chapter in plan.new_links:
            key = (plan.listing.series_id, chapter.key)
            if key in created:
                loud.setdefault(key, plan.listing.source.id)
    latest.announce(connection, loud, now=now)


def _result(plan: _Plan, *, now: datetime) -> Ingested:
    source = plan.listing.source
    if plan.quarantine is not None:
        return Ingested(
            source_id=source.id,
            outcome=f"quarantined: {plan.quarantine}; the last good data stays",
            quarantined=True,
            needs_full_read=source.needs_full_read,
            record_count=source.record_count,
        )
    return Ingested(
        source_id=source.id,
        outcome=_outcome(plan),
        new=len(plan.new_links),
        updated=len(plan.changed_links),
        withdrawn=len(plan.withdrawn),
        newest_at=_newest_at(plan, now=now),
        needs_full_read=bool(plan.missing_once),
        record_count=source.record_count
        + len(plan.new_links)
        + len(plan.returned)
        - len(plan.withdrawn),
    )


def _outcome(plan: _Plan) -> str:
    parts = {
        "new": len(plan.new_links),
        "updated": len(plan.changed_links),
        "withdrawn": len(plan.withdrawn),
        "missing once": len(plan.missing_once),
        "unreadable": plan.listing.problems,
    }
    said = ", ".join(f"{count} {word}" for word, count in parts.items() if count)
    first = "" if plan.listing.source.synced_at else "first sync: "
    return first + (said or "nothing new")


def _newest_at(plan: _Plan, *, now: datetime) -> datetime | None:
    """When the source last brought something new: by its own dates at the first sync."""
    if not plan.new_links:
        return None
    if plan.listing.source.synced_at is not None:
        return now
    return max(_past(chapter.published_at, now) for chapter in plan.new_links)


def _past(moment: datetime | None, now: datetime) -> datetime:
    return now if moment is None or moment > now else moment
