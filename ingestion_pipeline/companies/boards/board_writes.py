"""Writes polled boards: listings, links, closures and evaluation tasks.

Runs inside the caller's fenced transaction, over many boards at once, with a constant number of
statements, and writes only differences: an unchanged board leaves `job_listings` and
`listing_sources` untouched. Whether a listing is new is decided by the insert itself. Every writer
of listings holds one lock, so that two boards that deliver one posting at the same moment create
one listing with two links.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, update

from ingestion_pipeline.companies.boards import listing_rows
from ingestion_pipeline.companies.boards.board_plan import (
    BoardListing,
    BoardPlan,
    ResolvedListing,
    listing_resolver,
    reason_to_quarantine,
    result_of,
)
from ingestion_pipeline.companies.boards.closing import EXPIRED
from ingestion_pipeline.companies.boards.posting import Posting, content_hash, quality_of
from ingestion_pipeline.companies.company_names import fingerprint
from ingestion_pipeline.companies.company_states import job_task
from ingestion_pipeline.companies.job_listing import is_expired
from ingestion_pipeline.engine.polling.protocol import IngestResult
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.tables import ACTIVE, tasks
from ingestion_pipeline.tasks.errors import Transient
from ingestion_pipeline.tasks.queue import SpawnCounts, SpawnRequest, continue_all, log_refusals, spawn_all
from ingestion_pipeline.tasks.task import NewTask, Task, TaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingToEvaluate:
    """A listing that its board has just added, changed or reopened."""

    parent: Task
    source: Source
    listing_id: int
    url: str | None
    is_new: bool
    posted_at: datetime | None = None
    is_unreported: bool = False  # nobody was notified of its match, if it is one

    @property
    def is_backlog(self) -> bool:
        """Return whether it is part of a first sync and was not posted since the last success.

        A board that moved has a first sync again, but postings from the meantime are news.
        """
        if self.source.synced_at is not None:
            return False
        last = self.source.last_success_at
        return last is None or self.posted_at is None or self.posted_at <= last


def spawn_jobs(
    connection: Connection, listings: Sequence[ListingToEvaluate], *, now: datetime, settings: Settings
) -> None:
    """Create one evaluation task per listing; only new listings have to pass the spawn guard."""
    ordered = sorted(listings, key=lambda listing: listing.listing_id)
    unique = {listing.listing_id: listing for listing in ordered}.values()
    new = [_spawn_request(listing, now=now) for listing in unique if listing.is_new]
    again = [_spawn_request(listing, now=now) for listing in unique if not listing.is_new]
    spawned = spawn_all(connection, new, now=now, policy=settings.work) if new else SpawnCounts()
    _make_news(connection, [request.child for request in again if request.child.payload.get("is_unreported")])
    continue_all(connection, again, now=now)
    if spawned.existing or spawned.too_deep:
        log_refusals(connection, new, now=now, policy=settings.work)


def _make_news(connection: Connection, children: Sequence[NewTask]) -> None:
    """Update pending tasks of a first sync so that they notify: the listing has become news."""
    for child in children:
        connection.execute(
            update(tasks)
            .where(
                ACTIVE,
                tasks.c.kind == child.kind,
                tasks.c.dedupe_key == child.dedupe_key,
                tasks.c.status == TaskStatus.PENDING.value,
            )
            .values(payload=dict(child.payload))
        )


def _spawn_request(listing: ListingToEvaluate, *, now: datetime) -> SpawnRequest:
    child = job_task(
        listing.listing_id,
        listing.url,
        listing.source.id,
        now=now,
        board_url=listing.source.url,
        is_first_sync=listing.is_backlog,
        is_unreported=listing.is_unreported,
    )
    return SpawnRequest(parent=listing.parent, child=child)


GONE = "its board lists it no more"


def ingest_boards(
    connection: Connection, listings: Sequence[BoardListing], *, now: datetime, settings: Settings
) -> list[IngestResult]:
    """Write the boards' listings; return one result per board, in input order."""
    plans = _plans(connection, listings, settings)
    if any(not plan.is_idle for plan in plans):
        listing_rows.lock_listings(connection)
        plans = _plans(connection, listings, settings)  # again under the lock: others may have written
        active = [plan for plan in plans if not plan.is_idle]
        to_evaluate = _write_new(connection, active, now=now)
        to_evaluate += _write_changes(connection, active, now=now)
        to_evaluate += _write_returns(connection, active, now=now)
        _write_gone(connection, active, now=now)
        spawn_jobs(connection, to_evaluate, now=now, settings=settings)
    return [result_of(plan, now=now) for plan in plans]


def _plans(connection: Connection, listings: Sequence[BoardListing], settings: Settings) -> list[BoardPlan]:
    links = listing_rows.existing_links(connection, [listing.source.id for listing in listings])
    by_source: dict[str, dict[str, listing_rows.StoredPosting]] = {}
    for link in links:
        by_source.setdefault(link.source_id, {})[link.external_key] = link
    return [_plan(listing, by_source.get(listing.source.id, {}), settings) for listing in listings]


