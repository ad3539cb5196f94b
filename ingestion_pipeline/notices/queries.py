"""Queries and statements on `notices` and `recipients`: those of a delivery, and their status for people."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, RowMapping, TextClause, and_, func, or_, select, update

from ingestion_pipeline.notices.planning import PendingNotice, SentMessage
from ingestion_pipeline.sources.recipients import Mode
from ingestion_pipeline.store.tables import ACTIVE, GIVEN_UP, UNSENT, follows, notices, recipients, tasks

DELIVER = "deliver"  # the kind of the one task that a recipient has
ERROR_CHARS = 500
MAX_PENDING = 20_000  # notices of one recipient: twenty of the longest messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressee:
    """Address and secret of a recipient, and their recent failures."""

    id: str
    address: str
    secret: str | None
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A group of notices that became one message: retried unchanged until it is sent."""

    delivery_id: str
    ids: tuple[int, ...]
    entries: tuple[tuple[str, dict[str, Any]], ...]  # kind and payload of each notice


def addressee(connection: Connection, recipient: str) -> Addressee | None:
    """Return the recipient; None if there is none."""
    address = recipients.c.address_url.label("address")
    query = select(recipients.c.id, address, recipients.c.secret, recipients.c.failures)
    row = connection.execute(query.where(recipients.c.id == recipient)).mappings().one_or_none()
    return None if row is None else Addressee(**row)


def unfinished_delivery(connection: Connection, recipient: str) -> str | None:
    """Return the id of the oldest sealed message that was not finished."""
    query = (
        select(notices.c.delivery_id)
        .where(UNSENT, notices.c.recipient == recipient, notices.c.delivery_id.is_not(None))
        .order_by(notices.c.id)
        .limit(1)
    )
    return connection.execute(query).scalar_one_or_none()


def pending_notices(connection: Connection, recipient: str) -> list[PendingNotice]:
    """Return the notices that are in no message yet, oldest first, at most `MAX_PENDING`."""
    query = (
        select(notices.c.id, notices.c.series_id, notices.c.mode, notices.c.created_at)
        .where(UNSENT, notices.c.recipient == recipient, notices.c.delivery_id.is_(None))
        .order_by(notices.c.id)
        .limit(MAX_PENDING)
    )
    return [
        PendingNotice(id=row.id, series_id=row.series_id, mode=Mode(row.mode), created_at=row.created_at)
        for row in connection.execute(query)
    ]


def sealed_message(connection: Connection, recipient: str, delivery_id: str) -> Sealed:
    """Return the message of this id, in the order of its notices."""
    query = (
        select(notices.c.id, notices.c.subject_kind, notices.c.payload)
        .where(UNSENT, notices.c.recipient == recipient, notices.c.delivery_id == delivery_id)
        .order_by(notices.c.id)
    )
    rows = connection.execute(query).all()
    return Sealed(
        delivery_id=delivery_id,
        ids=tuple(row.id for row in rows),
        entries=tuple((row.subject_kind, row.payload) for row in rows),
    )


def sent_messages(connection: Connection, recipient: str, *, since: datetime) -> list[SentMessage]:
    """Return the messages sent to the recipient since then."""
    query = (
        select(notices.c.delivery_id, notices.c.series_id, notices.c.mode, func.max(notices.c.sent_at).label("at"))
        .where(notices.c.recipient == recipient, notices.c.sent_at > since)
        .group_by(notices.c.delivery_id, notices.c.series_id, notices.c.mode)
    )
    messages: dict[str, list[Row[Any, Any, Any, Any]]] = {}
    for row in connection.execute(query):
        messages.setdefault(row.delivery_id, []).append(row)
    return [
        SentMessage(
            at=max(row.at for row in parts),
            series=frozenset(row.series_id for row in parts),
            is_digest=any(row.mode == Mode.DIGEST.value for row in parts),
        )
        for parts in messages.values()
    ]


def change_notices(connection: Connection, *those: ColumnElement[bool] | TextClause, **values: object) -> int:
    """Update these notices, locked by id as everywhere; return how many."""
    query = select(notices.c.id).where(*those).order_by(notices.c.id)
    connection.execute(query.with_for_update()).all()
    return connection.execute(update(notices).where(*those).values(**values)).rowcount


