"""Days as texts write them, by value: 2026-03-05, 5 March 2026, 05.03.2026, 2026年3月5日."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime

from ingestion_pipeline.reading.dates import read_date
from ingestion_pipeline.reading.stated_numbers import plain_digits

MOST_IN_WORDS = 40  # each costs a millisecond, and a page that repeats itself proves no more

_MONTHS = 12
_YEAR = r"(?:1[89]|20|21)[0-9]{2}"
_ISO = re.compile(
    rf"(?<![0-9])({_YEAR})(?:-|/|\.|\s*年\s*|\s*년\s*)([0-9]{{1,2}})(?:-|/|\.|\s*月\s*|\s*월\s*)"
    r"([0-9]{1,2})(?:日|일)?(?![0-9])"
)
_NUMBERS = re.compile(
    rf"(?<![0-9./-])([0-9]{{1,2}})([/.-])\s?([0-9]{{1,2}})\2\s?({_YEAR}|[0-9]{{2}})(?![0-9]|[./-][0-9])"
)
_WORD = r"[^\W\d_]{3,15}\.?"
_OF = r"(?:\s+(?:de|of|del|di))?"
_DAY = r"(?<![0-9])[0-9]{1,2}(?:st|nd|rd|th|er|º|\.)?"
_IN_WORDS = re.compile(
    rf"(?:{_DAY}{_OF}\s+(?:{_WORD}){_OF},?\s+{_YEAR}|(?:{_WORD})\s+{_DAY},?\s+{_YEAR})(?![0-9])"
)
_MAY_BE_DATE = re.compile(rf"{_YEAR}|[0-9]{{1,2}}[/.-][0-9]{{1,2}}[/.-][0-9]{{2}}")
MOST_CHARACTERS = 40
_AGO = re.compile(
    r"\b(?:[0-9]{1,4}|an?|one) ?(?:sec|min|hour|hr|h|day|d|week|w|month|mo|year|yr|y)(?:ond|ute)?s?"
    r" ago\b|\b(?:yesterday|today)\b",
    re.IGNORECASE,
)
_MAY_BE_SAID = re.compile(r"[0-9]|ago|yesterday|today", re.IGNORECASE)

Span = tuple[int, int]


class DateFinder:
    """The days of a text."""

    def __init__(self, text: str) -> None:
        self._text = plain_digits(text)
        self._numeric = list(_numeric(self._text))

    def find(self, value: date) -> Span | None:
        """Where the text states that day; a moment is proved by its day."""
        days = _days(value)
        numeric = next((span for span, meant in self._numeric if meant & days), None)
        return numeric or self._in_words(days)

    def _in_words(self, days: set[date]) -> Span | None:
        years = {str(day.year) for day in days}
        numbers = {number for day in days for number in (str(day.day), f"{day.day:02}")}
        asked: set[str] = set()
        for found in _IN_WORDS.finditer(self._text):
            stated = re.findall("[0-9]+", found[0])
            if not (years & set(stated) and numbers & set(stated)) or found[0] in asked:
                continue
            asked.add(found[0])
            moment = read_date(found[0], now=None)
            if moment and moment.date() in days:
                return found.span()
            if len(asked) > MOST_IN_WORDS:
                break
        return None


def find_date(text: str, value: datetime, *, now: datetime | None) -> Span | None:
    """Where the text states the day of that moment, or how long before `now` it was."""
    if (span := DateFinder(text).find(value)) is not None:
        return span
    found = (one for one in _AGO.finditer(text) if means(one[0], value, now=now))
    first = next(found, None)
    return first.span() if first else None


def means(text: str, value: datetime, *, now: datetime | None) -> bool:
    """Whether the text, read as a date, is that moment, or its day where it states no more."""
    if not _MAY_BE_SAID.search(text):
        return False
    moment = read_date(text, now=now)
    if moment is None:
        return False
    value = value.astimezone(UTC)
    is_day = moment == moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return moment == value or (is_day and moment.date() == value.date())


def stated_date(text: str) -> date | None:
    """The day that the text is, if it is nothing else and can be read in one way."""
    text = plain_digits(text).strip()
    if len(text) > MOST_CHARACTERS or not _MAY_BE_DATE.search(text):
        return None
    for _, meant in _numeric(text):
        is_all = _ISO.fullmatch(text) or _NUMBERS.fullmatch(text)
        if is_all:
            return next(iter(meant)) if len(meant) == 1 else None
    if _IN_WORDS.fullmatch(text):
        moment = read_date(text, now=None)
        return moment.date() if moment else None
    return _moment(text)


def _moment(text: str) -> date | None:
    try:
        return datetime.fromisoformat(text) if "T" in text else None
    except ValueError:
        return None


def _days(value: date) -> set[date]:
    """The day itself; of a moment with zone also the day it is in Greenwich."""
    if not isinstance(value, datetime):
        return {value}
    days = {value.date()}
    return days | {value.astimezone(UTC).date()} if value.tzinfo else days


def _numeric(text: str) -> Iterator[tuple[Span, set[date]]]:
    """Each day in figures and what it may mean; the clear ones of a text decide the others."""
    for found in _ISO.finditer(text):
        yield found.span(), _dates((int(found[1]), int(found[2]), int(found[3])))
    written = list(_NUMBERS.finditer(text))
    day_first = any(int(one[1]) > _MONTHS for one in written)
    month_first = any(int(one[3]) > _MONTHS for one in written)
    for found in written:
        first, second, year = int(found[1]), int(found[3]), _full_year(found[4])
        by_day, by_month = (year, second, first), (year, first, second)
        if found[2] != "/" or (day_first and not month_first):
            yield found.span(), _dates(by_day) or _dates(by_month)
        elif month_first and not day_first:
            yield found.span(), _dates(by_month)
        else:
            yield found.span(), _dates(by_day, by_month)


def _full_year(written: str) -> int:
    year = int(written)
    if len(written) > 2:  # noqa: PLR2004  two digits of four
        return year
    return year + (2000 if year < 70 else 1900)  # noqa: PLR2004  as POSIX has it


def _dates(*candidates: tuple[int, int, int]) -> set[date]:
    found: set[date] = set()
    for candidate in candidates:
        try:
            found.add(date(*candidate))
        except ValueError:
            continue
    return found
