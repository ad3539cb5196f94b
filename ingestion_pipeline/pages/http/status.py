"""What a status code means for the work that asked: go on, come back later, or never again."""

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
    """How long a host is left alone: when it blocks us, when it names no time, at the most."""

    blocked: timedelta = timedelta(hours=4)
    rate_limited: timedelta = timedelta(seconds=60)
    longest: timedelta = LONGEST


DEFAULT_WAITS = Waits()


def verdict(
    status: int,
    headers: Mapping[str, str],
    url: str,
    now: datetime,
    waits: Waits = DEFAULT_WAITS,
) -> WorkError | None:
    """The failure that `status` stands for, or None for a success; header names are lower case."""
    if 200 <= status < 300:  # noqa: PLR2004 - the success class of HTTP
        return None
    shown = without_credentials(url)
    wait = retry_after(headers.get("retry-after"), now=now, longest=waits.longest)
    if status == 429:  # noqa: PLR2004
        pause = waits.rate_limited if wait is None else wait
        return _rate_limited(status, shown, pause, now)
    if status in _BLOCKED:
        return Transient(
            f"{shown} answered {status}: it blocks us; asked again in {waits.blocked}",
            code=f"http_{status}",
            retry_after=waits.blocked,
        )
    if status in _TRANSIENT_4XX or status >= 500 or status < 200:  # noqa: PLR2004
        return Transient(f"{shown} answered {status}", code=f"http_{status}", retry_after=wait)
    return _permanent(status, shown)


def _rate_limited(status: int, shown: str, pause: timedelta, now: datetime) -> Resource:
    until = now + max(pause, RATE_LIMIT_MINIMUM)
    return Resource(
        f"{shown} answered {status}: asked again after {until:%Y-%m-%d %H:%M:%S} UTC",
        until=until,
        code="rate_limited",
    )


def _permanent(status: int, shown: str) -> Permanent:
    advice = "; the source can be retired" if status == 410 else ""  # noqa: PLR2004
    return Permanent(f"{shown} answered {status}{advice}", code=f"http_{status}")
