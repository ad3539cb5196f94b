"""The queues of a run's hosts: each host's items are executed at its own pace, while the run leases the host.

A host that does not answer gives its slot to another host.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from ingestion_pipeline.pages.http.guard import exempt_only, hosts_and_ports
from ingestion_pipeline.pages.politeness.host_leases import HostLease, LeasedHosts
from ingestion_pipeline.pages.politeness.hosts import HostBusy
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.declarations import texts_of
from ingestion_pipeline.tasks.errors import Resource, WorkError

Queued = TypeVar("Queued")

SLOW_SECONDS = 1.0  # a host that is silent for so long gives its slot to another host
SLOW_HOSTS = 8  # for each slot: as many silent hosts may be waited for beside it


class HostQueues(Generic[Queued]):
    """Executes each host's queue while this run leases the host; other items are released.

    `execute` processes one item and does not raise; `release` gets each item that is not processed,
    with the reason. `reason_to_stop` is called before each item.
    """

    def __init__(
        self,
        hosts: LeasedHosts,
        *,
        concurrency: int,
        execute: Callable[[Queued, HostLease], Awaitable[None]],
        release: Callable[[Queued, WorkError], None],
        reason_to_stop: Callable[[], WorkError | None],
    ) -> None:
        self._hosts = hosts
        self._execute = execute
        self._release = release
        self._reason_to_stop = reason_to_stop
        self._slots = asyncio.Semaphore(concurrency)
        self._with_slot: set[str] = set()
        self._most_slow = SLOW_HOSTS * concurrency
        self._slow: set[str] = set()
        self._queues: dict[str, deque[Queued]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._nudged = asyncio.Event()
        self._source_of: Callable[[Queued], Source]

    def nudge(self) -> None:
        """Wake `wait` before a queue is empty."""
        self._nudged.set()

    def __len__(self) -> int:
        """Return how many hosts are being processed or wait for a free place."""
        return len(self._running)

    def slow_count(self) -> int:
        """Return how many items wait for hosts that do not answer, without those in flight."""
        return sum(len(self._queues[host]) for host in self._slow)

    async def assign(self, items: Mapping[str, Sequence[Queued]], source_of: Callable[[Queued], Source]) -> None:
        """Add each item to its host's queue, leased at its first item's pace; release those that another run has."""
        by_host = dict(items)
        self._source_of = source_of
        # Before the first await: a running queue may end meanwhile.
        for host in by_host.keys() & self._queues.keys():
            self._queues[host].extend(by_host.pop(host))
        for host in list(by_host):
            if (reason := self._hosts.reason_to_leave(host)) is not None:
                self._release_all(by_host.pop(host), reason)
        for host in by_host.keys() & self._hosts.idle.keys():
            # still leased, with a rate limiter that has the last requests
            self._start(host, by_host.pop(host), self._hosts.idle.pop(host))
        first = {host: source_of(queue[0]) for host, queue in by_host.items()}
        leases = await asyncio.to_thread(self._hosts.lease, first) if first else {}
        for host, lease in leases.items():
            match lease:
                case HostLease():  # a redirect may have leased it meanwhile
                    self._start(host, by_host[host], self._hosts.existing_lease(host) or lease)
                case HostBusy(until=until):
                    busy = Resource(f"{host} is leased by another run", until=until, code="host_busy")
                    self._release_all(by_host[host], busy)

    async def wait(self, *, timeout_seconds: float) -> None:
        """Return when a queue is done or `nudge` is called, at the latest after the timeout."""
        if not self._running:
            return
        self._free_slow_slots()
        nudge = asyncio.create_task(self._nudged.wait())
        try:
            done, _ = await asyncio.wait(
                {nudge, *self._running}, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            nudge.cancel()
        self._nudged.clear()
        ended = self._running & done
        self._running -= ended
        for running in ended:
            running.result()

    async def stop(self) -> None:
        """Cancel every queue; the hosts are left to be released."""
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._hosts.idle |= self._hosts.active

    def _start(self, host: str, items: Sequence[Queued], lease: HostLease) -> None:
        self._hosts.active[host] = lease
        self._hosts.idle.pop(host, None)
        self._queues[host] = deque(items)
        self._running.add(asyncio.create_task(self._execute_host(host)))

    async def _execute_host(self, host: str) -> None:
        """Execute the host's queue, with as many requests at a time as its pace has a burst."""
        await self._slots.acquire()
        self._with_slot.add(host)
        try:
            while self._queues[host]:  # again, for items assigned while the last one ended
                burst = self._hosts.active[host].rate_limiter.pace.burst
                await asyncio.gather(*map(self._execute_queue, [host] * burst))
        finally:
            self._slow.discard(host)
            if host in self._with_slot:
                self._with_slot.remove(host)
                self._slots.release()
        self._hosts.idle[host] = self._hosts.active.pop(host)
        del self._queues[host]

    def _free_slow_slots(self) -> None:
        """Take the slots of hosts that do not answer: they are waited for without one."""
        for host in list(self._with_slot):
            is_slow = self._hosts.active[host].rate_limiter.unanswered_seconds() > SLOW_SECONDS
            if is_slow and len(self._slow) < self._most_slow:
                self._slow.add(host)
                self._with_slot.remove(host)
                self._slots.release()

    async def _execute_queue(self, host: str) -> None:
        queue, lease = self._queues[host], self._hosts.active[host]
        exempt: dict[str, frozenset[str]] = {}  # by source
        while queue:
            item = queue.popleft()
            hosts = self._hosts
            reason = self._reason_to_stop() or hosts.reason_to_leave(host) or hosts.reason_to_wait(host)
            if reason is not None:
                self._release(item, reason)
            else:
                source = self._source_of(item)
                if source.id not in exempt:
                    exempt[source.id] = hosts_and_ports(declared_urls(source))
                with exempt_only(exempt[source.id]):
                    await self._execute(item, lease)

    def _release_all(self, items: Sequence[Queued], reason: WorkError) -> None:
        for item in items:
            self._release(item, reason)


def declared_urls(source: Source) -> Iterator[str]:
    """Return the URLs that the source was declared with: its own, and those in its config."""
    _, texts = texts_of(source.config)
    return (text for text in (source.url, *texts) if text.startswith(("http://", "https://")))
