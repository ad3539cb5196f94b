"""Walks through catalogues and readings of their pages, put together: a slice, or to the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select, update

from ingestion_pipeline.catalogs.datasets.completion import update_completions
from ingestion_pipeline.catalogs.extraction.loop import ReadingSlice, ReadPages
from ingestion_pipeline.catalogs.extraction.page_reader import PipelineReader, Reader
from ingestion_pipeline.catalogs.extraction.tasks import ReadCounts, wake_for_models
from ingestion_pipeline.catalogs.extractions import start_extractions
from ingestion_pipeline.catalogs.states import EXTRACT_PAGE
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.loop import CrawlSlice
from ingestion_pipeline.engine.crawling.protocol import (
    FETCH_PAGE,
    CrawlCounts,
    Crawled,
    CrawlFilter,
)
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
TURN_SECONDS = 60.0  # of fetching, before what was fetched is read
LEAST_READING_SECONDS = 30.0  # also of a run whose time is over: it ends well before it is stopped


async def crawl_slice(
    shop: RunContext,
    worker: Worker,
    fetcher: HttpFetcher,
    wanted: CrawlFilter,
    *,
    renderer: Renderer | None = None,
    seconds: float | None = None,
) -> Crawled:
    """One run's part of the walk; without a renderer, pages that need a browser are refused."""
    clock = SteadyClock(await asyncio.to_thread(shop.store.now))
    crawl = CrawlSlice(
        shop,
        worker,
        fetcher,
        kind=Kind.CATALOG,
        visitor=PoliteVisitor(fetcher, renderer, clock, shop.settings),
        archive=SnapshotArchive(shop.store, shop.content, shop.run_id),
        clock=clock,
        seconds=seconds,
    )
    return await crawl.run(wanted)


async def read_slice(
    shop: RunContext,
    worker: Worker,
    wanted: CrawlFilter,
    *,
    reader: Reader | None = None,
    seconds: float | None = None,
) -> ReadPages:
    """One run's part of the readings, from what is stored; without a reader, by rules alone."""
    clock = SteadyClock(await asyncio.to_thread(shop.store.now))
    reader = reader or PipelineReader(shop.settings, clock.now)
    return await ReadingSlice(shop, worker, reader, clock=clock, seconds=seconds).run(wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """What was fetched and what was read, in turn."""

    crawled: CrawlCounts = field(default_factory=CrawlCounts)
    read: ReadCounts = field(default_factory=ReadCounts)


async def ingest_slice(
    shop: RunContext,
    worker: Worker,
    fetcher: HttpFetcher,
    wanted: CrawlFilter,
    *,
    renderer: Renderer | None = None,
    reader: Reader | None = None,
) -> Worked:
    """One run's part of both: pages are fetched for a while, then read, until neither waits.

    By turns, so that a walk which takes days at its host's pace does not keep its pages unread.
    """
    ends = time.monotonic() + shop.settings.polling.slice_seconds
    await asyncio.to_thread(wake_for_models, shop)
    worked = Worked()
    while True:
        left = ends - time.monotonic()
        crawled = await crawl_slice(
            shop, worker, fetcher, wanted, renderer=renderer, seconds=min(left, TURN_SECONDS)
        )
        left = max(ends - time.monotonic(), LEAST_READING_SECONDS)
        read = await read_slice(shop, worker, wanted, reader=reader, seconds=left)
        before, worked = worked, worked_more(worked, crawled.counts, read.counts)
        if worked == before or time.monotonic() >= ends:
            return worked


def worked_more(worked: Worked, crawled: CrawlCounts, read: ReadCounts) -> Worked:
    """Counted together."""
    return Worked(crawled=worked.crawled + crawled, read=worked.read + read)


class NoCatalog(ValueError):
    """Only a catalogue has extractions."""


def ask_for(shop: RunContext, source_ids: Collection[str]) -> dict[str, str]:
    """Each source is crawled now, due or not, which counts as its poll; in a word for people.

    Pages that wait for a retry or a pause are due as well; what their host asked for still holds.
    """
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        known = sources_by_id(connection, source_ids)
        for missing in set(source_ids) - known.keys():
            raise UnknownSource(missing)
        _refuse_others(known.values())
        polls = crawls.claim_polls(connection, source_ids, now=now, settings=shop.settings)
        said = start_extractions(connection, list(known.values()), now=now)
        _make_due(connection, source_ids, now=now)
        begun = [(polls[key], known[key], said[key]) for key in sorted(polls)]
        crawls.begin(connection, begun, now=now, settings=shop.settings, random=shop.random)
    return said


def _refuse_others(found: Iterable[Source]) -> None:
    for one in found:
        if one.kind is not Kind.CATALOG:
            raise NoCatalog(
                f"{one.id} is of the kind {one.kind}, and only catalogues are extracted;"
                " `ingest sources list --kind catalog` shows them"
            )


def _make_due(connection: Connection, source_ids: Collection[str], *, now: datetime) -> None:
    """What waits of these sources' pages, for a retry, a pause or a model, is due now."""
    later = (
        select(tasks.c.id)
        .where(
            FRONTIER,
            tasks.c.kind.in_(KINDS),
            tasks.c.source_id.in_(list(source_ids)),
            tasks.c.status == TaskStatus.PENDING.value,
            tasks.c.not_before > now,
        )
        .with_for_update(skip_locked=True)  # what somebody has is being dealt with
        .cte("later")
    )
    is_later = tasks.c.id.in_(select(later.c.id))
    connection.execute(update(tasks).where(is_later).values(not_before=now))


async def crawl_until_done(
    shop: RunContext,
    source_ids: Collection[str],
    fetcher: HttpFetcher,
    *,
    renderer: Renderer | None = None,
    reader: Reader | None = None,
) -> CrawlCounts:
    """The sources' extractions are begun, walked to their end and read, without Dagster.

    By slices, as runs do it; returns when no page waits, or when none is due within a minute. An
    extraction that is complete by then has ended, if it need not be quiet for a while.
    """
    await asyncio.to_thread(ask_for, shop, source_ids)
    worked, wanted = Worked(), CrawlFilter(source_ids=source_ids)
    while await asyncio.to_thread(_is_work_soon, shop, source_ids):
        before = worked
        # A new one each time: one that claimed nothing, since the pages are leased to another,
        # has no heartbeat between two slices and would not start anything again.
        worker = Worker(shop.store, lease_seconds=shop.settings.work.lease_seconds)
        more = await ingest_slice(shop, worker, fetcher, wanted, renderer=renderer, reader=reader)
        worked = worked_more(worked, more.crawled, more.read)
        if worked == before:
            await asyncio.sleep(0.2)  # another process has the pages, or they are due in a moment
    await asyncio.to_thread(update_completions, shop, source_ids=source_ids)
    return worked.crawled


def _is_work_soon(shop: RunContext, source_ids: Collection[str]) -> bool:
    with shop.store.read() as connection:
        soon = shop.store.clock.now(connection) + timedelta(minutes=1)
        query = select(func.min(tasks.c.not_before)).where(
            FRONTIER,
            tasks.c.kind.in_(KINDS),
            tasks.c.source_id.in_(
                select(sources.c.id).where(
                    sources.c.id.in_(list(source_ids)),
                    sources.c.status != SourceStatus.DISABLED.value,
                )
            ),
        )
        first = connection.execute(query).scalar_one()
    return first is not None and first <= soon
