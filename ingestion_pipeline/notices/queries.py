"""Queries of notices and of the tasks that deliver them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    RowMapping,
    Text,
    TextClause,
    and_,
    cast,
    exists,
    func,
    or_,
    select,
    update,
)

from ingestion_pipeline.notices.change_follows import followed_changes, has_unnotified
from ingestion_pipeline.notices.message import CHAPTER_KINDS, PendingNotice, SentMessage
from ingestion_pipeline.sources.source import Mode
from ingestion_pipeline.store.statements import lock_rows
from ingestion_pipeline.store.tables import (
    ACTIVE,
    GIVEN_UP,
    OPEN,
    UNHANDLED,
    UNSENT,
    dead_letters,
    follows,
    notices,
    outbox,
    recipients,
    tasks,
)
from ingestion_pipeline.tasks.claims import is_free
from ingestion_pipeline.tasks.ended_tasks import lock_dead_letters
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask, TaskStatus

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

    to: Addressee
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


def sealed_message(connection: Connection, to: Addressee, delivery_id: str) -> Sealed:
    """Return the message of this id, in the order of its notices."""
    query = (
        select(notices.c.id, notices.c.subject_kind, notices.c.payload)
        .where(UNSENT, notices.c.recipient == to.id, notices.c.delivery_id == delivery_id)
        .order_by(notices.c.id)
    )
    rows = connection.execute(query).all()
    return Sealed(
        to=to,
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
    on_changes: dict[str, list[str]] = {}
    for each in followed_changes(connection):
        on_changes.setdefault(each.recipient_id, []).append(str(each.requested))
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
            "changes": on_changes.get(row["id"], []),
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


def newest_notices(connection: Connection, *, limit: int) -> list[dict[str, Any]]:
    """Return the newest notices with their recipient and status."""
    names = ("created_at", "recipient", "subject_kind", "subject_id", "status")
    query = select(*(notices.c[name] for name in names)).order_by(notices.c.id.desc()).limit(limit)
    return [dict(row) for row in connection.execute(query).mappings()]


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


# By the bare column SQLite would scan all rows that were ever handled instead of the few that were not.
_KIND = func.coalesce(outbox.c.subject_kind, "")
PRIORITY = 1
TASKS_AT_ONCE = 5_000

_IS_THEIRS = notices.c.recipient == recipients.c.id
# Recipients with a pending notice: by recipient, not by notice, since one who waits for a digest may have thousands.
_HAS_NEWS = exists().where(UNSENT, _IS_THEIRS).correlate(recipients)
_IS_DELIVERY = and_(ACTIVE, tasks.c.kind == DELIVER)
_HAS_NO_TASK = ~exists().where(_IS_DELIVERY, tasks.c.dedupe_key == cast(recipients.c.id, Text)).correlate(recipients)


def wake(connection: Connection, subjects: Mapping[str, Collection[str]], *, at: datetime) -> None:
    """Bring forward the tasks of recipients with pending notices of these subjects, by kind.

    Retries and pauses are not shortened. All kinds are handled in one step: locks that a second
    step took would be out of order.
    """
    is_subject = [
        and_(notices.c.subject_kind == kind, notices.c.subject_id.in_(list(ids))) for kind, ids in subjects.items()
    ]
    if not is_subject:
        return
    news = select(notices.c.recipient).where(UNSENT, or_(*is_subject))
    theirs = tasks.c.dedupe_key.in_(news)
    _lock(connection, theirs)
    connection.execute(
        update(tasks)
        .where(
            _IS_DELIVERY,
            theirs,
            tasks.c.status == TaskStatus.PENDING.value,
            tasks.c.attempts == 0,
            tasks.c.error_class.is_(None),
            tasks.c.not_before > at,
        )
        .values(not_before=at)
    )


def lock_recipients(connection: Connection, ids: Sequence[str]) -> None:
    """Lock tasks, rows and follows of these recipients, each table in its lock order.

    Call it before the first of them is changed: locks for a second recipient taken later would be
    out of order.
    """
    _lock(connection, tasks.c.dedupe_key.in_(ids))
    lock_rows(connection, recipients.c.id, ids)
    theirs = select(follows.c.series_id).where(follows.c.recipient_id.in_(ids))
    in_order = theirs.order_by(follows.c.recipient_id, follows.c.series_id)
    connection.execute(in_order.with_for_update()).all()


def _lock(connection: Connection, theirs: ColumnElement[bool]) -> None:
    """Lock the tasks of these recipients until the transaction ends, in one order for all.

    A statement of its own: a worker that serves a recipient right now has not seen our new notices,
    and only the next statement sees what it leaves behind.
    """
    query = select(tasks.c.id).where(_IS_DELIVERY, theirs)
    connection.execute(query.order_by(tasks.c.id).with_for_update())


def ensure_tasks(connection: Connection, *, now: datetime, grouping: timedelta) -> int:
    """Create missing tasks of recipients with pending notices; return how many."""
    oldest_at = select(func.min(notices.c.created_at)).where(UNSENT, _IS_THEIRS)
    query = (
        select(recipients.c.id, oldest_at.scalar_subquery(), recipients.c.not_before)
        .where(_HAS_NEWS, _HAS_NO_TASK)
        .order_by(recipients.c.id)
        .limit(TASKS_AT_ONCE)
    )
    new = [
        NewTask(
            kind=DELIVER,
            dedupe_key=recipient,
            payload={"recipient": recipient},
            priority=PRIORITY,
            not_before=max(oldest + grouping, not_before or oldest),
        )
        for recipient, oldest, not_before in connection.execute(query)
    ]
    return len(insert_tasks(connection, new, now=now))


def make_due(connection: Connection, recipient: str, *, now: datetime) -> None:
    """Make the recipient's task due now, with its attempts and error cleared."""
    theirs = tasks.c.dedupe_key == recipient
    _lock(connection, theirs)
    connection.execute(
        update(tasks)
        .where(_IS_DELIVERY, theirs, tasks.c.status == TaskStatus.PENDING.value)
        .values(not_before=now, attempts=0, error_class=None, error_code=None, error=None)
    )


