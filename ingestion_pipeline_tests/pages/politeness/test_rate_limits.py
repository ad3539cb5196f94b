"""Request spacing and pauses while a run fetches, measured at the server."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import event, update

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.poll_handler import PollHandler, PollRunResult
from ingestion_pipeline.engine.worker_loop import WorkerLoop
from ingestion_pipeline.pages.politeness import host_leases
from ingestion_pipeline.pages.politeness.hosts import lease_hosts
from ingestion_pipeline.series.platforms import platform
from ingestion_pipeline.sources.source import Definition
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.tables import dead_letters, hosts, sources, tasks
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline_tests.fakes import FakeWeb, Reply, dripping_answer
from ingestion_pipeline_tests.pages.politeness.polls import Polls, a_source, host_row
from ingestion_pipeline_tests.polling_runs import (
    POLLS,
    RunningClock,
    a_feed,
    a_fetcher,
    add_robots,
    add_sources,
    fetch_async,
    rows,
    slow_answer,
    task_row,
    wait_until,
    with_settings,
)

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
# Tests of timing rather than rows need no second database.
ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"])


def lease_by_another(store: Store, now: datetime) -> None:
    with store.begin() as connection:
        lease_hosts(connection, ["a.test"], owner="another", now=now, lease=HOUR)


def gaps(web: FakeWeb) -> list[float]:
    return [after.at - before.at for before, after in pairwise(web.requests)]


def fetch_while(ctx: RunContext, web: FakeWeb, meanwhile: Callable[[], None]) -> PollRunResult:
    """Fetch, and call `meanwhile` in another thread."""

    async def both() -> PollRunResult:
        run = asyncio.create_task(fetch_async(ctx, web.port))
        await asyncio.to_thread(meanwhile)
        return (await run)[1]

    return asyncio.run(both())


@pytest.mark.parametrize(
    ("value", "pause"), [("3600", HOUR), ("date", HOUR), ("999999999", DAY)], ids=["seconds", "date", "absurd"]
)
def test_after_a_429_no_request_is_sent_before_the_time_it_named(
    polls: Polls, clock: FixedClock, value: str, pause: timedelta
) -> None:
    began = clock.at
    retry_after = format_datetime(began + HOUR, usegmt=True) if value == "date" else value
    polls.add(a_source("1"), a_source("2"))
    polls.web.routes |= {"/1": Reply(b"", 429, {"Retry-After": retry_after}), "/2": a_feed(1)}

    fetched = polls.fetch()
    clock.advance(minutes=30)
    polls.add(a_source("3"))
    polls.fetch()

    assert (fetched.counts.given_back, polls.web.paths) == (2, ["/1"])
    assert host_row(polls.store).next_allowed_at - began == pytest.approx(pause, abs=2 * SECOND)
    task_rows = rows(polls.store, tasks)
    assert {(task.status, task.attempts, task.error_code) for task in task_rows} == {("PENDING", 0, "rate_limited")}
    assert min(task.not_before for task in task_rows) >= began + pause - 2 * SECOND
    assert {source.failure_count for source in rows(polls.store, sources)} == {0}
    assert rows(polls.store, dead_letters) == []

    polls.web.routes |= {"/1": a_feed(1), "/3": a_feed(1)}
    clock.advance(days=1)
    assert polls.fetch().counts.changed == 3


@pytest.mark.slow
@ON_SQLITE
def test_other_polls_of_the_host_wait_for_a_short_pause(polls: Polls) -> None:
    polls.add(a_source("1"), a_source("2"))
    polls.web.routes |= {"/1": Reply(b"", 429, {"Retry-After": "1"}), "/2": a_feed(1)}

    fetched = polls.fetch()

    assert (fetched.counts.given_back, fetched.counts.changed) == (1, 1)
    assert polls.web.paths == ["/1", "/2"]
    assert gaps(polls.web)[0] >= 0.99


@pytest.mark.slow
@ON_SQLITE
def test_a_pause_stops_a_feed_between_two_of_its_pages(polls: Polls) -> None:
    """It once waited for the host's pause with its first page fetched: up to a day."""
    first, second = (a_manga(name) for name in ("one", "two"))
    polls.add(first, second)
    page = b'{"result": "ok", "response": "collection", "data": [], "limit": 1, "offset": 0, '
    polls.web.routes |= {
        path_of(first): slow_answer(page + b'"total": 2}', 0.3),
        path_of(second): Reply(b"", 429, {"Retry-After": "600"}),
    }

    fetched = polls.fetch()

    assert fetched.counts.given_back == 2
    assert len(polls.web.requests) == 2
    assert "asked for a pause" in task_row(polls.store, "series:one").error


def a_manga(name: str) -> Definition:
    config = {"api_base": "http://a.test", "manga_id": name, "limit": 1}
    return a_source(name, platform="mangadex", config=config)


