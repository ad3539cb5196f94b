"""Catalogs and their extractions: crawled on a loopback web, or written as rows by `CatalogHarness`."""

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

from sqlalchemy import Table, func, insert, select, update

from ingestion_pipeline.catalogs import extraction_control
from ingestion_pipeline.catalogs.catalog_runs import (
    CrawlCounts,
    IngestionCounts,
    run_crawl,
    run_extraction,
    run_ingestion,
    start_now,
)
from ingestion_pipeline.catalogs.datasets.finishing import (
    COMPLETE,
    Ended,
    FinishReason,
    finish_extractions,
    update_completions,
)
from ingestion_pipeline.catalogs.datasets.publishing import FinishedDataset
from ingestion_pipeline.catalogs.extraction.pipeline import Reader
from ingestion_pipeline.catalogs.extraction.tasks import ReadCounts
from ingestion_pipeline.catalogs.frontier import CrawlFilter
from ingestion_pipeline.catalogs.states import EXTRACTION_TASKS
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.visits.page import Renderer
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import SourceStatus
from ingestion_pipeline.sources.source import Definition, Kind
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import (
    FRONTIER,
    crawl_steps,
    data_items,
    datasets,
    extractions,
    pages,
    snapshots,
    sources,
    tasks,
)
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import (
    WorkerJob,
    a_fetcher,
    a_run_context,
    add_sources,
    fetch_async,
    rows,
    source_row,
)

CATALOG_ID = "catalog:shop"
LINKS: Mapping[str, Any] = {"page_type": "DETAIL_LINKS", "link_pattern": "/c/"}
EVERYTHING = CrawlFilter()
FAILURE = {"class": "permanent", "code": "http_404", "message": "it answered 404"}
OPEN_STATUSES = {"WAITING", "IN_PROGRESS", "DOWNLOADED"}


def a_catalog(recipe: Mapping[str, Any] = LINKS, *, name: str = "shop", **changes: Any) -> Definition:
    """Return the definition of a catalog at a.test."""
    values: dict[str, Any] = {
        "id": f"catalog:{name}",
        "kind": Kind.CATALOG,
        "url": "http://a.test/",
        "platform": "catalog",
        "config": {"recipe": dict(recipe)},
    }
    return Definition(**(values | changes))


def link_page(*links: str, text: str = "") -> str:
    """Return a page that links to `links`."""
    anchors = "".join(f'<li><a href="{link}">{link}</a></li>' for link in links)
    return f"<html><body><h1>Page {text}</h1><ul>{anchors}</ul></body></html>"


def poll_catalogs(ctx: RunContext, web: FakeWeb) -> None:
    """Run the polls that are due: each starts an extraction."""
    asyncio.run(fetch_async(ctx, web.port))


def fetch_pages(ctx: RunContext, web: FakeWeb, crawl_filter: CrawlFilter = EVERYTHING) -> CrawlCounts:
    """Run one crawl over the waiting pages; nothing is read."""

    async def run() -> CrawlCounts:
        worker = Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds)
        async with a_fetcher(ctx.settings, web.port) as fetcher:
            return await run_crawl(ctx, worker, fetcher, crawl_filter)

    return asyncio.run(run())


def read_pages(ctx: RunContext, crawl_filter: CrawlFilter = EVERYTHING, reader: Reader | None = None) -> ReadCounts:
    """Run one extraction over the downloaded pages."""

    async def run() -> ReadCounts:
        worker = Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds)
        return await run_extraction(ctx, worker, crawl_filter, reader=reader)

    return asyncio.run(run())


def crawl(ctx: RunContext, web: FakeWeb, crawl_filter: CrawlFilter = EVERYTHING) -> CrawlCounts:
    """Fetch the waiting pages, then read them."""
    crawled = fetch_pages(ctx, web, crawl_filter)
    read_pages(ctx, crawl_filter)
    return crawled


def crawl_all(ctx: RunContext, port: int, *source_ids: str) -> CrawlCounts:
    """Start an extraction of each source now and run it to its end."""

    async def run() -> CrawlCounts:
        async with a_fetcher(ctx.settings, port) as fetcher:
            return await crawl_until_done(ctx, source_ids or [CATALOG_ID], fetcher)

    counts = asyncio.run(run())
    complete_extractions(ctx)
    return counts


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
        counts += more
        if counts == before:
            await asyncio.sleep(0.2)  # another process has the pages, or they are due in a moment
    await asyncio.to_thread(update_completions, ctx, source_ids=source_ids)
    return counts.crawled


