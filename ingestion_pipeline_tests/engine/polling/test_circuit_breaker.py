"""An open breaker: one probe after a day, however many workers run."""

import asyncio
from datetime import datetime, timedelta

import pytest

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import (
    a_feed,
    add_sources,
    fetch,
    fetch_async,
    poll,
    source_row,
    task_row,
)

DAY = timedelta(days=1)


def open_breaker(ctx: RunContext, web: FakeWeb, clock: FixedClock) -> datetime:
    """Let five polls of one source fail and return the time of its probe."""
    add_sources(ctx.store, a_definition(url="http://a.test/1"))
    web.routes["/1"] = 404
    for _ in range(5):
        clock.advance(days=2)
        fetch(ctx, web)
    assert source_row(ctx.store).status == "open"
    web.requests.clear()
    return clock.at + DAY


def probe_with_twenty_workers(ctx: RunContext, web: FakeWeb) -> None:
    async def probe() -> None:
        await asyncio.gather(*(fetch_async(ctx, web.port) for _ in range(20)))

    asyncio.run(probe())


@pytest.mark.slow
def test_an_open_breaker_blocks_requests_for_a_day(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    probe_at = open_breaker(ctx, web, clock)
    clock.at = probe_at - timedelta(seconds=1)

    probe_with_twenty_workers(ctx, web)

    assert web.requests == []


@pytest.mark.slow
def test_twenty_workers_send_one_probe_and_its_failure_keeps_the_breaker_open_for_another_day(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    open_breaker(ctx, web, clock)
    web.routes["/1"] = 500  # transient: a poll would try three times, a probe does not
    probed_at = clock.advance(days=1, hours=3)

    probe_with_twenty_workers(ctx, web)

    assert web.paths == ["/1"]
    source = source_row(store)
    assert (source.status, source.failure_count) == ("open", 6)
    assert source.next_check_at >= probed_at + DAY
    assert task_row(store).not_before == source.next_check_at


@pytest.mark.slow
def test_a_probe_that_succeeds_closes_the_breaker(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    open_breaker(ctx, web, clock)
    web.routes["/1"] = a_feed(1)
    clock.advance(days=1, hours=3)

    poll(ctx, web)

    source = source_row(store)
    assert (source.status, source.failure_count, len(web.requests)) == ("active", 0, 1)
