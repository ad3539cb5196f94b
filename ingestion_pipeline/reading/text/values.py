"""Dates and numbers as texts state them: read in many languages, and found by value (1,234.50 is 1.234,50).

The dates that most pages write are read here in microseconds; dateparser, which needs milliseconds, reads the rest.
"""

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache

MAX_CHARACTERS = 100  # the longest date that people write has 40
MAX_UNREAD = 20  # of one page; beyond that the field holds something else
MAX_AHEAD = timedelta(days=1)  # clocks and time zones differ by no more
FIRST_YEAR = 1900  # earlier ones are the zero of somebody's database

# The languages in which relative dates and names of months are looked for, English first.
LANGUAGES = (*("en", "es", "pt", "fr", "de", "it", "ru", "tr"), *("vi", "id", "ja", "ko", "zh", "th", "ar", "pl"))

_EPOCH = re.compile(r"[0-9]{9,10}(?:\.[0-9]+)?|[0-9]{12,13}")
_MILLISECONDS_FROM = 10**11  # as seconds, the year 5138
_YEAR_FIRST = re.compile(r"([0-9]{4})(?:([/.])|\s*年\s*)([0-9]{1,2})(?:\2|\s*月\s*)([0-9]{1,2})日?")
_YEAR_LAST = re.compile(r"([0-9]{1,2})([/.-])([0-9]{1,2})\2([0-9]{4})")
_DAY_FIRST = re.compile(r"([0-9]{1,2})(?:st|nd|rd|th)? ([a-z]{3,9})\.?,? ([0-9]{4})")
_MONTH_FIRST = re.compile(r"([a-z]{3,9})\.? ([0-9]{1,2})(?:st|nd|rd|th)?,? ([0-9]{4})")
_MONTH_NAMES = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_TIME_AGO = re.compile(r"([0-9]{1,4}|an?|one) ?(sec|min|hour|hr|h|day|d|week|w|month|mo|year|yr|y)(?:ond|ute)?s? ago")
_UNITS = {"s": "seconds", "h": "hours", "d": "days", "w": "weeks"}
_WORDS = {"yesterday": timedelta(days=1), "today": timedelta(0)}
_SOME_DATE = re.compile(r"\A(?:(?=[^0-9]*+[0-9])[0-9\s]*+[^0-9\s]|[^0-9]{2,30}$)")

# What dateparser counts from, always the same: another base would cost it all it has prepared. No
# page states these microseconds, so a moment that ends in them was counted from it.
_BASE = datetime(2000, 6, 15, 12, 30, 30, 718_281)  # noqa: DTZ001  dateparser's own form


class DateReader:
    """Reads the dates of one page or list: each text once, and few texts that are no dates."""

    def __init__(self, *, now: datetime | None, day_first: bool = False) -> None:
        self._now = now
        self._day_first = day_first
        self._known: dict[str, datetime | None] = {}
        self._unread_count = 0

    def read(self, text: str) -> datetime | None:
        """Return `read_date`; after many texts that are no dates only plain forms are tried."""
        if text not in self._known:
            in_words = self._unread_count < MAX_UNREAD
            moment = read_date(text, now=self._now, day_first=self._day_first, in_words=in_words)
            self._known[text] = moment
            self._unread_count += moment is None
        return self._known[text]


def read_date(text: str, *, now: datetime | None, day_first: bool = False, in_words: bool = True) -> datetime | None:
    """Return the moment in UTC; None if unreadable, in the future, or relative without `now`.

    A relative date is cut to its unit ("2 days ago" is a day), so that a later fetch gives the
    same. 02/10/2014 is in February unless `day_first`.
    """
    text = " ".join(text[:MAX_CHARACTERS].split())
    try:
        moment = _iso(text) or _epoch(text) or _numeric_date(text, day_first=day_first) or _english(text)
        moment = moment or _relative(text.lower(), now)
        if moment is None and in_words and _SOME_DATE.search(text):
            moment = _in_words(text, now)
    except (ValueError, OverflowError, OSError):
        return None
    if moment is None or moment.year < FIRST_YEAR or (now and moment > now + MAX_AHEAD):
        return None
    return moment


def _iso(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text) if "-" in text else None
    except ValueError:
        return None
    return _utc(moment) if moment else None


