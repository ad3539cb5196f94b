"""The loop of one run over pages: claim a few of each source, visit their hosts, write, go on.

The frontier is in the database. A run holds a bounded number of pages, fairly: of one source or
host never more than its share, so that a large catalogue starves nobody. What follows from a page
is written with the page, in one fenced transaction per flush. What could not be got to is given
back.
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

from ingestion_pipeline.engine.context import RunContext, fewer_collections
from ingestion_pipeline.engine.crawling.protocol import (
    FETCH_PAGE,
    CrawlCounts,
    Crawled,
    CrawledSystem,
    CrawlFilter,
    PageArchive,
    PageDone,
    PageFailed,
    PageGone,
    PageResult,
    PageWork,
    Visitor,
)
from ingestion_pipeline.engine.crawling.results import PageWriter
from ingestion_pipeline.engine.host_queue import HostVisits
from ingestion_pipeline.engine.time_budget import TimeBudget
from ingestion_pipeline.pages.content.store import storage_errors_fatal
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.politeness.host_leases import HostLease, LeasedHosts, asked_pause
from ingestion_pipeline.pages.visits.page import CrawledPage, NewPage, PageAnswer
from ingestion_pipeline.pages.visits.polite_visits import LARGE_BYTES
from ingestion_pipeline.sources import Kind, Source
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.errors import (
    BOT_WALL,
    Fatal,
    Permanent,
    Resource,
    WorkError,
    classify,
)
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline.urls import host_of

P = ParamSpec("P")
T = TypeVar("T")

FLUSH_AFTER = 250  # pages written in one transaction: what it costs by itself, they share
FLUSH_BYTES = 16_000_000  # or so much of them, since they wait in memory
FLUSH_SECONDS = 2.0  # or after this, so that a host that was left is soon free for others
# A thread that claims or writes and a loop that reads hand the interpreter to each other at each
# system call, a seventh of what a page takes: meanwhile no page is begun, or not for so long.
PAUSE_SECONDS = 0.5
CLAIM_SECONDS = 1.0  # between two claims while hosts are visited and the last one found no more
MOST_SOURCES = 200  # asked at a time; the others are longer untouched the next time

# What concerns the whole host and not one page of it: until then it is not claimed for.
_OF_THE_HOST = frozenset(
    {"host_busy", "host_yielded", "rate_limited", "crawl_delay", "robots_unavailable"}
)


class CrawlSlice:
    """One run's walk through the pages of one kind of source, under one worker identity."""

    def __init__(
        self,
        shop: RunContext,
        worker: Worker,
        fetcher: HttpFetcher,
        *,
        kind: Kind,
        visitor: Visitor,
        archive: PageArchive,
        clock: SteadyClock,
        seconds: float | None = None,
    ) -> None:
        self._shop = shop
        self._worker = worker
        self._system: CrawledSystem = shop.crawlers[kind]
        self._visitor = visitor
        self._archive = archive
        self._clock = clock
        self._hosts = LeasedHosts(shop, worker, fetcher, clock)
        limit = shop.settings.polling.slice_seconds if seconds is None else seconds
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
        self._walled: set[str] = set()
        self._writer = PageWriter(shop, self._system, archive, self._hosts)
        self._visits: HostVisits[PageWork] = HostVisits(
            self._hosts,
            concurrency=shop.settings.polling.concurrency,
            serve=self._visit,
            leave=self._leave,
            reason_to_stop=self._time.reason_to_stop,
        )

    async def run(self, wanted: CrawlFilter) -> Crawled:
        """Walk on as long as there is work and time; a fatal error is raised at the end."""
        alive = asyncio.create_task(self._worker.keep_alive(self._hosts.renew))
        try:
            with fewer_collections():
                await self._drain(wanted)
        finally:
            alive.cancel()
            await self._stop_visits()
            await self._flush()
        if self._time.fatal is not None:
            raise self._time.fatal
        return Crawled(
            owner=self._worker.owner, counts=self._counts, is_time_over=self._time.is_over
        )

    async def _drain(self, wanted: CrawlFilter) -> None:
        while True:
            claimed = await self._claim_more(wanted) if self._may_claim() else 0
            await self._visits.wait(timeout_seconds=1.0)
            if not self._visits or self._has_much() or time.monotonic() >= self._flush_at:
                claimed += await self._flush()  # what was written may lead further
            if not self._visits and not claimed and not await self._time.rest():
                return

    async def _stop_visits(self) -> None:
        """Nobody is asked any more; what was not reached is given back, the hosts are left."""
        await self._visits.stop()
        stopped = self._time.stopped()
        for work in list(self._open.values()):
            self._leave(work, stopped)

    def _may_claim(self) -> bool:
        """When half of what was held is done, or after a second; not if there is no room."""
        is_soon = len(self._open) > self._refill_at and time.monotonic() < self._claim_at
        has_room = len(self._open) < self._shop.settings.crawl.batch_size
        return has_room and not (self._visits and is_soon) and self._time.is_left()

    async def _claim_more(self, wanted: CrawlFilter) -> int:
        """More pages, each in its host's queue; dead and unwanted ones are dealt with at once."""
        # A copy, since pages are done while another thread claims.
        opened = await self._in_a_thread(self._claim, wanted, list(self._open.values()))
        self._claim_at = time.monotonic() + CLAIM_SECONDS
        by_host: dict[str, list[PageWork]] = {}
        for one in opened:
            if isinstance(one, PageGone):
                self._results.append(one)
                continue
            self._open[one.task.id] = one
            if one.task.attempts > self._shop.settings.work.max_attempts:
                self._leave(one, _worker_lost(one.task))
            else:
                by_host.setdefault(host_of(one.visit.url), []).append(one)
        self._refill_at = len(self._open) // 2 if opened else -1
        await self._visits.assign(by_host, lambda work: work.source)
        return len(opened)

    def _claim(
        self, wanted: CrawlFilter, held: Sequence[PageWork]
    ) -> Sequence[PageWork | PageGone]:
        with self._shop.store.read() as connection:
            now = self._shop.store.clock.now(connection)
            sources = self._system.waiting(connection, wanted, now=now, limit=MOST_SOURCES)
        wishes = self._wishes(sources, held)
        tasks = self._worker.claim_all(wishes) if wishes else []
        if not tasks:
            return []
        with self._shop.store.begin() as connection:
            return self._system.open_pages(connection, tasks, archive=self._archive)

    def _wishes(
        self, sources: Sequence[Source], held: Sequence[PageWork]
    ) -> list[tuple[ClaimFilter, int]]:
        """How many pages of each source: all together fit, and none has more than its share."""
        size = self._shop.settings.crawl.batch_size
        share = max(1, min(self._shop.settings.crawl.per_source, size // max(len(sources), 1)))
        room, now = size - len(held), self._clock.now()
        held_by = Counter(work.source.id for work in held)
        held_by.update(f"host:{host_of(work.visit.url)}" for work in held)
        wishes: list[tuple[ClaimFilter, int]] = []
        for source in sources:
            has = max(held_by[source.id], held_by[f"host:{source.host}"])
            count = min(room, share - has)
            is_held = source.id in self._walled or self._held.get(source.host, now) > now
            if count <= 0 or is_held:
                continue
            held_by[f"host:{source.host}"] += count
            room -= count
            wishes.append((ClaimFilter(kind=FETCH_PAGE, frontier_of=source.id), count))
        return wishes

    async def _visit(self, work: PageWork, host: HostLease) -> None:
        if not self._is_quiet.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_SECONDS):
                    await self._is_quiet.wait()
        if work.source.id in self._walled:  # whoever put it up is not asked for the rest in hand
            self._open.pop(work.task.id, None)
            self._results.append(PageGone(task=work.task, why="its source is behind a wall"))
            return
        waited, started = host.pacer.waited_seconds, time.monotonic()
        try:
            answer = await self._visitor.visit(
                work.visit, host=host, honours_robots=self._system.honours_robots(work)
            )
            host.pacer.relax()
            elapsed = time.monotonic() - started - (host.pacer.waited_seconds - waited)
            done = await self._done(work, answer, max(elapsed, 0.0))
        except Exception as error:
            failure = classify(error)
            if (pause := asked_pause(failure, self._clock.now())) is not None:
                host.pacer.hold_off(pause.total_seconds())
            stack = traceback.format_exc(limit=-20)
            self._settle(PageFailed(work=work, error=failure, stack=stack))
        else:
            self._settle(done)

    async def _done(self, work: PageWork, answer: PageAnswer, elapsed: float) -> PageDone:
        """What follows from the page is known; what may take long is done in a thread."""
        if isinstance(answer, NewPage) and len(answer.body) <= LARGE_BYTES:
            followed = self._followed(work, answer)
        else:
            followed = await asyncio.to_thread(self._followed, work, answer)
        return PageDone(
            work=work, answer=answer, followed=followed, elapsed_ms=round(elapsed * 1_000)
        )

    def _followed(self, work: PageWork, answer: PageAnswer) -> Any:  # noqa: ANN401 - the system's
        with storage_errors_fatal():
            page = self._page(work, answer)
        return self._system.follow(work, page)

    def _page(self, work: PageWork, answer: PageAnswer) -> CrawledPage | None:
        """What can be looked into; an unchanged page is read from the store, if at all."""
        if isinstance(answer, NewPage):
            return CrawledPage(
                url=answer.final_url,
                body=answer.body,
                content_type=answer.content_type,
                links=(*answer.links, *answer.discovered),
                is_rendered=answer.is_rendered,
            )
        return self._archive.stored(answer.known) if self._system.reads_content(work) else None

    def _leave(self, work: PageWork, why: WorkError) -> None:
        self._settle(PageFailed(work=work, error=why))

    def _settle(self, result: PageDone | PageFailed) -> None:
        self._open.pop(result.task.id, None)
        self._results.append(result)
        self._unwritten_bytes += result.size_bytes if isinstance(result, PageDone) else 0
        error = result.error if isinstance(result, PageFailed) else None
        if isinstance(error, Fatal):
            self._time.fatal = error
        if error is not None and error.code == BOT_WALL:
            self._walled.add(result.work.source.id)
            self._flush_at = time.monotonic()  # its crawl ends now
            self._visits.nudge()
        if isinstance(error, Resource) and error.code in _OF_THE_HOST:
            host = host_of(result.work.visit.url)
            self._held[host] = max(error.until, self._held.get(host, error.until))
            self._time.expect([self._held[host]])
        if self._has_much() or self._may_claim():
            self._visits.nudge()

    async def _in_a_thread(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Done beside the loop, which begins no page until then."""
        self._is_quiet.clear()
        try:
            return await asyncio.to_thread(work, *given, **named)
        finally:
            self._is_quiet.set()

    def _has_much(self) -> bool:
        is_large = self._unwritten_bytes >= FLUSH_BYTES
        return is_large or len(self._results) >= FLUSH_AFTER

    async def _flush(self) -> int:
        """Write what has come in, and free the hosts that were left; how many pages that was."""
        self._flush_at = time.monotonic() + FLUSH_SECONDS
        # Taken here and not in the thread, since visits go on while it writes.
        results, self._results, self._unwritten_bytes = self._results, [], 0
        async with self._hosts.letting_go() as left:
            if not results and not left:
                return 0
            written = await self._in_a_thread(self._writer.write, results, left)
        self._time.fatal = written.fatal or self._time.fatal
        self._counts += written.counts
        self._time.expect(written.again_at)
        return len(results)


def _worker_lost(task: Task) -> Permanent:
    said = f"the worker died {task.attempts - 1} times over this page; last stage: {task.stage}"
    return Permanent(said, code="worker_lost")
