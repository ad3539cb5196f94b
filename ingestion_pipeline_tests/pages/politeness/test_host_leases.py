"""Redirects to another host: its rules and spacing apply, and its lease is held during use and released afterwards."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from sqlalchemy import select

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.politeness.host_leases import HostLease, LeasedHosts, next_allowed_at
from ingestion_pipeline.pages.politeness.hosts import lease_hosts, lock_hosts
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store import FixedClock, Store, open_store
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.tables import hosts
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb, Reply, WebAnswer, redirect
from ingestion_pipeline_tests.pages.politeness.polls import Polls, a_source, host_row, task_state
from ingestion_pipeline_tests.polling_runs import (
    a_feed,
    a_fetcher,
    add_robots,
    add_sources,
    slow_answer,
    task_row,
    with_settings,
)

pytestmark = pytest.mark.both_databases

DELAY = 0.3
HOSTS = ("a.test", "b.test")
TARGET = "http://b.test/there"
ON_POSTGRES = pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)])


class Run:
    """The hosts of one run that fetches from a.test, whose pages redirect to b.test."""

    def __init__(self, ctx: RunContext, leased: LeasedHosts, source: Source, owner: str) -> None:
        self._ctx = ctx
        self.hosts = leased
        self.owner = owner
        lease = leased.lease({"a.test": source})["a.test"]
        assert isinstance(lease, HostLease)
        self.own = leased.active["a.test"] = lease

    async def follow(self, until: AsyncExitStack) -> HostLease:
        """Follow a redirect to b.test and hold its lease until the stack is closed."""
        await self.own.redirect_leases.follow(TARGET, honours_robots=True, until=until)
        lease = self.hosts.existing_lease("b.test")
        assert lease is not None
        return lease

    def renew(self) -> None:
        self.hosts.renew()

    def release_all(self) -> None:
        self._release({host: lease for host in HOSTS if (lease := self.hosts.existing_lease(host))})

    async def flush(self, meanwhile: asyncio.Event | None = None) -> set[str]:
        """Release the hosts no longer in use, after waiting for `meanwhile`."""
        async with self.hosts.releasing() as leases:
            if meanwhile is not None:
                await meanwhile.wait()
            await asyncio.to_thread(self._release, leases)
        return set(leases)

    def _release(self, leases: dict[str, HostLease]) -> None:
        with self._ctx.store.begin() as connection:
            now = self._ctx.store.clock.now(connection)
            free = next_allowed_at(leases, self._ctx.store, connection)
            self.hosts.release(connection, leases, free, now=now)


@asynccontextmanager
async def a_run(ctx: RunContext, web: FakeWeb, now: datetime, robots_of: Sequence[str] = HOSTS) -> AsyncGenerator[Run]:
    ctx = with_settings(ctx, hosts__delay_seconds=str(DELAY))
    add_sources(ctx.store, a_definition(id="series:one", url="http://a.test/one"))
    add_robots(ctx.store, *robots_of)
    with ctx.store.read() as connection:
        source = sources_by_id(connection, ["series:one"])["series:one"]
    worker = Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds)
    # The database's clock stands still, and so does this one.
    clock = SteadyClock(now, monotonic=lambda: 0.0)
    async with a_fetcher(ctx.settings, web.port) as fetcher:
        yield Run(ctx, LeasedHosts(ctx, worker, fetcher, clock), source, worker.owner)


@pytest.mark.slow
def test_a_host_being_released_is_leased_again_only_after_its_release(
    ctx: RunContext, store: Store, web: FakeWeb, now: datetime
) -> None:
    async def scenario() -> None:
        async with a_run(ctx, web, now) as run:
            async with AsyncExitStack() as until:
                first = await run.follow(until)
            may_release = asyncio.Event()
            flush = asyncio.create_task(run.flush(may_release))
            async with AsyncExitStack() as until:
                follower = asyncio.create_task(run.follow(until))
                _, waiting = await asyncio.wait({follower}, timeout=2 * DELAY)
                assert waiting, "the lease would have been lost while in use"
                may_release.set()
                assert await follower is not first
                assert await flush == {"b.test"}
                assert host_row(store, "b.test").lease_owner == run.owner

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_redirect_lease_in_use_is_not_released(ctx: RunContext, store: Store, web: FakeWeb, now: datetime) -> None:
    async def scenario() -> None:
        async with a_run(ctx, web, now) as run:
            async with AsyncExitStack() as until:
                await run.follow(until)
            async with AsyncExitStack() as until:
                await run.follow(until)  # no longer in use, and leased again before the flush
                assert await run.flush() == set()
                assert host_row(store, "b.test").lease_owner == run.owner
            assert await run.flush() == {"b.test"}
            assert host_row(store, "b.test").lease_owner is None

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize("is_released", [False, True], ids=["still ours", "released"])
def test_a_host_leased_again_keeps_its_request_spacing(
    ctx: RunContext, web: FakeWeb, now: datetime, *, is_released: bool
) -> None:
    async def scenario() -> float:
        async with a_run(ctx, web, now) as run:
            async with AsyncExitStack() as until:
                lease = await run.follow(until)
                assert lease.rate_limiter.pace.delay_seconds == DELAY
                requested_at = time.monotonic()
            if is_released:
                await run.flush()
            async with AsyncExitStack() as until:
                await run.follow(until)
                return time.monotonic() - requested_at

    assert asyncio.run(scenario()) >= DELAY - 0.01


@ON_POSTGRES
@pytest.mark.parametrize("step", [Run.renew, Run.release_all], ids=["renew", "release"])
def test_hosts_are_locked_in_one_order_whichever_has_new_rules(
    ctx: RunContext, store: Store, web: FakeWeb, now: datetime, step: Callable[[Run], None]
) -> None:
    """Only the second host has new robots.txt rules: the first is locked before it."""

    async def scenario() -> None:
        async with a_run(ctx, web, now, robots_of=["a.test"]) as run, AsyncExitStack() as until:
            await run.follow(until)
            with store.begin() as other_transaction:
                lock_hosts(other_transaction, ["b.test"])
                writing = asyncio.create_task(asyncio.to_thread(step, run))
                await until_true(lambda: "a.test" not in free_to_lock(store))
            await writing
            assert host_row(store, "b.test").robots is not None

    asyncio.run(scenario())


@ON_POSTGRES
def test_a_host_that_cannot_be_released_expires_without_failing_the_run(
    ctx: RunContext, store: Store, web: FakeWeb, now: datetime, database_url: str
) -> None:
    hasty = open_store(f"{database_url}&options=-clock_timeout%3D50", clock=store.clock)

    async def scenario() -> None:
        async with a_run(replace(ctx, store=hasty), web, now) as run:
            with store.begin() as other_transaction:
                lock_hosts(other_transaction, ["a.test"])
                await asyncio.to_thread(run.hosts.release_in_own_transaction, {"a.test": run.own})
            assert host_row(store, "a.test").lease_owner == run.owner
            await asyncio.to_thread(run.hosts.release_in_own_transaction, {"a.test": run.own})
            assert host_row(store, "a.test").lease_owner is None

    asyncio.run(scenario())
    hasty.close()


async def until_true(is_so: Callable[[], bool], patience_seconds: float = 5.0) -> None:
    ends = time.monotonic() + patience_seconds
    while not is_so():
        assert time.monotonic() < ends, "it waits for the second host without having locked the first"
        await asyncio.sleep(0.01)


def free_to_lock(store: Store) -> set[str]:
    with store.begin() as connection:
        query = select(hosts.c.host).with_for_update(skip_locked=True)
        return set(connection.execute(query).scalars())


ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"])
MINUTE = timedelta(minutes=1)


def serve_redirect(web: FakeWeb, *, rules: WebAnswer = 404, target: WebAnswer | None = None) -> None:
    """Redirect /one of a.test to /there of b.test, which has these rules."""
    web.routes |= {"/one": redirect("http://b.test/there"), "b.test/robots.txt": rules}
    web.routes["b.test/there"] = a_feed(1) if target is None else target


def requested_paths(web: FakeWeb, host: str) -> list[str]:
    return [request.path for request in web.requests if request.host == host]


def test_the_target_hosts_rules_are_fetched_and_stored_and_its_lease_is_released(polls: Polls) -> None:
    serve_redirect(polls.web, rules=b"User-agent: *\nDisallow: /private")
    polls.add(a_source("one"))

    fetched = polls.fetch()

    assert fetched.counts.changed == 1
    assert requested_paths(polls.web, "b.test") == ["/there"]
    assert [request.host for request in polls.web.robots_requests] == ["a.test", "b.test"]
    row = host_row(polls.store, "b.test")
    assert row.robots["http://b.test"]["rules"] == [[False, "/private"]]
    assert row.lease_owner is None


@ON_SQLITE
@pytest.mark.parametrize(
    ("rules", "code"), [(b"User-agent: *\nDisallow: /there", "blocked_by_robots"), (503, "robots_unavailable")]
)
def test_a_url_that_the_target_host_disallows_is_not_fetched(polls: Polls, rules: WebAnswer, code: str) -> None:
    serve_redirect(polls.web, rules=rules)
    polls.add(a_source("one"))

    polls.fetch()

    assert (requested_paths(polls.web, "a.test"), requested_paths(polls.web, "b.test")) == (["/one"], [])
    assert task_state(polls.store, "series:one") == ("PENDING", 0, code)


@ON_SQLITE
def test_a_source_that_ignores_robots_still_needs_the_lease_of_the_target_host(polls: Polls) -> None:
    serve_redirect(polls.web, rules=b"User-agent: *\nDisallow: /")
    polls.add(a_source("one", config={"ignore_robots": True}))

    polls.fetch()

    assert (requested_paths(polls.web, "b.test"), polls.web.robots_requests) == (["/there"], [])
    assert host_row(polls.store, "b.test").next_allowed_at is not None


def test_a_target_host_leased_by_another_run_is_not_fetched_and_the_poll_is_released(
    polls: Polls, now: datetime
) -> None:
    serve_redirect(polls.web)
    polls.add(a_source("one"))
    with polls.store.begin() as connection:
        lease_hosts(connection, ["b.test"], owner="another", now=now, lease=MINUTE)

    polls.fetch()

    assert (requested_paths(polls.web, "a.test"), requested_paths(polls.web, "b.test")) == (["/one"], [])
    task = task_row(polls.store, "series:one")
    assert (task.status, task.attempts, task.error_code) == ("PENDING", 0, "host_busy")
    assert task.not_before == now + MINUTE
    assert host_row(polls.store, "b.test").requested_at is not None


@pytest.mark.slow
@ON_SQLITE
def test_redirects_from_many_hosts_keep_the_spacing_of_their_target(polls: Polls) -> None:
    names = ["one", "two", "three"]
    add_robots(polls.store, *(f"{name}.test" for name in names), "b.test")
    polls.web.routes |= {f"/{name}": redirect("http://b.test/there") for name in names}
    polls.web.routes |= {"b.test/there": a_feed(1), "b.test/own": a_feed(1)}
    polls.add(*(a_source(name, f"{name}.test") for name in names))
    polls.add(a_source("own", "b.test"))

    fetched = polls.fetch(hosts__delay_seconds="0.3")

    assert fetched.counts.changed == 4
    times = sorted(request.at for request in polls.web.requests if request.host == "b.test")
    assert len(times) == 4
    assert min(after - before for before, after in pairwise(times)) >= 0.29


@ON_SQLITE
@pytest.mark.parametrize(("status", "code"), [(429, "rate_limited"), (503, "http_503")])
def test_a_pause_of_the_target_host_applies_to_every_source_of_that_host_alone(
    polls: Polls, clock: FixedClock, status: int, code: str
) -> None:
    serve_redirect(polls.web, target=Reply(b"", status, {"Retry-After": "600"}))
    polls.web.routes["/two"] = a_feed(1)
    polls.add(a_source("one"))

    polls.fetch()

    assert task_row(polls.store, "series:one").error_code == code
    wait = host_row(polls.store, "b.test").next_allowed_at - clock.at
    assert wait == pytest.approx(timedelta(seconds=600), abs=timedelta(seconds=5))
    polls.add(a_source("own", "b.test"), a_source("two"))
    polls.fetch()
    assert requested_paths(polls.web, "b.test") == ["/there"]
    assert requested_paths(polls.web, "a.test") == ["/one", "/two"]


@pytest.mark.slow
@ON_SQLITE
def test_a_timeout_of_the_target_host_counts_against_that_host_alone(polls: Polls) -> None:
    serve_redirect(polls.web, target=slow_answer(b"late", 30))
    polls.add(a_source("one"))

    polls.fetch(fetch__deadline_seconds="0.5")

    assert task_row(polls.store, "series:one").error_code == "timeout"
    scores = {
        host: (row.error_score, row.timed_out_at is None) for host in HOSTS if (row := host_row(polls.store, host))
    }
    assert scores == {"a.test": (0.0, True), "b.test": (1.0, False)}


@ON_SQLITE
def test_a_robots_txt_that_asks_for_a_pause_pauses_its_host_for_sources_that_ignore_it(
    polls: Polls, clock: FixedClock
) -> None:
    polls.web.routes |= {"a.test/robots.txt": Reply(b"", 503, {"Retry-After": "900"}), "/two": a_feed(1)}
    polls.add(a_source("one"))
    polls.fetch()
    polls.add(a_source("two", config={"ignore_robots": True}))

    polls.fetch()

    assert requested_paths(polls.web, "a.test") == []
    assert task_row(polls.store, "series:two").error_code == "rate_limited"


@ON_SQLITE
def test_a_long_delay_of_the_target_host_is_not_waited_for(polls: Polls, clock: FixedClock) -> None:
    serve_redirect(polls.web, rules=b"User-agent: *\nCrawl-delay: 20")
    polls.add(a_source("one"))

    polls.fetch()

    task = task_row(polls.store, "series:one")
    assert (task.error_code, requested_paths(polls.web, "b.test")) == ("host_busy", [])
    clock.advance(seconds=25)
    assert polls.fetch().counts.changed == 1


@pytest.mark.slow
@ON_SQLITE
def test_every_hop_on_the_same_host_waits_for_its_turn(polls: Polls) -> None:
    """They once came within a millisecond: a redirect counted as part of the request before it."""
    add_robots(polls.store, "a.test")
    polls.web.routes |= {"/one": redirect("/two"), "/two": redirect("/three"), "/three": a_feed(1)}
    polls.add(a_source("one"))

    fetched = polls.fetch(hosts__delay_seconds="0.4", fetch__deadline_seconds="0.6")

    assert fetched.counts.changed == 1  # our own waiting does not count against the deadline
    times = [request.at for request in polls.web.requests]
    assert len(times) == 3
    assert min(after - before for before, after in pairwise(times)) >= 0.39


def test_a_redirected_robots_txt_is_not_fetched_while_another_run_leases_its_host(polls: Polls, now: datetime) -> None:
    polls.web.routes |= {"a.test/robots.txt": redirect("http://b.test/rules"), "/one": a_feed(1)}
    polls.web.routes |= {"b.test/rules": b"User-agent: *\nAllow: /"}
    polls.add(a_source("one"))
    with polls.store.begin() as connection:
        lease_hosts(connection, ["b.test"], owner="another", now=now, lease=MINUTE)

    polls.fetch()

    assert (requested_paths(polls.web, "b.test"), requested_paths(polls.web, "a.test")) == ([], [])
    assert task_state(polls.store, "series:one") == ("PENDING", 0, "host_busy")


@pytest.mark.slow
@ON_SQLITE
def test_a_redirected_robots_txt_keeps_the_spacing_of_each_host(polls: Polls) -> None:
    polls.web.routes |= {"a.test/robots.txt": redirect("/rules"), "a.test/rules": redirect("http://b.test/1")}
    polls.web.routes |= {"b.test/1": redirect("http://b.test/2"), "b.test/2": b"User-agent: *\nAllow: /"}
    polls.web.routes |= {"/one": a_feed(1)}
    polls.add(a_source("one"))

    fetched = polls.fetch(hosts__delay_seconds="0.3")

    assert fetched.counts.changed == 1
    requests = [*polls.web.requests, *polls.web.robots_requests]
    for host in ("a.test", "b.test"):
        times = sorted(request.at for request in requests if request.host == host)
        assert len(times) >= 2
        assert min(after - before for before, after in pairwise(times)) >= 0.29
    assert host_row(polls.store, "b.test").lease_owner is None
