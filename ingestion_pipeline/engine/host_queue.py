"""Work queued by host: many hosts side by side, each at its own pace under its lease."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Generic, Protocol, TypeVar, cast

from sqlalchemy import Connection

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.time_budget import TimeBudget
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.http.guard import exempt_only, hosts_and_ports
from ingestion_pipeline.pages.politeness.host_leases import HostLease, LeasedHosts
from ingestion_pipeline.pages.politeness.hosts import HostBusy
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.tasks.claims import LostClaim
from ingestion_pipeline.tasks.errors import Fatal, Resource, WorkError, classify
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.tasks.worker import Worker

Item = TypeVar("Item")


class HostVisits(Generic[Item]):
    """Serves each host's queue while the host is ours; what cannot be served is left, with why.

    `serve` does one piece of work and does not raise; `reason_to_stop` is asked before each.
    """

    def __init__(
        self,
        hosts: LeasedHosts,
        *,
        concurrency: int,
        serve: Callable[[Item, HostLease], Awaitable[None]],
        leave: Callable[[Item, WorkError], None],
        reason_to_stop: Callable[[], WorkError | None],
    ) -> None:
        self._hosts = hosts
        self._serve = serve
        self._leave = leave
        self._reason_to_stop = reason_to_stop
        self._room = asyncio.Semaphore(concurrency)
        self._queues: dict[str, deque[Item]] = {}
        self._visits: set[asyncio.Task[None]] = set()
        self._nudged = asyncio.Event()
        self._source_of: Callable[[Item], Source]

    def nudge(self) -> None:
        """Whoever waits for a visit to end has something else to do."""
        self._nudged.set()

    def __len__(self) -> int:
        """How many hosts are visited or wait for their turn."""
        return len(self._visits)

    async def assign(
        self, items: Mapping[str, Sequence[Item]], source_of: Callable[[Item], Source]
    ) -> None:
        """Each piece of work waits in its host's queue; a host that another run has is left alone.

        A host is leased at the pace of the source that wants it first.
        """
        by_host = dict(items)
        self._source_of = source_of
        # Before anything is awaited: a visit that goes on may end meanwhile.
        for host in by_host.keys() & self._queues.keys():
            self._queues[host].extend(by_host.pop(host))
        for host in list(by_host):
            if (why := self._hosts.reason_to_leave(host)) is not None:
                self._leave_all(by_host.pop(host), why)
        for host in by_host.keys() & self._hosts.left.keys():
            # still ours, and its pacer knows more
            self._start(host, by_host.pop(host), self._hosts.left.pop(host))
        first = {host: source_of(queue[0]) for host, queue in by_host.items()}
        leases = await asyncio.to_thread(self._hosts.lease, first) if first else {}
        for host, lease in leases.items():
            match lease:
                case HostLease():  # a redirect may have led there meanwhile
                    self._start(host, by_host[host], self._hosts.known(host) or lease)
                case HostBusy(until=until):
                    said = f"{host} is being visited by another run"
                    busy = Resource(said, until=until, code="host_busy")
                    self._leave_all(by_host[host], busy)

    async def wait(self, *, timeout_seconds: float) -> None:
        """Return when a visit has ended or somebody nudges, at the latest after so long."""
        if not self._visits:
            return
        nudge = asyncio.create_task(self._nudged.wait())
        try:
            done, _ = await asyncio.wait(
                {nudge, *self._visits},
                timeout=timeout_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            nudge.cancel()
        self._nudged.clear()
        ended = self._visits & done
        self._visits -= ended
        for visit in ended:
            visit.result()

    async def stop(self) -> None:
        """Nobody is asked any more, and the hosts are left."""
        for visit in self._visits:
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)
        self._hosts.left |= self._hosts.visited

    def _start(self, host: str, items: Sequence[Item], visited: HostLease) -> None:
        self._hosts.visited[host] = visited
        self._hosts.left.pop(host, None)
        self._queues[host] = deque(items)
        self._visits.add(asyncio.create_task(self._visit(host)))

    async def _visit(self, host: str) -> None:
        """Serve the host's queue, with as many requests at a time as its pace has a burst."""
        async with self._room:
            while self._queues[host]:  # again, for what was assigned while the last one ended
                burst = self._hosts.visited[host].pacer.pace.burst
                await asyncio.gather(*map(self._serve_queue, [host] * burst))
        self._hosts.left[host] = self._hosts.visited.pop(host)
        del self._queues[host]

    async def _serve_queue(self, host: str) -> None:
        queue, visited = self._queues[host], self._hosts.visited[host]
        while queue:
            item = queue.popleft()
            why = self._reason_to_leave(host)
            if why is not None:
                self._leave(item, why)
            else:
                with exempt_only(hosts_and_ports(declared_urls(self._source_of(item)))):
                    await self._serve(item, visited)

    def _reason_to_leave(self, host: str) -> WorkError | None:
        over = self._reason_to_stop()
        return over or self._hosts.reason_to_leave(host) or self._hosts.reason_to_wait(host)

    def _leave_all(self, items: Sequence[Item], why: WorkError) -> None:
        for item in items:
            self._leave(item, why)


