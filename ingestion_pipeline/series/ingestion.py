"""From listings to rows: chapters, their sources, the series' latest, and the outbox.

Runs inside the caller's fenced transaction, over many sources at once, and writes only what
differs: a listing that says nothing new leaves `chapters` and `chapter_sources` untouched. Newness
comes from the insert itself. A series is locked while it is ingested, so that two sources that
deliver the same chapter at the same moment make one chapter, two chapter sources, one outbox row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection

from ingestion_pipeline.engine.polling.protocol import Ingested
from ingestion_pipeline.series import latest, moving, rows
from ingestion_pipeline.series.chapter import (
    Chapter,
    Release,
    fingerprint,
    own_id,
    with_known_releases,
)
from ingestion_pipeline.series.numbers import number_text
from ingestion_pipeline.series.plan import (
    Baseline,
    ChapterKey,
    ChapterPlan,
    SourceListing,
    past,
    reason_to_quarantine,
    recognise,
    result_of,
)
from ingestion_pipeline.series.rows import LinkRow, StoredRelease
from ingestion_pipeline.settings import Ingest, Settings
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.canonical_series import homes
from ingestion_pipeline.store.bulk import making_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalSeries:
    """The series of each source, by its id, and those of them that were made just now."""

    series: Mapping[str, str]
    new: set[str]


def lock_homes(
    connection: Connection, told_by: Sequence[Source], *, now: datetime
) -> CanonicalSeries:
    """Where each source belongs; each series has its row, and is ours until the end."""
    found = homes(connection, [source.id for source in told_by])
    names = {found[one.id].series_id: one.name or found[one.id].series_id for one in told_by}
    unknown = {home.series_id for home in found.values() if not home.is_known}
    new = rows.ensure_series(connection, {one: names[one] for one in unknown}, now=now)
    if rows.lock_series(connection, names.keys()):
        # Merged while we waited for the lock, by one who did not know this source yet.
        return lock_homes(connection, told_by, now=now)
    return CanonicalSeries(series={one: home.series_id for one, home in found.items()}, new=new)


@making_rows()
def ingest_listings(
    connection: Connection, listings: Sequence[SourceListing], *, now: datetime, settings: Settings
) -> list[Ingested]:
    """The listings are rows; one result per source, in the order given."""
    homes = lock_homes(connection, [one.source for one in listings], now=now)
    plans = [
        ChapterPlan(
            listing=one,
            series_id=homes.series[one.source.id],
            believed_after=settings.ingest.missing_listings,
            chapters=one.chapters,
        )
        for one in listings
    ]
    _find_baselines(connection, plans, homes.new)
    ids = _known_chapters(connection, plans, homes.new)
    _decide(connection, plans, ids, settings.ingest)
    kept = [plan for plan in plans if plan.quarantine is None]
    moving.find(connection, kept)
    _look_beyond_windows(connection, kept)
    chapter_ids, created = _write_chapters(connection, kept, ids, now=now)
    news = _announce(connection, kept, chapter_ids, created.keys(), now=now)
    spoken = latest.new_languages(connection, kept, chapter_ids, created.keys() | news)
    _write_links(connection, kept, chapter_ids, created, now=now)
    _raise_latest(connection, kept, now=now)
    _withdraw(connection, kept, now=now)
    latest.announce_languages(connection, spoken, now=now)
    return [result_of(plan, now=now) for plan in plans]


def _find_baselines(connection: Connection, plans: Sequence[ChapterPlan], empty: set[str]) -> None:
    """Let silent syncs of series that have chapters know what there was before them."""
    suppressed = [plan for plan in plans if not plan.is_loud and plan.series_id not in empty]
    moved = [plan.listing.source for plan in suppressed if plan.listing.source.is_redirected]
    of_series = latest.baselines(connection, {plan.series_id for plan in suppressed})
    of_sources = latest.highest_numbers(connection, {source.id for source in moved})
    for plan in suppressed:
        source = plan.listing.source
        plan.baseline = of_series.get(plan.series_id)
        if plan.baseline is not None and source.is_redirected:
            plan.baseline = Baseline(
                latest=of_sources.get((source.id, plan.series_id)), since=source.last_success_at
            )


def _known_chapters(
    connection: Connection, plans: Sequence[ChapterPlan], empty: set[str]
) -> dict[ChapterKey, int]:
    """The ids of the listed chapters that are there, be it under another source's key.

    The series that are `empty` are not asked for any.
    """
    asked = [plan for plan in plans if plan.series_id not in empty]
    keys = {(plan.series_id, chapter.key) for plan in asked for chapter in plan.chapters}
    ids = rows.chapter_ids(connection, keys)
    if empty or len(ids) < len(keys):
        ids |= recognise(connection, plans, ids)
    return ids


def _decide(
    connection: Connection,
    plans: Sequence[ChapterPlan],
    ids: Mapping[ChapterKey, int],
    limits: Ingest,
) -> None:
    known = rows.known_links(
        connection,
        {
            (plan.listing.source.id, ids[plan.series_id, chapter.key])
            for plan in plans
            for chapter in plan.chapters
            if (plan.series_id, chapter.key) in ids
        },
    )
    complete = {
        plan.listing.source.id: plan.series_id for plan in plans if plan.listing.is_complete
    }
    listed = {
        (plan.listing.source.id, plan.series_id, chapter.key)
        for plan in plans
        for chapter in plan.chapters
    }
    vanished = rows.vanished_links(connection, complete, listed)
    for plan in plans:
        source = plan.listing.source
        gone = vanished.get(source.id, [])
        plan.quarantine = reason_to_quarantine(
            listed=len(plan.chapters),
            known=source.record_count,
            vanished=len(gone),
            accepts_drop=source.accepts_drop,
            limits=limits,
        )
        if plan.quarantine is None:
            plan.vanished = gone
            _compare(plan, ids, known)


def _compare(
    plan: ChapterPlan, ids: Mapping[ChapterKey, int], known: Mapping[tuple[str, int], StoredRelease]
) -> None:
    for chapter in plan.chapters:
        chapter_id = ids.get((plan.series_id, chapter.key), 0)  # 0: no chapter has it
        link = known.get((plan.listing.source.id, chapter_id))
        if link is None:
            plan.new_links.append(chapter)
        elif _differs(chapter, link):
            plan.changed_links.append((chapter, link))


def _differs(chapter: Chapter, link: StoredRelease) -> bool:
    is_there = link.available and not link.missed_listings
    return not is_there or link.fingerprint != fingerprint(chapter)


def _look_beyond_windows(connection: Connection, plans: Sequence[ChapterPlan]) -> None:
    """A listing that is only a part proves nothing about the releases it does not show.

    What it shows under another number is not beyond the window: it has been moved.
    """
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
        source_id, keys = plan.listing.source.id, moving.listed_keys(plan)
        whole = [
            (_with_the_rest(chapter, stored[source_id, link.chapter_id], keys), link)
            for chapter, link in plan.changed_links
        ]
        plan.changed_links = [(chapter, link) for chapter, link in whole if _differs(chapter, link)]


def _with_the_rest(
    chapter: Chapter, stored: Sequence[Release], keys: Mapping[str, set[str]]
) -> Chapter:
    here = {chapter.key}
    beyond = [one for one in stored if keys.get(own_id(one), here) >= here]
    return with_known_releases(chapter, beyond)


def _write_chapters(
    connection: Connection,
    plans: Sequence[ChapterPlan],
    ids: Mapping[ChapterKey, int],
    *,
    now: datetime,
) -> tuple[dict[ChapterKey, int], dict[ChapterKey, Chapter]]:
    """The ids of all chapters that get a link, and those of them that are new, as inserted."""
    wanted: dict[ChapterKey, Chapter] = {}
    for plan in plans:
        for chapter in plan.new_links:
            key = (plan.series_id, chapter.key)
            if key not in ids:
                wanted.setdefault(key, chapter)
    created = rows.insert_chapters(connection, wanted, now=now)
    elsewhere = rows.chapter_ids(connection, wanted.keys() - created.keys())
    return {**ids, **created, **elsewhere}, {key: wanted[key] for key in created}


def _write_links(
    connection: Connection,
    plans: Sequence[ChapterPlan],
    chapter_ids: Mapping[ChapterKey, int],
    created: Mapping[ChapterKey, Chapter],
    *,
    now: datetime,
) -> None:
    new: list[LinkRow] = []
    changed: list[LinkRow] = []
    facts: dict[int, Chapter] = {}
    for plan in plans:
        series_id, told_by = plan.series_id, _lineage(plan)
        for chapter in plan.new_links:
            key = (series_id, chapter.key)
            chapter_id = chapter_ids[key]
            new.append(LinkRow(chapter_id=chapter_id, chapter=chapter, **told_by))
            if created.get(key) is not chapter:
                facts[chapter_id] = _together(facts.get(chapter_id), chapter)
        for chapter, known in plan.changed_links:
            changed.append(LinkRow(chapter_id=known.chapter_id, chapter=chapter, **told_by))
            facts[known.chapter_id] = _together(facts.get(known.chapter_id), chapter)
    rows.insert_links(connection, new, now=now)
    rows.update_links(connection, changed)
    rows.improve_chapters(connection, facts)


def _lineage(plan: ChapterPlan) -> dict[str, Any]:
    listing = plan.listing
    return {"source_id": listing.source.id, "ingestion_id": listing.ingestion_id}


def _together(before: Chapter | None, chapter: Chapter) -> Chapter:
    """What two sources of one batch say of a chapter: the later word, where there is one."""
    if before is None:
        return chapter
    return replace(
        chapter,
        title=chapter.title or before.title,
        published_at=chapter.published_at or before.published_at,
    )


def _raise_latest(connection: Connection, plans: Sequence[ChapterPlan], *, now: datetime) -> None:
    """The series' latest chapter is raised by what a source newly has, never lowered here.

    New to the source is enough: a chapter that all others had withdrawn is available again.
    Where the highest is one that an operator has withdrawn, the latest is found anew.
    """
    highest: dict[str, tuple[Decimal, datetime]] = {}
    for plan in plans:
        numbered = [one for one in [*plan.new_links, *plan.returned] if one.number is not None]
        chapter = max(numbered, key=attrgetter("number"), default=None)
        if chapter is None or chapter.number is None:
            continue
        at = now if plan.listing.source.synced_at else past(chapter.published_at, now)
        found = highest.get(plan.series_id)
        if found is None or found[0] < chapter.number:
            highest[plan.series_id] = (chapter.number, at)
    keys = {(series_id, number_text(number)) for series_id, (number, _) in highest.items()}
    refused = latest.rejected(connection, keys)
    latest.raise_latest(
        connection, {one: found for one, found in highest.items() if one not in refused}
    )
    latest.recompute_latest(connection, refused)


def _withdraw(connection: Connection, plans: Sequence[ChapterPlan], *, now: datetime) -> None:
    """Missing once is noted; missing twice is gone, and the latest chapter is found anew."""
    missed = [
        (one, plan.listing.source.last_success_at or now)
        for plan in plans
        for one in plan.missing_once
    ]
    gone = [one for plan in plans for one in plan.withdrawn]
    rows.note_missing(connection, missed)
    rows.mark_unavailable(connection, gone)
    series = {plan.series_id for plan in plans if plan.withdrawn}
    latest.recompute_latest(connection, series)


def _announce(
    connection: Connection,
    plans: Sequence[ChapterPlan],
    chapter_ids: Mapping[ChapterKey, int],
    created: Collection[ChapterKey],
    *,
    now: datetime,
) -> set[ChapterKey]:
    """Write one outbox row per chapter that followers do not know yet; return those chapters.

    What a silent sync adds to a series that had chapters is kept in mind: it is announced when a
    source that was synced before comes to list it. A release under another number is no news:
    whoever follows was told of it before.
    """
    news: dict[ChapterKey, str] = {}
    suppressed: set[ChapterKey] = set()
    for plan in plans:
        for chapter in plan.new_links:
            key = (plan.series_id, chapter.key)
            if chapter.key in plan.renumbered:
                continue
            if plan.is_news(chapter, now=now):
                news.setdefault(key, plan.listing.source.id)
            elif plan.baseline is not None:
                suppressed.add(key)
    latest.mark_unannounced(
        connection, [chapter_ids[key] for key in (suppressed - news.keys()) & set(created)]
    )
    existing = [chapter_ids[key] for key in news.keys() - set(created)]
    revealed = latest.reveal(connection, existing)
    news = {key: source for key, source in news.items() if key in created or key in revealed}
    latest.announce(connection, news, revealed=revealed, now=now)
    return set(news)
