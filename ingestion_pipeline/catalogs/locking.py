"""The one order in which rows of extractions are locked: the extraction, its pages, its tasks.

| who | extraction | pages | tasks |
|---|---|---|---|
| visits and readings written | first, by id | then | then their own claims, and what they spawn |
| completion, a wall, a budget | first, by id | - | then those that wait |
| cancel, resume, retry, replay | first | then | then all of them |
| pages claimed and opened | first, if it waits | then | - (a claim is a transaction apart) |

It is the beginning of the order of `store.locking`. After these come the source's poll
(`lock_polls`) and the source, as whoever polls has them. Whoever holds a task's row must not ask
for its extraction's: the other way round two transactions would wait for each other, and PostgreSQL
ends one of them.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, select

from ingestion_pipeline.store.tables import extractions


def lock_rows(connection: Connection, ids: Collection[int]) -> None:
    """Nobody else adds to these extractions, or ends or opens them, during this transaction."""
    if not ids:
        return
    locked = select(extractions.c.id).where(extractions.c.id.in_(list(ids)))
    connection.execute(locked.order_by(extractions.c.id).with_for_update()).all()
