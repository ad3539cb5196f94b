"""Salaries: what boards state in fields, and what people write: "$120-150k", "60.000 €"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

MAX_CHARACTERS = 300  # of a salary in words; more is a description
MOST = Decimal(10) ** 12  # in any currency; more is a serial number

_CURRENCIES = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "₹": "INR", "₩": "KRW", "zł": "PLN"}
_DOLLARS = {"C$": "CAD", "CA$": "CAD", "A$": "AUD", "AU$": "AUD", "NZ$": "NZD", "S$": "SGD"}
_CODES = (
    "USD EUR GBP CAD AUD NZD CHF SEK NOK DKK PLN CZK HUF RON BGN JPY CNY INR SGD HKD KRW BRL MXN"
    " ILS ZAR AED TRY UAH PHP THB IDR MYR VND ARS CLP COP"
)
_CODE = re.compile(rf"\b({'|'.join(_CODES.split())})\b")
_DOLLAR = re.compile(r"(?<![A-Z])(CA|C|AU|A|NZ|S)\$")
_SYMBOL = re.compile("|".join(map(re.escape, _CURRENCIES)))
_PERIODS = (
    ("hour", re.compile(r"hour|\bhr\b|stunde|heure|\bp\.?h\.?\b|/h\b", re.IGNORECASE)),
    ("day", re.compile(r"\bda(?:y|ily)|/d\b|\btag\b|jour\b", re.IGNORECASE)),
    ("week", re.compile(r"week|\bwk\b|woche|semaine", re.IGNORECASE)),
    ("month", re.compile(r"month|\bmo\b|monat|\bmois\b|\bmes\b|\bp\.?m\.?\b", re.IGNORECASE)),
    ("year", re.compile(r"year|\byr\b|annu|\bp\.?a\.?\b|jahr|\ban\b|\baño", re.IGNORECASE)),
)
# A number and the letter that stands right behind it: the k of one number is no other's.
_AMOUNT = re.compile(
    r"(?<![\w.,])([0-9]{1,3}(?:[.,'\u2019\u00a0\u202f ][0-9]{3})+(?:[.,][0-9]{1,2})?(?![0-9])"
    r"|[0-9]{1,12}(?:[.,][0-9]{1,2})?(?![0-9]))\s?(k|tsd|mio|m)?(?![\w%])",
    re.IGNORECASE,
)
_BETWEEN = re.compile(
    r"[^\w]*(?:[-\u2013\u2014]|\b(?:to|bis|and)\b)[^\w]*(?:[A-Z]{1,3}(?=[\s$])[^\w]*)?",
    re.IGNORECASE,
)
_UP_TO = re.compile(r"(?:up to|max(?:imum)?\.?|bis zu|jusqu'à)[^\w]*$", re.IGNORECASE)
_PENSION = re.compile(r"\b40[13]\s?\(?[kb]\)?", re.IGNORECASE)  # American plans, not amounts
_LEAST_BARE = 1_000  # without currency and period a smaller number is something else
_TIMES = {"": 1, "k": 1_000, "tsd": 1_000, "m": 1_000_000, "mio": 1_000_000}
_DECIMALS = 2  # digits; three behind a point are thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class Salary:
    """A range; currency as ISO code, period hour, day, week, month or year; None if not stated."""

    minimum: Decimal | None
    maximum: Decimal | None
    currency: str | None = None
    period: str | None = None


def salary_as_dict(salary: Salary) -> Mapping[str, Any]:
    """Plain values; amounts as text, since they are decimals."""
    return {
        "minimum": None if salary.minimum is None else str(salary.minimum),
        "maximum": None if salary.maximum is None else str(salary.maximum),
        "currency": salary.currency,
        "period": salary.period,
    }


def stated_salary(
    minimum: str | None, maximum: str | None, *, currency: str | None, period: str | None
) -> Salary | None:
    """The salary of fields; None unless at least one of them is an amount above zero."""
    amounts = (_decimal(minimum), _decimal(maximum))
    if amounts == (None, None):
        return None
    return _salary(*amounts, currency=_code(currency), period=_period(period or ""))


def salary_in(text: str) -> Salary | None:
    """The salary that a text states: its first amount, and the one behind it if it is a range."""
    text = _PENSION.sub(" ", text[:MAX_CHARACTERS])
    found = _AMOUNT.search(text)
    if found is None:
        return None
    second = _AMOUNT.match(text, _after_dash(text, found.end()))
    unit = (found[2] or "").lower()
    first, last = _value(found[1], unit), None
    if second is not None:
        last_unit = (second[2] or "").lower()
        last = _value(second[1], last_unit)
        # "120-150k": the letter is said once for both
        if not unit and last_unit and first is not None and first < _TIMES[last_unit]:
            first = _value(found[1], last_unit)
    elif _UP_TO.search(text[: found.start()].rstrip("$€£ ")):
        first, last = None, first
    currency, period = _currency(text), _period(text)
    is_small = max(first or 0, last or 0) < _LEAST_BARE
    if is_small and currency is None and period not in {"hour", "day"}:
        return None
    return _salary(first, last, currency=currency, period=period)


def _after_dash(text: str, position: int) -> int:
    dash = _BETWEEN.match(text, position)
    return dash.end() if dash else len(text)


def _salary(
    first: Decimal | None, last: Decimal | None, *, currency: str | None, period: str | None
) -> Salary | None:
    if first is None and last is None:
        return None
    if first is not None and last is not None and first > last:
        first, last = last, first
    return Salary(minimum=first, maximum=last, currency=currency, period=period)


def _value(written: str, unit: str) -> Decimal | None:
    amount = re.sub(r"['\u2019\u00a0\u202f ]", "", written)
    whole, mark, rest = amount[: -_DECIMALS - 1], amount[-_DECIMALS - 1 :][:1], amount[-_DECIMALS:]
    one_digit = re.fullmatch(r"([0-9]+)[.,]([0-9])", amount)
    if one_digit:
        plain = f"{one_digit[1]}.{one_digit[2]}"
    elif mark in {".", ","}:
        plain = f"{re.sub('[.,]', '', whole)}.{rest}"
    else:
        plain = re.sub("[.,]", "", amount)
    value = _decimal(plain)
    return None if value is None else _bounded(value * _TIMES[unit])


def _decimal(text: str | None) -> Decimal | None:
    try:
        value = Decimal(text or "")
    except InvalidOperation:
        return None
    return _bounded(value) if value.is_finite() else None


def _bounded(value: Decimal) -> Decimal | None:
    return value.quantize(Decimal("0.01")).normalize() + 0 if 0 < value < MOST else None


def _currency(text: str) -> str | None:
    if found := _CODE.search(text):
        return found[1]
    if found := _DOLLAR.search(text):
        return _DOLLARS[f"{found[1]}$"]
    symbol = _SYMBOL.search(text)
    return _CURRENCIES[symbol[0]] if symbol else None


def _code(text: str | None) -> str | None:
    stated = (text or "").strip().upper()
    return stated if re.fullmatch("[A-Z]{3}", stated) else _currency(text or "")


def _period(text: str) -> str | None:
    return next((name for name, words in _PERIODS if words.search(text)), None)
