"""SQL statements on listings and their links, for any number of rows each; and which listings are closed.

Listings are closed when their deadline has passed or all their boards are inactive. A board that an operator or
its file has disabled, or that is removed, is inactive at once; one disabled by failures becomes inactive when its
last poll is stale. After the board is enabled again the next poll reopens its jobs like any job that returns.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    String,
    Table,
    and_,
    exists,
    func,
    literal,
    or_,
    select,
    text,
    true,
    update,
)

from ingestion_pipeline.companies.job_listing import is_expired
from ingestion_pipeline.companies.records import ListingStatus
from ingestion_pipeline.engine.context import SinglePageSnapshot
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.sources.poll_tasks import lock_polls
from ingestion_pipeline.sources.source import SourceStatus
from ingestion_pipeline.store.statements import Columns, NewRows, Row, audit, insert_into, insert_missing, row_source
from ingestion_pipeline.store.tables import LISTED, job_listings, job_matches, listing_sources, sources
from ingestion_pipeline.store.types import Id, UtcDateTime

WITHDRAWN = "withdrawn"
LOCK = 0x1157  # id of the advisory lock of all writers of listings; reserved


def columns_of(table: Table, names: Iterable[str]) -> Columns:
    """Return the types of the table's columns, for a `row_source`."""
    return {name: table.c[name].type for name in names}


def update_rows(
    connection: Connection,
    table: Table,
    names: Sequence[str],
    rows: Iterable[Row],
    constants: Mapping[str, Any] | None = None,
) -> None:
    """Update the columns `names` of the rows that the first of them identifies, and further ones to constants."""
    ordered = sorted(rows, key=lambda row: row[0])
    if not ordered:
        return
    updates = row_source(connection, columns_of(table, names), ordered, "given")
    values = {name: updates.c[name] for name in names[1:]} | dict(constants or {})
    connection.execute(update(table).where(table.c[names[0]] == updates.c[names[0]]).values(values))


def given_ids(connection: Connection, ids: Iterable[int]) -> CTE:
    """Return the ids as a table: one parameter, however many there are."""
    return row_source(connection, {"id": Id}, [(id_,) for id_ in sorted(set(ids))], "given")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPosting:
    """A stored posting of a board: the link between a board and a listing."""

    id: int
    listing_id: int
    source_id: str
    external_key: str
    content_hash: str
    stated: str
    missing: int
    available: bool

    @property
    def is_listed(self) -> bool:
        """Return whether the last complete listing had it."""
        return self.available and not self.missing


def lock_listings(connection: Connection) -> None:
    """Take the lock on all listings until the transaction ends.

    Postings are matched by URL and by text together: no single row could be locked for all that two
    boards may deliver at the same moment. SQLite has one writer anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})


def existing_links(connection: Connection, source_ids: Collection[str]) -> list[StoredPosting]:
    """Return all links of these boards."""
    columns = [listing_sources.c[name] for name in StoredPosting.__slots__]
    query = select(*columns).where(listing_sources.c.source_id.in_(list(source_ids)))
    return [StoredPosting(**row) for row in connection.execute(query).mappings()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A stored listing that a new posting may belong to."""

    id: int
    url_key: str | None
    fingerprint: str
    location: str | None
    first_listed_at: datetime
    other_locations: Sequence[str] | None = None


def candidates(connection: Connection, *, url_keys: Collection[str], fingerprints: Collection[str]) -> list[Candidate]:
    """Return the listings with one of these URL keys or fingerprints, oldest first."""
    if not url_keys and not fingerprints:
        return []
    columns = [job_listings.c[name] for name in Candidate.__slots__]
    by_url = _key_rows(connection, "by_url", url_keys)
    by_words = _key_rows(connection, "by_words", fingerprints)
    same_url = job_listings.c.url_key.in_(select(by_url.c.key))
    same_words = job_listings.c.fingerprint.in_(select(by_words.c.key))
    # Two queries: joined by OR, neither index would be used.
    matches = [
        row
        for condition in (same_url, same_words)
        for row in connection.execute(select(*columns).where(condition)).mappings()
    ]
    unique = {row["id"]: Candidate(**row) for row in matches}
    return [unique[id_] for id_ in sorted(unique)]


