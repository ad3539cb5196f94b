"""The crawl loop of one run: claim a few pages of each source, fetch host by host, write.

The frontier is in the database. A run holds a bounded number of pages, and of one source or host
never more than its share, so that a large catalogue does not starve others. What follows from a
page is written with the page, in one fenced transaction per flush. Pages that were not reached are
released.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from ingestion_pipeline.engine.context import RunContext, reduced_gc
from ingestion_pipeline.engine.crawling.protocol import (
    FETCH_PAGE,
    CrawlCounts,
    CrawledSystem,
    CrawlFilter,
    CrawlResult,
    PageArchive,
    PageDone,
    PageFailed,
    PageGone,
    PageResult,
    PageWork,
    Visitor,
)
from ingestion_pipeline.engine.crawling.results import PageWriter
from ingestion_pipeline.engine.host_queue import HostQueues
from ingestion_pipeline.engine.time_budget import TimeBudget
from ingestion_pipeline.pages.content.store import storage_errors_fatal
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.politeness.host_leases import HostLease, LeasedHosts, requested_pause
from ingestion_pipeline.pages.visits.page import CrawledPage, NewPage, PageAnswer
from ingestion_pipeline.pages.visits.polite_visits import LARGE_BYTES
from ingestion_pipeline.sources import Kind, Source
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.errors import BOT_CHECK, Fatal, Permanent, Resource, WorkError, classify
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline.urls import host_of

P = ParamSpec("P")
T = TypeVar("T")

FLUSH_AFTER = 250  # pages written in one transaction, which share its fixed cost
FLUSH_BYTES = 16_000_000  # or so many bytes, since they wait in memory
FLUSH_SECONDS = 2.0  # or after this, so that a finished host is soon free for other runs
# A thread that claims or writes and the event loop switch the interpreter at each system call,
# which costs a seventh of a page: meanwhile no page is started, for at most this long.
PAUSE_SECONDS = 0.5
CLAIM_SECONDS = 1.0  # between two claims while hosts are busy and the last claim found no more
MOST_SOURCES = 200  # considered at a time; the others come first the next time

# Errors of the whole host and not of one page: until they end, nothing of the host is claimed.
_HOST_CODES = frozenset({"host_busy", "host_yielded", "rate_limited", "crawl_delay", "robots_unavailable"})


class CrawlRun:
    """The crawl of one run over one kind of source, under one worker identity."""

    def __init__(
        self,
        ctx: RunContext,
        worker: Worker,
        fetcher: HttpFetcher,
        *,
        kind: Kind,
        visitor: Visitor,
        archive: PageArchive,
        clock: SteadyClock,
        seconds: float | None = None,
    ) -> None:
        self._ctx = ctx
        self._worker = worker
        self._system: CrawledSystem = ctx.crawlers[kind]
        self._visitor = visitor
        self._archive = archive
        self._clock = clock
        self._hosts = LeasedHosts(ctx, worker, fetcher, clock)
        limit = ctx.settings.polling.slice_seconds if seconds is None else seconds
        self._time = TimeBudget(worker, clock, seconds=limit, network=self._hosts.network)
        self._claim_at = self._flush_at = time.monotonic()
        self._refill_at = 0  # pages held
        self._counts = CrawlCounts()
        self._results: list[PageResult] = []
        self._unwritten_bytes = 0
        self._open: dict[int, PageWork] = {}
        self._held: dict[str, datetime] = {}
        self._is_quiet = asyncio.Event()
        self._is_quiet.set()
        self._blocked_sources: set[str] = set()
        self._writer = PageWriter(ctx, self._system, archive, self._hosts)
        self._visits: HostQueues[PageWork] = HostQueues(
            self._hosts,
            concurrency=ctx.settings.polling.concurrency,
            execute=self._visit,
            release=self._release,
            reason_to_stop=self._time.reason_to_stop,
        )

    async def run(self, crawl_filter: CrawlFilter) -> CrawlResult:
        """Crawl as long as there is work and time; a fatal error is raised at the end."""
        alive = asyncio.create_task(self._worker.keep_alive(self._hosts.renew))
        try:
            with reduced_gc():
                await self._drain(crawl_filter)
        finally:
            alive.cancel()
            await self._stop_visits()
            await self._flush()
        if self._time.fatal is not None:
            raise self._time.fatal
        return CrawlResult(owner=self._worker.owner, counts=self._counts, is_time_over=self._time.is_over)

    async def _drain(self, crawl_filter: CrawlFilter) -> None:
        while True:
            claimed = await self._claim_more(crawl_filter) if self._may_claim() else 0
            await self._visits.wait(timeout_seconds=1.0)
            if not self._visits or self._must_flush() or time.monotonic() >= self._flush_at:
                claimed += await self._flush()  # the written pages may have links to follow
            if not self._visits and not claimed and not await self._time.rest():
                return

    async def _stop_visits(self) -> None:
        """Stop fetching and release the pages that were not reached."""
        await self._visits.stop()
        stopped = self._time.stopped()
        for work in list(self._open.values()):
            self._release(work, stopped)

    def _may_claim(self) -> bool:
        """Return whether there is room, and half of the pages are done or a second has passed."""
        is_soon = len(self._open) > self._refill_at and time.monotonic() < self._claim_at
        has_room = len(self._open) < self._ctx.settings.crawl.batch_size
        return has_room and not (self._visits and is_soon) and self._time.is_left()

    async def _claim_more(self, crawl_filter: CrawlFilter) -> int:
        """Claim more pages into their host's queue; record lost and missing ones at once."""
        # A copy, since pages are done while another thread claims.
        opened = await self._in_a_thread(self._claim, crawl_filter, list(self._open.values()))
        self._claim_at = time.monotonic() + CLAIM_SECONDS
        by_host: dict[str, list[PageWork]] = {}
        for opened_page in opened:
            if isinstance(opened_page, PageGone):
                self._results.append(opened_page)
                continue
            self._open[opened_page.task.id] = opened_page
            if opened_page.task.attempts > self._ctx.settings.work.max_attempts:
                self._release(opened_page, _worker_lost(opened_page.task))
            else:
                by_host.setdefault(host_of(opened_page.visit.url), []).append(opened_page)
        self._refill_at = len(self._open) // 2 if opened else -1
        await self._visits.assign(by_host, lambda work: work.source)
        return len(opened)

    def _claim(self, crawl_filter: CrawlFilter, held: Sequence[PageWork]) -> Sequence[PageWork | PageGone]:
        with self._ctx.store.read() as connection:
            now = self._ctx.store.clock.now(connection)
            sources = self._system.waiting(connection, crawl_filter, now=now, limit=MOST_SOURCES)
        claim_requests = self._claim_requests(sources, held)
        tasks = self._worker.claim_all(claim_requests) if claim_requests else []
        if not tasks:
            return []
        with self._ctx.store.begin() as connection:
            return self._system.open_pages(connection, tasks, archive=self._archive)

    def _claim_requests(self, sources: Sequence[Source], held: Sequence[PageWork]) -> list[tuple[ClaimFilter, int]]:
        """Return how many pages of each source to claim: within the room, and within its share."""
        size = self._ctx.settings.crawl.batch_size
        share = max(1, min(self._ctx.settings.crawl.per_source, size // max(len(sources), 1)))
        room, now = size - len(held), self._clock.now()
        held_by = Counter(work.source.id for work in held)
        held_by.update(f"host:{host_of(work.visit.url)}" for work in held)
        claim_requests: list[tuple[ClaimFilter, int]] = []
        for source in sources:
            has = max(held_by[source.id], held_by[f"host:{source.host}"])
            count = min(room, share - has)
            is_held = source.id in self._blocked_sources or self._held.get(source.host, now) > now
            if count <= 0 or is_held:
                continue
            held_by[f"host:{source.host}"] += count
            room -= count
            claim_requests.append((ClaimFilter(kind=FETCH_PAGE, frontier_of=source.id), count))
        return claim_requests

    async def _visit(self, work: PageWork, host: HostLease) -> None:
        if not self._is_quiet.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_SECONDS):
                    await self._is_quiet.wait()
        if work.source.id in self._blocked_sources:  # no further requests to a site that blocks us
            self._open.pop(work.task.id, None)
            self._results.append(PageGone(task=work.task, why="its source blocks robots"))
            return
        waited, started = host.rate_limiter.waited_seconds, time.monotonic()
        try:
            answer = await self._visitor.visit(work.visit, host=host, honours_robots=self._system.honours_robots(work))
            host.rate_limiter.reset()
            elapsed = time.monotonic() - started - (host.rate_limiter.waited_seconds - waited)
            done = await self._done(work, answer, max(elapsed, 0.0))
        except Exception as error:
            failure = classify(error)
            if (pause := requested_pause(failure, self._clock.now())) is not None:
                host.rate_limiter.pause(pause.total_seconds())
            stack = traceback.format_exc(limit=-20)
            self._record(PageFailed(work=work, error=failure, stack=stack))
        else:
            self._record(done)

    async def _done(self, work: PageWork, answer: PageAnswer, elapsed: float) -> PageDone:
        """Return the result with what follows from the page; large pages are parsed in a thread."""
        if isinstance(answer, NewPage) and len(answer.body) <= LARGE_BYTES:
            followed = self._followed(work, answer)
        else:
            followed = await asyncio.to_thread(self._followed, work, answer)
        return PageDone(work=work, answer=answer, followed=followed, elapsed_ms=round(elapsed * 1_000))

    def _followed(self, work: PageWork, answer: PageAnswer) -> Any:  # noqa: ANN401 - the system's
        with storage_errors_fatal():
            page = self._page(work, answer)
        return self._system.follow(work, page)

    def _page(self, work: PageWork, answer: PageAnswer) -> CrawledPage | None:
        """Return the page to parse; an unchanged one is read from the store, if at all."""
        if isinstance(answer, NewPage):
            return CrawledPage(
                url=answer.final_url,
                body=answer.body,
                content_type=answer.content_type,
                links=(*answer.links, *answer.discovered),
                is_rendered=answer.is_rendered,
            )
        return self._archive.stored(answer.known_page) if self._system.reads_content(work) else None

    def _release(self, work: PageWork, why: WorkError) -> None:
        self._record(PageFailed(work=work, error=why))

    def _record(self, result: PageDone | PageFailed) -> None:
        self._open.pop(result.task.id, None)
        self._results.append(result)
        self._unwritten_bytes += result.size_bytes if isinstance(result, PageDone) else 0
        error = result.error if isinstance(result, PageFailed) else None
        if isinstance(error, Fatal):
            self._time.fatal = error
        if error is not None and error.code == BOT_CHECK:
            self._blocked_sources.add(result.work.source.id)
            self._flush_at = time.monotonic()  # its crawl ends now
            self._visits.nudge()
        if isinstance(error, Resource) and error.code in _HOST_CODES:
            host = host_of(result.work.visit.url)
            self._held[host] = max(error.until, self._held.get(host, error.until))
            self._time.expect([self._held[host]])
        if self._must_flush() or self._may_claim():
            self._visits.nudge()

    async def _in_a_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in a thread; the loop starts no page until it is done."""
        self._is_quiet.clear()
        try:
            return await asyncio.to_thread(work, *args, **kwargs)
        finally:
            self._is_quiet.set()

    def _must_flush(self) -> bool:
        is_large = self._unwritten_bytes >= FLUSH_BYTES
        return is_large or len(self._results) >= FLUSH_AFTER

    async def _flush(self) -> int:
        """Write the results so far and release finished hosts; return how many pages there were."""
        self._flush_at = time.monotonic() + FLUSH_SECONDS
        # Taken here and not in the thread, since fetching continues while it writes.
        results, self._results, self._unwritten_bytes = self._results, [], 0
        async with self._hosts.releasing() as left:
            if not results and not left:
                return 0
            written = await self._in_a_thread(self._writer.write, results, left)
        self._time.fatal = written.fatal or self._time.fatal
        self._counts += written.counts
        self._time.expect(written.again_at)
        return len(results)


def _worker_lost(task: Task) -> Permanent:
    message = f"worker lost {task.attempts - 1} times on this page; last stage: {task.stage}"
    return Permanent(message, code="worker_lost")
