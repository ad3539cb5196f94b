"""One poll: fetch a source's listing at its host's pace, and say what came of it."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import uuid4

from sqlalchemy import Connection

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.host_queue import HostVisits
from ingestion_pipeline.engine.polling.protocol import (
    Feed,
    FetchState,
    NewListing,
    SameListing,
    fetch_listing,
)
from ingestion_pipeline.engine.polling.results import (
    ClaimedPoll,
    Deferred,
    Fetching,
    Missing,
    PollCounts,
    PollResult,
    StoredListing,
    failure_of,
    give_back_batch,
    worker_lost,
    write_results,
)
from ingestion_pipeline.engine.time_budget import TimeBudget
from ingestion_pipeline.pages.content.snapshots import PageRef
from ingestion_pipeline.pages.content.store import ContentStore, storage_errors_fatal
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.http.request import Fetched
from ingestion_pipeline.pages.politeness.host_leases import (
    HostLease,
    LeasedHosts,
    asked_pause,
    next_allowed_at,
)
from ingestion_pipeline.pages.politeness.hosts import LONGEST_WAIT
from ingestion_pipeline.pages.politeness.paced_fetch import PacedFetch
from ingestion_pipeline.sources import Source, Tier
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_results import PollFailure, PollSuccess
from ingestion_pipeline.sources.scheduling.budget import tuned
from ingestion_pipeline.sources.scheduling.due import claim_size, known_pace
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.errors import Fatal, Permanent, WorkError, classify
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline.urls import host_of, without_secrets


async def poll_listing(
    shop: RunContext,
    one: ClaimedPoll,
    listing: Feed,
    *,
    fetcher: HttpFetcher,
    host: HostLease,
    clock: SteadyClock,
) -> PollResult:
    """Unchanged, stored for reading, or a classified failure; it does not raise."""
    pacer = host.pacer
    try:
        system = shop.systems[one.source.kind]
        reader = system.reader(one.source)
        robots = host.robots if system.honours_robots(one.source) else None
        own = host_of(listing.first_request().url)
        answer = await fetch_listing(
            listing,
            _known(one.source, reader),
            reader=reader,
            fetch=PacedFetch(fetcher, own, host, robots, clock),
            max_pages=shop.settings.fetch.max_pages,
            may_be_cut=system.may_be_cut,
        )
        pacer.relax()
        if isinstance(answer, SameListing):
            return _unchanged(one, answer)
        pages = await asyncio.to_thread(_store_pages, shop.content, answer.pages)
        return _stored(one, answer, reader, pages)
    except Exception as error:
        failure = classify(error)
        if (pause := asked_pause(failure, clock.now())) is not None:
            pacer.hold_off(pause.total_seconds())
        return PollFailure(
            task=one.task, source=one.source, error=failure, stack=traceback.format_exc(limit=-20)
        )


def _known(source: Source, reader: str) -> FetchState:
    """What an unchanged listing is recognised by; nothing, if it must be read again anyway."""
    if source.needs_full_read or source.reader != reader:
        return FetchState()
    return FetchState(
        content_hash=source.content_hash, etag=source.etag, last_modified=source.last_modified
    )


def _store_pages(content: ContentStore, pages: Sequence[Fetched]) -> tuple[PageRef, ...]:
    with storage_errors_fatal():
        names = content.put_many([page.body for page in pages])
    return tuple(
        PageRef(
            url=without_secrets(page.url),
            final_url=without_secrets(page.final_url),
            content_hash=name,
            content_type=page.content_type,
            size_bytes=len(page.body),
            status_code=page.status_code,
            etag=page.etag,
            last_modified=page.last_modified,
        )
        for name, page in zip(names, pages, strict=True)
    )


def _unchanged(one: ClaimedPoll, same: SameListing) -> PollSuccess:
    return PollSuccess(
        task=one.task,
        source=one.source,
        outcome="unchanged",
        etag=same.etag,
        last_modified=same.last_modified,
    )


def _stored(
    one: ClaimedPoll, answer: NewListing, reader: str, pages: tuple[PageRef, ...]
) -> StoredListing:
    return StoredListing(
        task=one.task,
        source=one.source,
        content_hash=answer.content_hash,
        reader=reader,
        pages=pages,
    )


BATCHES_PER_RUN = 10
FLUSH_AFTER = 200  # results written in one transaction
FLUSH_SECONDS = 2.0  # or after this, so that a host that was left is soon free for others
CLAIM_SECONDS = 1.0  # between two claims while hosts are visited and the last one found no more

Item = tuple[ClaimedPoll, Feed]


class FetchSlice:
    """One run's fetching, under one worker identity."""

    def __init__(self, shop: RunContext, worker: Worker, fetcher: HttpFetcher) -> None:
        self._shop = shop
        self._worker = worker
        self._fetcher = fetcher
        self._clock = SteadyClock(shop.store.now())
        self._hosts = LeasedHosts(shop, worker, fetcher, self._clock)
        self._batch_size = shop.settings.polling.batch_size
        self._time = TimeBudget(
            worker,
            self._clock,
            seconds=shop.settings.polling.slice_seconds,
            network=self._hosts.network,
        )
        self._claim_at = time.monotonic()
        self._flush_at = self._claim_at + FLUSH_SECONDS
        self._batches = {str(uuid4()): 0}  # how many changed listings each holds
        self._counts = PollCounts()
        self._results: list[PollResult] = []
        self._open: dict[int, ClaimedPoll] = {}
        self._visits: HostVisits[Item] = HostVisits(
            self._hosts,
            concurrency=shop.settings.polling.concurrency,
            serve=self._poll,
            leave=self._leave,
            reason_to_stop=self._reason_to_stop,
        )
        self._retry_at: dict[str, datetime] = {}

    def _claim_size(self, wanted: ClaimFilter) -> int:
        tiers = {tier.priority: tier.value for tier in Tier}
        with self._shop.store.read() as connection:
            pace = known_pace(tuned(connection), tiers.get(wanted.priority or 0))
        return claim_size(pace, self._shop.settings.polling)

    async def run(self, wanted: ClaimFilter) -> Fetching:
        """Drain what is wanted; a fatal error is raised when everything else is written down."""
        self._batch_size = await asyncio.to_thread(self._claim_size, wanted)
        alive = asyncio.create_task(self._worker.keep_alive(self._hosts.renew))
        try:
            await self._drain(wanted)
        finally:
            alive.cancel()
            await self._stop_visits()
            await self._flush()
        if self._time.fatal is not None:
            await asyncio.to_thread(self._give_back_batches, self._time.fatal)
            raise self._time.fatal
        filled = [batch_id for batch_id, listings in self._batches.items() if listings]
        return Fetching(owner=self._worker.owner, batch_ids=filled, counts=self._counts)

    async def _drain(self, wanted: ClaimFilter) -> None:
        while True:
            room = self._room_for(wanted)
            tasks = await self._claim_more(wanted, room) if room else []
            if wanted.source_ids is not None:
                # A manual claim ignores due times: nobody is asked for twice.
                rest = set(wanted.source_ids) - {task.source_id for task in tasks}
                wanted = replace(wanted, source_ids=rest if len(tasks) == room else ())
            await self._visits.wait(timeout_seconds=1.0)
            is_much = len(self._results) >= FLUSH_AFTER
            if not self._visits or is_much or time.monotonic() >= self._flush_at:
                await self._flush()
            if self._visits or tasks:
                continue
            again = await self._due_retries()
            if not again:
                return
            if wanted.source_ids is not None:
                wanted = replace(wanted, source_ids=again)

    async def _stop_visits(self) -> None:
        """Nobody is asked any more; what was not reached is given back, the hosts are left."""
        await self._visits.stop()
        stopped = self._time.stopped()
        for one in list(self._open.values()):
            self._settle(failure_of(one, stopped))

    def _has_time(self) -> bool:
        return sum(self._batches.values()) < self._most_changed and self._time.is_left()

    @property
    def _most_changed(self) -> int:
        # What changed must also be read and ingested by this run, within its time.
        return BATCHES_PER_RUN * self._shop.settings.polling.batch_size

    def _room_for(self, wanted: ClaimFilter) -> int:
        """How many more may be claimed; none while little has changed since the last claim."""
        size = self._batch_size
        room = size - len(self._open)
        is_soon = bool(self._visits) and (room * 4 < size or time.monotonic() < self._claim_at)
        is_asked = wanted.source_ids is None or bool(wanted.source_ids)
        return room if is_asked and not is_soon and self._has_time() else 0

    async def _claim_more(self, wanted: ClaimFilter, room: int) -> list[Task]:
        """More sources, each in its host's queue; dead and missing ones are dealt with at once."""
        tasks, known = await asyncio.to_thread(self._claim, wanted, room)
        self._claim_at = time.monotonic() + (0 if len(tasks) == room else CLAIM_SECONDS)
        usable: list[ClaimedPoll] = []
        for task in tasks:
            source = known.get(task.source_id or "")
            if source is None:
                self._results.append(Missing(task=task))
            elif task.attempts > self._shop.settings.work.max_attempts:
                self._results.append(worker_lost(ClaimedPoll(task=task, source=source)))
            elif source.kind in self._shop.begun:
                self._results.append(self._begun(ClaimedPoll(task=task, source=source)))
            else:
                usable.append(ClaimedPoll(task=task, source=source))
        self._open |= {one.task.id: one for one in usable}
        await self._visits.assign(self._by_host(usable), lambda item: item[0].source)
        return tasks

    def _begun(self, one: ClaimedPoll) -> PollResult:
        try:
            self._shop.begun[one.source.kind].check(one.source)
        except ValueError as error:
            return failure_of(one, Permanent(str(error), code="bad_config"))
        return Deferred(task=one.task, source=one.source)

    def _claim(self, wanted: ClaimFilter, room: int) -> tuple[list[Task], dict[str, Source]]:
        tasks = self._worker.claim(wanted, limit=room)
        with self._shop.store.read() as connection:
            return tasks, sources_by_id(connection, {task.source_id or "" for task in tasks})

    def _by_host(self, claimed: Sequence[ClaimedPoll]) -> dict[str, list[Item]]:
        by_host: dict[str, list[Item]] = {}
        for one in claimed:
            try:
                listing = self._listing(one.source)
                host = host_of(listing.first_request().url)
            except ValueError as error:
                self._settle(failure_of(one, Permanent(str(error), code="bad_config")))
                continue
            by_host.setdefault(host, []).append((one, listing))
        return by_host

    def _listing(self, source: Source) -> Feed:
        if source.kind not in self._shop.systems:
            raise ValueError(f"nothing polls sources of kind {source.kind}; disable {source.id}")
        return self._shop.systems[source.kind].listing(source)

    async def _poll(self, item: Item, host: HostLease) -> None:
        one, listing = item
        result = await poll_listing(
            self._shop, one, listing, fetcher=self._fetcher, host=host, clock=self._clock
        )
        self._settle(result)

    def _leave(self, item: Item, why: WorkError) -> None:
        self._settle(failure_of(item[0], why))

    def _reason_to_stop(self) -> WorkError | None:
        return None if self._has_time() else self._time.over()

    def _settle(self, result: PollResult) -> None:
        self._open.pop(result.task.id, None)
        self._results.append(result)
        if isinstance(result, PollFailure) and isinstance(result.error, Fatal):
            self._time.fatal = result.error

    async def _flush(self) -> None:
        """Write what has come in, and free the hosts that were left."""
        self._flush_at = time.monotonic() + FLUSH_SECONDS
        # Taken here and not in the thread, since visits go on while it writes.
        results, self._results = self._results, []
        async with self._hosts.letting_go() as left:
            if not results and not left:
                return
            batch_id = self._batch_with_room()
            counts, retry_at = await asyncio.to_thread(self._write, results, left, batch_id)
        self._batches[batch_id] += counts.changed
        self._counts += counts
        self._retry_at |= retry_at

    def _batch_with_room(self) -> str:
        batch_id, listings = list(self._batches.items())[-1]
        if listings < self._shop.settings.polling.batch_size:
            return batch_id
        batch_id = str(uuid4())
        self._batches[batch_id] = 0
        return batch_id

    def _write(
        self, results: Sequence[PollResult], left: Mapping[str, HostLease], batch_id: str
    ) -> tuple[PollCounts, Mapping[str, datetime]]:
        def write(connection: Connection) -> tuple[PollCounts, Mapping[str, datetime]]:
            now = self._shop.store.clock.now(connection)
            free = next_allowed_at(left, self._shop.store, connection)
            written = write_results(
                connection,
                results,
                batch_id=batch_id,
                now=now,
                settings=self._shop.settings,
                random=self._shop.random,
                begun_by=self._shop.begun,
            )
            self._hosts.release(connection, left, free, now=now)
            return written

        return self._shop.store.write(write)

    def _give_back_batches(self, error: Fatal) -> None:
        with self._shop.store.begin() as connection:
            now = self._shop.store.clock.now(connection)
            for batch_id in self._batches:
                give_back_batch(connection, batch_id, error, now=now)

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
