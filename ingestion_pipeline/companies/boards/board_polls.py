"""Polls of job boards: the writes of what they bring, and the SCRAPE tasks that ask for them ahead of schedule.

The writes run inside the caller's fenced transaction, over many boards at once, with a constant number of
statements, and write only differences: an unchanged board leaves `job_listings` and `listing_sources` untouched.
Whether a listing is new is decided by the insert itself. Every writer of listings holds one lock, so that two
boards that deliver one posting at the same moment create one listing with two links.

A SCRAPE task names its boards, or requests a rotation: those scraped longest ago first. It only makes polls due,
a few at a time, until enough jobs match; other runs poll and evaluate, so it waits for their results in between.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, exists, func, select, update

from ingestion_pipeline.companies.boards import listing_rows
from ingestion_pipeline.companies.boards.board_plan import (
    BoardListing,
    BoardPlan,
    Posting,
    ResolvedListing,
    content_hash,
    listing_resolver,
    quality_of,
    reason_to_quarantine,
    result_of,
)
from ingestion_pipeline.companies.boards.listing_rows import EXPIRED, WITHDRAWN
from ingestion_pipeline.companies.job_listing import fingerprint, is_expired
from ingestion_pipeline.companies.records import JOB, SCRAPE, job_task
from ingestion_pipeline.engine.context import IngestResult
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Source
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.sources.poll_tasks import make_due
from ingestion_pipeline.sources.source import SourceStatus
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import ACTIVE, job_matches, listing_sources, sources, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline.tasks.errors import Transient
from ingestion_pipeline.tasks.queue import (
    Refusal,
    SpawnCounts,
    SpawnRequest,
    continue_all,
    enqueue,
    log_refusals,
    spawn_all,
)
from ingestion_pipeline.tasks.task import Move, NewTask, Task, TaskStatus, finished


def _spawn_jobs(
    connection: Connection,
    new: Sequence[SpawnRequest],
    again: Sequence[SpawnRequest],
    *,
    now: datetime,
    settings: Settings,
) -> None:
    """Create one evaluation task per listing; only new listings have to pass the spawn guard."""
    new, again = _each_once(new), _each_once(again)
    spawned = spawn_all(connection, new, now=now, policy=settings.work) if new else SpawnCounts()
    _make_news(connection, [request.child for request in again if request.child.payload.get("is_unreported")])
    continue_all(connection, again, now=now)
    if spawned.existing or spawned.too_deep:
        log_refusals(connection, new, now=now, policy=settings.work)


def _each_once(requests: Sequence[SpawnRequest]) -> list[SpawnRequest]:
    """Return one request per listing, in one order for all workers."""
    by_listing = {request.child.payload["listing_id"]: request for request in requests}
    return [by_listing[id_] for id_ in sorted(by_listing)]


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


def _evaluation(
    plan: BoardPlan,
    listing_id: int,
    url: str | None,
    *,
    now: datetime,
    posted_at: datetime | None = None,
    is_unreported: bool = False,
) -> SpawnRequest:
    source = plan.listing.source
    is_backlog = _is_backlog(source, posted_at)
    child = job_task(
        listing_id, url, source.id, now=now, board_url=source.url, is_first_sync=is_backlog, is_unreported=is_unreported
    )
    return SpawnRequest(parent=plan.listing.task, child=child)


def _is_backlog(source: Source, posted_at: datetime | None) -> bool:
    """Return whether a listing is part of a first sync and was not posted since the last success.

    A board that moved has a first sync again, but postings from the meantime are news.
    """
    if source.synced_at is not None:
        return False
    last = source.last_success_at
    return last is None or posted_at is None or posted_at <= last


GONE = "its board lists it no more"


def ingest_boards(
    connection: Connection, listings: Sequence[BoardListing], *, now: datetime, settings: Settings
) -> list[IngestResult]:
    """Write the boards' listings; return one result per board, in input order."""
    plans = _plans(connection, listings)
    if any(not plan.is_idle for plan in plans):
        listing_rows.lock_listings(connection)
        plans = _plans(connection, listings)  # again under the lock: others may have written
        active = [plan for plan in plans if not plan.is_idle]
        new, again = _write_new(connection, active, now=now)
        again += _write_changes(connection, active, now=now)
        again += _write_returns(connection, active, now=now)
        _write_gone(connection, active, now=now)
        _spawn_jobs(connection, new, again, now=now, settings=settings)
    return [result_of(plan, now=now) for plan in plans]


