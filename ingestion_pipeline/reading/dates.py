"""Dates as pages write them: ISO, seconds or milliseconds since 1970, or words in English."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

MAX_CHARACTERS = 100  # the longest date that people write has 40

_EPOCH = re.compile(r"[0-9]{9,10}(?:\.[0-9]+)?|[0-9]{12,13}")
_MILLISECONDS_FROM = 10**11  # as seconds, the year 5138
_RELATIVE = re.compile(r"\b(?:ago|yesterday|today|now)\b", re.IGNORECASE)
_MINUTES = re.compile(r"\b(?:sec|second|min|minute)s?\b|\bnow\b", re.IGNORECASE)
_HOURS = re.compile(r"\b(?:hour|hr)s?\b", re.IGNORECASE)
_SOME_DATE = re.compile(r"[0-9].*[^0-9\s]|[^0-9\s].*[0-9]", re.DOTALL)


def read_date(text: str, *, now: datetime | None) -> datetime | None:
    """The moment in UTC; None if it cannot be told, or only from a `now` that is not given.

    A relative date is cut to its unit ("2 days ago" is a day), so that a later look says the same.
    """
    text = text.strip()[:MAX_CHARACTERS]
    try:
        return _iso(text) or _epoch(text) or _words(text, now)
    except (ValueError, OverflowError, OSError):
        return None


def is_relative(text: str) -> bool:
    """Whether the date means nothing without the time at which it was fetched."""
    return bool(_RELATIVE.search(text[:MAX_CHARACTERS]))


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


def _words(text: str, now: datetime | None) -> datetime | None:
    if is_relative(text):
        return _cut(_parsed(text, now, ()), text) if now else None
    if not _SOME_DATE.search(text):
        return None
    return _parsed(text, now, ("day", "month") if now else ("day", "month", "year"))


def _parsed(text: str, now: datetime | None, parts: tuple[str, ...]) -> datetime | None:
    """What dateparser makes of the words; the only place that knows it."""
    import dateparser  # pyright: ignore[reportMissingTypeStubs]  it ships none

    # never the wall clock: a base is always given
    base = (now or datetime(2000, 1, 1, tzinfo=UTC)).astimezone(UTC).replace(tzinfo=None)
    settings = {
        "RELATIVE_BASE": base,
        "TIMEZONE": "UTC",
        "RETURN_AS_TIMEZONE_AWARE": True,
        "PREFER_DATES_FROM": "past",
        "REQUIRE_PARTS": list(parts),
    }
    found = dateparser.parse(text, languages=["en"], settings=settings)  # pyright: ignore[reportUnknownMemberType, reportArgumentType]  its annotations are partial
    return _utc(found) if found else None


def _cut(moment: datetime | None, text: str) -> datetime | None:
    if moment is None:
        return None
    moment = moment.replace(second=0, microsecond=0)
    if _MINUTES.search(text):
        return moment
    moment -= timedelta(minutes=moment.minute)
    return moment if _HOURS.search(text) else moment.replace(hour=0)


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
