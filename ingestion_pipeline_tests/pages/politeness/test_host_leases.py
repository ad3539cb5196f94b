"""Redirect leases while the run writes: held during use, released afterwards."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import select

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.politeness.host_leases import HostLease, LeasedHosts, next_allowed_at
from ingestion_pipeline.pages.politeness.hosts import lock_hosts
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.tables import hosts
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import a_fetcher, add_robots, add_sources, rows, with_settings

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
        self.own = leased.visited["a.test"] = lease

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


def host_row(store: Store, host: str = "b.test") -> Any:
    return next(row for row in rows(store, hosts) if row.host == host)


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
                assert host_row(store).lease_owner == run.owner

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
                assert host_row(store).lease_owner == run.owner
            assert await run.flush() == {"b.test"}
            assert host_row(store).lease_owner is None

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
            assert host_row(store).robots is not None

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
