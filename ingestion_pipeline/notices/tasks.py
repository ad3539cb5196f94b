"""The `deliver` task: one per recipient, so that one worker at a time sends and the caps hold.

A recipient with a pending notice has an active task, or gets one by `ensure_tasks`: a lost
wake-up is repaired from the notices themselves.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, RowMapping, Text, and_, cast, exists, func, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.notices import queries
from ingestion_pipeline.notices.message import KINDS
from ingestion_pipeline.notices.queries import DELIVER
from ingestion_pipeline.store.locking import lock_rows
from ingestion_pipeline.store.tables import (
    ACTIVE,
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
from ingestion_pipeline.tasks.dead_letters import lock_dead_letters
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask, TaskStatus

CHAPTER = "chapter"
CHAPTER_LANGUAGE = "chapter_language"  # an existing chapter, in a language that is new to it
# Outbox rows that become notices. By the bare column SQLite would scan all rows that were ever
# handled instead of the few that were not.
_KIND = func.coalesce(outbox.c.subject_kind, "")
IS_ANNOUNCED = _KIND.in_([CHAPTER, CHAPTER_LANGUAGE, *KINDS])
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
        UNHANDLED, IS_ANNOUNCED, or_(has_followers, and_(_KIND.in_(KINDS), has_recipients))
    )
    is_lost = and_(tasks.c.status == TaskStatus.PROCESSING.value, tasks.c.lease_until < now)
    is_claimable = or_(tasks.c.status == TaskStatus.PENDING.value, is_lost)
    due = select(tasks.c.id).where(_IS_DELIVERY, tasks.c.not_before <= now, is_claimable)
    forgotten = select(recipients.c.id).where(_HAS_NEWS, _HAS_NO_TASK)
    queries = (unhandled, due, forgotten)
    return any(connection.execute(query.limit(1)).first() is not None for query in queries)


def next_due(connection: Connection) -> datetime | None:
    """Return when the first pending task is due."""
    query = select(func.min(tasks.c.not_before)).where(_IS_DELIVERY, tasks.c.status == TaskStatus.PENDING.value)
    return connection.execute(query).scalar_one()


def requeue_messages(connection: Connection, dead_letter: RowMapping, now: datetime) -> str:
    """Make every failed message of the recipient pending again, under its own key, due now.

    The dead letter's task is not needed: a recipient with a pending notice gets a new one.
    """
    recipient: str = dead_letter["payload"]["recipient"]
    if queries.addressee(connection, recipient) is None:
        return "its recipient was removed"
    make_due(connection, recipient, now=now)
    connection.execute(update(recipients).where(recipients.c.id == recipient).values(not_before=None))
    queries.reopen(connection, recipient)
    ensure_tasks(connection, now=now, grouping=timedelta(0))
    # the messages of the recipient's other dead letters are pending again as well
    is_theirs = and_(dead_letters.c.task_kind == DELIVER, dead_letters.c.payload["recipient"].as_string() == recipient)
    lock_dead_letters(connection, is_theirs)
    connection.execute(update(dead_letters).where(OPEN, is_theirs).values(replayed_at=now))
    return "queued"