def _plans(connection: Connection, listings: Sequence[BoardListing]) -> list[BoardPlan]:
    links = listing_rows.existing_links(connection, [listing.source.id for listing in listings])
    by_source: dict[str, dict[str, listing_rows.StoredPosting]] = {}
    for link in links:
        by_source.setdefault(link.source_id, {})[link.external_key] = link
    return [_plan(listing, by_source.get(listing.source.id, {})) for listing in listings]


def _plan(listing: BoardListing, links: Mapping[str, listing_rows.StoredPosting]) -> BoardPlan:
    """Return the differences; none if the listing is quarantined."""
    plan = BoardPlan(listing=listing)
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


def _write_new(
    connection: Connection, plans: Sequence[BoardPlan], *, now: datetime
) -> tuple[list[SpawnRequest], list[SpawnRequest]]:
    """Insert a link for every new posting; return the evaluations of new listings and of existing ones."""
    new = [(plan, posting) for plan in plans for posting in plan.new]
    if not new:
        return [], []
    listed = {plan.listing.source.id: {posting.external_key for posting in plan.listing.postings} for plan in plans}
    by_board = [(plan.listing.source.id, posting) for plan, posting in new]
    resolver = listing_resolver(connection, by_board, listed)
    resolved = [resolver.resolve(source_id, posting) for source_id, posting in by_board]
    created_ids = _insert_listings(connection, plans, resolved, now=now)
    links: list[tuple[Any, ...]] = []
    created: list[SpawnRequest] = []
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
            url = posting.listing.url if target.posting.url_key is not None else None
            created.append(_evaluation(plan, listing_id, url, now=now, posted_at=posting.listing.posted_at))
        elif target.candidate:
            linked.append((listing_id, plan))
    listing_rows.insert_links(connection, links, now=now)
    reopened = set(listing_rows.reopen_listings(connection, [id_ for id_, _ in linked], now=now))
    news = _unreported(connection, linked)
    stored = listing_rows.stored_listings(connection, reopened | news.keys())
    again = [_again(plan, stored[id_], now=now) for id_, plan in dict(linked).items() if id_ in reopened]
    again += [_again(plan, stored[id_], now=now, is_unreported=True) for id_, plan in news.items()]
    return created, again


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
    by_source = {plan.listing.source.id: plan.listing for plan in plans}
    new = {_own_key(target): target for target in resolved if target.candidate is None}
    new_rows = [_row(key, target, by_source[target.source_id], now=now) for key, target in new.items()]
    created_ids = listing_rows.insert_listings(connection, new_rows, now=now)
    if len(created_ids) < len(new):
        raise Transient("another worker has just inserted the same listings", code="listing_race")
    return created_ids


def _own_key(target: ResolvedListing) -> str:
    """Return the origin key of a new listing: a hash of its board and its key there."""
    key = target.posting.external_key if target.posting else ""
    return sha256(f"{target.source_id}\n{key}".encode("utf-8", "surrogatepass")).hexdigest()


def _row(key: str, target: ResolvedListing, listing: BoardListing, *, now: datetime) -> dict[str, Any]:
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
        "first_listed_at": target.repost_of.first_listed_at if target.repost_of else now,
        "repost_of": target.repost_of.id if target.repost_of else None,
    }


def _again(plan: BoardPlan, stored: Mapping[str, Any], *, now: datetime, is_unreported: bool = False) -> SpawnRequest:
    url = stored["url"] if stored["url_key"] else None
    return _evaluation(plan, stored["id"], url, now=now, is_unreported=is_unreported)


