"""Statements for both databases: row locks, many rows at once, INSERT with a conflict clause, and the audit log.

Many rows are a table that INSERT ... SELECT and UPDATE ... FROM read: one JSON document, one bound parameter however
many rows there are, so that anti-join and conflict tail are shared. PostgreSQL reads it by json_to_recordset: half the
time of one array per column (unnest), whose items the driver writes one by one.

Rows are locked in one order, so that transactions cannot deadlock: ADR 4 lists it. Rows are locked FOR NO KEY UPDATE
wherever foreign keys point at them: inserting a row that references one does not wait for that.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import repeat
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import JSON as POSTGRES_JSON
from sqlalchemy.types import JSON, TypeEngine

from ingestion_pipeline.store.changes import recorded_after
from ingestion_pipeline.store.tables import audit_log
from ingestion_pipeline.store.types import ExactDecimal, Moment, UtcDateTime, aware, utc_text


def lock_rows(connection: sa.Connection, key: sa.ColumnElement[Any], ids: Collection[Any]) -> None:
    """Lock these rows in the order of the keys until the transaction ends; SQLite has one writer anyway."""
    if ids and connection.dialect.name == "postgresql":
        query = sa.select(key).where(key.in_(list(ids))).order_by(key)
        connection.execute(query.with_for_update(key_share=True)).all()


def sweep(connection: sa.Connection, table: sa.Table, *conditions: sa.ColumnElement[bool]) -> int:
    """Delete those rows that nobody else has locked; return how many."""
    return connection.execute(delete_unlocked(table, *conditions)).rowcount


def delete_unlocked(table: sa.Table, *conditions: sa.ColumnElement[bool]) -> sa.Delete:
    """Return a delete of those rows that nobody else has locked; others are left for later."""
    keys = list(table.primary_key.columns)
    unlocked = sa.select(*keys).where(*conditions).with_for_update(skip_locked=True).cte("found")
    return sa.delete(table).where(sa.tuple_(*keys).in_(sa.select(*unlocked.c)))


Columns = Mapping[str, TypeEngine[Any]]
Row = Sequence[Any]
Rows = Sequence[Row]

_AS_STORED = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS


def columns_of(table: sa.Table, names: Iterable[str]) -> dict[str, TypeEngine[Any]]:
    """Return the table's columns of these names, as `row_source` takes them."""
    return {name: table.c[name].type for name in names}


def row_source(connection: sa.Connection, columns: Columns, rows: Sequence[Row], name: str) -> sa.CTE:
    """Return the rows as a CTE called `name`, by `columns`; a JSON column takes objects and lists, no bare value."""
    dialect = connection.dialect.name
    document = row_document(dialect, columns, rows)
    return _table(dialect, columns, sa.bindparam(None, document, type_=sa.Text())).cte(name)


def one_of(
    connection: sa.Connection, column_: sa.ColumnElement[str], values: Collection[str]
) -> sa.ColumnElement[bool]:
    """Return whether the text is one of these, as one parameter: 5,000 parameters take longer."""
    if connection.dialect.name == "postgresql":
        return column_ == sa.any_(sa.bindparam(None, list(values), type_=sa.ARRAY(sa.Text())))
    each = sa.func.json_each(sa.bindparam(None, json_text(list(values)), type_=sa.Text()))
    return column_.in_(sa.select(each.table_valued("value").c.value))


def row_table(dialect: str, columns: Columns, name: str) -> sa.CTE:
    """Return a `row_source` for a prepared statement: its parameter `name` takes the document."""
    return _table(dialect, columns, sa.bindparam(name, type_=sa.Text())).cte(name)


def row_document(dialect: str, columns: Columns, rows: Sequence[Row]) -> str:
    """Return the rows as the parameter of a `row_table`."""
    if dialect == "postgresql":
        return json_text([dict(zip(columns, row, strict=True)) for row in rows])
    return json_text(rows)


def _table(dialect: str, columns: Columns, document: sa.BindParameter[Any]) -> sa.Select[Any]:
    if dialect == "postgresql":
        # Without its length: a cast would silently cut a text that is too long.
        fields = [sa.column(name, sa.Text() if isinstance(kind, sa.String) else kind) for name, kind in columns.items()]
        table = sa.func.json_to_recordset(sa.cast(document, POSTGRES_JSON())).table_valued(*fields)
        return sa.select(table.render_derived(name="given", with_types=True))
    each = sa.func.json_each(document).table_valued("value")
    return sa.select(
        *(
            _as(kind, sa.func.json_extract(each.c.value, sa.literal_column(f"'$[{position}]'"))).label(name)
            for position, (name, kind) in enumerate(columns.items())
        )
    )


