"""A host that a redirect borrows while the run writes: kept by whoever has it, free afterwards."""

from __future__ import annotations

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
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.store.tables import hosts
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import a_fetcher, add_robots, add_sources, rows, with_settings

DELAY = 0.3
HOSTS = ("a.test", "b.test")
THERE = "http://b.test/there"
ON_POSTGRES = pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)])


class Run:
    """The hosts of one run that visits a.test, whose pages lead to b.test."""

    def __init__(self, ctx: RunContext, leased: LeasedHosts, source: Source, owner: str) -> None:
        self._ctx = ctx
        self.hosts = leased
        self.owner = owner
        own = leased.lease({"a.test": source})["a.test"]
        assert isinstance(own, HostLease)
        self.own = leased.visited["a.test"] = own

    async def follow(self, until: AsyncExitStack) -> HostLease:
        """A redirect to b.test, which is ours until the stack is left."""
        await self.own.redirect_leases.follow(THERE, honours_robots=True, until=until)
        borrowed = self.hosts.existing_lease("b.test")
        assert borrowed is not None
        return borrowed

    def renew(self) -> None:
        self.hosts.renew()

    def release_all(self) -> None:
        self._release({host: lease for host in HOSTS if (lease := self.hosts.existing_lease(host))})

    async def flush(self, meanwhile: asyncio.Event | None = None) -> set[str]:
        """The hosts that were left are free; before that `meanwhile` is waited for."""
        async with self.hosts.releasing() as left:
            if meanwhile is not None:
                await meanwhile.wait()
            await asyncio.to_thread(self._release, left)
        return set(left)

    def _release(self, left: dict[str, HostLease]) -> None:
        with self._ctx.store.begin() as connection:
            now = self._ctx.store.clock.now(connection)
            free = next_allowed_at(left, self._ctx.store, connection)
            self.hosts.release(connection, left, free, now=now)


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


def row_of(store: Store, host: str = "b.test") -> Any:
    return next(row for row in rows(store, hosts) if row.host == host)


def test_a_host_that_is_let_go_is_borrowed_only_when_it_is_free_and_then_anew(
    ctx: RunContext, store: Store, web: FakeWeb, now: datetime
) -> None:
    async def story() -> None:
        async with a_run(ctx, web, now) as run:
            async with AsyncExitStack() as until:
                first = await run.follow(until)
            may_release = asyncio.Event()
            flush = asyncio.create_task(run.flush(may_release))
            async with AsyncExitStack() as until:
                borrower = asyncio.create_task(run.follow(until))
                _, waiting = await asyncio.wait({borrower}, timeout=2 * DELAY)
                assert waiting, "the lease would have been lost under his feet"
                may_release.set()
                assert await borrower is not first
                assert await flush == {"b.test"}
                assert row_of(store).lease_owner == run.owner

    asyncio.run(story())


def test_a_borrowed_host_is_not_let_go_before_it_is_given_back(
    ctx: RunContext, store: Store, web: FakeWeb, now: datetime
) -> None:
    async def story() -> None:
        async with a_run(ctx, web, now) as run:
            async with AsyncExitStack() as until:
                await run.follow(until)
            async with AsyncExitStack() as until:
                await run.follow(until)  # it was left, and is borrowed again before the flush
                assert await run.flush() == set()
                assert row_of(store).lease_owner == run.owner
            assert await run.flush() == {"b.test"}
            assert row_of(store).lease_owner is None

    asyncio.run(story())


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.parametrize("is_released", [False, True], ids=["still ours", "released"])
def test_a_host_that_is_borrowed_again_is_asked_at_its_pace(
    ctx: RunContext, web: FakeWeb, now: datetime, *, is_released: bool
) -> None:
    async def story() -> float:
        async with a_run(ctx, web, now) as run:
            async with AsyncExitStack() as until:
                borrowed = await run.follow(until)
                assert borrowed.rate_limiter.pace.delay_seconds == DELAY
                asked_at = time.monotonic()
            if is_released:
                await run.flush()
            async with AsyncExitStack() as until:
                await run.follow(until)
                return time.monotonic() - asked_at

    assert asyncio.run(story()) >= DELAY - 0.01


@ON_POSTGRES
@pytest.mark.parametrize("step", [Run.renew, Run.release_all], ids=["renew", "release"])
def test_hosts_are_locked_in_one_order_whichever_has_news(
    ctx: RunContext, store: Store, web: FakeWeb, now: datetime, step: Callable[[Run], None]
) -> None:
    """What robots.txt says is new of the second host alone: the first is locked before it."""

    async def story() -> None:
        async with a_run(ctx, web, now, robots_of=["a.test"]) as run, AsyncExitStack() as until:
            await run.follow(until)
            with store.begin() as another:
                lock_hosts(another, ["b.test"])
                writing = asyncio.create_task(asyncio.to_thread(step, run))
                await until_true(lambda: "a.test" not in free_to_lock(store))
            await writing
            assert row_of(store).robots is not None

    asyncio.run(story())


@ON_POSTGRES
def test_a_host_that_cannot_be_released_ends_with_its_lease_and_not_the_run(
    ctx: RunContext, store: Store, web: FakeWeb, now: datetime, database_url: str
) -> None:
    hasty = open_store(f"{database_url}&options=-clock_timeout%3D50", clock=store.clock)

    async def story() -> None:
        async with a_run(replace(ctx, store=hasty), web, now) as run:
            with store.begin() as another:
                lock_hosts(another, ["a.test"])
                await asyncio.to_thread(run.hosts.release_in_own_transaction, {"a.test": run.own})
            assert row_of(store, "a.test").lease_owner == run.owner
            await asyncio.to_thread(run.hosts.release_in_own_transaction, {"a.test": run.own})
            assert row_of(store, "a.test").lease_owner is None

    asyncio.run(story())
    hasty.close()


async def until_true(is_so: Callable[[], bool], patience_seconds: float = 5.0) -> None:
    ends = time.monotonic() + patience_seconds
    while not is_so():
        assert time.monotonic() < ends, "it waits for the second host and has not got the first"
        await asyncio.sleep(0.01)


def free_to_lock(store: Store) -> set[str]:
    with store.begin() as connection:
        query = select(hosts.c.host).with_for_update(skip_locked=True)
        return set(connection.execute(query).scalars())
