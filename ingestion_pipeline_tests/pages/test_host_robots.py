"""The rules of a host, where nobody can wait for its robots.txt."""

from __future__ import annotations

from datetime import datetime

import pytest

from ingestion_pipeline.pages.politeness.host_leases import HostLease, HostRobots, RedirectLeases
from ingestion_pipeline.pages.politeness.hosts import Pace, RateLimiter
from ingestion_pipeline.pages.politeness.robots import as_stored, rules_of_answer
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline.urls import canonical_url
from ingestion_pipeline_tests.pollers import a_fetcher


async def nowhere(host: str) -> HostLease:
    raise AssertionError(f"nothing leads to {host}")


def robots_saying(said: bytes, *, now: datetime) -> HostRobots:
    fetcher = a_fetcher(Settings(), 1)
    rules = rules_of_answer(200, {}, said, now=now)
    return HostRobots(
        {"http://a.test": as_stored(rules, fetcher.user_agent)},
        fetcher=fetcher,
        rate_limiter=RateLimiter(Pace(delay_seconds=0), next_allowed_at=None, now=now),
        redirect_leases=RedirectLeases(acquire=nowhere, release=print, clock=SteadyClock(now)),
        clock=SteadyClock(now),
        longest_delay_seconds=60,
    )


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_what_a_host_forbids_by_one_scheme_is_not_got_by_the_other(scheme: str, now: datetime) -> None:
    robots = robots_saying(b"User-agent: *\nDisallow: /private", now=now)

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
def test_a_link_that_is_forbidden_is_not_got_under_its_canonical_name(rule: str, linked: str, now: datetime) -> None:
    robots = robots_saying(f"User-agent: *\nDisallow: {rule}".encode(), now=now)
    url = canonical_url(f"http://a.test{linked}")

    with pytest.raises(Resource, match="Disallow"):
        robots.check_cached(url)
