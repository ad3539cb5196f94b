"""The rules of a host, where nobody can wait for its robots.txt."""

from __future__ import annotations

from datetime import datetime

import pytest

from ingestion_pipeline.pages.elsewhere import Elsewhere
from ingestion_pipeline.pages.host_robots import HostRobots
from ingestion_pipeline.pages.hosts import Pace, Pacer
from ingestion_pipeline.pages.leased_hosts import Visited
from ingestion_pipeline.pages.robots_policy import as_stored, rules_of_answer
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.work.errors import Resource
from ingestion_pipeline_tests.pollers import a_fetcher


async def nowhere(host: str) -> Visited:
    raise AssertionError(f"nothing leads to {host}")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_what_a_host_forbids_by_one_scheme_is_not_got_by_the_other(
    scheme: str, now: datetime
) -> None:
    fetcher = a_fetcher(Settings(), 1)
    rules = rules_of_answer(200, {}, b"User-agent: *\nDisallow: /private", now=now)
    robots = HostRobots(
        {"http://a.test": as_stored(rules, fetcher.user_agent)},
        fetcher=fetcher,
        pacer=Pacer(Pace(delay_seconds=0), next_allowed_at=None, now=now),
        elsewhere=Elsewhere(borrow=nowhere, give_back=print, clock=SteadyClock(now)),
        clock=SteadyClock(now),
        longest_delay_seconds=60,
    )

    robots.check_known(f"{scheme}://a.test/public")
    with pytest.raises(Resource, match="Disallow"):
        robots.check_known(f"{scheme}://a.test/private/x")
