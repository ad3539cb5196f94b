"""The rules of a robots.txt answer, how long they hold, and checks against cached rules."""

from datetime import datetime, timedelta

import pytest

from ingestion_pipeline.pages.politeness.host_leases import HostLease, HostRobots, RedirectLeases
from ingestion_pipeline.pages.politeness.hosts import Pace, RateLimiter
from ingestion_pipeline.pages.politeness.robots import (
    CLOSED_FOR,
    LONGEST,
    SHORTEST,
    as_stored,
    from_stored,
    rules_of_answer,
    rules_when_unreachable,
)
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline.urls import canonical_url
from ingestion_pipeline_tests.polling_runs import a_fetcher

FORBIDDING = b"User-agent: *\nDisallow: /x"
X = "https://a.test/x"
Y = "https://a.test/y"


@pytest.mark.parametrize(
    ("status", "x_is_allowed", "y_is_allowed"),
    [
        (200, False, True),
        (204, False, True),
        (301, True, True),
        (401, True, True),
        (403, True, True),
        (404, True, True),
        (410, True, True),
        (429, False, False),
        (500, False, False),
        (503, False, False),
        (999, False, False),
    ],
)
def test_the_status_decides_what_the_host_allows(
    now: datetime, status: int, x_is_allowed: bool, y_is_allowed: bool
) -> None:
    robots = rules_of_answer(status, {}, FORBIDDING, now=now).robots

    assert (robots.allows("b", X), robots.allows("b", Y)) == (x_is_allowed, y_is_allowed)


def test_an_unreachable_host_disallows_everything_for_a_while(now: datetime) -> None:
    rules = rules_when_unreachable("timed out", now=now)

    assert not rules.robots.allows("b", Y)
    assert "timed out" in rules.reason
    assert rules.are_fresh(now=now + CLOSED_FOR - timedelta(seconds=1))
    assert not rules.are_fresh(now=now + CLOSED_FOR)


@pytest.mark.parametrize(
    ("status", "headers", "lifetime"),
    [
        (200, {}, LONGEST),
        (404, {}, LONGEST),
        (200, {"cache-control": "public, max-age=3600"}, timedelta(hours=1)),
        (200, {"cache-control": "s-maxage=60, max-age=7200"}, timedelta(hours=2)),
        (200, {"cache-control": "max-age=0"}, SHORTEST),
        (200, {"cache-control": "max-age=999999999999"}, LONGEST),
        (200, {"cache-control": "no-cache"}, SHORTEST),
        (200, {"expires": "Sun, 01 Mar 2026 15:00:00 GMT"}, timedelta(hours=3)),
        (200, {"expires": "0"}, LONGEST),
        (200, {"expires": "Thu, 01 Jan 1970 00:00:00 GMT"}, SHORTEST),
        (503, {}, CLOSED_FOR),
        (503, {"retry-after": "7200"}, timedelta(hours=2)),
        (503, {"retry-after": "9999999"}, LONGEST),
        (503, {"retry-after": "0"}, SHORTEST),
        (503, {"cache-control": "max-age=86400"}, CLOSED_FOR),
    ],
)
def test_rules_hold_as_long_as_the_headers_say_within_bounds(
    now: datetime, status: int, headers: dict[str, str], lifetime: timedelta
) -> None:
    assert rules_of_answer(status, headers, b"", now=now).expires_at == now + lifetime


def test_stored_rules_still_disallow_every_spelling(now: datetime) -> None:
    rules = rules_of_answer(200, {}, b"User-agent: *\nDisallow: /%7Ejoe/", now=now)

    restored = from_stored(as_stored(rules, "b/1.0"), "b/1.0")

    assert restored is not None
    assert not restored.robots.allows("b/1.0", "https://a.test/~joe/x")
    assert not restored.robots.allows("b/1.0", "https://a.test/%7Ejoe/x")


async def no_redirect_lease(host: str) -> HostLease:
    raise AssertionError(f"nothing leads to {host}")


def host_robots(body: bytes, *, now: datetime) -> HostRobots:
    fetcher = a_fetcher(Settings(), 1)
    rules = rules_of_answer(200, {}, body, now=now)
    return HostRobots(
        {"http://a.test": as_stored(rules, fetcher.user_agent)},
        fetcher=fetcher,
        rate_limiter=RateLimiter(Pace(delay_seconds=0), next_allowed_at=None, now=now),
        redirect_leases=RedirectLeases(acquire=no_redirect_lease, release=print, clock=SteadyClock(now)),
        clock=SteadyClock(now),
        longest_delay_seconds=60,
    )


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_path_disallowed_for_one_scheme_is_disallowed_for_the_other(scheme: str, now: datetime) -> None:
    robots = host_robots(b"User-agent: *\nDisallow: /private", now=now)

    robots.check_cached(f"{scheme}://a.test/public")
    with pytest.raises(Resource, match="Disallow"):
        robots.check_cached(f"{scheme}://a.test/private/x")


@pytest.mark.parametrize(
    ("rule", "linked"),
    [
        ("/%7Ejoe/", "/%7Ejoe/x"),
        ("/*?filter[", "/list?filter[]=x"),
        ("/search?q=", "/search?q=x&lang=en"),
        ("/*&lang=", "/search?q=x&lang=en"),
    ],
)
def test_a_disallowed_link_is_disallowed_under_its_canonical_url(rule: str, linked: str, now: datetime) -> None:
    robots = host_robots(f"User-agent: *\nDisallow: {rule}".encode(), now=now)
    url = canonical_url(f"http://a.test{linked}")

    with pytest.raises(Resource, match="Disallow"):
        robots.check_cached(url)
