"""Errors for HTTP status codes: success, retry later, or permanent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from ingestion_pipeline.tasks.errors import Permanent, Resource, Transient, WorkError
from ingestion_pipeline.tasks.retry import LONGEST, retry_after
from ingestion_pipeline.urls import without_credentials

RATE_LIMIT_MINIMUM = timedelta(seconds=1)  # a 429 costs no attempt: "again at once" would spin

_BLOCKED = frozenset({403, 407})
_TRANSIENT_4XX = frozenset({408, 425})


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How long to wait: when a host blocks us, when it names no time, and at the most."""

    blocked: timedelta = timedelta(hours=4)
    rate_limited: timedelta = timedelta(seconds=60)
    longest: timedelta = LONGEST


DEFAULT_WAITS = Waits()


def status_error(
    status: int, headers: Mapping[str, str], url: str, now: datetime, waits: Waits = DEFAULT_WAITS
) -> WorkError | None:
    """Return the failure for `status`; None for a success. Header names are lower case."""
    if 200 <= status < 300:  # noqa: PLR2004 - the success class of HTTP
        return None
    display_url = without_credentials(url)
    wait = retry_after(headers.get("retry-after"), now=now, longest=waits.longest)
    if status == 429:  # noqa: PLR2004
        pause = waits.rate_limited if wait is None else wait
        return _rate_limited(status, display_url, pause, now)
    if status in _BLOCKED:
        return Transient(
            f"{display_url} answered {status}: it blocks us; next request in {waits.blocked}",
            code=f"http_{status}",
            retry_after=waits.blocked,
        )
    if status in _TRANSIENT_4XX or status >= 500 or status < 200:  # noqa: PLR2004
        return Transient(f"{display_url} answered {status}", code=f"http_{status}", retry_after=wait)
    return _permanent(status, display_url)


def _rate_limited(status: int, display_url: str, pause: timedelta, now: datetime) -> Resource:
    until = now + max(pause, RATE_LIMIT_MINIMUM)
    return Resource(
        f"{display_url} answered {status}: next request after {until:%Y-%m-%d %H:%M:%S} UTC",
        until=until,
        code="rate_limited",
    )


def _permanent(status: int, display_url: str) -> Permanent:
    advice = "; the source can be retired" if status == 410 else ""  # noqa: PLR2004
    return Permanent(f"{display_url} answered {status}{advice}", code=f"http_{status}")
