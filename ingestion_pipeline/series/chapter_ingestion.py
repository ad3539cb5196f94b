"""Write listings to chapters, chapter sources, the series' latest chapter, and the outbox.

Runs inside the caller's fenced transaction, over many sources at once, and writes only what
differs: a listing without changes leaves `chapters` and `chapter_sources` untouched. A chapter is
new when the insert created it. A series is locked while it is ingested, so that two sources that
list the same chapter at the same moment make one chapter, two chapter sources, one outbox row.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from operator import attrgetter

from sqlalchemy import Connection

from ingestion_pipeline.series import announcements, chapter_rows
from ingestion_pipeline.series.chapter import Chapter, fingerprint, own_id, with_stored_releases
from ingestion_pipeline.series.chapter_plan import (
    Baseline,
    ChapterKey,
    ChapterPlan,
    SourceListing,
    find_renumbered,
    listed_keys,
    past,
    reason_to_quarantine,
    recognise,
    result_of,
)
from ingestion_pipeline.series.chapter_rows import LinkRow, StoredRelease, link_row
from ingestion_pipeline.sources.lookup import series_assignments
from ingestion_pipeline.sources.poll_results import IngestResult
from ingestion_pipeline.store.changes import SERIES, Origin, common_origin, set_origins
from ingestion_pipeline.store.tables import chapters


def _lock_canonical_series(
    connection: Connection, listings: Sequence[SourceListing], *, now: datetime
) -> tuple[Mapping[str, str], set[str]]:
    """Lock the series of each source; return them by source id, and those that were created just now."""
    sources = [listing.source for listing in listings]
    assignments = series_assignments(connection, [source.id for source in sources])
    series_by_source = {id_: assigned.series_id for id_, assigned in assignments.items()}
    set_origins(connection, _origins(listings, series_by_source), now=now)
    titles = {series_by_source[source.id]: source.name or series_by_source[source.id] for source in sources}
    unknown = {assigned.series_id for assigned in assignments.values() if not assigned.is_known}
    new = chapter_rows.ensure_series(connection, {id_: titles[id_] for id_ in unknown}, now=now)
    if chapter_rows.lock_series(connection, titles.keys()):
        # A merge that did not know this source yet was committed while we waited for the lock.
        return _lock_canonical_series(connection, listings, now=now)
    return series_by_source, new


def _origins(listings: Sequence[SourceListing], series_by_source: Mapping[str, str]) -> dict[str, Origin]:
    """Return why rows change, by source and by series; what several sources of a series change names none of them."""
    origins = {listing.source.id: listing.origin for listing in listings}
    by_series: dict[str, list[Origin]] = defaultdict(list)
    for source_id, origin in origins.items():
        by_series[SERIES + series_by_source[source_id]].append(origin)
    return origins | {key: common_origin(of_series) for key, of_series in by_series.items()}


def ingest_listings(connection: Connection, listings: Sequence[SourceListing], *, now: datetime) -> list[IngestResult]:
    """Write the listings; return one result per source, in the order given."""
    series, created_series = _lock_canonical_series(connection, listings, now=now)
    plans = [
        ChapterPlan(listing=listing, series_id=series[listing.source.id], chapters=listing.chapters)
        for listing in listings
    ]
    _find_baselines(connection, plans, created_series)
    ids = _existing_chapters(connection, plans, created_series)
    _decide(connection, plans, ids)
    accepted = [plan for plan in plans if plan.quarantine is None]
    find_renumbered(connection, accepted)
    _restore_releases_outside_window(connection, accepted)
    chapter_ids, created = _write_chapters(connection, accepted, ids, now=now)
    news = _announce(connection, accepted, chapter_ids, created.keys(), now=now)
    languages = announcements.new_languages(connection, accepted, chapter_ids, created.keys() | news)
    _write_links(connection, accepted, chapter_ids, created, now=now)
    _raise_latest(connection, accepted, now=now)
    _withdraw(connection, accepted, now=now)
    announcements.announce_languages(connection, languages, now=now)
    return [result_of(plan, now=now) for plan in plans]


def _find_baselines(connection: Connection, plans: Sequence[ChapterPlan], empty: set[str]) -> None:
    """Set the baseline of silent syncs whose series already has chapters."""
    suppressed = [plan for plan in plans if not plan.announces_all and plan.series_id not in empty]
    moved = [plan.listing.source for plan in suppressed if plan.listing.source.is_redirected]
    of_series = chapter_rows.baselines(connection, {plan.series_id for plan in suppressed})
    of_sources = chapter_rows.highest_numbers(connection, {source.id for source in moved})
    for plan in suppressed:
        source = plan.listing.source
        plan.baseline = of_series.get(plan.series_id)
        if plan.baseline is not None and source.is_redirected:
            plan.baseline = Baseline(latest=of_sources.get((source.id, plan.series_id)), since=source.last_success_at)


def _existing_chapters(connection: Connection, plans: Sequence[ChapterPlan], empty: set[str]) -> dict[ChapterKey, int]:
    """Return the ids of listed chapters that exist, also under another source's key."""
    candidates = [plan for plan in plans if plan.series_id not in empty]
    keys = {(plan.series_id, chapter.key) for plan in candidates for chapter in plan.chapters}
    ids = chapter_rows.chapter_ids(connection, keys)
    if empty or len(ids) < len(keys):
        ids |= recognise(connection, plans, ids)
    return ids


