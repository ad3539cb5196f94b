"""Run crawls and extractions of catalogues: for one run's time, or until nothing is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select, update

from ingestion_pipeline.catalogs.datasets.completion import update_completions
from ingestion_pipeline.catalogs.extraction.page_extraction import ExtractionHandler
from ingestion_pipeline.catalogs.extraction.pipeline import PipelineReader, Reader
from ingestion_pipeline.catalogs.extraction.tasks import ReadCounts, ReadValue, ReadWork, wake_for_models
from ingestion_pipeline.catalogs.extractions import start_extractions
from ingestion_pipeline.catalogs.states import EXTRACT_PAGE
from ingestion_pipeline.engine.context import RunContext, reduced_gc
from ingestion_pipeline.engine.crawling.handler import CrawlHandler
from ingestion_pipeline.engine.crawling.protocol import FETCH_PAGE, CrawlCounts, CrawlFilter, PageDone, PageWork
from ingestion_pipeline.engine.worker_loop import WorkerLoop
from ingestion_pipeline.pages.content.archive import SnapshotArchive
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.pages.visits.rendering import Renderer
from ingestion_pipeline.sources import Kind, Source, SourceStatus, crawls
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.store.tables import FRONTIER, sources, tasks
from ingestion_pipeline.tasks.task import TaskStatus
from ingestion_pipeline.tasks.worker import Worker

KINDS = (FETCH_PAGE, EXTRACT_PAGE)
TURN_SECONDS = 60.0  # of fetching, before the fetched pages are extracted
LEAST_READING_SECONDS = 30.0  # even if the run's time is over: it still ends before it is stopped


async def run_crawl(
    ctx: RunContext,
    worker: Worker,
    fetcher: HttpFetcher,
    crawl_filter: CrawlFilter,
    *,
    renderer: Renderer | None = None,
    seconds: float | None = None,
) -> CrawlCounts:
    """Fetch waiting pages for one run; without a renderer, pages that need one are refused."""
    clock = SteadyClock(await asyncio.to_thread(ctx.store.now))
    handler = CrawlHandler(
        ctx,
        Kind.CATALOG,
        crawl_filter,
        visitor=PoliteVisitor(fetcher, renderer, clock, ctx.settings),
        archive=SnapshotArchive(ctx.store, ctx.content, ctx.run_id),
        clock=clock,
    )
    loop: WorkerLoop[PageWork, PageDone] = WorkerLoop(ctx, worker, fetcher, handler, clock=clock, seconds=seconds)
    with reduced_gc():
        return CrawlCounts.of(await loop.run())


async def run_extraction(
    ctx: RunContext,
    worker: Worker,
    crawl_filter: CrawlFilter,
    *,
    reader: Reader | None = None,
    seconds: float | None = None,
) -> ReadCounts:
    """Extract records from stored pages for one run; without a reader, by rules alone."""
    clock = SteadyClock(await asyncio.to_thread(ctx.store.now))
    reader = reader or PipelineReader(ctx.settings, clock.now)
    handler = ExtractionHandler(ctx, reader, crawl_filter, clock=clock)
    loop: WorkerLoop[ReadWork, ReadValue] = WorkerLoop(ctx, worker, None, handler, clock=clock, seconds=seconds)
    return ReadCounts.of(await loop.run())


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestionCounts:
    """Counts of fetched and of extracted pages."""

    crawled: CrawlCounts = field(default_factory=CrawlCounts)
    read: ReadCounts = field(default_factory=ReadCounts)


async def run_ingestion(
    ctx: RunContext,
    worker: Worker,
    fetcher: HttpFetcher,
    crawl_filter: CrawlFilter,
    *,
    renderer: Renderer | None = None,
    reader: Reader | None = None,
) -> IngestionCounts:
    """Fetch and extract pages in turns for one run, until none of either waits.

    In turns, so that the pages of a crawl which takes days at its host's pace do not stay unread.
    """
    deadline = time.monotonic() + ctx.settings.polling.slice_seconds
    await asyncio.to_thread(wake_for_models, ctx)
    counts = IngestionCounts()
    while True:
        left = deadline - time.monotonic()
        crawled = await run_crawl(
            ctx, worker, fetcher, crawl_filter, renderer=renderer, seconds=min(left, TURN_SECONDS)
        )
        left = max(deadline - time.monotonic(), LEAST_READING_SECONDS)
        read = await run_extraction(ctx, worker, crawl_filter, reader=reader, seconds=left)
        before, counts = counts, add_counts(counts, crawled, read)
        if counts == before or time.monotonic() >= deadline:
            return counts


def add_counts(counts: IngestionCounts, crawled: CrawlCounts, read: ReadCounts) -> IngestionCounts:
    """Return the sum of the counts."""
    return IngestionCounts(crawled=counts.crawled + crawled, read=counts.read + read)


class NotACatalog(ValueError):
    """Raised for sources of other kinds: only a catalogue has extractions."""


def start_now(ctx: RunContext, source_ids: Collection[str]) -> dict[str, str]:
    """Start a crawl of each source now, due or not, as its poll; return a message for each.

    Pages that wait for a retry or a pause become due as well; what their host asked for still
    applies.
    """
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        by_id = sources_by_id(connection, source_ids)
        for missing in set(source_ids) - by_id.keys():
            raise UnknownSource(missing)
        _refuse_others(by_id.values())
        polls = crawls.claim_polls(connection, source_ids, now=now, settings=ctx.settings)
        outcomes = start_extractions(connection, list(by_id.values()), now=now)
        _make_due(connection, source_ids, now=now)
        started = [(polls[key], by_id[key], outcomes[key]) for key in sorted(polls)]
        crawls.begin(connection, started, now=now, settings=ctx.settings, random=ctx.random)
    return outcomes


def _refuse_others(candidates: Iterable[Source]) -> None:
    for source in candidates:
        if source.kind is not Kind.CATALOG:
            raise NotACatalog(
                f"{source.id} is of the kind {source.kind}, and only catalogues are extracted;"
                " `ingest sources list --kind catalog` shows them"
            )


def _make_due(connection: Connection, source_ids: Collection[str], *, now: datetime) -> None:
    """Make pages of these sources due that wait for a retry, a pause or a model."""
    later = (
        select(tasks.c.id)
        .where(
            FRONTIER,
            tasks.c.kind.in_(KINDS),
            tasks.c.source_id.in_(list(source_ids)),
            tasks.c.status == TaskStatus.PENDING.value,
            tasks.c.not_before > now,
        )
        .with_for_update(skip_locked=True)  # locked tasks are being worked on
        .cte("later")
    )
    is_later = tasks.c.id.in_(select(later.c.id))
    connection.execute(update(tasks).where(is_later).values(not_before=now))


async def crawl_until_done(
    ctx: RunContext,
    source_ids: Collection[str],
    fetcher: HttpFetcher,
    *,
    renderer: Renderer | None = None,
    reader: Reader | None = None,
) -> CrawlCounts:
    """Start the sources' extractions and run them until nothing is left, without Dagster.

    It works in runs; it returns when no page waits, or when none is due within a minute. An
    extraction that is complete by then is finished, unless it has to stay quiet for a while.
    """
    await asyncio.to_thread(start_now, ctx, source_ids)
    counts, crawl_filter = IngestionCounts(), CrawlFilter(source_ids=source_ids)
    while await asyncio.to_thread(_is_work_soon, ctx, source_ids):
        before = counts
        # A new worker each time: one that claimed nothing, since the pages are leased to another
        # process, has no heartbeat between two runs and could not claim again.
        worker = Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds)
        more = await run_ingestion(ctx, worker, fetcher, crawl_filter, renderer=renderer, reader=reader)
        counts = add_counts(counts, more.crawled, more.read)
        if counts == before:
            await asyncio.sleep(0.2)  # another process has the pages, or they are due in a moment
    await asyncio.to_thread(update_completions, ctx, source_ids=source_ids)
    return counts.crawled


def _is_work_soon(ctx: RunContext, source_ids: Collection[str]) -> bool:
    with ctx.store.read() as connection:
        soon = ctx.store.clock.now(connection) + timedelta(minutes=1)
        query = select(func.min(tasks.c.not_before)).where(
            FRONTIER,
            tasks.c.kind.in_(KINDS),
            tasks.c.source_id.in_(
                select(sources.c.id).where(
                    sources.c.id.in_(list(source_ids)), sources.c.status != SourceStatus.DISABLED.value
                )
            ),
        )
        first = connection.execute(query).scalar_one()
    return first is not None and first <= soon
