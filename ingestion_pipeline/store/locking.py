"""Row locks, and the one order in which rows are locked, so that transactions cannot deadlock.

Where several transactions may need the same rows, each locks them in the order of this list, and within one table by
its key. A step that adds to what an earlier one locked would break the order: a transaction of several steps locks all
rows of a table before the first of them.

1. `extractions`, their `pages` and what is extracted from these
2. `tasks`: its own claims, then polls, then other tasks that it moves
3. `recipes`, `series`, listings (an advisory lock stands for all of them), `companies`,
   `website_analyses`, and what belongs to them
4. `recipients`, `follows`, `outbox`, `notices`
5. `snapshots`, `sources`
6. `hosts`; nothing is locked after these

A dead letter belongs to its task: only discarding meets a dead letter of another task, and locks nothing else. New rows
of `tasks`, `outbox` and `audit_log` are invisible to others until the transaction ends.

Two exceptions, each a separate class of rows: polls are locked after an extraction's tasks, and an expansion of the
outbox locks `deliver` tasks last, whose deliverers locked theirs first.

Maintenance and wake-ups never wait (SKIP LOCKED): a locked row is left to the next time, or is being processed. Rows
are locked FOR NO KEY UPDATE wherever foreign keys point at them: inserting a row that references one does not wait for
that.
"""

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Connection, Delete, Table, delete, select, tuple_


def lock_rows(connection: Connection, key: ColumnElement[Any], ids: Collection[Any]) -> None:
    """Lock these rows in the order of the keys until the transaction ends; SQLite has one writer anyway."""
    if ids and connection.dialect.name == "postgresql":
        query = select(key).where(key.in_(list(ids))).order_by(key)
        connection.execute(query.with_for_update(key_share=True)).all()


def delete_unlocked(table: Table, *conditions: ColumnElement[bool]) -> Delete:
    """Return a delete of those rows that nobody else has locked; others are left for later."""
    keys = list(table.primary_key.columns)
    unlocked = select(*keys).where(*conditions).with_for_update(skip_locked=True).cte("found")
    return delete(table).where(tuple_(*keys).in_(select(*unlocked.c)))
