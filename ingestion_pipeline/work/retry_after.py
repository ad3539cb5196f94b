"""How long another side asks to be left alone, by the header that HTTP has for it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

LONGEST = timedelta(hours=24)


def retry_after(
    value: str | None, *, now: datetime | None, longest: timedelta = LONGEST
) -> timedelta | None:
    """How long the other side wants to be left alone, within bounds; None when it is silent.

    Without `now`, which is their clock where they tell it, a date says nothing.
    """
    text = (value or "").strip()
    if found := re.fullmatch(r"([0-9]+)(\.[0-9]{1,9})?", text):
        seconds = float(found[1][:18] + (found[2] or ""))
        return min(timedelta(seconds=min(seconds, longest.total_seconds())), longest)
    moment = http_date(text)
    if moment is None or now is None:
        return None
    return min(max(moment - now, timedelta(0)), longest)


def http_date(text: str) -> datetime | None:
    """The moment that an HTTP header names; None if it names none."""
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):  # the parser's own ways to fail
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
