"""The hosts of one run: leased, renewed with each heartbeat, handed on when others wait."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.pages import hosts
from ingestion_pipeline.pages.elsewhere import RedirectLeases
from ingestion_pipeline.pages.host_robots import HostRobots
from ingestion_pipeline.pages.hosts import LONGEST_WAIT, HostBusy, Leased, Pace, RateLimiter
from ingestion_pipeline.pages.http_fetcher import HttpFetcher
from ingestion_pipeline.pages.network import Network
from ingestion_pipeline.pages.workshop import RunContext
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.work.errors import Fatal, Resource, classify
from ingestion_pipeline.work.worker import Worker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLease:
    """A host that is ours: how fast it may be asked, for what, and where it may send us on."""

    pacer: RateLimiter
    robots: HostRobots
    elsewhere: RedirectLeases
    slots: asyncio.Semaphore


class LeasedHosts:
    """Which hosts are visited now, and which were left but not yet released."""

    def __init__(
        self, shop: RunContext, worker: Worker, fetcher: HttpFetcher, clock: SteadyClock
    ) -> None:
        self._shop = shop
        self._worker = worker
        self._fetcher = fetcher
        self._clock = clock
        self._yielding: set[str] = set()
        if fetcher.network is None:
            fetcher.network = Network(
                shop.store,
                canary=shop.settings.fetch.canary,
                connect_seconds=shop.settings.fetch.connect_seconds,
            )
        self.network = fetcher.network
        self.visited: dict[str, HostLease] = {}
        self.left: dict[str, HostLease] = {}
        self._borrowed: dict[str, HostLease] = {}
        self._borrowers: Counter[str] = Counter()
        self._letting_go: set[str] = set()
        self._let_go = asyncio.Condition()

    @asynccontextmanager
    async def letting_go(self) -> AsyncGenerator[dict[str, HostLease]]:
        """The hosts that were left, to be released inside; nobody of this run takes one meanwhile.

        He would begin with what the row said before, and lose the lease under his feet.
        """
        left, self.left = self.left, {}
        self._letting_go |= left.keys()
        try:
            yield left
        finally:
            async with self._let_go:
                self._letting_go -= left.keys()
                self._let_go.notify_all()

    def known(self, host: str) -> HostLease | None:
        """The host as this run already has it: there is one pacer for each."""
        return self.visited.get(host) or self._borrowed.get(host) or self.left.get(host)

    async def _borrow(self, source: Source, host: str) -> HostLease:
        """The host is ours as long as a redirect to it takes; `Resource` if it cannot be had."""
        if (why := self.reason_to_leave(host)) is not None:
            raise why
        async with self._let_go:
            await self._let_go.wait_for(lambda: host not in self._letting_go)
        visited = self.known(host)
        if visited is None:
            # Not at the source's pace: what its platform publishes is said of its own host alone.
            lease = (await asyncio.to_thread(self.lease, {host: source}, is_its_own=False))[host]
            if isinstance(lease, HostBusy):
                said = f"{host}, where a redirect leads, is being visited by another run"
                raise Resource(said, until=lease.until, code="host_busy")
            visited = self.known(host) or lease  # another visit may have been quicker
        self.left.pop(host, None)  # else it would be released meanwhile
        self._borrowed[host] = visited
        self._borrowers[host] += 1
        return visited

    def _give_back(self, host: str) -> None:
        self._borrowers[host] -= 1
        if not self._borrowers[host]:
            visited = self._borrowed.pop(host)
            if host not in self.visited:
                self.left[host] = visited

    def lease(
        self, wanted: Mapping[str, Source], *, is_its_own: bool = True
    ) -> dict[str, HostLease | HostBusy]:
        """Each host, at the pace of the source that wants it; or until when another run has it."""
        if is_its_own:
            for host, source in wanted.items():
                if source.failure_count:
                    self.network.expect_failure(host)

        def act(connection: Connection) -> dict[str, Leased | HostBusy]:
            now = self._shop.store.clock.now(connection)
            return hosts.lease_hosts(
                connection, wanted.keys(), owner=self._worker.owner, now=now, lease=self._lease
            )

        leases = self._shop.store.write(act)
        return {
            host: lease
            if isinstance(lease, HostBusy)
            else self._opened(wanted[host], lease, is_its_own=is_its_own)
            for host, lease in leases.items()
        }

    def _opened(self, source: Source, lease: Leased, *, is_its_own: bool) -> HostLease:
        settings = self._shop.settings
        pace = self._shop.pace(source)
        if not is_its_own:
            pace = Pace(delay_seconds=max(pace.delay_seconds, settings.hosts.delay_seconds))
        pacer = RateLimiter(pace, next_allowed_at=lease.next_allowed_at, now=self._clock.now())
        elsewhere = RedirectLeases(
            borrow=partial(self._borrow, source), give_back=self._give_back, clock=self._clock
        )
        robots = HostRobots(
            lease.robots,
            fetcher=self._fetcher,
            pacer=pacer,
            elsewhere=elsewhere,
            clock=self._clock,
            longest_delay_seconds=settings.hosts.longest_crawl_delay_seconds,
        )
        slots = asyncio.Semaphore(pace.burst)
        return HostLease(pacer=pacer, robots=robots, elsewhere=elsewhere, slots=slots)

    @property
    def _lease(self) -> timedelta:
        # The heartbeat that renews it comes every third of the worker's lease.
        wished = timedelta(seconds=self._shop.settings.hosts.lease_seconds)
        return max(wished, self._worker.lease / 2)

    def renew(self) -> None:
        """With each heartbeat: the hosts stay ours, unless others have waited long enough."""
        mine = dict(self._borrowed) | dict(self.visited)  # copies, since this is another thread
        with self._shop.store.begin() as connection:
            now = self._shop.store.clock.now(connection)
            next_allowed = next_allowed_at(mine, self._shop.store, connection)
            hosts.lock_hosts(connection, mine)
            self._keep_robots(connection, mine, now=now)
            wanted = hosts.renew_hosts(
                connection,
                owner=self._worker.owner,
                now=now,
                lease=self._lease,
                next_allowed=next_allowed,
            )
            lost = hosts.lost_hosts(connection, mine, owner=self._worker.owner)
        patience = timedelta(seconds=self._shop.settings.hosts.yield_after_seconds)
        waited = {host for host, since in wanted.items() if now - since > patience}
        ours_still = {host for host in lost if host in self.visited or host in self._borrowed}
        self._yielding |= waited | ours_still

    def release(
        self,
        connection: Connection,
        left: Mapping[str, HostLease],
        next_allowed: Mapping[str, datetime],
        *,
        now: datetime,
    ) -> None:
        """The hosts are free; whoever comes next knows what we know."""
        hosts.lock_hosts(connection, left)
        self._keep_robots(connection, left, now=now)
        hosts.release_hosts(connection, next_allowed, owner=self._worker.owner)

    def let_go(self, left: Mapping[str, HostLease]) -> None:
        """The same in a transaction of its own; what cannot be released now ends with its lease."""

        def act(connection: Connection) -> None:
            now = self._shop.store.clock.now(connection)
            free = next_allowed_at(left, self._shop.store, connection)
            self.release(connection, left, free, now=now)

        try:
            self._shop.store.write(act)
        except SQLAlchemyError as error:
            if isinstance(classify(error), Fatal):
                raise
            log.warning("hosts were not released; their leases end", exc_info=True)

    def _keep_robots(
        self, connection: Connection, mine: Mapping[str, HostLease], *, now: datetime
    ) -> None:
        news = {host: one.robots.take_news(host) for host, one in mine.items()}
        told = {host: said for host, said in news.items() if said is not None}
        hosts.keep_robots(connection, told, owner=self._worker.owner, now=now)

    def reason_to_leave(self, host: str) -> Resource | None:
        """Why the host is not asked any more in this run, if so."""
        if host in self._yielding:
            later = self._clock.now() + timedelta(seconds=self._shop.settings.hosts.lease_seconds)
            return Resource(f"{host} was handed to another run", until=later, code="host_yielded")
        return None

    def reason_to_wait(self, host: str) -> Resource | None:
        """Why the next request to the host is left to a later run, if so."""
        wait = timedelta(seconds=self.visited[host].pacer.wait_seconds())
        if wait > LONGEST_WAIT:
            until = self._clock.now() + wait
            return Resource(f"{host} asked for a pause", until=until, code="rate_limited")
        return None


def next_allowed_at(
    mine: Mapping[str, HostLease], store: Store, connection: Connection
) -> dict[str, datetime]:
    """When each host may be asked next by others: not a moment too early.

    The time is asked for afterwards, since a process may be held up in between, and is the latest
    that it can be: an answer that was on its way for long is old.
    """
    rests = {host: one.pacer.rest() for host, one in mine.items()}
    latest = store.clock.latest(connection)
    return {host: latest + rest for host, rest in rests.items()}
