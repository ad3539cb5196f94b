"""What a status code means for the work that asked: go on, come back later, or never again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from ingestion_pipeline.urls import without_credentials
from ingestion_pipeline.work.errors import Permanent, Resource, Transient, WorkError

BLOCKED_RETRY_AFTER = timedelta(hours=4)  # ruling: 403 is *blocked*, tried again after 4 h
RATE_LIMIT_DEFAULT = timedelta(
    seconds=60
)  # a 429 that names no time: the commonest window there is
RATE_LIMIT_MINIMUM = timedelta(seconds=1)  # a 429 costs no attempt: "again at once" would spin
RETRY_AFTER_CAP = timedelta(hours=24)

_BLOCKED = frozenset({403, 407})
_TRANSIENT_4XX = frozenset({408, 425})


def verdict(status: int, headers: Mapping[str, str], url: str, now: datetime) -> WorkError | None:
    """The failure that `status` stands for, or None for a success; header names are lower case."""
    if 200 <= status < 300:  # noqa: PLR2004 - the success class of HTTP
        return None
    shown = without_credentials(url)
    wait = retry_after(headers.get("retry-after"), now=now)
    if status == 429 or (status == 503 and wait is not None):  # noqa: PLR2004
        return _rate_limited(status, shown, wait, now)
    if status in _BLOCKED:
        return Transient(
            f"{shown} answered {status}: it blocks us; asked again in 4 hours",
            code=f"http_{status}",
            retry_after=BLOCKED_RETRY_AFTER,
        )
    if status in _TRANSIENT_4XX or status >= 500 or status < 200:  # noqa: PLR2004
        return Transient(f"{shown} answered {status}", code=f"http_{status}", retry_after=wait)
    return _permanent(status, shown)


def retry_after(value: str | None, *, now: datetime) -> timedelta | None:
    """How long the other side wants to be left alone, at most a day; None when it does not say."""
    text = (value or "").strip()
    if re.fullmatch("[0-9]+", text):
        seconds = min(int(text[:18]), int(RETRY_AFTER_CAP.total_seconds()))
        return timedelta(seconds=seconds)
    moment = _http_date(text)
    if moment is None:
        return None
    return min(max(moment - now, timedelta(0)), RETRY_AFTER_CAP)


def _http_date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):  # the parser's own ways to fail
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _rate_limited(status: int, shown: str, wait: timedelta | None, now: datetime) -> Resource:
    until = now + max(RATE_LIMIT_DEFAULT if wait is None else wait, RATE_LIMIT_MINIMUM)
    return Resource(
        f"{shown} answered {status}: asked again after {until:%Y-%m-%d %H:%M:%S} UTC",
        until=until,
        code="rate_limited",
    )


def _permanent(status: int, shown: str) -> Permanent:
    advice = "; the source can be retired" if status == 410 else ""  # noqa: PLR2004
    return Permanent(f"{shown} answered {status}{advice}", code=f"http_{status}")
