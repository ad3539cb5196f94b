"""Values of exported columns, the same in every format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from decimal import Context, Decimal, InvalidOperation
from typing import Any

# A Parquet column has one number of digits behind the point for all its rows.
DECIMAL_DIGITS, DECIMAL_PLACES = 38, 9
_PLACES = Decimal(1).scaleb(-DECIMAL_PLACES)
_TOO_LARGE = Decimal(10) ** (DECIMAL_DIGITS - DECIMAL_PLACES)

Row = Sequence[Any]
Batches = Iterator[Sequence[Row]]


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