def _is_work_soon(ctx: RunContext, source_ids: Collection[str]) -> bool:
    with ctx.store.read() as connection:
        soon = ctx.store.clock.now(connection) + timedelta(minutes=1)
        query = select(func.min(tasks.c.not_before)).where(
            FRONTIER,
            tasks.c.kind.in_(EXTRACTION_TASKS),
            tasks.c.source_id.in_(
                select(sources.c.id).where(
                    sources.c.id.in_(list(source_ids)), sources.c.status != SourceStatus.DISABLED.value
                )
            ),
        )
        first = connection.execute(query).scalar_one()
    return first is not None and first <= soon


def complete_extractions(ctx: RunContext) -> None:
    """Finish the extractions that have no page left."""
    update_completions(ctx)


@dataclass(frozen=True, kw_only=True)
class CrawledPage:
    """A row of `pages` with the key of its step."""

    path: str
    status: str
    step: str
    outcome: str | None
    failure: Mapping[str, Any] | None


def crawled_pages(store: Store) -> list[CrawledPage]:
    """Return every page of every extraction, in order of discovery."""
    query = (
        select(pages, crawl_steps.c.key.label("step"))
        .join(crawl_steps, crawl_steps.c.id == pages.c.step_id)
        .order_by(pages.c.id)
    )
    with store.read() as connection:
        rows = connection.execute(query).mappings().all()
    return [
        CrawledPage(
            path=row["url"].removeprefix("http://a.test"),
            status=row["status"],
            step=row["step"],
            outcome=row["outcome"],
            failure=row["failure"],
        )
        for row in rows
    ]


def page_statuses(store: Store) -> Counter[str]:
    return Counter(row.status for row in crawled_pages(store))


def crawl_job(job: WorkerJob, source_ids: Sequence[str]) -> int:
    """Crawl in a separate process until no page is open; return the number of pages fetched."""
    deadline = time.monotonic() + 60
    fetched = 0
    with job.ctx() as ctx:
        while time.monotonic() < deadline:
            counts = crawl_all(ctx, job.port, *source_ids)
            fetched += counts.new + counts.same
            if not any(row.status in OPEN_STATUSES for row in crawled_pages(ctx.store)):
                return fetched
            time.sleep(0.05)
    return fetched


def crawl_memory_kilobytes(job: WorkerJob) -> int:
    """Crawl the catalog and return the peak memory of this process."""
    import resource

    with job.ctx() as ctx:
        crawl_all(ctx, job.port)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@dataclass
class LiveCatalog:
    """A catalog that is crawled on a loopback web."""

    ctx: RunContext
    web: FakeWeb

    @property
    def store(self) -> Store:
        return self.ctx.store

    def register(self, recipe: Mapping[str, Any] = LINKS, **changes: Any) -> None:
        add_sources(self.store, a_catalog(recipe, **changes))

    def serve(self, routes: Mapping[str, Any], recipe: Mapping[str, Any] = LINKS, **changes: Any) -> None:
        """Serve these pages, and register the catalog that they belong to."""
        self.web.routes |= routes
        self.register(recipe, **changes)

    def serve_and_crawl(self, routes: Mapping[str, Any], recipe: Mapping[str, Any] = LINKS, **changes: Any) -> None:
        self.serve(routes, recipe, **changes)
        self.crawl_all()

    def poll(self) -> None:
        poll_catalogs(self.ctx, self.web)

    def fetch(self) -> CrawlCounts:
        return fetch_pages(self.ctx, self.web)

    def read(self, *, reader: Reader | None = None) -> ReadCounts:
        return read_pages(self.ctx, reader=reader)

    def crawl(self) -> CrawlCounts:
        return crawl(self.ctx, self.web)

    def crawl_all(self) -> CrawlCounts:
        return crawl_all(self.ctx, self.web.port)

    def complete(self) -> None:
        complete_extractions(self.ctx)

    def rows(self, table: Table) -> list[Any]:
        return rows(self.store, table)

    def pages(self) -> list[CrawledPage]:
        return crawled_pages(self.store)

    def page_statuses(self) -> Counter[str]:
        return page_statuses(self.store)

    def source_row(self) -> Any:
        return source_row(self.store, CATALOG_ID)


