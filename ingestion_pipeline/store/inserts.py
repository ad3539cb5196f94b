"""INSERT in the connection's dialect: with a conflict clause, and for many rows at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import repeat
from typing import Any

from sqlalchemy import Connection, Table, exists, func, literal, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import JSON, TypeEngine

from ingestion_pipeline.store.bulk import Columns, Row, json_text, row_source
from ingestion_pipeline.store.types import ExactDecimal, Moment, UtcDateTime, aware, utc_text

MANY = 100  # rows: for fewer of them, a statement or two more take longer than they save


def insert_into(connection: Connection, table: Table) -> postgresql.Insert:
    """Return an insert with `on_conflict_do_nothing` and `on_conflict_do_update`."""
    return insert_for(connection.dialect.name, table)


def insert_for(dialect: str, table: Table) -> postgresql.Insert:
    """Return an insert for a statement that is built once for all connections of a dialect."""
    if dialect == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)  # pyright: ignore[reportReturnType] - the same methods, another class


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRows:
    """Rows for a table with the key `id`, identified by `identity`; `shared` columns have one value for all."""

    table: Table
    columns: Columns
    rows: Sequence[Row]
    identity: Sequence[str]
    shared: Mapping[str, tuple[TypeEngine[Any], Any]]


def insert_missing(connection: Connection, new: NewRows, *, returning: Sequence[str] = ()) -> Sequence[Any]:
    """Insert the rows that the table lacks by identity; return the `returning` columns of those, and no others."""
    if not new.rows:
        return []
    if connection.dialect.name == "postgresql" or len(new.rows) < MANY:
        return _insert_from_select(connection, new, returning)
    last = connection.execute(select(func.coalesce(func.max(new.table.c.id), 0))).scalar_one()
    _insert_each(connection, new)
    if not returning:
        return []
    # Ids only rise, and nobody else writes while we do.
    made = select(*(new.table.c[name] for name in returning)).where(new.table.c.id > last)
    return connection.execute(made).all()


def _insert_from_select(connection: Connection, new: NewRows, returning: Sequence[str]) -> Sequence[Any]:
    """Insert by one statement; the anti-join spares the ids that conflicts would use up."""
    candidates = row_source(connection, new.columns, new.rows, "given")
    is_there = exists().where(*(new.table.c[name] == candidates.c[name] for name in new.identity))
    alike = [literal(value, kind) for kind, value in new.shared.values()]
    statement = (
        insert_into(connection, new.table)
        .from_select([*new.columns, *new.shared], select(*candidates.c, *alike).where(~is_there))
        .on_conflict_do_nothing(index_elements=list(new.identity))
    )
    if not returning:
        connection.execute(statement)
        return []
    made = statement.returning(*(new.table.c[name] for name in returning))
    return connection.execute(made).all()


def _insert_each(connection: Connection, new: NewRows) -> None:
    """Insert one by one, by a statement that is prepared once.

    SQLite runs in our process: extracting rows from a JSON document took as long as storing
    them, and fewer statements save it nothing.
    """
    alike = {name: _stored(kind, value) for name, (kind, value) in new.shared.items()}
    if "modified_at" in new.table.c:
        alike["modified_at"] = utc_text(connection.execute(select(Moment())).scalar_one())
    by_column = zip(*new.rows, strict=True)
    values = [
        list(map(writer, column)) if (writer := _writer(kind)) else column
        for kind, column in zip(new.columns.values(), by_column, strict=True)
    ]
    names = ", ".join(f'"{name}"' for name in [*new.columns, *alike])
    marks = ", ".join("?" * (len(values) + len(alike)))
    conflict = ", ".join(f'"{name}"' for name in new.identity)
    connection.exec_driver_sql(
        f'INSERT INTO "{new.table.name}" ({names}) VALUES ({marks})'  # noqa: S608 - names of ours
        f" ON CONFLICT ({conflict}) DO NOTHING",
        list(zip(*values, *map(repeat, alike.values()), strict=False)),
    )


def _writer(kind: TypeEngine[Any]) -> Callable[[Any], object] | None:
    return next((writer for accepted_type, writer in _WRITERS.items() if isinstance(kind, accepted_type)), None)


def _stored(kind: TypeEngine[Any], value: object) -> object:
    writer = _writer(kind)
    return writer(value) if writer else value


def _decimal(value: Decimal | None) -> str | None:
    return None if value is None else f"{value:f}"


def _time(value: datetime | None) -> str | None:
    return None if value is None else utc_text(aware(value))


def _json(value: object) -> str | None:
    return None if value is None else json_text(value)


# As the types of `store.types` write them, without a call for each value that needs none.
_WRITERS: Mapping[type[TypeEngine[Any]], Callable[[Any], object]] = {
    ExactDecimal: _decimal,
    UtcDateTime: _time,
    JSON: _json,
}
