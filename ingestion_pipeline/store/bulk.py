"""Many rows in one statement: a batch as a table that INSERT ... SELECT and UPDATE ... FROM read.

Both databases get one JSON document, one bound parameter however many rows there are, so that
anti-join and conflict tail are shared. PostgreSQL reads it by json_to_recordset: half the time of
one array per column (unnest), whose items the driver writes one by one.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import orjson
from sqlalchemy import (
    ARRAY,
    Connection,
    String,
    Table,
    Text,
    any_,
    bindparam,
    cast,
    column,
    func,
    literal_column,
    select,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.sql.elements import BindParameter, ColumnElement
from sqlalchemy.sql.selectable import CTE, Select
from sqlalchemy.types import TypeEngine

from ingestion_pipeline.store.types import ExactDecimal, aware, utc_text

Columns = Mapping[str, TypeEngine[Any]]
Row = Sequence[Any]

_AS_STORED = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS


def columns_of(table: Table, names: Iterable[str]) -> dict[str, TypeEngine[Any]]:
    """Return the table's columns of these names, as `row_source` takes them."""
    return {name: table.c[name].type for name in names}


def row_source(connection: Connection, columns: Columns, rows: Sequence[Row], name: str) -> CTE:
    """Return the rows as a CTE called `name`, by `columns`; a JSON column takes objects and lists, no bare value."""
    dialect = connection.dialect.name
    document = row_document(dialect, columns, rows)
    return _table(dialect, columns, bindparam(None, document, type_=Text())).cte(name)


def one_of(connection: Connection, column_: ColumnElement[str], values: Collection[str]) -> ColumnElement[bool]:
    """Return whether the text is one of these, as one parameter: 5,000 parameters take longer."""
    if connection.dialect.name == "postgresql":
        return column_ == any_(bindparam(None, list(values), type_=ARRAY(Text())))
    each = func.json_each(bindparam(None, json_text(list(values)), type_=Text()))
    return column_.in_(select(each.table_valued("value").c.value))


def row_table(dialect: str, columns: Columns, name: str) -> CTE:
    """Return a `row_source` for a prepared statement: its parameter `name` takes the document."""
    return _table(dialect, columns, bindparam(name, type_=Text())).cte(name)


def row_document(dialect: str, columns: Columns, rows: Sequence[Row]) -> str:
    """Return the rows as the parameter of a `row_table`."""
    if dialect == "postgresql":
        return json_text([dict(zip(columns, row, strict=True)) for row in rows])
    return json_text(rows)


def _table(dialect: str, columns: Columns, document: BindParameter[Any]) -> Select[Any]:
    if dialect == "postgresql":
        # Without its length: a cast would silently cut a text that is too long.
        fields = [column(name, Text() if isinstance(kind, String) else kind) for name, kind in columns.items()]
        table = func.json_to_recordset(cast(document, JSON())).table_valued(*fields)
        return select(table.render_derived(name="given", with_types=True))
    each = func.json_each(document).table_valued("value")
    return select(
        *(
            _as(kind, func.json_extract(each.c.value, literal_column(f"'$[{position}]'"))).label(name)
            for position, (name, kind) in enumerate(columns.items())
        )
    )


def _as(kind: TypeEngine[Any], value: ColumnElement[Any]) -> ColumnElement[Any]:
    # A decimal comes as text; only a cast makes its comparison and its maximum numeric.
    return cast(value, kind) if isinstance(kind, ExactDecimal) else type_coerce(value, kind)


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