def _write_changes(connection: Connection, plans: Sequence[BoardPlan], *, now: datetime) -> list[SpawnRequest]:
    """Update changed links; return the listings whose content changed, for evaluation.

    The board that listed a job first is its primary board while it lists it; others only add fields
    that the primary board does not state.
    """
    changed = [(plan, posting, link) for plan in plans for posting, link in plan.changed]
    stored = listing_rows.stored_listings(connection, {link.listing_id for _, _, link in changed})
    links_of = listing_rows.links_of(connection, stored.keys())
    different: dict[int, dict[str, Any]] = {}
    again: dict[int, SpawnRequest] = {}
    for plan, posting, link in changed:
        source = plan.listing.source
        before = different.get(link.listing_id) or stored[link.listing_id]
        first = before["source_id"]
        is_listed = any(on for id_, _, on in links_of.get(link.listing_id, ()) if id_ == first)
        after = _merged(before, posting, is_primary=first == source.id or not is_listed)
        if after["content_hash"] != before["content_hash"]:
            plan.updated += 1
            again[link.listing_id] = _again(plan, stored[link.listing_id], now=now)
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
    return list(again.values())


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


def _write_returns(connection: Connection, plans: Sequence[BoardPlan], *, now: datetime) -> list[SpawnRequest]:
    """Reopen listings that are listed again; return those that had been closed."""
    by_listing = {link.listing_id: plan for plan in plans for link in plan.returned}
    reopened = listing_rows.reopen_listings(connection, by_listing.keys(), now=now)
    stored = listing_rows.stored_listings(connection, reopened)
    return [_again(by_listing[listing_id], stored[listing_id], now=now) for listing_id in sorted(reopened)]


def _write_gone(connection: Connection, plans: Sequence[BoardPlan], *, now: datetime) -> None:
    """Count postings missing once; withdraw those missing repeatedly, close unlisted jobs."""
    missed = [
        (link.id, None if link.missing else plan.listing.source.last_success_at or now, is_available)
        for plan in plans
        for links, is_available in ((plan.missing, True), (plan.gone, False))
        for link in links
    ]
    listing_rows.note_missing(connection, missed)
    gone = {link.listing_id for plan in plans for link in plan.gone}
    closed = listing_rows.close_listings(connection, gone, reason=GONE, now=now)
    listing_rows.withdraw_matches(connection, closed, now=now)


BOARDS_AT_ONCE = 5
MAX_SOURCES = 20  # of a rotation, unless its request says another number
TARGET_MATCHES = 5  # a rotation ends after so many
SCRAPES_AT_ONCE = 20
RECHECK_INTERVAL = timedelta(seconds=30)
STEP_TIMEOUT = timedelta(hours=1)  # for the polls and evaluations of one step


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeRequest:
    """What a SCRAPE task should do; without ids it is a rotation."""

    source_ids: Sequence[str] = ()
    target_matches: int | None = None
    max_sources: int | None = None

    def payload(self) -> dict[str, Any]:
        """Return the request as a task payload."""
        return asdict(self) | {"source_ids": sorted(self.source_ids)}


class NotPolled(ValueError):
    """A source that a scrape cannot reach."""


_UNPOLLED = (SourceStatus.DISABLED, SourceStatus.PENDING_VALIDATION)


def request_scrape(connection: Connection, request: ScrapeRequest, *, now: datetime) -> int | Refusal:
    """Enqueue a SCRAPE task unless an equal one is active; raise UnknownSource or NotPolled for a bad source."""
    existing = sources_by_id(connection, request.source_ids)
    for source_id in request.source_ids:
        if (source := existing.get(source_id)) is None:
            raise UnknownSource(source_id)
        if source.kind is not Kind.JOB_BOARD:
            raise NotPolled(f"{source_id} is no job board, but a source of kind {source.kind}")
        if source.status in _UNPOLLED:
            reason = source.status_reason or source.status.value
            raise NotPolled(f"{source_id} is not polled ({reason}); `ingest sources enable` ends it")
    payload = request.payload()
    key = sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()
    task = NewTask(kind=SCRAPE, dedupe_key=key, not_before=now, payload=payload)
    return enqueue(connection, task, now=now)


