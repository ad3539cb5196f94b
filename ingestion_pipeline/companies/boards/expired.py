"""Close the listings whose own deadline has passed: boards go on listing them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, select

from ingestion_pipeline.companies.boards import rows
from ingestion_pipeline.companies.listing import is_expired
from ingestion_pipeline.store.tables import LISTED, job_listings

EXPIRED = "its deadline has passed"


def expired_listings(connection: Connection, *, now: datetime) -> list[int]:
    """Return the open listings whose deadline has passed, by the index on it."""
    query = select(job_listings.c.id, job_listings.c.valid_until).where(
        LISTED, job_listings.c.valid_until < now
    )
    return [
        listing_id
        for listing_id, valid_until in connection.execute(query)
        if is_expired(valid_until, now=now)
    ]


def close_expired(connection: Connection, *, now: datetime) -> int:
    """Close them and withdraw their matches; return how many were closed.

    One whose board extends its deadline is opened again by the poll that says so.
    """
    if not expired_listings(connection, now=now):
        return 0
    rows.lock_listings(connection)
    ids = expired_listings(connection, now=now)  # others may have written meanwhile
    closed = rows.close_listings(connection, ids, reason=EXPIRED, now=now, is_listed=True)
    rows.withdraw_matches(connection, closed, now=now)
    return len(closed)
