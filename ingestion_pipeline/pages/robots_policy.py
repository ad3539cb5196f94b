"""What the answer for a robots.txt means for its host, and for how long (RFC 9309, 2.3 and 2.4)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ingestion_pipeline.pages.robots import (
    ALLOW_ALL,
    DISALLOW_ALL,
    Robots,
    RobotsGroup,
    RobotsRule,
    agent_name,
    read_robots,
)
from ingestion_pipeline.work.retry_after import http_date, retry_after

MAX_REDIRECTS = 5  # RFC 9309: at least five are followed; beyond them the file counts as absent
LONGEST = timedelta(hours=24)  # RFC 9309: a copy should not be used for longer
SHORTEST = timedelta(minutes=5)  # `no-cache` would double every request to the host
CLOSED_FOR = timedelta(hours=1)  # how long a host that cannot say its rules is left alone

_MAX_AGE = re.compile(r"(?:^|[\s,])max-age\s*=\s*\"?([0-9]{1,12})", re.IGNORECASE)
_NO_CACHE = re.compile(r"(?:^|[\s,])no-(?:cache|store)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRules:
    """What a host allows until `expires_at`; `reason` says where that comes from.

    One that `is_closed` could not say its rules: nothing may be fetched until it can.
    """

    robots: Robots
    expires_at: datetime
    reason: str
    is_closed: bool = False

    def are_fresh(self, *, now: datetime) -> bool:
        """Whether the rules still hold; if not, robots.txt is fetched before anything else."""
        return now < self.expires_at


def rules_of_answer(
    status: int, headers: Mapping[str, str], body: bytes, *, now: datetime
) -> HostRules:
    """The rules after an answer: 2xx is read, 4xx allows all, 5xx and 429 close the host a while.

    Header names are lower case. A redirect that is left after `MAX_REDIRECTS` is as good as absent.
    """
    if 200 <= status < 300:  # noqa: PLR2004 - the success class of HTTP
        until = now + lifetime(headers, now=now)
        return HostRules(robots=read_robots(body), expires_at=until, reason="robots.txt was read")
    # 429 is a 4xx that says "slower", not "there is no such file": Google closes the host, too.
    if status == 429 or status >= 500 or status < 200:  # noqa: PLR2004
        wait = retry_after(headers.get("retry-after"), now=now, longest=LONGEST)
        return _closed(f"robots.txt answered {status}", wait, now=now)
    return HostRules(
        robots=ALLOW_ALL,
        expires_at=now + lifetime(headers, now=now),
        reason=f"robots.txt answered {status}: there is none",
    )


def rules_when_unreachable(reason: str, *, now: datetime) -> HostRules:
    """The rules while robots.txt cannot be fetched at all: nothing may be, for a while."""
    return _closed(f"robots.txt could not be fetched: {reason}", None, now=now)


def lifetime(headers: Mapping[str, str], *, now: datetime) -> timedelta:
    """How long the headers let a copy be used, between 5 minutes and 24 hours; by default 24."""
    control = headers.get("cache-control", "")
    if _NO_CACHE.search(control):
        return SHORTEST
    if found := _MAX_AGE.search(control):
        return _bounded(timedelta(seconds=min(int(found[1]), 10**6)))
    expires = http_date(headers.get("expires", ""))
    return LONGEST if expires is None else _bounded(expires - now)


def _bounded(wanted: timedelta) -> timedelta:
    return min(max(wanted, SHORTEST), LONGEST)


def _closed(reason: str, wait: timedelta | None, *, now: datetime) -> HostRules:
    until = now + _bounded(CLOSED_FOR if wait is None else wait)
    return HostRules(robots=DISALLOW_ALL, expires_at=until, reason=reason, is_closed=True)


def as_stored(rules: HostRules, user_agent: str) -> dict[str, Any]:
    """The rules as a host's row keeps them: only what this agent is told."""
    told = rules.robots.group(user_agent)
    return {
        "agent": agent_name(user_agent),
        "expires_at": rules.expires_at.isoformat(),
        "reason": rules.reason,
        "is_closed": rules.is_closed,
        "delay_seconds": told.delay_seconds,
        # No URL holds a NUL, and PostgreSQL takes none.
        "rules": [[one.is_allowed, one.pattern] for one in told.rules if "\0" not in one.pattern],
    }


def from_stored(stored: Mapping[str, Any], user_agent: str) -> HostRules | None:
    """The rules again; None if they were told to an agent of another name."""
    if stored["agent"] != agent_name(user_agent):
        return None
    told = RobotsGroup(
        rules=[
            RobotsRule.of(pattern, is_allowed=is_allowed) for is_allowed, pattern in stored["rules"]
        ],
        delay_seconds=stored["delay_seconds"],
    )
    return HostRules(
        robots=Robots(groups={"*": told}),
        expires_at=datetime.fromisoformat(stored["expires_at"]),
        reason=stored["reason"],
        is_closed=stored["is_closed"],
    )