def _decide(connection: Connection, plans: Sequence[ChapterPlan], ids: Mapping[ChapterKey, int]) -> None:
    stored = chapter_rows.stored_links(
        connection,
        {
            (plan.listing.source.id, ids[plan.series_id, chapter.key])
            for plan in plans
            for chapter in plan.chapters
            if (plan.series_id, chapter.key) in ids
        },
    )
    complete = {plan.listing.source.id: plan.series_id for plan in plans if plan.listing.is_complete}
    listed = {(plan.listing.source.id, plan.series_id, chapter.key) for plan in plans for chapter in plan.chapters}
    vanished = chapter_rows.vanished_links(connection, complete, listed)
    for plan in plans:
        source = plan.listing.source
        gone = vanished.get(source.id, [])
        plan.quarantine = reason_to_quarantine(
            listed=len(plan.chapters),
            existing=source.record_count,
            vanished=len(gone),
            accepts_drop=source.accepts_drop,
        )
        if plan.quarantine is None:
            plan.vanished = gone
            _compare(plan, ids, stored)


def _compare(plan: ChapterPlan, ids: Mapping[ChapterKey, int], stored: Mapping[tuple[str, int], StoredRelease]) -> None:
    for chapter in plan.chapters:
        chapter_id = ids.get((plan.series_id, chapter.key), 0)  # 0: no chapter has it
        link = stored.get((plan.listing.source.id, chapter_id))
        if link is None:
            plan.new_links.append(chapter)
        elif _differs(chapter, link):
            plan.changed_links.append((chapter, link))


def _differs(chapter: Chapter, link: StoredRelease) -> bool:
    is_there = link.available and not link.missed_listings
    return not is_there or link.fingerprint != fingerprint(chapter)


def _restore_releases_outside_window(connection: Connection, plans: Sequence[ChapterPlan]) -> None:
    """Add stored releases that a partial listing does not show to the changed chapters.

    A partial listing proves nothing about releases outside its window. A release that it shows
    under another number was moved and is not added.
    """
    partial = [plan for plan in plans if plan.changed_links and not plan.listing.is_complete]
    stored = chapter_rows.stored_releases(
        connection, {(plan.listing.source.id, link.chapter_id) for plan in partial for _, link in plan.changed_links}
    )
    for plan in partial:
        source_id, keys = plan.listing.source.id, listed_keys(plan)
        changed = plan.changed_links
        plan.changed_links = []
        for chapter, link in changed:
            here = {chapter.key}
            releases = stored[source_id, link.chapter_id]
            beyond = [release for release in releases if keys.get(own_id(release), here) >= here]
            whole = with_stored_releases(chapter, beyond)
            if _differs(whole, link):
                plan.changed_links.append((whole, link))


def _write_chapters(
    connection: Connection, plans: Sequence[ChapterPlan], ids: Mapping[ChapterKey, int], *, now: datetime
) -> tuple[dict[ChapterKey, int], dict[ChapterKey, Chapter]]:
    """Return the ids of all chapters that get a link, and the chapters that were created."""
    missing: dict[ChapterKey, Chapter] = {}
    for plan in plans:
        for chapter in plan.new_links:
            if (key := (plan.series_id, chapter.key)) not in ids:
                missing.setdefault(key, chapter)
    created = chapter_rows.insert_chapters(connection, missing, now=now)
    inserted_by_others = chapter_rows.chapter_ids(connection, missing.keys() - created.keys())
    return {**ids, **created, **inserted_by_others}, {key: missing[key] for key in created}


