"""Status of recipients and notices: counts by state, and deliveries that failed or are late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, func, or_, select

from ingestion_pipeline.notices.tasks import DELIVER
from ingestion_pipeline.store.tables import ACTIVE, GIVEN_UP, UNSENT, follows, notices, recipients, tasks

LISTED = 1_000


def list_recipients(connection: Connection) -> list[dict[str, Any]]:
    """Return every recipient with follows and counts of notices; never the secret."""
    counts = _counts_by_recipient(connection)
    followed = _followed(connection)
    columns = [column for column in recipients.c if column.name != "secret"]
    return [
        {
            "id": row["id"],
            "address": row["address_url"],
            "mode": row["mode"],
            "language": row["language"],
            "kinds": row["kinds"],
            "origin": row["origin"],
            "follows": followed.get(row["id"], []),
            **{state: counts.get((row["id"], state), 0) for state in STATES},
            "failures": row["failures"],
            "not_before": row["not_before"],
            "last_sent_at": row["last_sent_at"],
            "last_error": row["last_error"],
        }
        for row in connection.execute(select(*columns).order_by(recipients.c.id)).mappings()
    ]


STATES = ("pending", "sent", "failed", "muted")


def _counts_by_recipient(connection: Connection) -> dict[tuple[str, str], int]:
    query = select(notices.c.recipient, notices.c.status, func.count()).group_by(notices.c.recipient, notices.c.status)
    return {(recipient, state): count for recipient, state, count in connection.execute(query)}


def _followed(connection: Connection) -> dict[str, list[str]]:
    query = select(follows.c.recipient_id, follows.c.series_id).order_by(follows.c.series_id)
    followed: dict[str, list[str]] = {}
    for recipient, series_id in connection.execute(query):
        followed.setdefault(recipient, []).append(series_id)
    return followed


def list_notices(
    connection: Connection, *, status: str | None = None, recipient: str | None = None, limit: int = LISTED
) -> list[RowMapping]:
    """Return notices, newest first."""
    query = select(notices).order_by(notices.c.id.desc()).limit(limit)
    if status is not None:
        query = query.where(notices.c.status == status)
    if recipient is not None:
        query = query.where(notices.c.recipient == recipient)
    return list(connection.execute(query).mappings())


def count_notices(connection: Connection) -> dict[str, int]:
    """Return how many notices are pending and how many have failed."""
    states = {"pending": UNSENT, "failed": GIVEN_UP}
    count = select(func.count()).select_from(notices)
    return {name: connection.execute(count.where(state)).scalar_one() for name, state in states.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Undelivered:
    """A recipient whose messages do not arrive, and why."""

    recipient: str
    failed: int
    overdue: int
    error: str | None


def undelivered(connection: Connection, *, now: datetime, overdue_seconds: int) -> Sequence[Undelivered]:
    """Return recipients with a failed notice, or with one that is overdue.

    A notice that waits for its time (a digest, a cap) is not overdue; one whose delivery was tried
    and failed is, whenever the next attempt is due.
    """
    failed = (
        select(notices.c.recipient, func.count(), func.max(notices.c.error))
        .where(GIVEN_UP)
        .group_by(notices.c.recipient)
    )
    before = now - timedelta(seconds=overdue_seconds)
    old = (
        select(notices.c.recipient, func.count().label("count"))
        .where(UNSENT, notices.c.created_at < before)
        .group_by(notices.c.recipient)
        .subquery()
    )
    late = (
        select(old.c.recipient, old.c["count"], tasks.c.error)
        .join(tasks, and_(tasks.c.dedupe_key == old.c.recipient, tasks.c.kind == DELIVER))
        .where(ACTIVE, or_(tasks.c.not_before < before, tasks.c.error_class.in_(["transient", "resource"])))
    )
    overdue = {recipient: (int(count), error) for recipient, count, error in connection.execute(late)}
    failures = {recipient: (count, error) for recipient, count, error in connection.execute(failed)}
    return [
        Undelivered(
            recipient=recipient,
            failed=failures.get(recipient, (0, None))[0],
            overdue=overdue.get(recipient, (0, None))[0],
            error=failures.get(recipient, (0, None))[1] or overdue.get(recipient, (0, None))[1],
        )
        for recipient in sorted(failures.keys() | overdue.keys())
    ]
