"""The one order in which rows are locked, so that no two transactions wait for each other.

Where several transactions may want the same rows, each takes them in the order of this list, and of
one table by its key. A step that adds to what an earlier one locked would come out of order: who
takes several steps locks all rows of a table before the first of them.

1. `extractions`, their `pages` and what is read from these
2. `tasks`: one's own claims, then polls, then what else is moved
3. `recipes`, `series`, listings (an advisory lock stands for all of them), `companies`,
   `website_analyses`, and what belongs to them
4. `recipients`, `follows`, `outbox`, `notices`
5. `snapshots`, `sources`
6. `hosts`; nobody asks for anything after these

A dead letter belongs to its task: only who discards letters meets another's, and asks for nothing
else. New rows of `tasks`, `outbox` and `audit_log` are one's own until the transaction ends.

Two exceptions, each a class of rows of its own: polls are asked for after an extraction's tasks,
and an expansion of the outbox asks for `deliver` tasks last, whose deliverers took theirs first.

Who only tidies up or wakes somebody up waits for nobody (SKIP LOCKED): what is locked is left to
the next time, or is being dealt with. Rows are locked FOR NO KEY UPDATE wherever others point at
them: to insert a row that points at one does not wait for that.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Connection, Delete, Table, delete, select, tuple_


def lock_rows(connection: Connection, key: ColumnElement[Any], ids: Collection[Any]) -> None:
    """The rows with these keys are ours until the transaction ends, locked in the keys' order.

    On SQLite there is one writer anyway.
    """
    if ids and connection.dialect.name == "postgresql":
        query = select(key).where(key.in_(list(ids))).order_by(key)
        connection.execute(query.with_for_update(key_share=True)).all()


def delete_unlocked(table: Table, *conditions: ColumnElement[bool]) -> Delete:
    """Delete those of these rows that nobody else has locked; the others are left for later."""
    keys = list(table.primary_key.columns)
    found = select(*keys).where(*conditions).with_for_update(skip_locked=True).cte("found")
    return delete(table).where(tuple_(*keys).in_(select(*found.c)))