def run_scrape(connection: Connection, task: Task, *, now: datetime) -> Move:
    """Run one step of a claimed SCRAPE task; return the move to apply in this transaction."""
    if source_ids := list(task.payload.get("source_ids") or ()):
        return _done(task, {"taken": source_ids, "due": make_due(connection, source_ids, now=now)})
    state: dict[str, Any] = dict(task.state or {"taken": [], "started_at": now.isoformat()})
    taken: list[str] = list(state["taken"])
    state["matches"] = _matches(connection, taken, since=datetime.fromisoformat(state["started_at"]))
    most: int = task.payload.get("max_sources") or MAX_SOURCES
    target: int = task.payload.get("target_matches") or TARGET_MATCHES
    if state["matches"] >= target or len(taken) >= most:
        return _done(task, state)
    if _is_busy(connection, state, now=now):
        return _later(task, state, now=now)
    chosen = _oldest(connection, without=taken, limit=min(BOARDS_AT_ONCE, most - len(taken)))
    if not chosen:
        return _done(task, state)
    make_due(connection, chosen, now=now)
    state |= {"taken": [*taken, *chosen], "step": chosen, "stepped_at": now.isoformat()}
    return _later(task, state, now=now)


def drain_scrapes(store: Store, worker: Worker) -> int:
    """Advance every due SCRAPE task by one step; return how many."""
    claimed = worker.claim(ClaimFilter(kind=SCRAPE), limit=SCRAPES_AT_ONCE)
    for task in claimed:
        with store.begin() as connection:
            now = store.clock.now(connection)
            claims.apply(connection, [run_scrape(connection, task, now=now)], now=now)
    return len(claimed)


def _done(task: Task, state: dict[str, Any]) -> Move:
    return replace(finished(task), state=state)


def _later(task: Task, state: dict[str, Any], *, now: datetime) -> Move:
    """Return a move that waits for other runs; it does not count as an attempt."""
    return Move(
        task=task,
        status=TaskStatus.PENDING,
        not_before=now + RECHECK_INTERVAL,
        attempts=0,
        priority=task.priority,
        stage="waiting",
        state=state,
    )


def _oldest(connection: Connection, *, without: Sequence[str], limit: int) -> list[str]:
    query = (
        select(sources.c.id)
        .where(
            sources.c.kind == Kind.JOB_BOARD.value,
            sources.c.status == SourceStatus.ACTIVE.value,
            sources.c.id.not_in(list(without)),
        )
        .order_by(sources.c.last_checked_at.asc().nulls_first(), sources.c.id)
        .limit(limit)
    )
    return list(connection.execute(query).scalars())


def _matches(connection: Connection, source_ids: Sequence[str], *, since: datetime) -> int:
    is_listed = exists().where(
        listing_sources.c.listing_id == job_matches.c.listing_id, listing_sources.c.source_id.in_(list(source_ids))
    )
    query = select(func.count()).where(job_matches.c.created_at >= since, job_matches.c.status != WITHDRAWN, is_listed)
    return connection.execute(query).scalar_one()


def _is_busy(connection: Connection, state: dict[str, Any], *, now: datetime) -> bool:
    """Return whether the last step's boards are not polled or their jobs not evaluated yet."""
    step: list[str] = state.get("step") or []
    if not step:
        return False
    stepped_at = datetime.fromisoformat(state["stepped_at"])
    if now - stepped_at > STEP_TIMEOUT:
        return False
    unpolled = select(sources.c.id).where(
        sources.c.id.in_(step),
        sources.c.status == SourceStatus.ACTIVE.value,
        func.coalesce(sources.c.last_checked_at < stepped_at, True),
    )
    unjudged = select(tasks.c.id).where(ACTIVE, tasks.c.kind == JOB, tasks.c.source_id.in_(step))
    return any(connection.execute(query.limit(1)).first() for query in (unpolled, unjudged))