def _write_links(
    connection: Connection,
    plans: Sequence[ChapterPlan],
    ids: Mapping[ChapterKey, int],
    created: Mapping[ChapterKey, Chapter],
    *,
    now: datetime,
) -> None:
    """Write the chapter sources, and what they state of chapters that exist; the last source wins."""
    new: list[LinkRow] = []
    changed: list[LinkRow] = []
    facts: dict[int, tuple[str | None, datetime | None]] = {}  # title and date, by chapter
    for plan in plans:
        source_id, ingestion_id = plan.listing.source.id, plan.listing.origin.ingestion_id
        links = [(ids[plan.series_id, chapter.key], chapter) for chapter in plan.new_links]
        existing = [(link.chapter_id, chapter) for chapter, link in plan.changed_links]
        new += [link_row(id_, source_id, chapter, ingestion_id) for id_, chapter in links]
        changed += [link_row(id_, source_id, chapter, ingestion_id) for id_, chapter in existing]
        for id_, chapter in (*links, *existing):
            if created.get((plan.series_id, chapter.key)) is not chapter:
                title, published_at = facts.get(id_, (None, None))
                facts[id_] = (chapter.leading.title or title, chapter.leading.published_at or published_at)
    chapter_rows.insert_links(connection, new, now=now)
    chapter_rows.update_links(connection, changed)
    chapter_rows.improve_chapters(connection, facts)


def _raise_latest(connection: Connection, plans: Sequence[ChapterPlan], *, now: datetime) -> None:
    """Raise the latest chapter of each series to what its sources newly list; never lower it.

    New to one source is enough: the chapter may have been withdrawn by all others before. Where an
    operator has rejected the highest chapter, the latest is recomputed.
    """
    highest: dict[str, tuple[Decimal, datetime]] = {}
    keys: dict[str, str] = {}
    for plan in plans:
        numbered = [listed for listed in plan.added if listed.number is not None]
        chapter = max(numbered, key=attrgetter("number"), default=None)
        if chapter is None or chapter.number is None:
            continue
        at = now if plan.listing.source.synced_at else past(chapter.leading.published_at, now)
        before = highest.get(plan.series_id)
        if before is None or before[0] < chapter.number:
            highest[plan.series_id], keys[plan.series_id] = (chapter.number, at), chapter.key
    columns = (chapters.c.series_id, chapters.c.rejected_at)
    refused = {
        id_ for id_, at in chapter_rows.chapters_by_key(connection, set(keys.items()), *columns) if at is not None
    }
    chapter_rows.raise_latest(connection, {id_: chapter for id_, chapter in highest.items() if id_ not in refused})
    chapter_rows.recompute_latest(connection, refused)


def _withdraw(connection: Connection, plans: Sequence[ChapterPlan], *, now: datetime) -> None:
    """Count the missing links, withdraw those missing often enough, and recompute the latest."""
    missed = [(link, plan.listing.source.last_success_at or now) for plan in plans for link in plan.missing_once]
    chapter_rows.note_missing(connection, missed)
    chapter_rows.mark_unavailable(connection, [link for plan in plans for link in plan.withdrawn])
    chapter_rows.recompute_latest(connection, {plan.series_id for plan in plans if plan.withdrawn})


def _announce(
    connection: Connection,
    plans: Sequence[ChapterPlan],
    chapter_ids: Mapping[ChapterKey, int],
    created: Collection[ChapterKey],
    *,
    now: datetime,
) -> set[ChapterKey]:
    """Write one outbox row per chapter that is new to followers; return those chapters.

    What a silent sync adds to a series that had chapters is marked as unannounced: it is announced
    when a source that was synced before lists it. A release that only changed its number is no
    news.
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
    chapter_rows.mark_unannounced(connection, [chapter_ids[key] for key in (suppressed - news.keys()) & set(created)])
    existing = [chapter_ids[key] for key in news.keys() - set(created)]
    revealed = chapter_rows.take_unannounced(connection, existing)
    news = {key: source for key, source in news.items() if key in created or key in revealed}
    announcements.announce(connection, news, revealed=revealed, now=now)
    return set(news)