def cancel(connection: Connection, recipient: str, *, now: datetime) -> None:
    """Cancel the task of a removed recipient; a worker that has it loses its claim."""
    connection.execute(
        update(tasks)
        .where(_IS_DELIVERY, tasks.c.dedupe_key == recipient)
        .values(
            status=TaskStatus.CANCELLED.value,
            error="recipient removed",
            fence=tasks.c.fence + 1,
            lease_owner=None,
            lease_until=None,
            updated_at=now,
        )
    )


def is_work_waiting(connection: Connection, *, now: datetime) -> bool:
    """Return whether a deliverer has work: three indexed queries, the cheapest first."""
    has_followers, has_recipients = (exists(select(follows.c.recipient_id)), exists(select(recipients.c.id)))
    unhandled = select(outbox.c.id).where(
        UNHANDLED, or_(has_followers, and_(_KIND.not_in(CHAPTER_KINDS), has_recipients))
    )
    due = select(tasks.c.id).where(_IS_DELIVERY, tasks.c.not_before <= now, is_free(now))
    forgotten = select(recipients.c.id).where(_HAS_NEWS, _HAS_NO_TASK)
    queries = (unhandled, due, forgotten)
    is_waiting = any(connection.execute(query.limit(1)).first() is not None for query in queries)
    return is_waiting or has_unnotified(connection)


def next_due(connection: Connection) -> datetime | None:
    """Return when the first pending task is due."""
    query = select(func.min(tasks.c.not_before)).where(_IS_DELIVERY, tasks.c.status == TaskStatus.PENDING.value)
    return connection.execute(query).scalar_one()


def requeue_messages(connection: Connection, dead_letter: RowMapping, now: datetime) -> str:
    """Make every failed message of the recipient pending again, under its own key, due now.

    The dead letter's task is not needed: a recipient with a pending notice gets a new one.
    """
    recipient: str = dead_letter["payload"]["recipient"]
    if addressee(connection, recipient) is None:
        return "its recipient was removed"
    make_due(connection, recipient, now=now)
    connection.execute(update(recipients).where(recipients.c.id == recipient).values(not_before=None))
    reopen(connection, recipient)
    ensure_tasks(connection, now=now, grouping=timedelta(0))
    # the messages of the recipient's other dead letters are pending again as well
    is_theirs = and_(dead_letters.c.task_kind == DELIVER, dead_letters.c.payload["recipient"].as_string() == recipient)
    lock_dead_letters(connection, is_theirs)
    connection.execute(update(dead_letters).where(OPEN, is_theirs).values(replayed_at=now))
    return "queued"
