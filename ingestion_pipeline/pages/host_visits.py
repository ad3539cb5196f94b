"""Work queued by host: many hosts side by side, each at its own pace under its lease."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar, cast

from ingestion_pipeline.pages.guard import exempt_only, hosts_and_ports
from ingestion_pipeline.pages.hosts import HostBusy
from ingestion_pipeline.pages.leased_hosts import HostLease, LeasedHosts
from ingestion_pipeline.sources import Source
from ingestion_pipeline.work.errors import Resource, WorkError

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