def _key_rows(connection: Connection, name: str, keys: Collection[str]) -> Any:  # noqa: ANN401 - a CTE
    return row_source(connection, {"key": String(64)}, [(key,) for key in sorted(keys)], name)


def links_of(connection: Connection, listing_ids: Collection[int]) -> dict[int, list[tuple[str, str, bool]]]:
    """Return the links of each listing as (source, key, available)."""
    by_listing: dict[int, list[tuple[str, str, bool]]] = {}
    if not listing_ids:
        return by_listing
    requested = given_ids(connection, listing_ids)
    links = listing_sources.c
    query = select(links.listing_id, links.source_id, links.external_key, links.available).join(
        requested, requested.c.id == links.listing_id
    )
    for listing_id, source_id, key, available in connection.execute(query):
        by_listing.setdefault(listing_id, []).append((source_id, key, available))
    return by_listing


_LISTING = (
    *("source_id", "company_id", "company_name", "company_website", "url", "url_key", "fingerprint", "origin_key"),
    *(
        "title",
        "location",
        "other_locations",
        "places",
        "remote",
        "department",
        "employment_type",
        "description",
        "salary",
    ),
    *("posted_at", "valid_until", "quality", "content_hash", "tracking_id", "ingestion_id"),
    *("first_listed_at", "repost_of"),
)
_NEVER_UPDATED = {
    *("source_id", "company_id", "url_key", "origin_key", "tracking_id"),
    *("first_listed_at", "repost_of"),
}
_UPDATED = ("id", *(name for name in _LISTING if name not in _NEVER_UPDATED))
_LINK = (
    *("listing_id", "source_id", "external_key", "external_id"),
    *("url", "content_hash", "stated", "ingestion_id"),
)


def insert_listings(connection: Connection, new: Sequence[Mapping[str, Any]], *, now: datetime) -> dict[str, int]:
    """Insert listings; return the ids of those that did not exist, by `origin_key`."""
    if not new:
        return {}
    rows = [[listing.get(name) for name in _LISTING] for listing in new]
    new_rows = row_source(connection, columns_of(job_listings, _LISTING), rows, "given")
    moment = literal(now, UtcDateTime())
    selection = select(*new_rows.c, literal(ListingStatus.OPEN.value), moment, moment).where(true())
    statement = (
        insert_into(connection, job_listings)
        .from_select([*_LISTING, "status", "first_seen_at", "changed_at"], selection)
        .on_conflict_do_nothing()
        .returning(job_listings.c.origin_key, job_listings.c.id)
    )
    return {key: id_ for key, id_ in connection.execute(statement)}  # noqa: C416 - rows to a dict


def insert_links(connection: Connection, new: Sequence[tuple[Any, ...]], *, now: datetime) -> None:
    """Insert links, first seen now; each is a tuple of the columns of `_LINK`."""
    moment = (UtcDateTime(), now)
    links = NewRows(
        table=listing_sources,
        columns=columns_of(listing_sources, _LINK),
        rows=new,
        identity=("source_id", "external_key"),
        shared={"first_seen_at": moment, "last_seen_at": moment},
    )
    insert_missing(connection, links)


def update_links(
    connection: Connection, changed: Sequence[tuple[int, str | None, str, str, int | None]], *, now: datetime
) -> None:
    """Update links (id, url, hash, stated, ingestion id) and mark them available."""
    names = ("id", "url", "content_hash", "stated", "ingestion_id")
    update_rows(connection, listing_sources, names, changed, {"missing": 0, "available": True, "last_seen_at": now})


def note_missing(connection: Connection, missed: Sequence[tuple[int, datetime | None, bool]]) -> None:
    """Increment the missing count of links (id, last seen if it was listed until now, whether still available)."""
    count = {"missing": listing_sources.c.missing + 1}
    first = [row for row in missed if row[1] is not None]
    update_rows(connection, listing_sources, ("id", "last_seen_at", "available"), first, count)
    again = [(id_, available) for id_, seen_at, available in missed if seen_at is None]
    update_rows(connection, listing_sources, ("id", "available"), again, count)


