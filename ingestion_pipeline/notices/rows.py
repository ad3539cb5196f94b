"""Statements of a delivery on `notices` and `recipients`; one function, one statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, TextClause, and_, func, select, update

from ingestion_pipeline.notices.planning import PendingNotice, SentMessage
from ingestion_pipeline.sources.recipients import Mode
from ingestion_pipeline.store.tables import GIVEN_UP, UNSENT, notices, recipients

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
    payloads: tuple[dict[str, Any], ...]
    kinds: tuple[str, ...] = ()


def addressee(connection: Connection, recipient: str) -> Addressee | None:
    """Return the recipient; None if there is none."""
    query = select(recipients.c.id, recipients.c.address_url, recipients.c.secret, recipients.c.failures).where(
        recipients.c.id == recipient
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    return Addressee(id=row.id, address=row.address_url, secret=row.secret, failures=row.failures)


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
        payloads=tuple(row.payload for row in rows),
        kinds=tuple(row.subject_kind for row in rows),
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


def lock_notices(connection: Connection, *those: ColumnElement[bool] | TextClause) -> None:
    """Lock these notices until the transaction ends, by id as everywhere."""
    query = select(notices.c.id).where(*those).order_by(notices.c.id)
    connection.execute(query.with_for_update()).all()


def seal(connection: Connection, ids: Sequence[int], delivery_id: str) -> None:
    """Make these notices one message."""
    lock_notices(connection, notices.c.id.in_(ids))
    connection.execute(update(notices).where(notices.c.id.in_(ids)).values(delivery_id=delivery_id))


def mark_sent(connection: Connection, recipient: str, delivery_id: str, *, now: datetime) -> None:
    """Mark the message as sent."""
    lock_notices(connection, UNSENT, _of(recipient, delivery_id))
    connection.execute(
        update(notices).where(UNSENT, _of(recipient, delivery_id)).values(status="sent", sent_at=now, error=None)
    )


def note_error(connection: Connection, recipient: str, delivery_id: str, error: str) -> None:
    """Store the error of an attempt; the message stays pending."""
    lock_notices(connection, UNSENT, _of(recipient, delivery_id))
    connection.execute(update(notices).where(UNSENT, _of(recipient, delivery_id)).values(error=error[:ERROR_CHARS]))


def mark_failed(connection: Connection, recipient: str, delivery_id: str, error: str) -> None:
    """Mark the message as failed; a replay sends it again under the same id."""
    lock_notices(connection, UNSENT, _of(recipient, delivery_id))
    connection.execute(
        update(notices).where(UNSENT, _of(recipient, delivery_id)).values(status="failed", error=error[:ERROR_CHARS])
    )


def set_aside(connection: Connection, reasons: Mapping[int, str]) -> None:
    """Mark these notices as failed, each with its reason, and take them out of their message."""
    lock_notices(connection, notices.c.id.in_(list(reasons)))
    for id_, reason in reasons.items():
        connection.execute(
            update(notices)
            .where(notices.c.id == id_)
            .values(status="failed", error=reason[:ERROR_CHARS], delivery_id=None)
        )


def reopen(connection: Connection, recipient: str) -> int:
    """Make the recipient's failed notices pending again, messages unchanged; return how many."""
    lock_notices(connection, GIVEN_UP, notices.c.recipient == recipient)
    statement = update(notices).where(GIVEN_UP, notices.c.recipient == recipient)
    return connection.execute(statement.values(status="pending")).rowcount


def mark_reached(connection: Connection, recipient: str, *, now: datetime) -> None:
    """Store that the recipient's endpoint accepted a message."""
    connection.execute(
        update(recipients)
        .where(recipients.c.id == recipient)
        .values(failures=0, not_before=None, last_sent_at=now, last_error=None)
    )


def mark_unreached(
    connection: Connection, recipient: str, *, failures: int, not_before: datetime | None, error: str
) -> None:
    """Store that the endpoint did not accept a message; nothing is sent before `not_before`."""
    connection.execute(
        update(recipients)
        .where(recipients.c.id == recipient)
        .values(failures=failures, not_before=not_before, last_error=error[:ERROR_CHARS])
    )


def _of(recipient: str, delivery_id: str) -> Any:  # noqa: ANN401 - a SQL expression
    return and_(notices.c.recipient == recipient, notices.c.delivery_id == delivery_id)
