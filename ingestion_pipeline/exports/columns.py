"""Columns of an export: what their values are, whatever the format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, Boolean, Float, Integer
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.store.types import ExactDecimal, UtcDateTime

# A Parquet column has one number of digits behind the point for all its rows.
DECIMAL_DIGITS, DECIMAL_PLACES = 38, 9
_PLACES = Decimal(1).scaleb(-DECIMAL_PLACES)
_TOO_LARGE = Decimal(10) ** (DECIMAL_DIGITS - DECIMAL_PLACES)

Row = Sequence[Any]
Batches = Iterator[Sequence[Row]]


class ColumnType(StrEnum):
    """The type of a column's values; each may be missing."""

    TEXT = "text"
    WHOLE = "whole"
    DECIMAL = "decimal"
    FLOAT = "float"
    FLAG = "flag"
    TIME = "time"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportColumn:
    """A column of an export."""

    name: str
    holds: ColumnType = ColumnType.TEXT


def columns_of(selected: Iterable[ColumnElement[Any]]) -> list[ExportColumn]:
    """Return the export columns of these table columns."""
    return [ExportColumn(name=column.key or "", holds=_held(column)) for column in selected]


def _held(column: ColumnElement[Any]) -> ColumnType:
    kinds = (
        (ExactDecimal, ColumnType.DECIMAL),
        (UtcDateTime, ColumnType.TIME),
        (Boolean, ColumnType.FLAG),
        (Integer, ColumnType.WHOLE),
        (Float, ColumnType.FLOAT),
        (JSON, ColumnType.JSON),
    )
    matches = (holds for kind, holds in kinds if isinstance(column.type, kind))
    return next(matches, ColumnType.TEXT)


def exact(value: object) -> Decimal | None:
    """Return the value as a number rounded to nine places; None if it is none.

    A number of thirty digits before the point is None too.
    """
    if value is None or isinstance(value, bool):
        return None
    try:
        number = value if isinstance(value, Decimal) else Decimal(str(value))
    except InvalidOperation:
        return None
    if not number.is_finite() or abs(number) >= _TOO_LARGE:
        return None
    exponent = number.as_tuple().exponent
    is_short = isinstance(exponent, int) and -DECIMAL_PLACES <= exponent <= 0
    return number if is_short else _rounded(number)


def _rounded(number: Decimal) -> Decimal:
    return number.quantize(_PLACES, context=Context(prec=DECIMAL_DIGITS))


def shortest(number: Decimal) -> str:
    """Return its digits without an exponent and without trailing zeros."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def json_text(value: object) -> str:
    """Return the value as JSON, the same text for the same value."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