def first_syncs(connection: Connection, ids: Collection[int]) -> dict[int, datetime]:
    """Return when each of these open listings came, if it came with its board's first sync."""
    if not ids:
        return {}
    requested = given_ids(connection, ids)
    query = (
        select(job_listings.c.id, job_listings.c.first_seen_at)
        .join(requested, requested.c.id == job_listings.c.id)
        .join(sources, sources.c.id == job_listings.c.source_id)
        .where(
            job_listings.c.status == ListingStatus.OPEN.value,
            or_(sources.c.synced_at.is_(None), job_listings.c.first_seen_at <= sources.c.synced_at),
        )
    )
    return {row.id: row.first_seen_at for row in connection.execute(query)}


def stored_listings(connection: Connection, ids: Collection[int]) -> dict[int, dict[str, Any]]:
    """Return the stored listings by id."""
    if not ids:
        return {}
    requested = given_ids(connection, ids)
    query = select(job_listings).join(requested, requested.c.id == job_listings.c.id)
    return {row["id"]: dict(row) for row in connection.execute(query).mappings()}


def update_listings(connection: Connection, changed: Sequence[Mapping[str, Any]], *, now: datetime) -> None:
    """Update listings; each is a complete row with its id."""
    rows = ([listing[name] for name in _UPDATED] for listing in changed)
    update_rows(connection, job_listings, _UPDATED, rows, {"changed_at": now})


def place_listings(connection: Connection, placed: Sequence[SinglePageSnapshot]) -> None:
    """Set the snapshot that each ingestion's listings were parsed from."""
    columns = {"source_id": String(120), "ingestion_id": Id, "snapshot_id": Id}
    rows = [(placement.source_id, placement.ingestion_id, placement.snapshot_id) for placement in placed]
    placements = row_source(connection, columns, rows, "given")
    # Joined through the links: they have an index on the board, listings do not.
    written = (
        select(listing_sources.c.listing_id, placements.c.ingestion_id, placements.c.snapshot_id)
        .join(placements, placements.c.source_id == listing_sources.c.source_id)
        .where(listing_sources.c.ingestion_id == placements.c.ingestion_id)
        .cte("written")
    )
    connection.execute(
        update(job_listings)
        .where(job_listings.c.id == written.c.listing_id, job_listings.c.ingestion_id == written.c.ingestion_id)
        .values(snapshot_id=written.c.snapshot_id)
    )


def close_listings(
    connection: Connection, ids: Collection[int], *, reason: str, now: datetime, is_listed: bool = False
) -> list[int]:
    """Close the listings that no board lists any more, with `is_listed` all of them; return their ids."""
    if not ids:
        return []
    requested = given_ids(connection, ids)
    seen_at = select(func.max(listing_sources.c.last_seen_at)).where(listing_sources.c.listing_id == job_listings.c.id)
    has_board = exists().where(listing_sources.c.listing_id == job_listings.c.id, listing_sources.c.available)
    statement = (
        update(job_listings)
        .where(
            job_listings.c.id.in_(select(requested.c.id)),
            job_listings.c.status == ListingStatus.OPEN.value,
            *(() if is_listed else (~has_board,)),
        )
        .values(
            status=ListingStatus.CLOSED.value,
            closed_at=now,
            closed_reason=reason,
            last_listed_at=now if is_listed else func.coalesce(seen_at.scalar_subquery(), literal(now, UtcDateTime())),
        )
        .returning(job_listings.c.id)
    )
    return list(connection.execute(statement).scalars())


def withdraw_matches(connection: Connection, listing_ids: Collection[int], *, now: datetime) -> int:
    """Withdraw the matches of these listings; return how many were withdrawn."""
    if not listing_ids:
        return 0
    statement = update(job_matches).where(
        job_matches.c.listing_id.in_(list(listing_ids)), job_matches.c.status != WITHDRAWN
    )
    return connection.execute(statement.values(status=WITHDRAWN, updated_at=now)).rowcount