def _plan(listing: BoardListing, links: Mapping[str, listing_rows.StoredPosting], settings: Settings) -> BoardPlan:
    """Return the differences; none if the listing is quarantined."""
    plan = BoardPlan(listing=listing, closes_after=settings.boards.missing_before_closed)
    pairs = [(posting, links.get(posting.external_key)) for posting in listing.postings]
    linked = [(posting, link) for posting, link in pairs if link is not None]
    keys = {posting.external_key for posting in listing.postings}
    missing = [link for link in links.values() if link.available and link.external_key not in keys]
    vanished = missing if listing.is_complete else []
    plan.quarantine = reason_to_quarantine(
        listed=len(listing.postings),
        existing=sum(link.available for link in links.values()),
        vanished=len(vanished),
        stated=[(link.stated, posting.stated) for posting, link in linked if link.available],
        accepts_drop=listing.source.accepts_drop,
        limits=settings.boards,
    )
    if plan.quarantine is None:
        plan.vanished = vanished
        plan.new = [posting for posting, link in pairs if link is None]
        plan.changed = [
            (posting, link)
            for posting, link in linked
            if link.content_hash != posting.content_hash or not link.is_listed
        ]
        plan.returned = [link for _, link in linked if not link.is_listed]
    return plan


def _write_new(connection: Connection, plans: Sequence[BoardPlan], *, now: datetime) -> list[ListingToEvaluate]:
    """Insert a link for every new posting; return the listings to evaluate."""
    new = [(plan, posting) for plan in plans for posting in plan.new]
    if not new:
        return []
    listed = {plan.listing.source.id: {posting.external_key for posting in plan.listing.postings} for plan in plans}
    by_board = [(plan.listing.source.id, posting) for plan, posting in new]
    resolver = listing_resolver(connection, by_board, listed)
    resolved = [resolver.resolve(source_id, posting) for source_id, posting in by_board]
    created_ids = _insert_listings(connection, plans, resolved, now=now)
    links: list[tuple[Any, ...]] = []
    to_evaluate: list[ListingToEvaluate] = []
    linked: list[tuple[int, BoardPlan]] = []
    for (plan, posting), target in zip(new, resolved, strict=True):
        listing_id = target.candidate.id if target.candidate else created_ids[_own_key(target)]
        links.append(
            (
                listing_id,
                plan.listing.source.id,
                posting.external_key,
                posting.listing.external_id,
                posting.listing.url,
                posting.content_hash,
                posting.stated,
                plan.listing.ingestion_id,
            )
        )
        if target.posting is not None and target.posting.listing is posting.listing:
            plan.created += 1
            to_evaluate.append(
                ListingToEvaluate(
                    parent=plan.listing.task,
                    source=plan.listing.source,
                    listing_id=listing_id,
                    url=posting.listing.url if target.posting.url_key is not None else None,
                    is_new=True,
                    posted_at=posting.listing.posted_at,
                )
            )
        elif target.candidate:
            linked.append((listing_id, plan))
    listing_rows.insert_links(connection, links, now=now)
    reopened = set(listing_rows.reopen_listings(connection, [id_ for id_, _ in linked], now=now))
    news = _unreported(connection, linked)
    stored = listing_rows.stored_listings(connection, reopened | news.keys())
    to_evaluate += [_stored_listing(plan, stored[id_]) for id_, plan in dict(linked).items() if id_ in reopened]
    to_evaluate += [replace(_stored_listing(plan, stored[id_]), is_unreported=True) for id_, plan in news.items()]
    return to_evaluate


def _unreported(connection: Connection, linked: Sequence[tuple[int, BoardPlan]]) -> dict[int, BoardPlan]:
    """Return listings that are news on this board, though another board's first sync had them.

    Nobody was notified then. What was listed when this board was first polled is its backlog.
    """
    synced = [(id_, plan) for id_, plan in linked if plan.listing.source.synced_at is not None]
    since = listing_rows.first_syncs(connection, [id_ for id_, _ in synced])
    return {
        id_: plan
        for id_, plan in synced
        if (at := since.get(id_)) is not None and at > (plan.listing.source.synced_at or at)
    }


def _insert_listings(
    connection: Connection, plans: Sequence[BoardPlan], resolved: Sequence[ResolvedListing], *, now: datetime
) -> dict[str, int]:
    """Insert the new listings; return their ids by origin key."""
    by_source = {plan.listing.source.id: plan.listing for plan in plans}
    new = {_own_key(target): target for target in resolved if target.candidate is None}
    new_rows = [_row(key, target, by_source[target.source_id]) for key, target in new.items()]
    created_ids = listing_rows.insert_listings(connection, new_rows, now=now)
    if len(created_ids) < len(new):
        raise Transient("another worker has just inserted the same listings", code="listing_race")
    return created_ids


