"""A dead letter of a delivery, replayed: what failed for the recipient is sent again, as it was."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, RowMapping, update

from ingestion_pipeline.notices import rows
from ingestion_pipeline.notices.tasks import DELIVER, ensure_tasks, make_due
from ingestion_pipeline.store.tables import OPEN, dead_letters, recipients


def revive_messages(connection: Connection, letter: RowMapping, now: datetime) -> str:
    """Every failed message of the recipient waits again under its own key, and is due now.

    It does not need the letter's task: whoever has a pending notice gets one.
    """
    recipient: str = letter["payload"]["recipient"]
    if rows.addressee(connection, recipient) is None:
        return "its recipient is gone"
    make_due(connection, recipient, now=now)
    rows.reopen(connection, recipient)
    connection.execute(
        update(recipients).where(recipients.c.id == recipient).values(not_before=None)
    )
    ensure_tasks(connection, now=now, grouping=timedelta(0))
    _close_others(connection, recipient, now=now)
    return "queued"


def _close_others(connection: Connection, recipient: str, *, now: datetime) -> None:
    """The recipient's other letters told of messages that wait again as well."""
    connection.execute(
        update(dead_letters)
        .where(
            dead_letters.c.task_kind == DELIVER,
            OPEN,
            dead_letters.c.payload["recipient"].as_string() == recipient,
        )
        .values(replayed_at=now)
    )