def _as(kind: TypeEngine[Any], value: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    # A decimal comes as text; only a cast makes its comparison and its maximum numeric.
    return sa.cast(value, kind) if isinstance(kind, ExactDecimal) else sa.type_coerce(value, kind)


def json_text(rows: Any) -> str:  # noqa: ANN401 - whatever JSON can say
    """Return the JSON document; times and decimals are text, as SQLite's columns store them."""
    try:
        return orjson.dumps(rows, default=_text, option=_AS_STORED).decode()
    except orjson.JSONEncodeError:  # an integer of over 64 bits in somebody's configuration
        return json.dumps(rows, default=_text, ensure_ascii=False, sort_keys=True)


def _text(value: object) -> str:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return utc_text(aware(value))
    raise TypeError(f"a row cannot hold {value!r}: {type(value).__name__} has no column type")


MANY = 100  # rows: for fewer of them, a statement or two more take longer than they save


def insert_into(connection: sa.Connection, table: sa.Table) -> postgresql.Insert:
    """Return an insert with `on_conflict_do_nothing` and `on_conflict_do_update`."""
    return insert_for(connection.dialect.name, table)


def insert_for(dialect: str, table: sa.Table) -> postgresql.Insert:
    """Return an insert for a statement that is built once for all connections of a dialect."""
    if dialect == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)  # pyright: ignore[reportReturnType] - the same methods, another class


def insert_rows(
    connection: sa.Connection,
    table: sa.Table,
    columns: Columns,
    rows: Rows,
    order: Sequence[str] = (),
    **shared: object,
) -> postgresql.Insert:
    """Return `insert_into` of the rows by `columns`, in the given order; `shared` columns have one value for all."""
    source = row_source(connection, columns, rows, "given")
    alike = [sa.literal(value, table.c[name].type) for name, value in shared.items()]
    # SQLite parses ON CONFLICT as the ON of a join unless a WHERE comes before it.
    query = sa.select(*source.c, *alike).where(sa.true()).order_by(*(source.c[name] for name in order))
    return insert_into(connection, table).from_select([*columns, *shared], query)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRows:
    """Rows for a table with the key `id`, identified by `identity`; `shared` columns have one value for all."""

    table: sa.Table
    columns: Columns
    rows: Sequence[Row]
    identity: Sequence[str]
    shared: Mapping[str, tuple[TypeEngine[Any], Any]]


def insert_missing(connection: sa.Connection, new: NewRows, *, returning: Sequence[str] = ()) -> Sequence[Any]:
    """Insert the rows that the table lacks by identity; return the `returning` columns of those, and no others."""
    if not new.rows:
        return []
    if connection.dialect.name == "postgresql" or len(new.rows) < MANY:
        return _insert_from_select(connection, new, returning)
    last = connection.execute(sa.select(sa.func.coalesce(sa.func.max(new.table.c.id), 0))).scalar_one()
    with recorded_after(connection, new.table, last, list(new.columns), new.rows):
        _insert_each(connection, new)
    if not returning:
        return []
    # Ids only rise, and nobody else writes while we do.
    made = sa.select(*(new.table.c[name] for name in returning)).where(new.table.c.id > last)
    return connection.execute(made).all()


def _insert_from_select(connection: sa.Connection, new: NewRows, returning: Sequence[str]) -> Sequence[Any]:
    """Insert by one statement; the anti-join spares the ids that conflicts would use up."""
    candidates = row_source(connection, new.columns, new.rows, "given")
    is_there = sa.exists().where(*(new.table.c[name] == candidates.c[name] for name in new.identity))
    alike = [sa.literal(value, kind) for kind, value in new.shared.values()]
    statement = (
        insert_into(connection, new.table)
        .from_select([*new.columns, *new.shared], sa.select(*candidates.c, *alike).where(~is_there))
        .on_conflict_do_nothing(index_elements=list(new.identity))
    )
    if not returning:
        connection.execute(statement)
        return []
    made = statement.returning(*(new.table.c[name] for name in returning))
    return connection.execute(made).all()


def _insert_each(connection: sa.Connection, new: NewRows) -> None:
    """Insert one by one, by a statement that is prepared once.

    SQLite runs in our process: extracting rows from a JSON document took as long as storing
    them, and fewer statements save it nothing.
    """
    alike = {name: _stored(kind, value) for name, (kind, value) in new.shared.items()}
    if "modified_at" in new.table.c:
        alike["modified_at"] = utc_text(connection.execute(sa.select(Moment())).scalar_one())
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


def audit(
    connection: sa.Connection,
    *,
    actor: str,
    action: str,
    subject: str,
    now: datetime,
    detail: Mapping[str, object] | None = None,
) -> None:
    """Write one line of the audit log, in the transaction of the action."""
    connection.execute(
        sa.insert(audit_log).values(at=now, actor=actor, action=action, subject=subject, detail=dict(detail or {}))
    )
