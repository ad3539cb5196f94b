"""Lock order: which rows a transaction has locked while it waits for a row that another one holds."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, Executable, Select, Table, text, update
from sqlalchemy.exc import OperationalError

from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.postgres import wait_until_blocked

ON_POSTGRES = pytest.mark.parametrize(
    "database", [pytest.param("postgres", marks=pytest.mark.postgres)], ids=["postgres"]
)
Act = Callable[[Connection], object]


def rows_locked_while_waiting(
    store: Store, act: Act, *, held: Select[Any] | Executable, among: Select[Any]
) -> list[Any]:
    """Return the rows of `among` that the transaction has locked while it waits for `held`."""
    with ThreadPoolExecutor(1) as pool:
        with store.begin() as other:
            other.execute(held.with_for_update(key_share=True) if isinstance(held, Select) else held)
            waiting = pool.submit(in_transaction, store, act)
            wait_until_blocked(store)
            rows = list(other.execute(among).scalars())
            unlocked = among.with_for_update(skip_locked=True, key_share=True)
            free = set(other.execute(unlocked).scalars())
        waiting.result(30)
    return [row for row in rows if row not in free]


def is_locked_while_waiting(store: Store, act: Act, *, held: Executable, statement: Executable) -> bool:
    """Return whether `statement` would have to wait for the transaction, which waits too."""
    with ThreadPoolExecutor(1) as pool:
        with store.begin() as other:
            other.execute(held)
            waiting = pool.submit(in_transaction, store, act)
            wait_until_blocked(store)
            is_taken = would_wait(store, statement)
            other.rollback()
        waiting.result(30)
    return is_taken


def would_wait(store: Store, statement: Executable) -> bool:
    """Return whether the statement would have to wait for a lock."""
    try:
        with store.begin() as connection:
            connection.execute(text("SET LOCAL lock_timeout = '50ms'"))
            connection.execute(statement)
            connection.rollback()
    except OperationalError:
        return True
    return False


def in_transaction(store: Store, act: Act) -> None:
    with store.begin() as connection:
        act(connection)


def move_to_end(store: Store, table: Table, key: object) -> None:
    """Rewrite the row, so that a sequential scan reaches it last."""
    [column] = table.primary_key.columns
    with store.begin() as connection:
        connection.execute(update(table).where(column == key).values({column: column}))


def disable_index_scans(connection: Connection) -> None:
    """Force sequential scans, which PostgreSQL chooses where many rows change."""
    for way in ("nestloop", "indexscan", "bitmapscan"):
        connection.execute(text(f"SET LOCAL enable_{way} = off"))