def _epoch(text: str) -> datetime | None:
    if not _EPOCH.fullmatch(text):
        return None
    seconds = float(text)
    return datetime.fromtimestamp(seconds / 1000 if seconds >= _MILLISECONDS_FROM else seconds, UTC)


def _numeric_date(text: str, *, day_first: bool) -> datetime | None:
    if match := _YEAR_FIRST.fullmatch(text):
        return datetime(int(match[1]), int(match[3]), int(match[4]), tzinfo=UTC)
    if not (match := _YEAR_LAST.fullmatch(text)):
        return None
    first, second = int(match[1]), int(match[3])
    # only a slash may stand between month and day in that order, and no year has a month 13
    is_day_first = day_first or match[2] != "/" or first > len(_MONTH_NAMES)
    month, day = (second, first) if is_day_first else (first, second)
    return datetime(int(match[4]), month, day, tzinfo=UTC)


def _english(text: str) -> datetime | None:
    text = text.lower()
    if match := _MONTH_FIRST.fullmatch(text):
        name, day, year = match.groups()
    elif match := _DAY_FIRST.fullmatch(text):
        day, name, year = match.groups()
    else:
        return None
    month = next((n for n, month_name in enumerate(_MONTH_NAMES, 1) if month_name.startswith(name)), None)
    return datetime(int(year), month, int(day), tzinfo=UTC) if month else None


def _relative(text: str, now: datetime | None) -> datetime | None:
    if now is None:
        return None
    if (days := _WORDS.get(text)) is not None:
        return _cut(_utc(now) - days).replace(hour=0, minute=0)
    if not (match := _TIME_AGO.fullmatch(text)):
        return None
    count, unit = int(match[1]) if match[1].isdigit() else 1, match[2]
    if unit in {"month", "mo", "year", "yr", "y"}:
        months = count if unit.startswith("mo") else 12 * count
        years, month = divmod(_utc(now).month - 1 - months, 12)
        # the same day, at most the 28th, which every month has
        return datetime(_utc(now).year + years, month + 1, min(_utc(now).day, 28), tzinfo=UTC)
    name = "minutes" if unit == "min" else _UNITS[unit[0]]
    return _since(_utc(now), timedelta(**{name: count}))


def _since(now: datetime, passed: timedelta) -> datetime:
    """Return the moment that long ago, truncated to the stated unit."""
    moment = _cut(now - passed)
    if passed < timedelta(hours=1):
        return moment
    moment = moment.replace(minute=0)
    return moment if passed % timedelta(days=1) else moment.replace(hour=0)


def _in_words(text: str, now: datetime | None) -> datetime | None:
    parsed = _worded(text)
    if parsed is None or isinstance(parsed, datetime):
        return parsed
    if now is None:
        return None
    if isinstance(parsed, timedelta):
        return _since(_utc(now), parsed)
    month, day = parsed
    date = datetime(now.year, month, day, tzinfo=UTC)
    return date if date <= now + MAX_AHEAD else date.replace(year=now.year - 1)


@lru_cache(maxsize=2_000)
def _worded(text: str) -> datetime | timedelta | tuple[int, int] | None:
    """Parse with dateparser: a moment, how long ago, or month and day of some year. The only place that knows it."""
    import dateparser  # pyright: ignore[reportMissingTypeStubs]  it ships none

    settings = {
        "RELATIVE_BASE": _BASE,
        "TIMEZONE": "UTC",
        "RETURN_AS_TIMEZONE_AWARE": True,
        "PREFER_DATES_FROM": "past",
        "REQUIRE_PARTS": ["day", "month"],
    }
    parsed = dateparser.parse(text, languages=list(LANGUAGES), settings=settings)  # pyright: ignore[reportUnknownMemberType, reportArgumentType]  its annotations are partial
    if parsed is None:
        return None
    if parsed.microsecond == _BASE.microsecond:
        return _utc(_BASE) - _utc(parsed)
    has_year = str(parsed.year) in text or parsed.year not in {_BASE.year, _BASE.year - 1}
    return _utc(parsed) if has_year else (parsed.month, parsed.day)


