"""Many rows in one statement: a batch as a table that INSERT ... SELECT and UPDATE ... FROM read.

PostgreSQL gets one array per column (unnest), SQLite one JSON document (json_each); both are one
bound parameter list however many rows there are, so that anti-join and conflict tail are shared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    Connection,
    Text,
    bindparam,
    cast,
    column,
    func,
    literal_column,
    select,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import CTE, Select
from sqlalchemy.types import JSON, TypeEngine

from ingestion_pipeline.store.types import ExactDecimal, utc_text

Columns = Mapping[str, TypeEngine[Any]]
Row = Sequence[Any]


def row_source(connection: Connection, columns: Columns, rows: Sequence[Row], name: str) -> CTE:
    """The rows as a CTE called `name`, one column per entry of `columns`, in that order."""
    render = _unnested if connection.dialect.name == "postgresql" else _json_each
    return render(columns, rows).cte(name)


def _unnested(columns: Columns, rows: Sequence[Row]) -> Select[Any]:
    arrays: list[Any] = []
    for position, kind in enumerate(columns.values()):
        item: TypeEngine[Any] = Text() if _is_json(kind) else kind
        values = [_text(row[position]) if _is_json(kind) else row[position] for row in rows]
        arrays.append(cast(bindparam(None, values, type_=ARRAY(item)), ARRAY(item)))
    plain = [column(n, Text() if _is_json(k) else k) for n, k in columns.items()]
    table = func.unnest(*arrays).table_valued(*plain).render_derived(name="given")
    return select(
        *(
            (cast(table.c[name], JSONB()) if _is_json(kind) else table.c[name]).label(name)
            for name, kind in columns.items()
        )
    )


def _json_each(columns: Columns, rows: Sequence[Row]) -> Select[Any]:
    document = json.dumps([[_json_value(v, k) for v, k in _pairs(row, columns)] for row in rows])
    each = func.json_each(bindparam(None, document, type_=Text())).table_valued("value")
    return select(
        *(
            _as(kind, func.json_extract(each.c.value, literal_column(f"'$[{position}]'"))).label(
                name
            )
            for position, (name, kind) in enumerate(columns.items())
        )
    )


def _as(kind: TypeEngine[Any], value: ColumnElement[Any]) -> ColumnElement[Any]:
    # A decimal comes as text; only a cast makes its comparison and its maximum numeric.
    return cast(value, kind) if isinstance(kind, ExactDecimal) else type_coerce(value, kind)


def _pairs(row: Row, columns: Columns) -> Sequence[tuple[Any, TypeEngine[Any]]]:
    return list(zip(row, columns.values(), strict=True))


def _json_value(value: object, kind: TypeEngine[Any]) -> object:
    """As SQLite's columns keep it: times and decimals as text, JSON as its text."""
    if value is None:
        return None
    if _is_json(kind):
        return _text(value)
    if isinstance(value, datetime):
        return utc_text(value)
    return f"{value:f}" if isinstance(value, Decimal) else value


def _text(value: object) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _is_json(kind: TypeEngine[Any]) -> bool:
    return isinstance(kind, JSON)
