"""The loop of one run over downloaded pages: claim a few of each source, read, write, go on.

The pages come from the content store, never from the network. A run holds a bounded number of them;
what it could not get to is given back.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ingestion_pipeline.catalogs.crawling.following import links_on
from ingestion_pipeline.catalogs.crawling.frontier import waiting_sources
from ingestion_pipeline.catalogs.extraction.missing_records import (
    EarlierRecords,
    is_first_extraction,
    load_earlier,
    missing_links,
    missing_records,
)
from ingestion_pipeline.catalogs.extraction.page_reader import Reader, in_the_whole
from ingestion_pipeline.catalogs.extraction.page_result import PageContent, PageReading
from ingestion_pipeline.catalogs.extraction.pipeline import no_model
from ingestion_pipeline.catalogs.extraction.results import write_readings
from ingestion_pipeline.catalogs.extraction.source_config import EntityConfig, declared
from ingestion_pipeline.catalogs.extraction.tasks import (
    ReadCounts,
    ReadDone,
    ReadFailed,
    ReadOver,
    ReadResult,
    ReadWork,
    forms_of,
    gone,
    open_readings,
    stored_content,
)
from ingestion_pipeline.catalogs.learning.selector_learner import SelectorLearner
from ingestion_pipeline.catalogs.states import EXTRACT_PAGE
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.protocol import CrawlFilter, PageGone
from ingestion_pipeline.engine.time_budget import TimeBudget
from ingestion_pipeline.pages.content.store import storage_errors_fatal
from ingestion_pipeline.reading.llm import Billing, OverBudget
from ingestion_pipeline.reading.parser_thread import in_parser_thread
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.errors import Fatal, Permanent, WorkError, classify
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.tasks.worker import Worker

FLUSH_SECONDS = 2.0  # so that little is read twice if the run dies
MOST_SOURCES = 200  # asked at a time; the others are longer untouched the next time
CALL_SITE = "extract_page"
_OF_THE_CONTENT = frozenset({"content_damaged", "empty_body"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPages:
    """What a slice of readings came to."""

    counts: ReadCounts = field(default_factory=ReadCounts)
    is_time_over: bool = False


class ReadingSlice:
    """One run's readings, under one worker identity."""

    def __init__(
        self,
        shop: RunContext,
        worker: Worker,
        reader: Reader,
        *,
        clock: SteadyClock,
        seconds: float | None = None,
    ) -> None:
        self._shop = shop
        self._worker = worker
        self._reader = reader
        self._clock = clock
        limit = shop.settings.polling.slice_seconds if seconds is None else seconds
        self._time = TimeBudget(worker, clock, seconds=limit)
        self._flush_at = time.monotonic() + FLUSH_SECONDS
        self._turns = asyncio.Semaphore(shop.settings.extraction.concurrency)
        self._nudge = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._open: dict[int, ReadWork] = {}
        self._results: list[ReadResult] = []
        self._ended: set[int] = set()
        self._declared: dict[int, EntityConfig] = {}
        self._is_first: dict[int, bool] = {}  # by extraction; it does not change while it is read
        self._student = SelectorLearner(shop)
        self._counts = ReadCounts()

    async def run(self, wanted: CrawlFilter) -> ReadPages:
        """Read on as long as there is work and time; a fatal error is raised at the end."""
        alive = asyncio.create_task(self._worker.keep_alive())
        try:
            await self._drain(wanted)
        finally:
            alive.cancel()
            await self._stop()
            await self._flush()
        if self._time.fatal is not None:
            raise self._time.fatal
        return ReadPages(counts=self._counts, is_time_over=self._time.is_over)

    async def _drain(self, wanted: CrawlFilter) -> None:
        while True:
            claimed = await self._claim_more(wanted) if self._may_claim() else 0
            await self._wait()
            if not self._running or self._has_much() or time.monotonic() >= self._flush_at:
                claimed += await self._flush()
            if not self._running and not claimed and not await self._time.rest():
                return

    async def _wait(self) -> None:
        if self._running:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._nudge.wait(), FLUSH_SECONDS)
        self._nudge.clear()

    async def _stop(self) -> None:
        """Nothing is read any more; what was not finished is given back."""
        for one in self._running:
            one.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        stopped = self._time.stopped()
        for work in list(self._open.values()):
            self._settle(ReadFailed(work=work, error=stopped))

    def _may_claim(self) -> bool:
        """When half of what a run may hold is done."""
        has_room = len(self._open) * 2 <= self._shop.settings.extraction.batch_size
        return has_room and self._time.is_left()

    def _has_much(self) -> bool:
        return len(self._results) * 2 >= self._shop.settings.extraction.batch_size

    async def _claim_more(self, wanted: CrawlFilter) -> int:
        """More pages, each with its own turn; dead and unwanted ones are dealt with at once."""
        room = self._shop.settings.extraction.batch_size - len(self._open)
        opened = await asyncio.to_thread(self._claim, wanted, room)
        self._student.hear(one for one in opened if isinstance(one, ReadWork))
        for one in opened:
            if isinstance(one, PageGone):
                self._results.append(one)
                continue
            self._open[one.task.id] = one
            self._ended.discard(one.extraction_id)  # it goes on, or goes on again
            if one.task.attempts > self._shop.settings.work.max_attempts:
                self._settle(ReadFailed(work=one, error=_worker_lost(one.task)))
            else:
                task = asyncio.create_task(self._serve(one))
                self._running.add(task)
                task.add_done_callback(self._served)
        return len(opened)

    def _claim(self, wanted: CrawlFilter, room: int) -> Sequence[ReadWork | PageGone]:
        with self._shop.store.read() as connection:
            now = self._shop.store.clock.now(connection)
            sources = waiting_sources(
                connection, wanted, now=now, limit=MOST_SOURCES, kinds=[EXTRACT_PAGE]
            )
        share = max(1, room // max(len(sources), 1))
        wishes = [
            (ClaimFilter(kind=EXTRACT_PAGE, frontier_of=source.id), share)
            for source in sources[:room]
        ]
        tasks = self._worker.claim_all(wishes) if wishes else []
        if not tasks:
            return []
        with self._shop.store.begin() as connection:
            now = self._shop.store.clock.now(connection)
            return open_readings(connection, tasks, now=now)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not self._running or self._has_much():
            self._nudge.set()

    async def _serve(self, work: ReadWork) -> None:
        async with self._turns:
            if work.extraction_id in self._ended:
                self._settle(PageGone(task=work.task, why="its extraction has ended"))
            elif (over := self._time.reason_to_stop()) is not None:
                self._settle(ReadFailed(work=work, error=over))
            else:
                self._settle(await self._result(work))

    async def _result(self, work: ReadWork) -> ReadResult:
        try:
            wanted = self._wanted(work)
            outcome = await self._read(work, wanted)
            if isinstance(outcome, PageReading):
                await self._check_earlier_records(work, wanted, outcome)
        except Exception as error:
            stack = traceback.format_exc(limit=-20)
            return ReadFailed(work=work, error=_lasting(work, classify(error)), stack=stack)
        match outcome:
            case OverBudget():
                self._ended.add(work.extraction_id)
                return ReadOver(work=work, why=outcome)
            case PageReading():
                return ReadDone(work=work, wanted=wanted, reading=outcome)

    def _wanted(self, work: ReadWork) -> EntityConfig:
        """What its source is read for, looked up once in a run, and what was learned by now."""
        found = self._declared.get(work.extraction_id)
        if found is None:
            try:
                found = declared(work.config, self._shop.settings, entity=work.entity_type)
            except ValueError as error:
                said = f"{error}; correct the source's config and crawl it again"
                raise Permanent(said, code="unknown_entity") from error
            self._declared[work.extraction_id] = found
        return self._student.taught(found, work)

    async def _read(self, work: ReadWork, wanted: EntityConfig) -> PageReading | OverBudget:
        page = await in_parser_thread(self._content, work)
        billing = Billing(
            call_site=CALL_SITE,
            source_id=work.task.source_id,
            page_id=work.page_id,
            extraction_id=work.extraction_id,
        )
        outcome = await self._reader.read(wanted, page, billing)
        if isinstance(outcome, PageReading):
            outcome = in_the_whole(outcome, page)
        if isinstance(outcome, OverBudget) or not outcome.explored:
            return outcome
        links = outcome.explored if wanted.kind.explores else ()
        found = await in_parser_thread(links_on, page, links, known_as=work.url)
        return replace(outcome, explored=found)

    async def _check_earlier_records(
        self, work: ReadWork, declaration: EntityConfig, reading: PageReading
    ) -> None:
        """Raise if the reading would take records away that nobody has seen to be gone.

        Raises:
            Resource: a model read the page before, rules leave it open, and no model is configured.
            Permanent: the page stated records, and states none any more; or it explored, and
                leads to few of the pages that it led to.
        """
        settings = self._shop.settings
        is_open = bool(reading.reason) and not settings.has_model
        if reading.records and not is_open:
            return
        earlier = await asyncio.to_thread(self._earlier_records, work, declaration)
        if is_open and earlier.by_model:
            raise no_model(declaration.kind, settings, self._clock.now())
        if not reading.records and (earlier.count or earlier.explored):
            store = self._shop.content
            page = await in_parser_thread(stored_content, store, url=work.url, **forms_of(work))
            find = missing_records if earlier.count else missing_links
            failure = await in_parser_thread(find, page, earlier)
            if failure is not None:
                raise failure

    def _earlier_records(self, work: ReadWork, declaration: EntityConfig) -> EarlierRecords:
        with self._shop.store.read() as connection:
            if work.extraction_id not in self._is_first:
                self._is_first[work.extraction_id] = is_first_extraction(connection, work)
            if self._is_first[work.extraction_id]:
                return EarlierRecords()
            return load_earlier(connection, work, declaration.kind, self._shop.content)

    def _content(self, work: ReadWork) -> PageContent:
        with storage_errors_fatal():
            return work.content(self._shop.content)

    def _settle(self, result: ReadResult) -> None:
        self._open.pop(result.task.id, None)
        self._results.append(result)
        if isinstance(result, ReadFailed) and isinstance(result.error, Fatal):
            self._time.fatal = result.error

    async def _flush(self) -> int:
        """Write what has come in; how many results that was."""
        self._flush_at = time.monotonic() + FLUSH_SECONDS
        # Taken here and not in the thread, since readings go on while it writes.
        results, self._results = self._results, []
        if not results:
            return 0
        written = await asyncio.to_thread(write_readings, self._shop, results)
        await asyncio.to_thread(self._student.study, results)
        self._counts += written.counts
        self._time.expect(written.again_at)
        self._ended |= written.ended
        return len(results)


def _lasting(work: ReadWork, error: WorkError) -> WorkError:
    """What is wrong with stored content does not pass by waiting."""
    return gone(work.url, str(error)) if error.code in _OF_THE_CONTENT else error


def _worker_lost(task: Task) -> Permanent:
    said = f"the worker died {task.attempts - 1} times over this page"
    return Permanent(said, code="worker_lost")
