"""A dead letter of a delivery, replayed: what failed for the recipient is sent again, as it was."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, RowMapping, and_, update

from ingestion_pipeline.notices import rows
from ingestion_pipeline.notices.tasks import DELIVER, ensure_tasks, make_due
from ingestion_pipeline.store.tables import OPEN, dead_letters, recipients
from ingestion_pipeline.work.dead_letters import lock_dead_letters


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