def path_of(source: Definition) -> str:
    feed = platform(source.platform or "").configure(source.url, source.config)
    return feed.first_request().url.removeprefix("http://a.test")


def test_a_host_leased_by_another_run_is_not_fetched_and_is_marked_as_awaited(polls: Polls, now: datetime) -> None:
    polls.add(a_source("1"), a_source("2", "b.test"))
    polls.web.routes |= {"/1": a_feed(1), "/2": a_feed(1)}
    lease_by_another(polls.store, now)

    fetched = polls.fetch()

    assert (polls.web.paths, fetched.counts.given_back) == (["/2"], 1)
    task = task_row(polls.store, "series:1")
    assert (task.status, task.attempts, task.not_before) == ("PENDING", 0, now + HOUR)
    assert (task.error_code, task.error) == ("host_busy", "a.test is leased by another run")
    assert host_row(polls.store).requested_at == now


@pytest.mark.slow
@ON_SQLITE
def test_requests_to_one_host_are_spaced_from_the_end_of_the_previous_one(polls: Polls) -> None:
    polls.add(*(a_source(name) for name in "123"))
    polls.web.routes |= {f"/{name}": slow_answer(a_feed(1), 0.2) for name in "123"}

    polls.fetch(hosts__delay_seconds="0.2")

    assert len(polls.web.requests) == 3
    assert min(gaps(polls.web)) >= 0.4


@pytest.mark.slow
@ON_SQLITE
def test_requests_to_different_hosts_overlap(polls: Polls) -> None:
    polls.add(*(a_source(name, f"{name}.test") for name in "1234"))
    add_robots(polls.store, *(f"{name}.test" for name in "1234"))
    polls.web.routes |= {f"/{name}": slow_answer(a_feed(1), 0.8) for name in "1234"}

    polls.fetch(hosts__delay_seconds="30")

    assert len(polls.web.requests) == 4
    assert polls.web.requests[-1].at - polls.web.requests[0].at < 0.8


@pytest.mark.slow
@ON_SQLITE
def test_a_host_that_is_visited_again_in_the_same_run_keeps_its_spacing(polls: Polls, now: datetime) -> None:
    """The second visit once started with the row's state from before the first one."""
    polls.store.clock = RunningClock(now)
    polls.add(a_source("1"), a_source("2", "slow.test"), a_source("3"))
    polls.web.routes |= {"/1": a_feed(1), "/2": slow_answer(a_feed(1), 1.0), "/3": a_feed(1)}

    polls.fetch(polling__batch_size="2", hosts__delay_seconds="0.5")

    [first, second] = [request for request in polls.web.requests if request.host == "a.test"]
    assert second.at - first.at >= 0.5


@pytest.mark.slow
def test_spacing_continues_in_the_next_run(polls: Polls, now: datetime) -> None:
    """The row once got the wait measured at the end of a slow transaction, added to its start time."""
    polls.store.clock = RunningClock(now)
    polls.web.routes |= {"/1": a_feed(1), "/2": a_feed(1)}

    @event.listens_for(polls.store.engine, "before_cursor_execute")
    def write_slowly(*call: Any) -> None:
        time.sleep(0.3 if "INSERT INTO batch_items" in call[2] else 0)

    polls.add(a_source("1"))
    polls.fetch(hosts__delay_seconds="0.7")
    polls.add(a_source("2"))
    polls.fetch(hosts__delay_seconds="0.7")

    assert gaps(polls.web)[0] >= 0.7


@pytest.mark.slow
@ON_SQLITE
def test_a_visit_that_ends_while_other_hosts_are_leased_loses_nothing(polls: Polls) -> None:
    """New polls of its host were once added to a queue that no longer existed."""
    polls.add(a_source("1"), a_source("2", "b.test"), a_source("3", "b.test"))
    polls.web.routes |= {"/1": slow_answer(a_feed(1), 0.3)} | {f"/{name}": a_feed(1) for name in "2345"}
    polls.add(a_source("4"), a_source("5", "c.test"))
    leases: list[str] = []

    @event.listens_for(polls.store.engine, "before_cursor_execute")
    def lease_slowly(*call: Any) -> None:
        if "INSERT INTO hosts" in call[2]:
            leases.append(call[2])
            time.sleep(0.6 if len(leases) == 2 else 0)

    fetched = polls.fetch(polling__batch_size="3")

    assert fetched.counts.changed == 5


@pytest.mark.slow
@ON_SQLITE
def test_a_run_whose_time_is_over_releases_its_remaining_tasks(polls: Polls, now: datetime) -> None:
    polls.add(*(a_source(name) for name in "123456"))
    polls.web.routes |= {f"/{name}": a_feed(1) for name in "123456"}

    fetched = polls.fetch(polling__slice_seconds="1", hosts__delay_seconds="0.4")

    assert 2 <= fetched.counts.changed <= 4
    assert fetched.counts.changed + fetched.counts.given_back == 6
    remaining = [task for task in rows(polls.store, tasks) if task.status == "PENDING"]
    assert {(task.attempts, task.error_code) for task in remaining} == {(0, "slice_over")}
    assert max(task.not_before for task in remaining) <= now + 3 * SECOND


