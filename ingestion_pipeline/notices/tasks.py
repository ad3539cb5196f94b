"""The `deliver` task of a recipient: one at a time, so that one worker serves them and caps hold.

Whoever has a pending notice has an active task, or gets one at the next look: a wake-up that was
lost is found again by the notices themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, RowMapping, Text, and_, cast, exists, func, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.notices import rows
from ingestion_pipeline.notices.message import KINDS
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

DELIVER = "deliver"
CHAPTER = "chapter"
CHAPTER_LANGUAGE = "chapter_language"  # a known chapter, in a language that is new to it
# What a deliverer makes notices of. By the bare column SQLite would walk through all that was ever
# handled, not through the few that are not.
_KIND = func.coalesce(outbox.c.subject_kind, "")
IS_TOLD = _KIND.in_([CHAPTER, CHAPTER_LANGUAGE, *KINDS])
PRIORITY = 1
TASKS_AT_ONCE = 5_000


def wake(connection: Connection, told: Mapping[str, Collection[str]], *, at: datetime) -> None:
    """Recipients with news of these subjects, by kind, are looked at then, if they would be later.

    A retry and a pause are waited out. All kinds together: what a second step locked would come
    out of order.
    """
    is_told = [
        and_(notices.c.subject_kind == kind, notices.c.subject_id.in_(list(ids)))
        for kind, ids in told.items()
    ]
    if not is_told:
        return
    news = select(notices.c.recipient).where(UNSENT, or_(*is_told))
    theirs = tasks.c.dedupe_key.in_(news)
    _lock(connection, theirs)
    connection.execute(
        update(tasks)
        .where(
            ACTIVE,
            tasks.c.kind == DELIVER,
            theirs,
            tasks.c.status == TaskStatus.PENDING.value,
            tasks.c.attempts == 0,
            tasks.c.error_class.is_(None),
            tasks.c.not_before > at,
        )
        .values(not_before=at)
    )


def lock_recipients(connection: Connection, ids: Sequence[str]) -> None:
    """Nobody else serves or changes these recipients: tasks, rows and follows, each in its order.

    Before the first of them is changed: what a second one's rows were locked for would come out of
    order.
    """
    _lock(connection, tasks.c.dedupe_key.in_(ids))
    lock_rows(connection, recipients.c.id, ids)
    theirs = select(follows.c.series_id).where(follows.c.recipient_id.in_(ids))
    in_order = theirs.order_by(follows.c.recipient_id, follows.c.series_id)
    connection.execute(in_order.with_for_update()).all()


def _lock(connection: Connection, theirs: ColumnElement[bool]) -> None:
    """These recipients' tasks are ours until the transaction ends, in one order for all.

    A statement of its own: whoever serves a recipient at this moment has looked at what waits, and
    not seen our news. What they leave behind is seen by the next statement alone.
    """
    query = select(tasks.c.id).where(ACTIVE, tasks.c.kind == DELIVER, theirs)
    connection.execute(query.order_by(tasks.c.id).with_for_update())


def ensure_tasks(connection: Connection, *, now: datetime, grouping: timedelta) -> int:
    """Every recipient with a pending notice has a task; how many were missing."""
    oldest_at = select(func.min(notices.c.created_at)).where(UNSENT, _is_theirs())
    query = (
        select(recipients.c.id, oldest_at.scalar_subquery(), recipients.c.not_before)
        .where(_has_news(), _has_no_task())
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
    """The recipient is served by the next deliverer, afresh."""
    theirs = tasks.c.dedupe_key == recipient
    _lock(connection, theirs)
    connection.execute(
        update(tasks)
        .where(ACTIVE, tasks.c.kind == DELIVER, theirs, tasks.c.status == TaskStatus.PENDING.value)
        .values(not_before=now, attempts=0, error_class=None, error_code=None, error=None)
    )


def cancel(connection: Connection, recipient: str, *, now: datetime) -> None:
    """The recipient is gone: whoever serves them at this moment loses the claim."""
    connection.execute(
        update(tasks)
        .where(ACTIVE, tasks.c.kind == DELIVER, tasks.c.dedupe_key == recipient)
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
    """Whether a deliverer would find something: three indexed questions, the cheapest first."""
    has_followers, has_recipients = (
        exists(select(follows.c.recipient_id)),
        exists(select(recipients.c.id)),
    )
    unhandled = select(outbox.c.id).where(
        UNHANDLED, IS_TOLD, or_(has_followers, and_(_KIND.in_(KINDS), has_recipients))
    )
    due = select(tasks.c.id).where(
        ACTIVE, tasks.c.kind == DELIVER, tasks.c.not_before <= now, _is_claimable(now)
    )
    forgotten = select(recipients.c.id).where(_has_news(), _has_no_task())
    queries = (unhandled, due, forgotten)
    return any(connection.execute(query.limit(1)).first() is not None for query in queries)


def next_due(connection: Connection) -> datetime | None:
    """When the first of the waiting recipients is due."""
    query = select(func.min(tasks.c.not_before)).where(
        ACTIVE, tasks.c.kind == DELIVER, tasks.c.status == TaskStatus.PENDING.value
    )
    return connection.execute(query).scalar_one()


def _is_claimable(now: datetime) -> ColumnElement[bool]:
    return or_(
        tasks.c.status == TaskStatus.PENDING.value,
        and_(tasks.c.status == TaskStatus.PROCESSING.value, tasks.c.lease_until < now),
    )


def _is_theirs() -> ColumnElement[bool]:
    return notices.c.recipient == recipients.c.id


def _has_news() -> ColumnElement[bool]:
    """By recipient, not by notice: whoever waits for a digest may have thousands."""
    return exists().where(UNSENT, _is_theirs()).correlate(recipients)


def _has_no_task() -> ColumnElement[bool]:
    theirs = tasks.c.dedupe_key == cast(recipients.c.id, Text)
    return ~exists().where(ACTIVE, tasks.c.kind == DELIVER, theirs).correlate(recipients)


def requeue_messages(connection: Connection, letter: RowMapping, now: datetime) -> str:
    """Every failed message of the recipient waits again under its own key, and is due now.

    It does not need the letter's task: whoever has a pending notice gets one.
    """
    recipient: str = letter["payload"]["recipient"]
    if rows.addressee(connection, recipient) is None:
        return "its recipient is gone"
    make_due(connection, recipient, now=now)
    connection.execute(
        update(recipients).where(recipients.c.id == recipient).values(not_before=None)
    )
    rows.reopen(connection, recipient)
    ensure_tasks(connection, now=now, grouping=timedelta(0))
    _close_others(connection, recipient, now=now)
    return "queued"


def _close_others(connection: Connection, recipient: str, *, now: datetime) -> None:
    """The recipient's other letters told of messages that wait again as well."""
    is_theirs = and_(
        dead_letters.c.task_kind == DELIVER,
        dead_letters.c.payload["recipient"].as_string() == recipient,
    )
    lock_dead_letters(connection, is_theirs)
    closed = update(dead_letters).where(OPEN, is_theirs)
    connection.execute(closed.values(replayed_at=now))
