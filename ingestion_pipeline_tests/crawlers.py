"""A catalogue on loopback, and a walk through it: in this process, or in one that dies."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from ingestion_pipeline.catalogs.crawling.runs import crawl_until_done, run_crawl, run_extraction
from ingestion_pipeline.catalogs.datasets.completion import update_completions
from ingestion_pipeline.catalogs.extraction.page_reader import Reader
from ingestion_pipeline.catalogs.extraction.tasks import ReadCounts
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.protocol import CrawlCounts, CrawlFilter, CrawlResult
from ingestion_pipeline.sources.source import Definition, Kind
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import crawl_steps, pages
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import Job, a_fetcher, fetch_async

SHOP = "catalog:shop"
LINKS: Mapping[str, Any] = {"page_type": "DETAIL_LINKS", "link_pattern": "/c/"}
EVERYTHING = CrawlFilter()
OPEN = {"WAITING", "IN_PROGRESS", "DOWNLOADED"}


def a_catalog(recipe: Mapping[str, Any] = LINKS, *, name: str = "shop", **changes: Any) -> Definition:
    """A catalogue at a.test, with its recipe."""
    values: dict[str, Any] = {
        "id": f"catalog:{name}",
        "kind": Kind.CATALOG,
        "url": "http://a.test/",
        "platform": "catalog",
        "config": {"recipe": dict(recipe)},
    }
    return Definition(**(values | changes))


def a_page(*links: str, text: str = "") -> str:
    """A page that links to these."""
    anchors = "".join(f'<li><a href="{link}">{link}</a></li>' for link in links)
    return f"<html><body><h1>Page {text}</h1><ul>{anchors}</ul></body></html>"


def begin(ctx: RunContext, web: FakeWeb) -> None:
    """The polls that are due begin their extractions."""
    asyncio.run(fetch_async(ctx, web.port))


def fetch_pages(ctx: RunContext, web: FakeWeb, crawl_filter: CrawlFilter = EVERYTHING) -> CrawlResult:
    """One run over what waits to be fetched; nothing is read."""

    async def run() -> CrawlResult:
        worker = Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds)
        async with a_fetcher(ctx.settings, web.port) as fetcher:
            return await run_crawl(ctx, worker, fetcher, crawl_filter)

    return asyncio.run(run())


def read_pages(ctx: RunContext, crawl_filter: CrawlFilter = EVERYTHING, reader: Reader | None = None) -> ReadCounts:
    """One run over what waits to be read."""

    async def run() -> ReadCounts:
        worker = Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds)
        return (await run_extraction(ctx, worker, crawl_filter, reader=reader)).counts

    return asyncio.run(run())


def crawl(ctx: RunContext, web: FakeWeb, crawl_filter: CrawlFilter = EVERYTHING) -> CrawlResult:
    """One run over what waits: fetched, then read."""
    crawled = fetch_pages(ctx, web, crawl_filter)
    read_pages(ctx, crawl_filter)
    return crawled


def crawl_all(ctx: RunContext, port: int, *source_ids: str) -> CrawlCounts:
    """Begun now, and walked to the end."""

    async def run() -> CrawlCounts:
        async with a_fetcher(ctx.settings, port) as fetcher:
            return await crawl_until_done(ctx, source_ids or [SHOP], fetcher)

    counts = asyncio.run(run())
    conclude(ctx)
    return counts


def conclude(ctx: RunContext) -> None:
    """What is read ends, if nothing is left."""
    update_completions(ctx)


@dataclass(frozen=True, kw_only=True)
class FoundPage:
    """A row of `pages` with its step's key."""

    path: str
    status: str
    step: str
    outcome: str | None
    failure: Mapping[str, Any] | None


def found_pages(store: Store) -> list[FoundPage]:
    """Every page that was found, in the order of finding."""
    query = (
        select(pages, crawl_steps.c.key.label("step"))
        .join(crawl_steps, crawl_steps.c.id == pages.c.step_id)
        .order_by(pages.c.id)
    )
    with store.read() as connection:
        rows = connection.execute(query).mappings().all()
    return [
        FoundPage(
            path=row["url"].removeprefix("http://a.test"),
            status=row["status"],
            step=row["step"],
            outcome=row["outcome"],
            failure=row["failure"],
        )
        for row in rows
    ]


def statuses(store: Store) -> Counter[str]:
    return Counter(row.status for row in found_pages(store))


def crawl_job(job: Job, source_ids: Sequence[str]) -> int:
    """In a process of its own: walk on until nothing waits; how many pages it got."""
    deadline = time.monotonic() + 60
    fetched = 0
    with job.ctx() as ctx:
        while time.monotonic() < deadline:
            counts = crawl_all(ctx, job.port, *source_ids)
            fetched += counts.new + counts.same
            if not any(row.status in OPEN for row in found_pages(ctx.store)):
                return fetched
            time.sleep(0.05)
    return fetched


def read_job(job: Job) -> int:
    """In a process of its own: read on until nothing waits; how many items it found."""
    deadline = time.monotonic() + 60
    result = 0
    with job.ctx() as ctx:
        while time.monotonic() < deadline:
            result += read_pages(ctx).items
            if not any(row.status in OPEN for row in found_pages(ctx.store)):
                return result
            time.sleep(0.05)
    return result


def weight_of_a_crawl(job: Job) -> int:
    """The most kilobytes that this process ever held, once the catalogue is crawled."""
    import resource

    with job.ctx() as ctx:
        crawl_all(ctx, job.port)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
