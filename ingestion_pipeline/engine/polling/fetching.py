"""The fetching part of a poll run: claim polls, fetch each feed at its host's pace, store it.

A run that is killed between fetching and ingesting loses nothing: its polls stay claimed until their leases expire
(`tasks/claims.py`; the sensor `stale_runs` expires them sooner), are then claimed again with a higher fence, and
fetched again. The batch of the dead run is deleted by whoever stores the feed again, or by retention, never resumed.
"""

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
from ingestion_pipeline.engine.host_queue import HostQueues
from ingestion_pipeline.engine.polling.protocol import ChangedFeed, Feed, FetchState, UnchangedFeed, fetch_feed
from ingestion_pipeline.engine.polling.results import (
    ClaimedPoll,
    Deferred,
    MissingSource,
    PollCounts,
    PollResult,
    PollRunResult,
    StoredFeed,
    failure_of,
    release_batch,
    worker_lost,
    write_results,
)
from ingestion_pipeline.engine.time_budget import TimeBudget
from ingestion_pipeline.pages.content.snapshots import PageRef
from ingestion_pipeline.pages.content.store import ContentStore, storage_errors_fatal
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.http.request import Fetched
from ingestion_pipeline.pages.politeness.host_leases import HostLease, LeasedHosts, next_allowed_at, requested_pause
from ingestion_pipeline.pages.politeness.hosts import LONGEST_WAIT
from ingestion_pipeline.pages.politeness.paced_fetch import PacedFetch
from ingestion_pipeline.sources import Source, Tier
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_results import PollFailure, PollSuccess
from ingestion_pipeline.sources.scheduling.budget import load_measurements
from ingestion_pipeline.sources.scheduling.due import claim_size, known_pace
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.errors import Fatal, Permanent, WorkError, classify
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline.urls import host_of, without_secrets


async def poll_feed(
    ctx: RunContext, poll: ClaimedPoll, feed: Feed, *, fetcher: HttpFetcher, host: HostLease, clock: SteadyClock
) -> PollResult:
    """Return unchanged, stored, or a classified failure; never raise."""
    rate_limiter = host.rate_limiter
    try:
        system = ctx.systems[poll.source.kind]
        parser_version = system.parser_version(poll.source)
        robots = host.robots if system.honours_robots(poll.source) else None
        own = host_of(feed.first_request().url)
        answer = await fetch_feed(
            feed,
            _fetch_state(poll.source, parser_version),
            parser_version=parser_version,
            fetch=PacedFetch(fetcher, own, host, robots, clock),
            max_pages=ctx.settings.fetch.max_pages,
            may_be_cut=system.may_be_cut,
        )
        rate_limiter.reset()
        if isinstance(answer, UnchangedFeed):
            return _unchanged_result(poll, answer)
        pages = await asyncio.to_thread(_store_pages, ctx.content, answer.pages)
        return _stored_feed(poll, answer, parser_version, pages)
    except Exception as error:
        failure = classify(error)
        if (pause := requested_pause(failure, clock.now())) is not None:
            rate_limiter.pause(pause.total_seconds())
        return PollFailure(task=poll.task, source=poll.source, error=failure, stack=traceback.format_exc(limit=-20))


def _fetch_state(source: Source, parser_version: str) -> FetchState:
    """Return what an unchanged feed is recognised by; nothing if it must be read again anyway."""
    if source.needs_full_read or source.parser_version != parser_version:
        return FetchState()
    return FetchState(content_hash=source.content_hash, etag=source.etag, last_modified=source.last_modified)


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


def _unchanged_result(poll: ClaimedPoll, unchanged: UnchangedFeed) -> PollSuccess:
    return PollSuccess(
        task=poll.task,
        source=poll.source,
        outcome="unchanged",
        etag=unchanged.etag,
        last_modified=unchanged.last_modified,
    )


def _stored_feed(poll: ClaimedPoll, answer: ChangedFeed, parser_version: str, pages: tuple[PageRef, ...]) -> StoredFeed:
    return StoredFeed(
        task=poll.task, source=poll.source, content_hash=answer.content_hash, parser_version=parser_version, pages=pages
    )


BATCHES_PER_RUN = 10
FLUSH_AFTER = 200  # results written in one transaction
FLUSH_SECONDS = 2.0  # or after this, so that a finished host is soon free for other runs
CLAIM_SECONDS = 1.0  # between two claims while hosts are busy and the last claim found no more

Item = tuple[ClaimedPoll, Feed]


