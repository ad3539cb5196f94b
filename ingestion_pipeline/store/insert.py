"""INSERT with a conflict tail, in the dialect of the connection; both databases spell it alike."""

from __future__ import annotations

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_into(connection: Connection, table: Table) -> postgresql.Insert:
    """An insert that has `on_conflict_do_nothing` and `on_conflict_do_update`."""
    return insert_for(connection.dialect.name, table)


def insert_for(dialect: str, table: Table) -> postgresql.Insert:
    """The same for a statement that is written once for all connections of a dialect."""
    if dialect == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)  # pyright: ignore[reportReturnType] - the same methods, another class