def _cut(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


MOST_DIGITS = 30  # more are a serial number, and nobody's value

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_SIGNS = {"\u2212": "-", "\u066b": ".", "\u066c": ",", "\uff0c": ",", "\uff0e": ".", "\u00b7": "."}
# Blanks that join the groups of a number, and the apostrophe of the Swiss.
_JOINERS = "\u00a0\u2009\u202f'\u2019"
_NUMBER = re.compile(rf"[0-9]+(?:[.,{_JOINERS}][0-9]+)*")
_SPACED = re.compile(r"[0-9]{1,3}(?: [0-9]{3})+(?:[.,][0-9]+)?")
# Days and addresses have digits in them, and state no number.
_NO_NUMBERS = re.compile(
    r"(?<![0-9])(?:[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}|[0-9]{1,2}([/.-])[0-9]{1,2}\1[0-9]{4})(?![0-9])"
    r"|https?://[^\s)]+|\]\([^()\s]*\)"
)
_ONE_NUMBER = re.compile(r"[^\w\s.,+-]?\s*+([+-]?)\s*+([0-9][0-9.,'\u2019 \u00a0\u2009\u202f]*+)\s*+[^\w\s.,+-]?")
_INDIAN = re.compile(r"[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}(?:\.[0-9]+)?")
_GROUPED = re.compile(r"[0-9]{1,3}(?:([.,])[0-9]{3})(?:\1[0-9]{3})*")


class Style(Enum):
    """Which sign precedes the decimals."""

    POINT = "."
    COMMA = ","
    UNKNOWN = ""


class NumberFinder:
    """The numbers of a text, each with its first span."""

    def __init__(self, text: str) -> None:
        plain = plain_digits(text)
        others = [numbers.span() for numbers in _NO_NUMBERS.finditer(plain)]
        numbers = [number for number in _written_numbers(plain) if not _is_inside(number[0], others)]
        self.style = _style(written for _, written, _ in numbers)
        self._spans: dict[Decimal, tuple[int, int]] = {}
        for span, written, sign in numbers:
            value = number_of(written, self.style)
            if value is not None:
                self._spans.setdefault(-value if sign else value, span)

    def find(self, value: Decimal) -> tuple[int, int] | None:
        """Return the span of a number of that value."""
        return self._spans.get(value)


def stated_number(text: str, style: Style) -> Decimal | None:
    """Return the number if the text is nothing else; a code such as 007 is none."""
    match = _ONE_NUMBER.fullmatch(plain_digits(text).strip())
    if match is None:
        return None
    written = match[2].rstrip(f" {_JOINERS}")
    if re.match(r"0[0-9]", written) or (" " in written and not _SPACED.fullmatch(written)):
        return None
    value = number_of(written.replace(" ", ""), style)
    return -value if value is not None and match[1] == "-" else value


def plain_digits(text: str) -> str:
    """Return the text, of the same length, with the digits of every script as 0 to 9."""
    return text if text.isascii() else _NOT_ASCII.sub(_plain, text)


def number_of(written: str, style: Style) -> Decimal | None:
    """Return the value; an ambiguous sign is read by the text's style, else as in English."""
    written = re.sub(f"[{_JOINERS}]", "", written)
    if len(written) > MOST_DIGITS:
        return None
    decimal_sign = _decimal_sign(written, style)
    if decimal_sign is None:
        return None
    other = "," if decimal_sign == "." else "."
    return Decimal(written.replace(other, "").replace(decimal_sign, "."))


def _decimal_sign(written: str, style: Style) -> str | None:
    """Return the sign before the decimals; any if there are none, None if it is no number."""
    clear = _clear_style(written)
    if clear is not Style.UNKNOWN:
        return clear.value
    if not _GROUPED.fullmatch(written):
        return "." if written.isdecimal() else None
    return "." if style is Style.UNKNOWN else style.value


def _clear_style(written: str) -> Style:
    """Return the style of a number that can be read in one way only."""
    points, commas = written.count("."), written.count(",")
    if _INDIAN.fullmatch(written):
        return Style.POINT
    if points and commas:
        last = Style.POINT if written.rindex(".") > written.rindex(",") else Style.COMMA
        whole, _, decimals = written.rpartition(last.value)
        is_grouped = decimals.isdecimal() and _GROUPED.fullmatch(whole) and last.value not in whole
        return last if is_grouped else Style.UNKNOWN
    if points + commas > 1:
        grouped = _GROUPED.fullmatch(written)
        return Style.UNKNOWN if not grouped else Style.COMMA if points else Style.POINT
    if points + commas == 1 and not _GROUPED.fullmatch(written):
        return Style.POINT if points else Style.COMMA
    return Style.UNKNOWN


def _style(numbers: Iterator[str]) -> Style:
    styles = Counter(map(_clear_style, numbers))
    balance = styles[Style.POINT] - styles[Style.COMMA]
    return Style.UNKNOWN if not balance else Style.POINT if balance > 0 else Style.COMMA


def _written_numbers(text: str) -> Iterator[tuple[tuple[int, int], str, bool]]:
    """Yield each number with its span, as it is written, and whether a minus precedes it."""
    for match in (*_NUMBER.finditer(text), *_SPACED.finditer(text)):
        start, end = match.span()
        if not _stands_alone(text, start, end):
            continue
        has_minus = start > 0 and text[start - 1] == "-" and not _is_word(text, start - 2)
        yield (start - has_minus, end), match[0].replace(" ", ""), has_minus


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Return whether it is no part of a name, a time, a fraction, a version or a number."""
    before, after = text[start - 1 : start], text[end : end + 2]
    if before and (_glues(before) or (before in ".,:/" and text[max(start - 2, 0) : start - 1].isdecimal())):
        return False
    if after[:1].isdecimal() or (after[:1] in {".", ",", ":", "/"} and after[1:].isdecimal()):
        return False
    return not re.match(r"(?:[A-Z]|k|bn)\b", text[end : end + 4])


def _glues(character: str) -> bool:
    """Return whether a number after it is part of a name: A3, but not 第3."""
    return character.isdecimal() or (character.isalpha() and character < "\u0e00") or character in "_"


def _is_word(text: str, position: int) -> bool:
    return position >= 0 and (text[position].isalnum() or text[position] in ")]")


def _is_inside(span: tuple[int, int], others: list[tuple[int, int]]) -> bool:
    place = bisect_right(others, (span[0], 1 << 60)) - 1
    return place >= 0 and span[0] < others[place][1]


def _plain(match: re.Match[str]) -> str:
    character = match[0]
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    return _SIGNS.get(character, character)


MOST_IN_WORDS = 40  # each costs a millisecond, and a page that repeats itself proves no more

_LAST_MONTH = 12
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
_IN_WORDS = re.compile(rf"(?:{_DAY}{_OF}\s+(?:{_WORD}){_OF},?\s+{_YEAR}|(?:{_WORD})\s+{_DAY},?\s+{_YEAR})(?![0-9])")
_MAY_BE_DATE = re.compile(rf"{_YEAR}|[0-9]{{1,2}}[/.-][0-9]{{1,2}}[/.-][0-9]{{2}}")
MOST_CHARACTERS = 40
_STATED_AGO = re.compile(
    r"\b(?:[0-9]{1,4}|an?|one) ?(?:sec|min|hour|hr|h|day|d|week|w|month|mo|year|yr|y)(?:ond|ute)?s?"
    r" ago\b|\b(?:yesterday|today)\b",
    re.IGNORECASE,
)
_MAY_BE_SAID = re.compile(r"[0-9]|ago|yesterday|today", re.IGNORECASE)

Span = tuple[int, int]


class DateFinder:
    """The dates of a text."""

    def __init__(self, text: str) -> None:
        self._text = plain_digits(text)
        self._numeric = list(_numeric(self._text))

    def find(self, value: date) -> Span | None:
        """Return where the text states that day; a moment is proved by its day."""
        days = _days(value)
        numeric = next((span for span, readings in self._numeric if readings & days), None)
        return numeric or self._in_words(days)

    def _in_words(self, days: set[date]) -> Span | None:
        years = {str(day.year) for day in days}
        numbers = {number for day in days for number in (str(day.day), f"{day.day:02}")}
        tried: set[str] = set()
        for match in _IN_WORDS.finditer(self._text):
            stated = re.findall("[0-9]+", match[0])
            if not (years & set(stated) and numbers & set(stated)) or match[0] in tried:
                continue
            tried.add(match[0])
            moment = read_date(match[0], now=None)
            if moment and moment.date() in days:
                return match.span()
            if len(tried) > MOST_IN_WORDS:
                break
        return None


def find_date(text: str, value: datetime, *, now: datetime | None) -> Span | None:
    """Return where the text states the day of that moment, or how long before `now` it was."""
    if (span := DateFinder(text).find(value)) is not None:
        return span
    return next((match.span() for match in _STATED_AGO.finditer(text) if means(match[0], value, now=now)), None)


def means(text: str, value: datetime, *, now: datetime | None) -> bool:
    """Return whether the text, read as a date, is that moment, or its day if it states no more."""
    if not _MAY_BE_SAID.search(text):
        return False
    moment = read_date(text, now=now)
    if moment is None:
        return False
    value = value.astimezone(UTC)
    is_day = moment == moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return moment == value or (is_day and moment.date() == value.date())


def is_month_first(texts: Iterable[str]) -> bool | None:
    """Return whether the month comes before the day in the dates of a page; None if none of them tells."""
    written = [match for text in texts for match in _NUMBERS.finditer(plain_digits(text))]
    month_first = any(int(match[3]) > _LAST_MONTH for match in written)
    day_first = any(int(match[1]) > _LAST_MONTH for match in written)
    return month_first if month_first != day_first else None


def first_date(text: str, *, month_first: bool | None = None) -> tuple[date, Span] | None:
    """Return the first day that the text states, and where; None if it states none. 6/1/2024 is in June."""
    plain = plain_digits(text)
    matches = [match for pattern in (_ISO, _NUMBERS, _IN_WORDS) for match in pattern.finditer(plain)]
    for match in sorted(matches, key=lambda match: match.start())[:MOST_IN_WORDS]:
        days = _readings(match, month_first=month_first)
        if days:
            return days[0], match.span()
    return None


def _readings(match: re.Match[str], *, month_first: bool | None) -> list[date]:
    """Return the day that the match is likeliest to state, if any: with slashes, the month comes first."""
    if match.re is not _NUMBERS:
        moment = read_date(match[0], now=None)
        return [moment.date()] if moment else []
    first, second, year = int(match[1]), int(match[3]), _full_year(match[4])
    by_day, by_month = (year, second, first), (year, first, second)
    comes_first = match[2] == "/" if month_first is None else month_first
    ordered = (by_month, by_day) if comes_first else (by_day, by_month)
    return [day for reading in ordered for day in _dates(reading)]


def stated_date(text: str) -> date | None:
    """Return the day if the text is nothing else and can be read in one way."""
    text = plain_digits(text).strip()
    if len(text) > MOST_CHARACTERS or not _MAY_BE_DATE.search(text):
        return None
    for _, readings in _numeric(text):
        if _ISO.fullmatch(text) or _NUMBERS.fullmatch(text):
            return next(iter(readings)) if len(readings) == 1 else None
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
    """Return the day itself; of a moment with zone also its day in UTC."""
    if not isinstance(value, datetime):
        return {value}
    days = {value.date()}
    return days | {value.astimezone(UTC).date()} if value.tzinfo else days


def _numeric(text: str) -> Iterator[tuple[Span, set[date]]]:
    """Yield each numeric date with its readings; unambiguous ones of a text decide the others."""
    for match in _ISO.finditer(text):
        yield match.span(), _dates((int(match[1]), int(match[2]), int(match[3])))
    written = list(_NUMBERS.finditer(text))
    day_first = any(int(candidate[1]) > _LAST_MONTH for candidate in written)
    month_first = any(int(candidate[3]) > _LAST_MONTH for candidate in written)
    for match in written:
        first, second, year = int(match[1]), int(match[3]), _full_year(match[4])
        by_day, by_month = (year, second, first), (year, first, second)
        if match[2] != "/" or (day_first and not month_first):
            yield match.span(), _dates(by_day) or _dates(by_month)
        elif month_first and not day_first:
            yield match.span(), _dates(by_month)
        else:
            yield match.span(), _dates(by_day, by_month)


def _full_year(written: str) -> int:
    year = int(written)
    if len(written) > 2:  # noqa: PLR2004  two digits of four
        return year
    return year + (2000 if year < 70 else 1900)  # noqa: PLR2004  as POSIX has it


def _dates(*candidates: tuple[int, int, int]) -> set[date]:
    dates: set[date] = set()
    for candidate in candidates:
        try:
            dates.add(date(*candidate))
        except ValueError:
            continue
    return dates
