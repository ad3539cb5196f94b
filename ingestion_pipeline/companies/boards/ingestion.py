"""From boards to rows: listings, their links, what closed, and a task for each to be judged.

Runs inside the caller's fenced transaction, over many boards at once, by a constant number of
statements, and writes only what differs: a board that says nothing new leaves `job_listings` and
`listing_sources` untouched. Newness comes from the insert itself. Whoever writes listings has the
lock on all of them, so that two boards that deliver one posting at the same moment make one listing
with two links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, update

from ingestion_pipeline.companies.boards import rows
from ingestion_pipeline.companies.boards.closing import EXPIRED
from ingestion_pipeline.companies.boards.plan import (
    BoardListing,
    BoardPlan,
    ListingPlace,
    reason_to_quarantine,
    recognition,
    result_of,
)
from ingestion_pipeline.companies.boards.posting import Posting, content_hash, quality_of
from ingestion_pipeline.companies.listing import is_expired
from ingestion_pipeline.companies.names import fingerprint
from ingestion_pipeline.companies.states import job_task
from ingestion_pipeline.engine.polling.protocol import Ingested
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.bulk import making_rows
from ingestion_pipeline.store.tables import ACTIVE, tasks
from ingestion_pipeline.tasks.errors import Transient
from ingestion_pipeline.tasks.queue import Spawned, Spawning, continue_all, spawn_all, tell_refused
from ingestion_pipeline.tasks.task import NewTask, Task, TaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """A listing that its board has just brought, changed or brought back."""

    parent: Task
    source: Source
    listing_id: int
    url: str | None
    is_new: bool
    posted_at: datetime | None = None
    is_unreported: bool = False  # its match, if it is one, was told to nobody

    @property
    def is_backlog(self) -> bool:
        """Whether it is of a first sync, and not posted since the board's last good answer.

        A board that moved has its first sync again, but what came meanwhile is news.
        """
        if self.source.synced_at is not None:
            return False
        last = self.source.last_success_at
        return last is None or self.posted_at is None or self.posted_at <= last


def spawn_jobs(
    connection: Connection, judged: Sequence[Judging], *, now: datetime, settings: Settings
) -> None:
    """Each has its task.

    A new one passes the spawn guard; what changed is judged again in any case, but never twice at
    a time.
    """
    once = {one.listing_id: one for one in sorted(judged, key=lambda one: one.listing_id)}
    new = [_spawning(one, now=now) for one in once.values() if one.is_new]
    again = [_spawning(one, now=now) for one in once.values() if not one.is_new]
    spawned = spawn_all(connection, new, now=now, policy=settings.work) if new else Spawned()
    _make_news(connection, [one.child for one in again if one.child.payload.get("is_unreported")])
    continue_all(connection, again, now=now)
    if spawned.known or spawned.too_deep:
        tell_refused(connection, new, now=now, policy=settings.work)


def _make_news(connection: Connection, children: Sequence[NewTask]) -> None:
    """Let tasks that still wait, as a first sync left them, notify of what has become news."""
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


def _spawning(one: Judging, *, now: datetime) -> Spawning:
    child = job_task(
        one.listing_id,
        one.url,
        one.source.id,
        now=now,
        board_url=one.source.url,
        is_first_sync=one.is_backlog,
        is_unreported=one.is_unreported,
    )
    return Spawning(parent=one.parent, child=child)


GONE = "its board lists it no more"


@making_rows()
def ingest_boards(
    connection: Connection, listings: Sequence[BoardListing], *, now: datetime, settings: Settings
) -> list[Ingested]:
    """The listings are rows; one result per board, in the order given."""
    plans = _plans(connection, listings, settings)
    if any(not plan.is_idle for plan in plans):
        rows.lock_listings(connection)
        plans = _plans(connection, listings, settings)  # others may have written meanwhile
        kept = [plan for plan in plans if not plan.is_idle]
        judged = _write_new(connection, kept, now=now)
        judged += _write_changes(connection, kept, now=now)
        judged += _write_returns(connection, kept, now=now)
        _write_gone(connection, kept, now=now)
        spawn_jobs(connection, judged, now=now, settings=settings)
    return [result_of(plan, now=now) for plan in plans]


def _plans(
    connection: Connection, listings: Sequence[BoardListing], settings: Settings
) -> list[BoardPlan]:
    known = rows.known_links(connection, [one.source.id for one in listings])
    by_source: dict[str, list[rows.StoredPosting]] = {}
    for link in known.values():
        by_source.setdefault(link.source_id, []).append(link)
    return [
        _plan(one, {link.external_key: link for link in by_source.get(one.source.id, [])}, settings)
        for one in listings
    ]


def _plan(
    listing: BoardListing, known: Mapping[str, rows.StoredPosting], settings: Settings
) -> BoardPlan:
    """What differs; nothing, if the listing is not to be believed."""
    plan = BoardPlan(listing=listing, believed_after=settings.boards.missing_before_closed)
    pairs = [(one, known.get(one.external_key)) for one in listing.postings]
    standing = [(one, link) for one, link in pairs if link is not None]
    keys = {one.external_key for one in listing.postings}
    missing = [one for one in known.values() if one.available and one.external_key not in keys]
    vanished = missing if listing.is_complete else []
    plan.quarantine = reason_to_quarantine(
        listed=len(listing.postings),
        known=sum(one.available for one in known.values()),
        vanished=len(vanished),
        stated=[(link.stated, one.stated) for one, link in standing if link.available],
        accepts_drop=listing.source.accepts_drop,
        limits=settings.boards,
    )
    if plan.quarantine is None:
        plan.vanished = vanished
        plan.new = [one for one, link in pairs if link is None]
        plan.changed = [
            (one, link)
            for one, link in standing
            if link.content_hash != one.content_hash or not link.is_there
        ]
        plan.returned = [link for _, link in standing if not link.is_there]
    return plan


def _write_new(
    connection: Connection, plans: Sequence[BoardPlan], *, now: datetime
) -> list[Judging]:
    """Every new posting has its link; those whose listing is new as well are to be judged."""
    new = [(plan, one) for plan in plans for one in plan.new]
    if not new:
        return []
    listed = {
        plan.listing.source.id: {one.external_key for one in plan.listing.postings}
        for plan in plans
    }
    by_board = [(plan.listing.source.id, one) for plan, one in new]
    found = recognition(connection, by_board, listed)
    homes = [found.home_of(source_id, one) for source_id, one in by_board]
    made = _insert_listings(connection, plans, homes, now=now)
    links: list[tuple[Any, ...]] = []
    judged: list[Judging] = []
    reopened: list[tuple[int, BoardPlan]] = []
    for (plan, posting), home in zip(new, homes, strict=True):
        listing_id = home.candidate.id if home.candidate else made[_own_key(home)]
        links.append(_link(listing_id, plan.listing, posting))
        if home.posting is not None and home.posting.listing is posting.listing:
            plan.created += 1
            judged.append(_judging(plan, listing_id, home.posting))
        elif home.candidate:
            reopened.append((listing_id, plan))
    rows.insert_links(connection, links, now=now)
    back = set(rows.reopen_listings(connection, [one for one, _ in reopened], now=now))
    news = _unreported(connection, reopened)
    stored = rows.stored_listings(connection, back | news.keys())
    judged += [
        _judging_of(plan, stored[one]) for one, plan in dict(reopened).items() if one in back
    ]
    judged += [
        replace(_judging_of(plan, stored[one]), is_unreported=True) for one, plan in news.items()
    ]
    return judged


def _unreported(
    connection: Connection, linked: Sequence[tuple[int, BoardPlan]]
) -> dict[int, BoardPlan]:
    """Return the listings that are news of a board, though another's first sync had them before.

    Nobody was told of them then. What was there when this board was first read is its backlog.
    """
    synced = [(id_, plan) for id_, plan in linked if plan.listing.source.synced_at is not None]
    since = rows.first_syncs(connection, [id_ for id_, _ in synced])
    return {
        id_: plan
        for id_, plan in synced
        if (at := since.get(id_)) is not None and at > (plan.listing.source.synced_at or at)
    }


def _link(listing_id: int, listing: BoardListing, posting: Posting) -> tuple[Any, ...]:
    return (
        listing_id,
        listing.source.id,
        posting.external_key,
        posting.listing.external_id,
        posting.listing.url,
        posting.content_hash,
        posting.stated,
        listing.ingestion_id,
    )


def _insert_listings(
    connection: Connection,
    plans: Sequence[BoardPlan],
    homes: Sequence[ListingPlace],
    *,
    now: datetime,
) -> dict[str, int]:
    """The ids of the listings that are new, by their own keys."""
    by_source = {plan.listing.source.id: plan.listing for plan in plans}
    wanted = {_own_key(home): home for home in homes if home.candidate is None}
    given = [_row(key, home, by_source[home.source_id]) for key, home in wanted.items()]
    made = rows.insert_listings(connection, given, now=now)
    if len(made) < len(wanted):
        raise Transient("somebody else has just inserted the same listings", code="listing_race")
    return made


def _own_key(home: ListingPlace) -> str:
    """The one name of a new listing: its board and its key there."""
    key = home.posting.external_key if home.posting else ""
    return sha256(f"{home.source_id}\n{key}".encode("utf-8", "surrogatepass")).hexdigest()


def _row(key: str, home: ListingPlace, listing: BoardListing) -> dict[str, Any]:
    posting = home.posting
    assert posting is not None  # noqa: S101 - of a listing that stands there is none
    said = posting.columns
    return said | {
        "source_id": home.source_id,
        "company_id": listing.source.company_id,
        "url_key": posting.url_key,
        "fingerprint": posting.fingerprint,
        "origin_key": key,
        "quality": quality_of(said),
        "content_hash": content_hash(said),
        "tracking_id": listing.task.tracking_id,
        "ingestion_id": listing.ingestion_id,
    }


def _judging(plan: BoardPlan, listing_id: int, posting: Posting) -> Judging:
    has_own_url = posting.url_key is not None
    return Judging(
        parent=plan.listing.task,
        source=plan.listing.source,
        listing_id=listing_id,
        url=posting.listing.url if has_own_url else None,
        is_new=True,
        posted_at=posting.columns["posted_at"],
    )


def _judging_of(plan: BoardPlan, stored: Mapping[str, Any]) -> Judging:
    return Judging(
        parent=plan.listing.task,
        source=plan.listing.source,
        listing_id=stored["id"],
        url=stored["url"] if stored["url_key"] else None,
        is_new=False,
    )


def _write_changes(
    connection: Connection, plans: Sequence[BoardPlan], *, now: datetime
) -> list[Judging]:
    """Links say what their boards say; listings that say something else are to be judged again.

    A listing speaks for the board that listed it first, as long as that one lists it; another one
    only adds what that one does not say.
    """
    changed = [(plan, one, link) for plan in plans for one, link in plan.changed]
    stored = rows.stored_listings(connection, {link.listing_id for _, _, link in changed})
    links_of = rows.links_of(connection, stored.keys())
    different: dict[int, dict[str, Any]] = {}
    judged: dict[int, Judging] = {}
    for plan, posting, link in changed:
        source = plan.listing.source
        before = different.get(link.listing_id) or stored[link.listing_id]
        first = before["source_id"]
        is_listed = any(on for id_, _, on in links_of.get(link.listing_id, ()) if id_ == first)
        after = _merged(before, posting, speaks=first == source.id or not is_listed)
        if after["content_hash"] != before["content_hash"]:
            plan.updated += 1
            judged[link.listing_id] = _judging_of(plan, stored[link.listing_id])
        if after != before:
            different[link.listing_id] = after | {"ingestion_id": plan.listing.ingestion_id}
    links = [
        (link.id, one.listing.url, one.content_hash, one.stated, plan.listing.ingestion_id)
        for plan, one, link in changed
    ]
    rows.update_links(connection, links, now=now)
    rows.update_listings(connection, list(different.values()), now=now)
    extended = [id_ for id_, after in different.items() if _is_extended(after, now=now)]
    rows.reopen_listings(connection, extended, now=now)
    return list(judged.values())


def _is_extended(listing: Mapping[str, Any], *, now: datetime) -> bool:
    """Return whether it was closed at a deadline that its board has moved since."""
    was_expired = listing["closed_reason"] == EXPIRED
    return was_expired and not is_expired(listing["valid_until"], now=now)


def _merged(before: Mapping[str, Any], posting: Posting, *, speaks: bool) -> dict[str, Any]:
    """The listing with what the board says now; nothing is overwritten by nothing."""
    said = {name: value for name, value in posting.columns.items() if value is not None}
    if not speaks:
        said = {name: value for name, value in said.items() if before[name] is None}
    if posting.listing.posted_is_relative and before["posted_at"] is not None:
        said.pop("posted_at", None)
    after = {**before, **said}
    words = fingerprint(after["title"], after["company_name"], after["description"])
    return after | {
        "fingerprint": words,
        "quality": quality_of(after),
        "content_hash": content_hash(after),
    }


def _write_returns(
    connection: Connection, plans: Sequence[BoardPlan], *, now: datetime
) -> list[Judging]:
    """What is listed again is open again, and judged again if it had been closed."""
    by_listing = {link.listing_id: plan for plan in plans for link in plan.returned}
    back = rows.reopen_listings(connection, by_listing.keys(), now=now)
    stored = rows.stored_listings(connection, back)
    return [_judging_of(by_listing[one], stored[one]) for one in sorted(back)]


def _write_gone(connection: Connection, plans: Sequence[BoardPlan], *, now: datetime) -> None:
    """Missing once is noted; missing twice is gone, and what no board lists is closed."""
    missed = [
        (link.id, plan.listing.source.last_success_at or now, is_there)
        for plan in plans
        for links, is_there in ((plan.missing, True), (plan.gone, False))
        for link in links
    ]
    rows.note_missing(connection, missed)
    gone = {link.listing_id for plan in plans for link in plan.gone}
    closed = rows.close_listings(connection, gone, reason=GONE, now=now)
    rows.withdraw_matches(connection, closed, now=now)