def reopen_listings(connection: Connection, ids: Collection[int], *, now: datetime) -> list[int]:
    """Reopen those listings that were closed; return their ids."""
    if not ids:
        return []
    requested = given_ids(connection, ids)
    statement = (
        update(job_listings)
        .where(job_listings.c.id.in_(select(requested.c.id)), job_listings.c.status == ListingStatus.CLOSED.value)
        .values(
            status=ListingStatus.OPEN.value,
            closed_at=None,
            closed_reason=None,
            times_reopened=job_listings.c.times_reopened + 1,
            changed_at=now,
            # to be evaluated again: its match was withdrawn
            rules_hash=None,
            decision=None,
        )
        .returning(job_listings.c.id)
    )
    return list(connection.execute(statement).scalars())


ACTOR = "process_listings"
REASON = "its board is no longer polled"
BY_FAILURES = "disabled"  # prefix of the reasons that polling sets; an operator's reasons differ
STALE_AFTER = timedelta(days=14)  # without a successful poll


def has_inactive_boards(connection: Connection, *, now: datetime) -> bool:
    """Return whether `close_inactive_boards` would close anything; reads few rows."""
    query = select(sources.c.id).where(_is_inactive(now)).limit(1)
    return connection.execute(query).first() is not None


def lock_board(connection: Connection, source_id: str) -> None:
    """Lock the board's poll, then listings; call before changing its source in the transaction.

    Polling locks in the same order. The source comes last, so that it is not held while waiting for the others.
    """
    lock_polls(connection, [source_id])
    lock_listings(connection)


def close_inactive_boards(connection: Connection, *, now: datetime, actor: str = ACTOR, only: str | None = None) -> int:
    """Close listings that only inactive boards list, withdraw their matches; return the number.

    `only` restricts this to one board; every board is audited. The boards' links become unavailable, and their next
    poll is parsed in full even if its response is unchanged: so enabling a board brings back what it still lists.
    """
    if not has_inactive_boards(connection, now=now):
        return 0
    lock_listings(connection)
    columns = (sources.c.id, sources.c.status_reason, sources.c.last_success_at)
    query = select(*columns).where(_is_inactive(now)).order_by(sources.c.id)
    boards = connection.execute(query if only is None else query.where(sources.c.id == only))
    return sum(
        _close(connection, board, reason, last or now, now=now, actor=actor) for board, reason, last in boards.all()
    )


def _is_inactive(now: datetime) -> ColumnElement[bool]:
    trusted_since = now - STALE_AFTER
    by_hand = ~func.coalesce(sources.c.status_reason, "").startswith(BY_FAILURES)
    return and_(
        sources.c.kind == Kind.JOB_BOARD.value,
        sources.c.status == SourceStatus.DISABLED.value,
        sources.c.record_count > 0,
        or_(by_hand, func.coalesce(sources.c.last_success_at, now) < trusted_since),
    )


def _close(
    connection: Connection, board: str, why: str | None, last_seen_at: datetime, *, now: datetime, actor: str
) -> int:
    gone = connection.execute(
        update(listing_sources)
        .where(listing_sources.c.source_id == board, listing_sources.c.available)
        .values(available=False, last_seen_at=last_seen_at)
        .returning(listing_sources.c.listing_id)
    )
    closed = close_listings(connection, set(gone.scalars()), reason=f"{REASON}: {board}", now=now)
    withdraw_matches(connection, closed, now=now)
    connection.execute(
        update(sources).where(sources.c.id == board).values(record_count=0, needs_full_read=True, updated_at=now)
    )
    detail = {"closed": len(closed), "reason": why}
    audit(connection, actor=actor, action="board.unwatched", subject=board, now=now, detail=detail)
    return len(closed)


EXPIRED = "its deadline has passed"


def expired_listings(connection: Connection, *, now: datetime) -> list[int]:
    """Return the open listings whose deadline has passed, by the index on it."""
    query = select(job_listings.c.id, job_listings.c.valid_until).where(LISTED, job_listings.c.valid_until < now)
    return [listing_id for listing_id, valid_until in connection.execute(query) if is_expired(valid_until, now=now)]


def close_expired(connection: Connection, *, now: datetime) -> int:
    """Close listings past their deadline and withdraw their matches; return the number closed."""
    if not expired_listings(connection, now=now):
        return 0
    lock_listings(connection)
    ids = expired_listings(connection, now=now)  # again under the lock: others may have written
    closed = close_listings(connection, ids, reason=EXPIRED, now=now, is_listed=True)
    withdraw_matches(connection, closed, now=now)
    return len(closed)
