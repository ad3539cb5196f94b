"""The statements of a delivery on `notices` and `recipients`; one function, one statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, TextClause, and_, func, select, update

from ingestion_pipeline.notices.planning import Waiting, Went
from ingestion_pipeline.sources.recipients import Mode
from ingestion_pipeline.store.tables import GIVEN_UP, UNSENT, notices, recipients

ERROR_CHARS = 500
LOOKED_AT = 20_000  # of one recipient's notices; they fill twenty of the longest messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressee:
    """Where a recipient's messages go, and how it went lately."""

    id: str
    address: str
    secret: str | None
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A group of notices that became one message: sent as it is, however often it takes."""

    delivery_id: str
    ids: tuple[int, ...]
    payloads: tuple[dict[str, Any], ...]
    kinds: tuple[str, ...] = ()


def addressee(connection: Connection, recipient: str) -> Addressee | None:
    """The recipient, unless they are gone."""
    query = select(
        recipients.c.id, recipients.c.address_url, recipients.c.secret, recipients.c.failures
    ).where(recipients.c.id == recipient)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    return Addressee(id=row.id, address=row.address_url, secret=row.secret, failures=row.failures)


def begun(connection: Connection, recipient: str) -> str | None:
    """The oldest message that was begun and not finished."""
    query = (
        select(notices.c.delivery_id)
        .where(UNSENT, notices.c.recipient == recipient, notices.c.delivery_id.is_not(None))
        .order_by(notices.c.id)
        .limit(1)
    )
    return connection.execute(query).scalar_one_or_none()


def waiting(connection: Connection, recipient: str) -> list[Waiting]:
    """What is in no message yet, the oldest first, as much of it as is worth a look."""
    query = (
        select(notices.c.id, notices.c.series_id, notices.c.mode, notices.c.created_at)
        .where(UNSENT, notices.c.recipient == recipient, notices.c.delivery_id.is_(None))
        .order_by(notices.c.id)
        .limit(LOOKED_AT)
    )
    return [
        Waiting(id=row.id, series_id=row.series_id, mode=Mode(row.mode), created_at=row.created_at)
        for row in connection.execute(query)
    ]


def sealed_as(connection: Connection, recipient: str, delivery_id: str) -> Sealed:
    """The message of this id, in the order of its notices."""
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


def went(connection: Connection, recipient: str, *, since: datetime) -> list[Went]:
    """The messages the recipient got since then."""
    query = (
        select(
            notices.c.delivery_id,
            notices.c.series_id,
            notices.c.mode,
            func.max(notices.c.sent_at).label("at"),
        )
        .where(notices.c.recipient == recipient, notices.c.sent_at > since)
        .group_by(notices.c.delivery_id, notices.c.series_id, notices.c.mode)
    )
    messages: dict[str, list[Row[Any, Any, Any, Any]]] = {}
    for row in connection.execute(query):
        messages.setdefault(row.delivery_id, []).append(row)
    return [
        Went(
            at=max(row.at for row in parts),
            series=frozenset(row.series_id for row in parts),
            is_digest=any(row.mode == Mode.DIGEST.value for row in parts),
        )
        for parts in messages.values()
    ]


def lock_notices(connection: Connection, *those: ColumnElement[bool] | TextClause) -> None:
    """These notices are ours until the transaction ends, locked by id as everybody does it."""
    query = select(notices.c.id).where(*those).order_by(notices.c.id)
    connection.execute(query.with_for_update()).all()


def seal(connection: Connection, ids: Sequence[int], delivery_id: str) -> None:
    """These notices are one message from now on."""
    lock_notices(connection, notices.c.id.in_(ids))
    connection.execute(update(notices).where(notices.c.id.in_(ids)).values(delivery_id=delivery_id))


def mark_sent(connection: Connection, recipient: str, delivery_id: str, *, now: datetime) -> None:
    """The message was taken."""
    lock_notices(connection, UNSENT, _of(recipient, delivery_id))
    connection.execute(
        update(notices)
        .where(UNSENT, _of(recipient, delivery_id))
        .values(status="sent", sent_at=now, error=None)
    )


def note_error(connection: Connection, recipient: str, delivery_id: str, error: str) -> None:
    """The message was not taken this time."""
    lock_notices(connection, UNSENT, _of(recipient, delivery_id))
    connection.execute(
        update(notices).where(UNSENT, _of(recipient, delivery_id)).values(error=error[:ERROR_CHARS])
    )


def mark_failed(connection: Connection, recipient: str, delivery_id: str, error: str) -> None:
    """The message is given up; it keeps its id, under which a replay sends it again."""
    lock_notices(connection, UNSENT, _of(recipient, delivery_id))
    connection.execute(
        update(notices)
        .where(UNSENT, _of(recipient, delivery_id))
        .values(status="failed", error=error[:ERROR_CHARS])
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
    """Everything that failed for the recipient waits again, each message as it was."""
    lock_notices(connection, GIVEN_UP, notices.c.recipient == recipient)
    statement = update(notices).where(GIVEN_UP, notices.c.recipient == recipient)
    return connection.execute(statement.values(status="pending")).rowcount


def reached(connection: Connection, recipient: str, *, now: datetime) -> None:
    """The recipient's endpoint lives."""
    connection.execute(
        update(recipients)
        .where(recipients.c.id == recipient)
        .values(failures=0, not_before=None, last_sent_at=now, last_error=None)
    )


def struck(
    connection: Connection,
    recipient: str,
    *,
    failures: int,
    not_before: datetime | None,
    error: str,
) -> None:
    """The recipient's endpoint did not take a message; it is left alone until then."""
    connection.execute(
        update(recipients)
        .where(recipients.c.id == recipient)
        .values(failures=failures, not_before=not_before, last_error=error[:ERROR_CHARS])
    )


def _of(recipient: str, delivery_id: str) -> Any:  # noqa: ANN401 - a SQL expression
    return and_(notices.c.recipient == recipient, notices.c.delivery_id == delivery_id)
