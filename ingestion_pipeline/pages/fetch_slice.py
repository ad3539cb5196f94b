"""The fetch part of a run: claim due sources, visit their hosts side by side, keep what changed.

A slice claims whenever it has room, so that one slow host does not hold up the others, and ends
when nothing is due or its time is over; what it could not get to is given back. Unchanged and
failed polls end here, in set-based transactions; changed listings stay claimed, their pages in the
content store under a batch id, for `extract` and `ingest`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import uuid4

from ingestion_pipeline.pages import hosts
from ingestion_pipeline.pages.hosts import Busy, Leased, Pacer
from ingestion_pipeline.pages.http_fetcher import HttpFetcher
from ingestion_pipeline.pages.listing import Listing
from ingestion_pipeline.pages.poll import poll_listing
from ingestion_pipeline.pages.poll_results import (
    Claimed,
    Missing,
    PollCounts,
    PollResult,
    write_results,
)
from ingestion_pipeline.pages.workshop import Workshop
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.outcomes import PollFailure
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.urls import host_of
from ingestion_pipeline.work.claims import Wanted
from ingestion_pipeline.work.errors import Fatal, Permanent, Resource, WorkError
from ingestion_pipeline.work.worker import Worker

LONGEST_WAIT = timedelta(seconds=30)  # a host or a retry that wants more is left to a later run
FLUSH_AFTER = 200  # results written in one transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """What a slice leaves: batches to extract, and what became of the rest."""

    owner: str
    batch_ids: list[str]
    counts: PollCounts


class FetchSlice:
    """One run's fetching, under one worker identity."""

    def __init__(self, shop: Workshop, worker: Worker, fetcher: HttpFetcher) -> None:
        self._shop = shop
        self._worker = worker
        self._fetcher = fetcher
        self._clock = SteadyClock(shop.store.now())
        self._ends = time.monotonic() + shop.settings.polling.slice_seconds
        self._batch_id = str(uuid4())
        self._counts = PollCounts()
        self._results: list[PollResult] = []
        self._open = 0
        self._queues: dict[str, deque[tuple[Claimed, Listing]]] = {}
        self._pacers: dict[str, Pacer] = {}
        self._left: dict[str, Pacer] = {}
        self._yielding: set[str] = set()
        self._visits: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(shop.settings.polling.concurrency)
        self._retry_at: dict[str, datetime] = {}
        self._fatal: Fatal | None = None

    async def run(self, wanted: Wanted) -> Fetching:
        """Drain what is wanted; a fatal error is raised when everything else is written down."""
        alive = asyncio.create_task(self._worker.keep_alive(self._renew_hosts))
        try:
            await self._drain(wanted)
        finally:
            alive.cancel()
            for visit in self._visits:
                visit.cancel()
            await asyncio.gather(*self._visits, return_exceptions=True)
            self._left |= self._pacers
            await asyncio.to_thread(self._flush)
        if self._fatal is not None:
            raise self._fatal
        batches = [self._batch_id] if self._counts.changed else []
        return Fetching(owner=self._worker.owner, batch_ids=batches, counts=self._counts)

    async def _drain(self, wanted: Wanted) -> None:
        while True:
            if self._has_time():
                await self._assign(await asyncio.to_thread(self._claim, wanted))
            if self._visits:
                done, self._visits = await asyncio.wait(
                    self._visits, timeout=1.0, return_when=asyncio.FIRST_COMPLETED
                )
                for visit in done:
                    visit.result()
            if not self._visits or len(self._results) >= FLUSH_AFTER:
                await asyncio.to_thread(self._flush)
            again: set[str] = set()
            if not self._visits and not (again := await self._due_retries()):
                return
            if wanted.source_ids is not None:
                # A manual claim ignores due times: from now on only what is to be retried.
                wanted = replace(wanted, source_ids=again)

    def _has_time(self) -> bool:
        return time.monotonic() < self._ends and self._fatal is None and self._worker.may_start()

    def _claim(self, wanted: Wanted) -> list[Claimed]:
        """More sources, as far as there is room; dead and missing ones are dealt with at once."""
        room = self._shop.settings.polling.batch_size - self._open
        if room <= 0 or (wanted.source_ids is not None and not wanted.source_ids):
            return []
        tasks = self._worker.claim(wanted, limit=room)
        if not tasks:
            return []
        with self._shop.store.read() as connection:
            known = sources_by_id(connection, {task.source_id or "" for task in tasks})
        usable: list[Claimed] = []
        for task in tasks:
            source = known.get(task.source_id or "")
            if source is None:
                self._results.append(Missing(task=task))
            elif task.attempts > self._shop.settings.work.max_attempts:
                self._results.append(_worker_lost(Claimed(task=task, source=source)))
            else:
                usable.append(Claimed(task=task, source=source))
        self._open += len(usable)
        return usable

    async def _assign(self, claimed: Sequence[Claimed]) -> None:
        """Each poll waits in its host's queue; a host that another run has is left alone."""
        by_host: dict[str, list[tuple[Claimed, Listing]]] = {}
        for one in claimed:
            try:
                listing = self._shop.systems[one.source.kind].listing(one.source)
                host = host_of(listing.first_request().url)
            except (KeyError, ValueError) as error:
                self._settle(_failure(one, Permanent(str(error), code="bad_config")))
                continue
            by_host.setdefault(host, []).append((one, listing))
        fresh = by_host.keys() - self._queues.keys()
        leases = await asyncio.to_thread(self._lease, fresh) if fresh else {}
        for host, items in by_host.items():
            lease = leases.get(host)
            if isinstance(lease, Busy):
                self._leave(host, items, lease)
            elif isinstance(lease, Leased):
                self._start_visit(host, items, lease)
            else:
                self._queues[host].extend(items)

    def _lease(self, wanted: set[str]) -> dict[str, Leased | Busy]:
        lease = timedelta(seconds=self._shop.settings.hosts.lease_seconds)
        with self._shop.store.begin() as connection:
            now = self._shop.store.clock.now(connection)
            return hosts.lease_hosts(
                connection, wanted, owner=self._worker.owner, now=now, lease=lease
            )

    def _leave(self, host: str, items: Sequence[tuple[Claimed, Listing]], lease: Busy) -> None:
        busy = Resource(
            f"{host} is being visited by another run", until=lease.until, code="host_busy"
        )
        for one, _ in items:
            self._settle(_failure(one, busy))

    def _start_visit(
        self, host: str, items: Sequence[tuple[Claimed, Listing]], lease: Leased
    ) -> None:
        source = items[0][0].source
        pace = self._shop.systems[source.kind].pace(source, self._shop.settings)
        self._pacers[host] = Pacer(
            pace, next_allowed_at=lease.next_allowed_at, now=self._clock.now()
        )
        self._queues[host] = deque(items)
        self._visits.add(asyncio.create_task(self._visit(host)))

    async def _visit(self, host: str) -> None:
        """Serve the host's queue, with as many requests at a time as its pace has a burst."""
        async with self._room:
            await asyncio.gather(*(self._serve(host) for _ in range(self._pacers[host].pace.burst)))
        self._left[host] = self._pacers.pop(host)
        del self._queues[host]

    async def _serve(self, host: str) -> None:
        queue, pacer = self._queues[host], self._pacers[host]
        while queue:
            one, listing = queue.popleft()
            why = self._reason_to_leave(host, pacer)
            if why is not None:
                self._settle(_failure(one, why))
                continue
            result = await poll_listing(
                self._shop, one, listing, fetcher=self._fetcher, pacer=pacer, clock=self._clock
            )
            self._settle(result)

    def _reason_to_leave(self, host: str, pacer: Pacer) -> WorkError | None:
        now = self._clock.now()
        if self._fatal is not None or not self._has_time():
            return Resource("the run's time was over", until=now, code="slice_over")
        if host in self._yielding:
            later = now + timedelta(seconds=self._shop.settings.hosts.lease_seconds)
            return Resource(f"{host} was handed to another run", until=later, code="host_yielded")
        wait = timedelta(seconds=pacer.wait_seconds())
        if wait > LONGEST_WAIT:
            return Resource(f"{host} asked for a pause", until=now + wait, code="rate_limited")
        return None

    def _settle(self, result: PollResult) -> None:
        self._open -= 1
        self._results.append(result)
        if isinstance(result, PollFailure) and isinstance(result.error, Fatal):
            self._fatal = result.error

    def _flush(self) -> None:
        """Write what has come in, and free the hosts that were left."""
        results, self._results = self._results, []
        left, self._left = self._left, {}
        with self._shop.store.begin() as connection:
            now = self._shop.store.clock.now(connection)
            counts, retry_at = write_results(
                connection,
                results,
                batch_id=self._batch_id,
                now=now,
                settings=self._shop.settings,
                random=self._shop.random,
            )
            free = {host: pacer.next_allowed_at(now) for host, pacer in left.items()}
            hosts.release_hosts(connection, free, owner=self._worker.owner)
        self._counts += counts
        self._retry_at |= retry_at

    async def _due_retries(self) -> set[str]:
        """The sources of this run that are due again, once the first of them is; none if later."""
        if not self._retry_at or not self._has_time():
            return set()
        wait = min(self._retry_at.values()) - self._clock.now()
        if wait > LONGEST_WAIT:
            return set()
        await asyncio.sleep(max(wait.total_seconds(), 0) + 0.01)
        due = {source for source, at in self._retry_at.items() if at <= self._clock.now()}
        for source in due:
            del self._retry_at[source]
        return due

    def _renew_hosts(self) -> None:
        """With each heartbeat: the hosts stay ours, unless others have waited long enough."""
        limits = self._shop.settings.hosts
        with self._shop.store.begin() as connection:
            now = self._shop.store.clock.now(connection)
            wanted = hosts.renew_hosts(
                connection,
                owner=self._worker.owner,
                now=now,
                lease=timedelta(seconds=limits.lease_seconds),
                next_allowed={host: one.next_allowed_at(now) for host, one in self._pacers.items()},
            )
        patience = timedelta(seconds=limits.yield_after_seconds)
        self._yielding |= {host for host, since in wanted.items() if now - since > patience}


def _failure(one: Claimed, error: WorkError) -> PollFailure:
    return PollFailure(task=one.task, source=one.source, error=error)


def _worker_lost(one: Claimed) -> PollFailure:
    deaths = one.task.attempts - 1
    stage = one.task.stage or "claimed"
    said = f"the worker died {deaths} times over this poll; last known stage: {stage}"
    return _failure(one, Permanent(said, code="worker_lost"))