class PollRun:
    """The fetching of one run, under one worker identity."""

    def __init__(self, ctx: RunContext, worker: Worker, fetcher: HttpFetcher) -> None:
        self._ctx = ctx
        self._worker = worker
        self._fetcher = fetcher
        self._clock = SteadyClock(ctx.store.now())
        self._hosts = LeasedHosts(ctx, worker, fetcher, self._clock)
        self._batch_size = ctx.settings.polling.batch_size
        self._time = TimeBudget(
            worker, self._clock, seconds=ctx.settings.polling.slice_seconds, network=self._hosts.network
        )
        self._claim_at = time.monotonic()
        self._flush_at = self._claim_at + FLUSH_SECONDS
        self._batches = {str(uuid4()): 0}  # how many changed feeds each holds
        self._counts = PollCounts()
        self._results: list[PollResult] = []
        self._open: dict[int, ClaimedPoll] = {}
        self._visits: HostQueues[Item] = HostQueues(
            self._hosts,
            concurrency=ctx.settings.polling.concurrency,
            execute=self._poll,
            release=self._release,
            reason_to_stop=self._reason_to_stop,
        )
        self._retry_at: dict[str, datetime] = {}

    def _claim_size(self, claim_filter: ClaimFilter) -> int:
        tiers = {tier.priority: tier.value for tier in Tier}
        with self._ctx.store.read() as connection:
            pace = known_pace(load_measurements(connection), tiers.get(claim_filter.priority or 0))
        return claim_size(pace, self._ctx.settings.polling)

    async def run(self, claim_filter: ClaimFilter) -> PollRunResult:
        """Fetch until no task is due; a fatal error is raised after everything else is written."""
        self._batch_size = await asyncio.to_thread(self._claim_size, claim_filter)
        alive = asyncio.create_task(self._worker.keep_alive(self._hosts.renew))
        try:
            await self._drain(claim_filter)
        finally:
            alive.cancel()
            await self._stop_visits()
            await self._flush()
        if self._time.fatal is not None:
            await asyncio.to_thread(self._release_batches, self._time.fatal)
            raise self._time.fatal
        filled = [batch_id for batch_id, count in self._batches.items() if count]
        return PollRunResult(owner=self._worker.owner, batch_ids=filled, counts=self._counts)

    async def _drain(self, claim_filter: ClaimFilter) -> None:
        while True:
            room = self._claimable_count(claim_filter)
            tasks = await self._claim_more(claim_filter, room) if room else []
            if claim_filter.source_ids is not None:
                # A manual claim ignores due times: no source is claimed twice.
                rest = set(claim_filter.source_ids) - {task.source_id for task in tasks}
                claim_filter = replace(claim_filter, source_ids=rest if len(tasks) == room else ())
            await self._visits.wait(timeout_seconds=1.0)
            is_much = len(self._results) >= FLUSH_AFTER
            if not self._visits or is_much or time.monotonic() >= self._flush_at:
                await self._flush()
            if self._visits or tasks:
                continue
            due_again = await self._due_retries()
            if not due_again:
                return
            if claim_filter.source_ids is not None:
                claim_filter = replace(claim_filter, source_ids=due_again)

    async def _stop_visits(self) -> None:
        """Stop fetching and release the polls that were not reached."""
        await self._visits.stop()
        stopped = self._time.stopped()
        for poll in list(self._open.values()):
            self._record(failure_of(poll, stopped))

    def _has_time(self) -> bool:
        return sum(self._batches.values()) < self._most_changed and self._time.is_left()

    @property
    def _most_changed(self) -> int:
        # This run must also parse and ingest what changed, within its time.
        return BATCHES_PER_RUN * self._ctx.settings.polling.batch_size

    def _claimable_count(self, claim_filter: ClaimFilter) -> int:
        """Return how many more polls may be claimed; 0 shortly after the last claim."""
        size = self._batch_size
        room = size - len(self._open)
        is_soon = bool(self._visits) and (room * 4 < size or time.monotonic() < self._claim_at)
        is_asked = claim_filter.source_ids is None or bool(claim_filter.source_ids)
        return room if is_asked and not is_soon and self._has_time() else 0

    async def _claim_more(self, claim_filter: ClaimFilter, room: int) -> list[Task]:
        """Claim more polls into their host's queue; record lost and missing ones at once."""
        tasks, sources = await asyncio.to_thread(self._claim, claim_filter, room)
        self._claim_at = time.monotonic() + (0 if len(tasks) == room else CLAIM_SECONDS)
        usable: list[ClaimedPoll] = []
        for task in tasks:
            source = sources.get(task.source_id or "")
            if source is None:
                self._results.append(MissingSource(task=task))
            elif task.attempts > self._ctx.settings.work.max_attempts:
                self._results.append(worker_lost(ClaimedPoll(task=task, source=source)))
            elif source.kind in self._ctx.deferred:
                self._results.append(self._deferred_result(ClaimedPoll(task=task, source=source)))
            else:
                usable.append(ClaimedPoll(task=task, source=source))
        self._open |= {poll.task.id: poll for poll in usable}
        await self._visits.assign(self._by_host(usable), lambda item: item[0].source)
        return tasks

    def _deferred_result(self, poll: ClaimedPoll) -> PollResult:
        try:
            self._ctx.deferred[poll.source.kind].check(poll.source)
        except ValueError as error:
            return failure_of(poll, Permanent(str(error), code="bad_config"))
        return Deferred(task=poll.task, source=poll.source)

    def _claim(self, claim_filter: ClaimFilter, room: int) -> tuple[list[Task], dict[str, Source]]:
        tasks = self._worker.claim(claim_filter, limit=room)
        with self._ctx.store.read() as connection:
            return tasks, sources_by_id(connection, {task.source_id or "" for task in tasks})

    def _by_host(self, claimed: Sequence[ClaimedPoll]) -> dict[str, list[Item]]:
        by_host: dict[str, list[Item]] = {}
        for poll in claimed:
            try:
                feed = self._feed(poll.source)
                host = host_of(feed.first_request().url)
            except ValueError as error:
                self._record(failure_of(poll, Permanent(str(error), code="bad_config")))
                continue
            by_host.setdefault(host, []).append((poll, feed))
        return by_host

    def _feed(self, source: Source) -> Feed:
        if source.kind not in self._ctx.systems:
            raise ValueError(f"nothing polls sources of kind {source.kind}; disable {source.id}")
        return self._ctx.systems[source.kind].feed(source)

    async def _poll(self, item: Item, host: HostLease) -> None:
        poll, feed = item
        result = await poll_feed(self._ctx, poll, feed, fetcher=self._fetcher, host=host, clock=self._clock)
        self._record(result)

    def _release(self, item: Item, reason: WorkError) -> None:
        self._record(failure_of(item[0], reason))

    def _reason_to_stop(self) -> WorkError | None:
        return None if self._has_time() else self._time.over()

    def _record(self, result: PollResult) -> None:
        self._open.pop(result.task.id, None)
        self._results.append(result)
        if isinstance(result, PollFailure) and isinstance(result.error, Fatal):
            self._time.fatal = result.error

    async def _flush(self) -> None:
        """Write the results so far, and release the hosts that are finished."""
        self._flush_at = time.monotonic() + FLUSH_SECONDS
        # Taken here and not in the thread, since fetching continues while it writes.
        results, self._results = self._results, []
        async with self._hosts.releasing() as left:
            if not results and not left:
                return
            batch_id = self._batch_with_room()
            counts, retry_at = await asyncio.to_thread(self._write, results, left, batch_id)
        self._batches[batch_id] += counts.changed
        self._counts += counts
        self._retry_at |= retry_at

    def _batch_with_room(self) -> str:
        batch_id, count = list(self._batches.items())[-1]
        if count < self._ctx.settings.polling.batch_size:
            return batch_id
        batch_id = str(uuid4())
        self._batches[batch_id] = 0
        return batch_id

    def _write(
        self, results: Sequence[PollResult], left: Mapping[str, HostLease], batch_id: str
    ) -> tuple[PollCounts, Mapping[str, datetime]]:
        def write(connection: Connection) -> tuple[PollCounts, Mapping[str, datetime]]:
            now = self._ctx.store.clock.now(connection)
            free = next_allowed_at(left, self._ctx.store, connection)
            written = write_results(
                connection,
                results,
                batch_id=batch_id,
                now=now,
                settings=self._ctx.settings,
                random=self._ctx.random,
                deferred_systems=self._ctx.deferred,
            )
            self._hosts.release(connection, left, free, now=now)
            return written

        return self._ctx.store.write(write)

    def _release_batches(self, error: Fatal) -> None:
        with self._ctx.store.begin() as connection:
            now = self._ctx.store.clock.now(connection)
            for batch_id in self._batches:
                release_batch(connection, batch_id, error, now=now)

    async def _due_retries(self) -> set[str]:
        """Wait for the first retry of this run; return the due sources, none if it is too late."""
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