def declared_urls(source: Source) -> Iterator[str]:
    """Yield the URLs that the source was declared with: its own, and those in its config."""
    left: list[object] = [source.url, source.config]
    while left:
        value = left.pop()
        if isinstance(value, str) and value.startswith(("http://", "https://")):
            yield value
        elif isinstance(value, Mapping):
            left += cast("Mapping[object, object]", value).values()
        elif isinstance(value, list | tuple):
            left += cast("Sequence[object]", value)


log = logging.getLogger(__name__)


class HostTask(Protocol):
    """A claimed task, the host it asks first, and the source at whose pace."""

    @property
    def task(self) -> Task:
        """The claim."""
        ...

    @property
    def host(self) -> str:
        """Where its first page is."""
        ...

    @property
    def source(self) -> Source:
        """For whom it is done."""
        ...


HostItem = TypeVar("HostItem", bound=HostTask)
Ended = TypeVar("Ended")


class HostTaskHandler(Protocol[HostItem, Ended]):
    """Who does the work."""

    def claim(self) -> tuple[Sequence[HostItem], Sequence[Ended]]:
        """A few tasks that are ours now, and what needs no visit to end."""
        ...

    async def serve(self, item: HostItem, host: HostLease) -> Ended:
        """Do it; whatever goes wrong is raised."""
        ...

    def failed(self, item: HostItem, error: WorkError, stack: str | None) -> Ended:
        """It was not done, for this reason."""
        ...

    def unwritten(self, ended: Ended, error: WorkError) -> Ended:
        """It was done, and could not be written."""
        ...

    def write(self, connection: Connection, ended: Ended, *, now: datetime) -> datetime | None:
        """What it came to, fenced; when it is due again, if it is."""
        ...


class HostWork(Generic[HostItem, Ended]):
    """One run's part of such work, under one worker identity."""

    def __init__(
        self,
        shop: RunContext,
        worker: Worker,
        fetcher: HttpFetcher,
        crew: HostTaskHandler[HostItem, Ended],
        *,
        clock: SteadyClock,
        concurrency: int,
    ) -> None:
        self._shop = shop
        self._worker = worker
        self._clock = clock
        self._crew = crew
        self._hosts = LeasedHosts(shop, worker, fetcher, clock)
        self._time = TimeBudget(
            worker, clock, seconds=shop.settings.polling.slice_seconds, network=self._hosts.network
        )
        self._ended: list[Ended] = []
        self._open: dict[int, HostItem] = {}
        self._visits: HostVisits[HostItem] = HostVisits(
            self._hosts,
            concurrency=concurrency,
            serve=self._serve,
            leave=self._leave,
            reason_to_stop=self._time.reason_to_stop,
        )

    async def run(self) -> None:
        """Work as long as there is work and time; a fatal error is raised at the end."""
        alive = asyncio.create_task(self._worker.keep_alive(self._hosts.renew))
        try:
            while self._time.is_left():
                done = await self._round()
                if not done and not await self._time.rest():
                    break
        finally:
            alive.cancel()
            await self._visits.stop()
            for item in list(self._open.values()):
                self._leave(item, self._time.stopped())
            await self._flush()
        if self._time.fatal is not None:
            raise self._time.fatal

    async def _round(self) -> int:
        """Claim a few, serve them side by side, write; how many that were."""
        items, ended = await asyncio.to_thread(self._crew.claim)
        self._ended += ended
        by_host: dict[str, list[HostItem]] = {}
        for item in items:
            self._open[item.task.id] = item
            by_host.setdefault(item.host, []).append(item)
        await self._visits.assign(by_host, lambda item: item.source)
        while self._visits:
            await self._visits.wait(timeout_seconds=1.0)
            await self._flush()
        await self._flush()
        return len(items) + len(ended)

    async def _serve(self, item: HostItem, host: HostLease) -> None:
        try:
            ended = await self._crew.serve(item, host)
        except LostClaim:
            self._open.pop(item.task.id, None)  # it is another worker's, and so is its end
        except Exception as error:
            self._leave(item, classify(error), stack=traceback.format_exc(limit=-20))
        else:
            self._open.pop(item.task.id, None)
            self._ended.append(ended)

    def _leave(self, item: HostItem, why: WorkError, *, stack: str | None = None) -> None:
        self._open.pop(item.task.id, None)
        self._ended.append(self._crew.failed(item, why, stack))
        if isinstance(why, Fatal):
            self._time.fatal = why

    async def _flush(self) -> None:
        ended, self._ended = self._ended, []
        async with self._hosts.letting_go() as left:
            if ended or left:
                await asyncio.to_thread(self._write, ended, left)

    def _write(self, ended: Sequence[Ended], left: Mapping[str, HostLease]) -> None:
        """Each end in a transaction of its own: one that cannot be written spoils no other."""
        for one in ended:
            try:
                self._write_one(one)
            except Exception as error:
                failure = classify(error)
                if isinstance(failure, Fatal):
                    raise
                log.warning("what a task came to could not be written", exc_info=True)
                self._write_one(self._crew.unwritten(one, failure))
        self._hosts.let_go(left)

    def _write_one(self, ended: Ended) -> None:
        def write(connection: Connection) -> datetime | None:
            return self._crew.write(connection, ended, now=self._shop.store.clock.now(connection))

        with suppress(LostClaim):
            again_at = self._shop.store.write(write)
            if again_at is not None:
                self._time.expect([again_at])
