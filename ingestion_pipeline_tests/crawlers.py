"""A catalogue on loopback, and a walk through it: in this process, or in one that dies."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from ingestion_pipeline.catalogs.crawling.runs import crawl_slice, crawl_until_done, read_slice
from ingestion_pipeline.catalogs.datasets.completion import update_completions
from ingestion_pipeline.catalogs.extraction.page_reader import Reader
from ingestion_pipeline.catalogs.extraction.tasks import ReadCounts
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.protocol import CrawlCounts, Crawled, CrawlFilter
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


def a_catalog(
    recipe: Mapping[str, Any] = LINKS, *, name: str = "shop", **changes: Any
) -> Definition:
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


def begin(shop: RunContext, web: FakeWeb) -> None:
    """The polls that are due begin their extractions."""
    asyncio.run(fetch_async(shop, web.port))


def fetch_pages(shop: RunContext, web: FakeWeb, wanted: CrawlFilter = EVERYTHING) -> Crawled:
    """One run over what waits to be fetched; nothing is read."""

    async def run() -> Crawled:
        worker = Worker(shop.store, lease_seconds=shop.settings.work.lease_seconds)
        async with a_fetcher(shop.settings, web.port) as fetcher:
            return await crawl_slice(shop, worker, fetcher, wanted)

    return asyncio.run(run())


def read_pages(
    shop: RunContext, wanted: CrawlFilter = EVERYTHING, reader: Reader | None = None
) -> ReadCounts:
    """One run over what waits to be read."""

    async def run() -> ReadCounts:
        worker = Worker(shop.store, lease_seconds=shop.settings.work.lease_seconds)
        return (await read_slice(shop, worker, wanted, reader=reader)).counts

    return asyncio.run(run())


def crawl(shop: RunContext, web: FakeWeb, wanted: CrawlFilter = EVERYTHING) -> Crawled:
    """One run over what waits: fetched, then read."""
    crawled = fetch_pages(shop, web, wanted)
    read_pages(shop, wanted)
    return crawled


def crawl_all(shop: RunContext, port: int, *source_ids: str) -> CrawlCounts:
    """Begun now, and walked to the end."""

    async def run() -> CrawlCounts:
        async with a_fetcher(shop.settings, port) as fetcher:
            return await crawl_until_done(shop, source_ids or [SHOP], fetcher)

    counts = asyncio.run(run())
    conclude(shop)
    return counts


def conclude(shop: RunContext) -> None:
    """What is read ends, if nothing is left."""
    update_completions(shop)


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
    return Counter(one.status for one in found_pages(store))


def crawl_job(job: Job, source_ids: Sequence[str]) -> int:
    """In a process of its own: walk on until nothing waits; how many pages it got."""
    deadline = time.monotonic() + 60
    got = 0
    with job.shop() as shop:
        while time.monotonic() < deadline:
            counts = crawl_all(shop, job.port, *source_ids)
            got += counts.new + counts.same
            if not any(one.status in OPEN for one in found_pages(shop.store)):
                return got
            time.sleep(0.05)
    return got


def read_job(job: Job) -> int:
    """In a process of its own: read on until nothing waits; how many items it found."""
    deadline = time.monotonic() + 60
    found = 0
    with job.shop() as shop:
        while time.monotonic() < deadline:
            found += read_pages(shop).items
            if not any(one.status in OPEN for one in found_pages(shop.store)):
                return found
            time.sleep(0.05)
    return found


def weight_of_a_crawl(job: Job) -> int:
    """The most kilobytes that this process ever held, once the catalogue is crawled."""
    import resource

    with job.shop() as shop:
        crawl_all(shop, job.port)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