def _change_message(connection: Connection, recipient: str, delivery_id: str, **values: object) -> None:
    is_it = and_(notices.c.recipient == recipient, notices.c.delivery_id == delivery_id)
    change_notices(connection, UNSENT, is_it, **values)


def seal(connection: Connection, ids: Sequence[int], delivery_id: str) -> None:
    """Make these notices one message."""
    change_notices(connection, notices.c.id.in_(ids), delivery_id=delivery_id)


def mark_sent(connection: Connection, recipient: str, delivery_id: str, *, now: datetime) -> None:
    """Mark the message as sent."""
    _change_message(connection, recipient, delivery_id, status="sent", sent_at=now, error=None)


def note_error(connection: Connection, recipient: str, delivery_id: str, error: str) -> None:
    """Store the error of an attempt; the message stays pending."""
    _change_message(connection, recipient, delivery_id, error=error[:ERROR_CHARS])


def mark_failed(connection: Connection, recipient: str, delivery_id: str, error: str) -> None:
    """Mark the message as failed; a replay sends it again under the same id."""
    _change_message(connection, recipient, delivery_id, status="failed", error=error[:ERROR_CHARS])


def set_aside(connection: Connection, reasons: Mapping[int, str]) -> None:
    """Mark these notices as failed, each with its reason, and take them out of their message."""
    for id_, reason in sorted(reasons.items()):
        is_it = notices.c.id == id_
        change_notices(connection, is_it, status="failed", error=reason[:ERROR_CHARS], delivery_id=None)


def reopen(connection: Connection, recipient: str) -> int:
    """Make the recipient's failed notices pending again, messages unchanged; return how many."""
    return change_notices(connection, GIVEN_UP, notices.c.recipient == recipient, status="pending")


def mark_reached(connection: Connection, recipient: str, *, now: datetime) -> None:
    """Store that the recipient's endpoint accepted a message."""
    statement = update(recipients).where(recipients.c.id == recipient)
    connection.execute(statement.values(failures=0, not_before=None, last_sent_at=now, last_error=None))


def mark_unreached(
    connection: Connection, recipient: str, *, failures: int, not_before: datetime | None, error: str
) -> None:
    """Store that the endpoint did not accept a message; nothing is sent before `not_before`."""
    statement = update(recipients).where(recipients.c.id == recipient)
    connection.execute(statement.values(failures=failures, not_before=not_before, last_error=error[:ERROR_CHARS]))


LISTED = 1_000
STATES = ("pending", "sent", "failed", "muted")


def list_recipients(connection: Connection) -> list[dict[str, Any]]:
    """Return every recipient with follows and counts of notices; never the secret."""
    by_state = select(notices.c.recipient, notices.c.status, func.count()).group_by(
        notices.c.recipient, notices.c.status
    )
    counts = {(recipient, state): count for recipient, state, count in connection.execute(by_state)}
    followed: dict[str, list[str]] = {}
    by_series = select(follows.c.recipient_id, follows.c.series_id).order_by(follows.c.series_id)
    for recipient, series_id in connection.execute(by_series):
        followed.setdefault(recipient, []).append(series_id)
    columns = [column for column in recipients.c if column.name != "secret"]
    return [
        {
            "id": row["id"],
            "address": row["address_url"],
            **{name: row[name] for name in ("mode", "language", "kinds", "origin")},
            "follows": followed.get(row["id"], []),
            **{state: counts.get((row["id"], state), 0) for state in STATES},
            **{name: row[name] for name in ("failures", "not_before", "last_sent_at", "last_error")},
        }
        for row in connection.execute(select(*columns).order_by(recipients.c.id)).mappings()
    ]


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
    none = (0, None)
    rows = [
        (recipient, *failures.get(recipient, none), *overdue.get(recipient, none))
        for recipient in sorted(failures.keys() | overdue.keys())
    ]
    return [
        Undelivered(recipient=recipient, failed=failed_count, overdue=late_count, error=error or late_error)
        for recipient, failed_count, error, late_count, late_error in rows
    ]