@pytest.mark.slow
@ON_SQLITE
def test_a_dripping_server_is_dropped_at_the_deadline_and_its_host_is_released(polls: Polls, now: datetime) -> None:
    polls.add(a_source("1"))
    polls.web.routes["/1"] = dripping_answer(b"HTTP/1.1 200 OK\r\n\r\n", every_seconds=0.05)
    began = time.monotonic()

    polls.fetch(fetch__deadline_seconds="0.4", work__max_attempts="1")

    assert 0.4 <= time.monotonic() - began < 2
    assert rows(polls.store, dead_letters)[0].error_code == "timeout"
    assert host_row(polls.store).lease_owner is None


@pytest.mark.slow
@ON_SQLITE
def test_a_pause_is_stored_while_the_run_still_fetches_from_another_host(polls: Polls, now: datetime) -> None:
    """Its lease once expired before the run's end, and the next run sent a request at once."""
    polls.add(a_source("1"), a_source("2", "slow.test"))
    polls.web.routes |= {"/1": Reply(b"", 429, {"Retry-After": "600"}), "/2": slow_answer(a_feed(1), 3.6)}
    written_at: list[float] = []

    def watch() -> None:
        wait_until(lambda: any(row.next_allowed_at for row in rows(polls.store, hosts)))
        written_at.append(time.monotonic())

    fetch_while(polls.ctx, polls.web, watch)

    assert written_at[0] - polls.web.requests[0].at < 3.5
    assert host_row(polls.store).next_allowed_at >= now + timedelta(seconds=590)


@pytest.mark.slow
def test_a_host_that_other_runs_wait_for_is_released_to_them(
    polls: Polls, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_leases, "YIELD_AFTER", timedelta(seconds=1))
    polls.store.clock = RunningClock(now)
    polls.add(*(a_source(name) for name in "123456789"))
    polls.web.routes |= {f"/{name}": a_feed(1) for name in "123456789"}
    ctx = with_settings(
        polls.ctx,
        hosts__delay_seconds="0.4",
        work__lease_seconds="3",  # long enough for a busy machine to begin at all
    )

    def want() -> None:
        wait_until(lambda: bool(polls.web.requests))
        lease_by_another(polls.store, now)

    fetched = fetch_while(ctx, polls.web, want)

    assert 1 <= fetched.counts.changed < 9
    assert fetched.counts.given_back == 9 - fetched.counts.changed
    assert host_row(polls.store).lease_owner is None
    assert "handed to another run" in task_row(polls.store, "series:9").error


@pytest.mark.slow
def test_a_host_whose_lease_was_lost_is_no_longer_fetched(polls: Polls, now: datetime) -> None:
    """A run suspended past its lease once continued beside the run that had the host by then."""
    polls.store.clock = RunningClock(now)
    polls.add(*(a_source(name) for name in "123456789"))
    polls.web.routes |= {f"/{name}": a_feed(1) for name in "123456789"}
    ctx = with_settings(polls.ctx, hosts__delay_seconds="0.4", work__lease_seconds="1")

    def take() -> None:
        wait_until(lambda: bool(polls.web.requests))
        with polls.store.begin() as connection:
            connection.execute(update(hosts).values(lease_owner="another", lease_until=now + DAY))

    fetched = fetch_while(ctx, polls.web, take)

    assert 1 <= fetched.counts.changed <= 3
    assert host_row(polls.store).lease_owner == "another"


class ClaimsAtTheEnd(WorkerLoop[Any, Any]):
    """Claims again when a host's queue is empty and the visit has not ended yet."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        queues: Any = self._queues
        execute_queue = queues._execute_queue

        async def execute_and_claim(host: str) -> None:
            await execute_queue(host)
            await self._claim_more()

        queues._execute_queue = execute_and_claim


@ON_SQLITE
def test_a_task_claimed_while_a_visit_ends_is_fetched_too(ctx: RunContext, web: FakeWeb, store: Store) -> None:
    """Eight of a thousand polls were once released by a run that had enough time."""
    ctx = with_settings(ctx, polling__batch_size="1")
    add_sources(store, a_source("one"), a_source("two"))
    web.routes |= {"/one": a_feed(1), "/two": a_feed(2)}

    async def run() -> Counter[str]:
        worker, clock = Worker(store, lease_seconds=60), SteadyClock(store.now())
        async with a_fetcher(ctx.settings, web.port) as fetcher:
            handler = PollHandler(ctx, POLLS, capacity=1, fetcher=fetcher, clock=clock)
            return await ClaimsAtTheEnd(ctx, worker, fetcher, handler, clock=clock).run()

    assert asyncio.run(run()) == {"changed": 2}
