"""Closes listings of inactive boards and listings past their deadline.

A board that an operator or its file has disabled, or that is removed, is inactive at once; one
disabled by failures becomes inactive when its last poll is stale. After the board is enabled again
the next poll reopens its jobs like any job that returns.
"""

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select, update

from ingestion_pipeline.companies.boards import listing_rows
from ingestion_pipeline.companies.job_listing import is_expired
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.sources.poll_tasks import lock_polls
from ingestion_pipeline.sources.source import SourceStatus
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.tables import LISTED, job_listings, listing_sources, sources

ACTOR = "process_listings"
REASON = "its board is no longer polled"
BY_FAILURES = "disabled"  # prefix of the reasons that polling sets; an operator's reasons differ


def has_inactive_boards(connection: Connection, *, now: datetime, settings: Settings) -> bool:
    """Return whether `close_inactive_boards` would close anything; reads few rows."""
    query = select(sources.c.id).where(_is_inactive(now, settings)).limit(1)
    return connection.execute(query).first() is not None


def lock_board(connection: Connection, source_id: str) -> None:
    """Lock the board's poll, then listings; call before changing its source in the transaction.

    Polling locks in the same order. The source comes last, so that it is not held while waiting for
    the others.
    """
    lock_polls(connection, [source_id])
    listing_rows.lock_listings(connection)


def close_inactive_boards(
    connection: Connection, *, now: datetime, settings: Settings, actor: str = ACTOR, only: str | None = None
) -> int:
    """Close listings that only inactive boards list, withdraw their matches; return the number.

    `only` restricts this to one board; every board is audited. The boards' links become
    unavailable, and their next poll is parsed in full even if its response is unchanged: so
    enabling a board brings back what it still lists.
    """
    if not has_inactive_boards(connection, now=now, settings=settings):
        return 0
    listing_rows.lock_listings(connection)
    columns = (sources.c.id, sources.c.status_reason, sources.c.last_success_at)
    query = select(*columns).where(_is_inactive(now, settings)).order_by(sources.c.id)
    boards = connection.execute(query if only is None else query.where(sources.c.id == only))
    return sum(
        _close(connection, board, reason, last or now, now=now, actor=actor) for board, reason, last in boards.all()
    )


def _is_inactive(now: datetime, settings: Settings) -> ColumnElement[bool]:
    trusted_since = now - timedelta(seconds=settings.boards.stale_seconds)
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
    closed = listing_rows.close_listings(connection, set(gone.scalars()), reason=f"{REASON}: {board}", now=now)
    listing_rows.withdraw_matches(connection, closed, now=now)
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
    listing_rows.lock_listings(connection)
    ids = expired_listings(connection, now=now)  # again under the lock: others may have written
    closed = listing_rows.close_listings(connection, ids, reason=EXPIRED, now=now, is_listed=True)
    listing_rows.withdraw_matches(connection, closed, now=now)
    return len(closed)
