"""Many rows in one statement: a batch as a table that INSERT ... SELECT and UPDATE ... FROM read.

Both databases get one JSON document, one bound parameter however many rows there are, so that
anti-join and conflict tail are shared. PostgreSQL reads it by json_to_recordset: half the time of
one array per column (unnest), whose items the driver writes one by one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import orjson
from sqlalchemy import (
    Connection,
    String,
    Text,
    bindparam,
    cast,
    column,
    func,
    literal_column,
    select,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import CTE, Select
from sqlalchemy.types import TypeEngine

from ingestion_pipeline.store.types import ExactDecimal, aware, utc_text

Columns = Mapping[str, TypeEngine[Any]]
Row = Sequence[Any]

_AS_STORED = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS


def row_source(connection: Connection, columns: Columns, rows: Sequence[Row], name: str) -> CTE:
    """The rows as a CTE called `name`, one column per entry of `columns`, in that order.

    A JSON column takes objects and lists, never a bare text or number.
    """
    if connection.dialect.name == "postgresql":
        return _recordset(columns, rows).cte(name)
    return _json_each(columns, rows).cte(name)


def _recordset(columns: Columns, rows: Sequence[Row]) -> Select[Any]:
    document = _document([dict(zip(columns, row, strict=True)) for row in rows])
    given = cast(bindparam(None, document, type_=Text()), JSON())
    fields = [column(name, _unbounded(kind)) for name, kind in columns.items()]
    table = func.json_to_recordset(given).table_valued(*fields)
    return select(table.render_derived(name="given", with_types=True))


def _json_each(columns: Columns, rows: Sequence[Row]) -> Select[Any]:
    document = _document(rows)
    each = func.json_each(bindparam(None, document, type_=Text())).table_valued("value")
    return select(
        *(
            _as(kind, func.json_extract(each.c.value, literal_column(f"'$[{position}]'"))).label(
                name
            )
            for position, (name, kind) in enumerate(columns.items())
        )
    )


def _unbounded(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Its column refuses a text that is too long; a cast would cut it without a word."""
    return Text() if isinstance(kind, String) else kind


def _as(kind: TypeEngine[Any], value: ColumnElement[Any]) -> ColumnElement[Any]:
    # A decimal comes as text; only a cast makes its comparison and its maximum numeric.
    return cast(value, kind) if isinstance(kind, ExactDecimal) else type_coerce(value, kind)


def _document(rows: Sequence[Any]) -> str:
    """Times and decimals are text in it, as SQLite's columns keep them."""
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
