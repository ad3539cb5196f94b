"""Parse dates as pages write them: ISO, Unix seconds or milliseconds, or words in many languages.

The forms that most pages use are read here, in microseconds; dateparser, which needs milliseconds,
reads the rest.
"""

import re
from datetime import UTC, datetime, timedelta
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
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_AGO = re.compile(r"([0-9]{1,4}|an?|one) ?(sec|min|hour|hr|h|day|d|week|w|month|mo|year|yr|y)(?:ond|ute)?s? ago")
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
        moment = _iso(text) or _epoch(text) or _numbers(text, day_first=day_first) or _english(text)
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


def _numbers(text: str, *, day_first: bool) -> datetime | None:
    if match := _YEAR_FIRST.fullmatch(text):
        return datetime(int(match[1]), int(match[3]), int(match[4]), tzinfo=UTC)
    if not (match := _YEAR_LAST.fullmatch(text)):
        return None
    first, second = int(match[1]), int(match[3])
    # only a slash may stand between month and day in that order, and no year has a month 13
    is_day_first = day_first or match[2] != "/" or first > len(_MONTHS)
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
    month = next((n for n, month_name in enumerate(_MONTHS, 1) if month_name.startswith(name)), None)
    return datetime(int(year), month, int(day), tzinfo=UTC) if month else None


def _relative(text: str, now: datetime | None) -> datetime | None:
    if now is None:
        return None
    if (days := _WORDS.get(text)) is not None:
        return _cut(_utc(now) - days).replace(hour=0, minute=0)
    if not (match := _AGO.fullmatch(text)):
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