def _own_key(target: ResolvedListing) -> str:
    """Return the origin key of a new listing: a hash of its board and its key there."""
    key = target.posting.external_key if target.posting else ""
    return sha256(f"{target.source_id}\n{key}".encode("utf-8", "surrogatepass")).hexdigest()


def _row(key: str, target: ResolvedListing, listing: BoardListing) -> dict[str, Any]:
    posting = target.posting
    assert posting is not None  # noqa: S101 - None only for stored listings
    columns = posting.columns
    return columns | {
        "source_id": target.source_id,
        "company_id": listing.source.company_id,
        "url_key": posting.url_key,
        "fingerprint": posting.fingerprint,
        "origin_key": key,
        "quality": quality_of(columns),
        "content_hash": content_hash(columns),
        "tracking_id": listing.task.tracking_id,
        "ingestion_id": listing.ingestion_id,
    }


def _stored_listing(plan: BoardPlan, stored: Mapping[str, Any]) -> ListingToEvaluate:
    return ListingToEvaluate(
        parent=plan.listing.task,
        source=plan.listing.source,
        listing_id=stored["id"],
        url=stored["url"] if stored["url_key"] else None,
        is_new=False,
    )


def _write_changes(connection: Connection, plans: Sequence[BoardPlan], *, now: datetime) -> list[ListingToEvaluate]:
    """Update changed links; return the listings whose content changed, for evaluation.

    The board that listed a job first is its primary board while it lists it; others only add fields
    that the primary board does not state.
    """
    changed = [(plan, posting, link) for plan in plans for posting, link in plan.changed]
    stored = listing_rows.stored_listings(connection, {link.listing_id for _, _, link in changed})
    links_of = listing_rows.links_of(connection, stored.keys())
    different: dict[int, dict[str, Any]] = {}
    to_evaluate: dict[int, ListingToEvaluate] = {}
    for plan, posting, link in changed:
        source = plan.listing.source
        before = different.get(link.listing_id) or stored[link.listing_id]
        first = before["source_id"]
        is_listed = any(on for id_, _, on in links_of.get(link.listing_id, ()) if id_ == first)
        after = _merged(before, posting, is_primary=first == source.id or not is_listed)
        if after["content_hash"] != before["content_hash"]:
            plan.updated += 1
            to_evaluate[link.listing_id] = _stored_listing(plan, stored[link.listing_id])
        if after != before:
            different[link.listing_id] = after | {"ingestion_id": plan.listing.ingestion_id}
    links = [
        (link.id, posting.listing.url, posting.content_hash, posting.stated, plan.listing.ingestion_id)
        for plan, posting, link in changed
    ]
    listing_rows.update_links(connection, links, now=now)
    listing_rows.update_listings(connection, list(different.values()), now=now)
    # Closed at a deadline that the board has moved since.
    extended = [
        id_
        for id_, after in different.items()
        if after["closed_reason"] == EXPIRED and not is_expired(after["valid_until"], now=now)
    ]
    listing_rows.reopen_listings(connection, extended, now=now)
    return list(to_evaluate.values())


def _merged(before: Mapping[str, Any], posting: Posting, *, is_primary: bool) -> dict[str, Any]:
    """Return the listing with the board's current values; None never overwrites a value."""
    changes = {name: value for name, value in posting.columns.items() if value is not None}
    if not is_primary:
        changes = {name: value for name, value in changes.items() if before[name] is None}
    if posting.listing.posted_is_relative and before["posted_at"] is not None:
        changes.pop("posted_at", None)
    after = {**before, **changes}
    words = fingerprint(after["title"], after["company_name"], after["description"])
    return after | {"fingerprint": words, "quality": quality_of(after), "content_hash": content_hash(after)}


def _write_returns(connection: Connection, plans: Sequence[BoardPlan], *, now: datetime) -> list[ListingToEvaluate]:
    """Reopen listings that are listed again; return those that had been closed."""
    by_listing = {link.listing_id: plan for plan in plans for link in plan.returned}
    reopened = listing_rows.reopen_listings(connection, by_listing.keys(), now=now)
    stored = listing_rows.stored_listings(connection, reopened)
    return [_stored_listing(by_listing[listing_id], stored[listing_id]) for listing_id in sorted(reopened)]


def _write_gone(connection: Connection, plans: Sequence[BoardPlan], *, now: datetime) -> None:
    """Count postings missing once; withdraw those missing repeatedly, close unlisted jobs."""
    missed = [
        (link.id, plan.listing.source.last_success_at or now, is_available)
        for plan in plans
        for links, is_available in ((plan.missing, True), (plan.gone, False))
        for link in links
    ]
    listing_rows.note_missing(connection, missed)
    gone = {link.listing_id for plan in plans for link in plan.gone}
    closed = listing_rows.close_listings(connection, gone, reason=GONE, now=now)
    listing_rows.withdraw_matches(connection, closed, now=now)
