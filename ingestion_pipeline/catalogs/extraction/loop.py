"""Run extraction over downloaded pages: claim a few of each source, read, write, repeat.

The pages come from the content store, never from the network. A run holds a bounded number of them;
tasks that it cannot finish are released.
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
from ingestion_pipeline.catalogs.extraction.page_reader import Reader, with_page_offsets
from ingestion_pipeline.catalogs.extraction.page_result import ExtractionResult, PageContent
from ingestion_pipeline.catalogs.extraction.pipeline import no_model_error
from ingestion_pipeline.catalogs.extraction.results import write_readings
from ingestion_pipeline.catalogs.extraction.source_config import EntityConfig, load_entity_config
from ingestion_pipeline.catalogs.extraction.tasks import (
    ReadCounts,
    ReadDone,
    ReadFailed,
    ReadOver,
    ReadResult,
    ReadWork,
    content_missing,
    load_claimed_pages,
    snapshot_columns_of,
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
from ingestion_pipeline.tasks.worker import Worker

FLUSH_SECONDS = 2.0  # limits what is read twice if the run dies
MAX_SOURCES = 200  # per claim; the others have waited longer at the next one
CALL_SITE = "extract_page"
_CONTENT_ERROR_CODES = frozenset({"content_damaged", "empty_body"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionRunResult:
    """Counts of an extraction run, and whether its time was up."""

    counts: ReadCounts = field(default_factory=ReadCounts)
    is_time_over: bool = False


class ExtractionRun:
    """One extraction run under one worker identity."""

    def __init__(
        self, ctx: RunContext, worker: Worker, reader: Reader, *, clock: SteadyClock, seconds: float | None = None
    ) -> None:
        self._ctx = ctx
        self._worker = worker
        self._reader = reader
        self._clock = clock
        limit = ctx.settings.polling.slice_seconds if seconds is None else seconds
        self._time = TimeBudget(worker, clock, seconds=limit)
        self._flush_at = time.monotonic() + FLUSH_SECONDS
        self._turns = asyncio.Semaphore(ctx.settings.extraction.concurrency)
        self._wake = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._open: dict[int, ReadWork] = {}
        self._results: list[ReadResult] = []
        self._ended: set[int] = set()
        self._configs: dict[int, EntityConfig] = {}
        self._is_first: dict[int, bool] = {}  # by extraction; constant during a run
        self._learner = SelectorLearner(ctx)
        self._counts = ReadCounts()

    async def run(self, crawl_filter: CrawlFilter) -> ExtractionRunResult:
        """Read pages while there is work and time; raise a fatal error after the last flush."""
        heartbeat = asyncio.create_task(self._worker.keep_alive())
        try:
            await self._drain(crawl_filter)
        finally:
            heartbeat.cancel()
            await self._stop()
            await self._flush()
        if self._time.fatal is not None:
            raise self._time.fatal
        return ExtractionRunResult(counts=self._counts, is_time_over=self._time.is_over)

    async def _drain(self, crawl_filter: CrawlFilter) -> None:
        while True:
            claimed = await self._claim_more(crawl_filter) if self._can_claim() else 0
            await self._wait()
            if not self._running or self._is_flush_due() or time.monotonic() >= self._flush_at:
                claimed += await self._flush()
            if not self._running and not claimed and not await self._time.rest():
                return

    async def _wait(self) -> None:
        if self._running:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), FLUSH_SECONDS)
        self._wake.clear()

    async def _stop(self) -> None:
        """Cancel the readings in progress and release their tasks."""
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        stopped = self._time.stopped()
        for work in list(self._open.values()):
            self._add_result(ReadFailed(work=work, error=stopped))

    def _can_claim(self) -> bool:
        """Return whether half of the pages that a run may hold are done, and time is left."""
        has_room = len(self._open) * 2 <= self._ctx.settings.extraction.batch_size
        return has_room and self._time.is_left()

    def _is_flush_due(self) -> bool:
        return len(self._results) * 2 >= self._ctx.settings.extraction.batch_size

    async def _claim_more(self, crawl_filter: CrawlFilter) -> int:
        """Claim pages and start reading them, record lost and ended ones, and return how many."""
        room = self._ctx.settings.extraction.batch_size - len(self._open)
        opened = await asyncio.to_thread(self._claim, crawl_filter, room)
        self._learner.register(work for work in opened if isinstance(work, ReadWork))
        for work in opened:
            if isinstance(work, PageGone):
                self._results.append(work)
                continue
            self._open[work.task.id] = work
            self._ended.discard(work.extraction_id)  # active, or active again
            if work.task.attempts > self._ctx.settings.work.max_attempts:
                self._add_result(ReadFailed(work=work, error=_worker_lost(work)))
            else:
                task = asyncio.create_task(self._process(work))
                self._running.add(task)
                task.add_done_callback(self._processed)
        return len(opened)

    def _claim(self, crawl_filter: CrawlFilter, room: int) -> Sequence[ReadWork | PageGone]:
        with self._ctx.store.read() as connection:
            now = self._ctx.store.clock.now(connection)
            sources = waiting_sources(connection, crawl_filter, now=now, limit=MAX_SOURCES, kinds=[EXTRACT_PAGE])
        share = max(1, room // max(len(sources), 1))
        claim_requests = [(ClaimFilter(kind=EXTRACT_PAGE, frontier_of=source.id), share) for source in sources[:room]]
        tasks = self._worker.claim_all(claim_requests) if claim_requests else []
        if not tasks:
            return []
        with self._ctx.store.begin() as connection:
            now = self._ctx.store.clock.now(connection)
            return load_claimed_pages(connection, tasks, now=now)

    def _processed(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not self._running or self._is_flush_due():
            self._wake.set()

    async def _process(self, work: ReadWork) -> None:
        async with self._turns:
            if work.extraction_id in self._ended:
                self._add_result(PageGone(task=work.task, why="extraction has ended"))
            elif (over := self._time.reason_to_stop()) is not None:
                self._add_result(ReadFailed(work=work, error=over))
            else:
                self._add_result(await self._read_result(work))

    async def _read_result(self, work: ReadWork) -> ReadResult:
        try:
            config = self._entity_config(work)
            outcome = await self._read(work, config)
            if isinstance(outcome, ExtractionResult):
                await self._check_earlier_records(work, config, outcome)
        except Exception as error:
            stack = traceback.format_exc(limit=-20)
            return ReadFailed(work=work, error=_permanent_if_content_lost(work, classify(error)), stack=stack)
        match outcome:
            case OverBudget():
                self._ended.add(work.extraction_id)
                return ReadOver(work=work, why=outcome)
            case ExtractionResult():
                return ReadDone(work=work, config=config, reading=outcome)

    def _entity_config(self, work: ReadWork) -> EntityConfig:
        """Return the entity config of the page's extraction, with the selectors learned so far."""
        config = self._configs.get(work.extraction_id)
        if config is None:
            try:
                config = load_entity_config(work.config, self._ctx.settings, entity=work.entity_type)
            except ValueError as error:
                message = f"{error}; correct the source's config and crawl it again"
                raise Permanent(message, code="unknown_entity") from error
            self._configs[work.extraction_id] = config
        return self._learner.with_learned(config, work)

    async def _read(self, work: ReadWork, config: EntityConfig) -> ExtractionResult | OverBudget:
        page = await in_parser_thread(self._content, work)
        billing = Billing(
            call_site=CALL_SITE, source_id=work.task.source_id, page_id=work.page_id, extraction_id=work.extraction_id
        )
        outcome = await self._reader.read(config, page, billing)
        if isinstance(outcome, ExtractionResult):
            outcome = with_page_offsets(outcome, page)
        if isinstance(outcome, OverBudget) or not outcome.explored:
            return outcome
        links = outcome.explored if config.kind.explores else ()
        explored = await in_parser_thread(links_on, page, links, known_as=work.url)
        return replace(outcome, explored=explored)

    async def _check_earlier_records(self, work: ReadWork, config: EntityConfig, reading: ExtractionResult) -> None:
        """Raise if the reading would remove records whose disappearance is not confirmed.

        Raises:
            Resource: a model read the page before, rules leave it open, and no model is configured.
            Permanent: the page had records, and has none any more; or it was explored, and links to
                few of the pages that it linked to.
        """
        settings = self._ctx.settings
        is_open = bool(reading.reason) and not settings.has_model
        if reading.records and not is_open:
            return
        earlier = await asyncio.to_thread(self._earlier_records, work, config)
        if is_open and earlier.by_model:
            raise no_model_error(config.kind, settings, self._clock.now())
        if not reading.records and (earlier.count or earlier.explored):
            store = self._ctx.content
            page = await in_parser_thread(stored_content, store, url=work.url, **snapshot_columns_of(work))
            find = missing_records if earlier.count else missing_links
            failure = await in_parser_thread(find, page, earlier)
            if failure is not None:
                raise failure

    def _earlier_records(self, work: ReadWork, config: EntityConfig) -> EarlierRecords:
        with self._ctx.store.read() as connection:
            if work.extraction_id not in self._is_first:
                self._is_first[work.extraction_id] = is_first_extraction(connection, work)
            if self._is_first[work.extraction_id]:
                return EarlierRecords()
            return load_earlier(connection, work, config.kind, self._ctx.content)

    def _content(self, work: ReadWork) -> PageContent:
        with storage_errors_fatal():
            return work.content(self._ctx.content)

    def _add_result(self, result: ReadResult) -> None:
        self._open.pop(result.task.id, None)
        self._results.append(result)
        if isinstance(result, ReadFailed) and isinstance(result.error, Fatal):
            self._time.fatal = result.error

    async def _flush(self) -> int:
        """Write the results so far, and return how many there were."""
        self._flush_at = time.monotonic() + FLUSH_SECONDS
        # Swapped here and not in the thread, since readings continue while it writes.
        results, self._results = self._results, []
        if not results:
            return 0
        written = await asyncio.to_thread(write_readings, self._ctx, results)
        await asyncio.to_thread(self._learner.learn_from, results)
        self._counts += written.counts
        self._time.expect(written.retry_times)
        self._ended |= written.ended
        return len(results)


def _permanent_if_content_lost(work: ReadWork, error: WorkError) -> WorkError:
    """Return the error; one of the stored content as permanent, since no retry restores it."""
    return content_missing(work.url, str(error)) if error.code in _CONTENT_ERROR_CODES else error


def _worker_lost(work: ReadWork) -> Permanent:
    message = f"worker lost {work.task.attempts - 1} times on {work.url}"
    return Permanent(message, code="worker_lost")