@dataclass(slots=True)
class CatalogHarness:
    """A catalog whose extractions are written as rows, as crawls and readers leave them; `clock` stands still."""

    ctx: RunContext
    clock: FixedClock

    def add_source(self, source_id: str = CATALOG_ID) -> None:
        add_sources(self.ctx.store, a_catalog(name=source_id.partition(":")[2]))

    def start_extraction(
        self,
        paths: Mapping[str, str],
        *,
        root: str = "SUCCESS",
        kind: str = "crawl",
        source_id: str = CATALOG_ID,
        **more: Any,
    ) -> int:
        """Insert an extraction with a root page and detail pages in the given statuses."""
        now = self.clock.at
        values = {
            "source_id": source_id,
            "status": "IN_PROGRESS",
            "recipe": {"page_type": "DETAIL_LINKS", "link_pattern": "/c/"},
            "tracking_id": f"t{source_id}{now.timestamp()}"[-36:],
            "page_count": len(paths) + 1,
            "kind": kind,
            "created_at": now,
            "updated_at": now,
        }
        id_ = self.insert_row(extractions, values | more)
        step = {"extraction_id": id_, "created_at": now}
        root_step = {**step, "kind": "FETCH_ROOT", "key": "root", "page_type": "DETAIL_LINKS"}
        root_id = self.insert_row(crawl_steps, root_step)
        links_step = {**step, "kind": "FETCH_LINKS", "key": "root/links", "page_type": "DETAIL", "parent_id": root_id}
        links_id = self.insert_row(crawl_steps, links_step)
        self.add_page(id_, root_id, "/", root, page_type="DETAIL_LINKS")
        for path, status in paths.items():
            self.add_page(id_, links_id, path, status)
        return id_

    def add_page(self, id_: int, step_id: int, path: str, status: str, **more: Any) -> int:
        url = f"http://a.test{path}"
        is_fetched = status in {"DOWNLOADED", "SUCCESS", "EXTRACTED_NO_DATA"}
        values = {
            "extraction_id": id_,
            "step_id": step_id,
            "url": url,
            "key": url,
            "host": "a.test",
            "status": status,
            "page_type": "DETAIL",
            "failure": FAILURE if status == "ERROR" else None,
            "snapshot_id": self._snapshot_id(url) if is_fetched else None,
            "reader_hash": "r1" if path != "/" and status in {"SUCCESS", "EXTRACTED_NO_DATA"} else None,
            "created_at": self.clock.at,
        }
        return self.insert_row(pages, values | more)

    def _snapshot_id(self, url: str) -> int:
        for row in self.rows(snapshots, url=url):
            return row.id
        values = {"url": url, "content_hash": "c", "size_bytes": 3_000, "status_code": 200}
        return self.insert_row(snapshots, {**values, "fetched_at": self.clock.at})

    def add_items(self, id_: int, items: Mapping[str, Sequence[str]], **more: Any) -> int:
        """Insert items with these keys for each path into the dataset of the extraction; return the dataset's id."""
        [extraction] = self.rows(extractions, id=id_)
        open_ids = [row.id for row in self.rows(datasets, extraction_id=id_) if row.status != "published"]
        dataset_id = open_ids[0] if open_ids else self._insert_dataset(extraction)
        for path, keys in items.items():
            page = self.page_row(id_, path)
            for position, key in enumerate(keys):
                self.insert_row(data_items, item_values(dataset_id, page.id, key, position) | more)
            status = "SUCCESS" if keys else "EXTRACTED_NO_DATA"
            values = {"item_count": len(keys), "extraction_method": "layout", "reader_hash": "r1"}
            self.update_row(pages, page.id, status=status, **values)
        return dataset_id

    def _insert_dataset(self, extraction: Any) -> int:
        versions = [row.version for row in self.rows(datasets, source_id=extraction.source_id)]
        values = {
            "source_id": extraction.source_id,
            "extraction_id": extraction.id,
            "version": max(versions, default=0) + 1,
            "entity_type": extraction.entity_type,
            "reader_hash": "r1",
            "status": "building",
            "created_at": self.clock.at,
        }
        return self.insert_row(datasets, values)

    def carry_over(self, id_: int, base: int, *paths: str) -> None:
        """Mark these pages as unchanged since the extraction `base`."""
        for path in paths:
            old, new = self.page_row(base, path), self.page_row(id_, path)
            count = len(self.rows(data_items, page_id=old.id))
            values = {"status": old.status, "item_count": count, "carried_from": old.id}
            self.update_row(pages, new.id, **values)

    def page_row(self, id_: int, path: str) -> Any:
        [row] = self.rows(pages, extraction_id=id_, url=f"http://a.test{path}")
        return row

    def add_task(self, id_: int, path: str, kind: str = "fetch_page", **more: Any) -> int:
        """Insert a pending task for the page."""
        page, [extraction] = self.page_row(id_, path), self.rows(extractions, id=id_)
        values = {
            "kind": kind,
            "dedupe_key": f"{id_}:{page.key if kind == 'fetch_page' else page.id}",
            "source_id": extraction.source_id,
            "url": page.url,
            "payload": {"page": page.id, "extraction": id_},
            "status": "PENDING",
            "priority": 5,
            "shard": 0,
            "not_before": self.clock.at,
            "tracking_id": extraction.tracking_id,
            "ancestry": [],
            "created_at": self.clock.at,
            "updated_at": self.clock.at,
        }
        return self.insert_row(tasks, values | more)

    def finish(self, id_: int, reason: FinishReason = COMPLETE) -> list[Ended]:
        with self.ctx.store.begin() as connection:
            return finish_extractions(
                connection, {id_: reason}, now=self.clock.at, settings=self.ctx.settings, random=Random(7)
            )

    def crawl(self, items: Mapping[str, Sequence[str]], *, others: Mapping[str, str] = {}, **more: Any) -> int:
        """Finish a crawl of pages with these items, and others in these statuses; return its id ten minutes later."""
        id_ = self.start_extraction({**dict.fromkeys(items, "SUCCESS"), **others}, **more)
        self.add_items(id_, items)
        self.finish(id_)
        self.clock.advance(minutes=10)
        return id_

    def finished_dataset(self, id_: int, reason: FinishReason = COMPLETE) -> FinishedDataset:
        """Finish the extraction; return the dataset that it leaves."""
        [ended] = self.finish(id_, reason)
        assert ended.dataset is not None
        return ended.dataset

    def check_completion(self, **units: float) -> list[Ended]:
        """Advance the clock, then finish the extractions that are done."""
        self.clock.advance(**units)
        return list(update_completions(self.ctx).ended)

    def status(self, id_: int) -> str:
        return self.rows(extractions, id=id_)[0].status

    def cancel(self, id_: int) -> Ended:
        with self.ctx.store.begin() as connection:
            return extraction_control.cancel(
                connection, id_, actor="ann", now=self.clock.at, settings=self.ctx.settings, random=Random(7)
            )

    def apply_action(self, action: Any, id_: int, **more: Any) -> Any:
        """Run an operator's action on the extraction, one second later."""
        self.clock.advance(seconds=1)
        with self.ctx.store.begin() as connection:
            return action(connection, id_, actor="ann", now=self.clock.at, **more)

    def fail_page(self, id_: int, path: str, code: str = "http_500") -> None:
        """Mark the page as failed for good."""
        failure = {**FAILURE, "code": code}
        self.update_row(pages, self.page_row(id_, path).id, status="ERROR", failure=failure)

    def versions(self) -> dict[int, tuple[str, list[str]]]:
        """Return status and item keys of every dataset version, without repeats."""
        return {
            dataset.version: (
                dataset.status,
                sorted(row.item_key for row in self.rows(data_items, dataset_id=dataset.id) if not row.is_repeat),
            )
            for dataset in self.rows(datasets)
        }

    def live_task_paths(self, kind: str) -> list[str]:
        """Return the paths of the pages that have a live task of this kind."""
        live = [row for row in self.rows(tasks, kind=kind) if row.ended_at is None]
        return sorted(row.url.removeprefix("http://a.test") for row in live)

    def update_row(self, table: Table, id_: int, **values: Any) -> None:
        with self.ctx.store.begin() as connection:
            connection.execute(update(table).where(table.c.id == id_).values(values))

    def rows(self, table: Table, **conditions: Any) -> list[Any]:
        query = select(table)
        for name, value in conditions.items():
            query = query.where(table.c[name] == value)
        order = table.c.id if "id" in table.c else next(iter(table.c))
        with self.ctx.store.read() as connection:
            return list(connection.execute(query.order_by(order)))

    def insert_row(self, table: Table, values: Mapping[str, Any]) -> int:
        with self.ctx.store.begin() as connection:
            return connection.execute(insert(table).values(dict(values)).returning(table.c.id)).scalar_one()


def catalog_harness(store: Store, settings: Settings, now: datetime) -> CatalogHarness:
    """Register a catalog; the store's time stands at `now` until the harness advances it."""
    clock = FixedClock(now)
    store.clock = clock
    harness = CatalogHarness(ctx=a_run_context(store, settings), clock=clock)
    harness.add_source()
    return harness


def item_values(dataset_id: int, page_id: int, key: str, position: int = 0) -> dict[str, Any]:
    """Return the row of a course with this key."""
    fields = {"course_id": key, "course_name": key.title(), "course_description": "All of it."}
    return {
        "dataset_id": dataset_id,
        "page_id": page_id,
        "entity_type": "course",
        "item_key": key,
        "position": position,
        "data": fields,
        "grounding": {},
        "extraction_method": "layout",
        "confidence": 1.0,
        "is_flagged": False,
        "is_repeat": False,
        "created_at": datetime.fromisoformat("2026-03-01T12:00:00+00:00"),
    }
