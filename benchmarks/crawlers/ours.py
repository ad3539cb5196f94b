"""`python -m benchmarks.crawlers.ours JOB`: the crawl as users have it, a catalogue for each host.

Its pages are fetched and not read for records, which no peer does; `benchmarks.extraction` reads.

Claimed from the database, fetched through the guard by the rules of robots.txt, judged, hashed,
stored durably, written with what follows. The database is made, and the sources are declared,
before the measuring begins.
"""

import asyncio
from collections.abc import Sequence
from contextlib import closing

# What the first page would import.
import re2  # noqa: F401
import selectolax.lexbor  # noqa: F401

import ingestion_pipeline.pages.http.transport  # noqa: F401
from benchmarks.crawlers.job import LOOPBACK, SUFFIX, Job, Seen, main
from ingestion_pipeline.catalogs.catalog_runs import CrawlCounts, start_now
from ingestion_pipeline.catalogs.crawl_handler import CrawlHandler, PageDone
from ingestion_pipeline.catalogs.frontier import CrawlFilter, PageWork
from ingestion_pipeline.catalogs.recipes.next_pages import Followed
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.worker_loop import WorkerLoop
from ingestion_pipeline.gc_thresholds import fewer_collections
from ingestion_pipeline.pages import ContentStore, Endpoint, FetchLimits, Guard, HttpFetcher
from ingestion_pipeline.pages.http.guard import Resolver
from ingestion_pipeline.pages.visits.page import NewPage, PageAnswer
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.reading.html.markdown import to_markdown
from ingestion_pipeline.registry import deferred_systems
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.sources import Definition, Kind
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.tasks.claims import Worker

USER_AGENT = "ingestion_pipeline benchmark"
RECIPE = {"page_type": "EXPLORATORY"}


class CountingHandler(CrawlHandler):
    """The crawl, and how many links to the site its pages have: peers tell that, too."""

    links = 0

    def _followed(self, work: PageWork, answer: PageAnswer) -> Followed:
        """The pages that follow."""
        if isinstance(answer, NewPage):
            # The suffix is in no path: to count is not to cost anything.
            is_own_there = work.visit.url in answer.links
            self.links += "\n".join(answer.links).count(f"{SUFFIX}/") - is_own_there
        return super()._followed(work, answer)


def prepare(job: Job) -> None:
    """A database at the present schema, with a source for each host; what was imported is frozen, as in our runs."""
    with fewer_collections(freeze=True):
        deferred_systems()  # imports all systems
    if job.is_with_markdown:
        to_markdown("<p>What the first page would import.")
    with closing(open_store(_settings(job).database_url)) as store:
        _register(store, job)


async def ours(job: Job) -> Seen:
    """Every host is a source whose walk goes to its end."""
    settings, links = _settings(job), 0
    with closing(open_store(settings.database_url)) as store:
        ctx = RunContext(
            store=store,
            settings=settings,
            content=ContentStore(job.folder / "content"),
            systems={},
            deferred_systems=deferred_systems(),
        )
        async with HttpFetcher(USER_AGENT, FetchLimits(), Guard(resolve=_names(job))) as fetcher:
            start_now(ctx, _source_ids(job))
            worker = Worker(store, lease_seconds=settings.work.lease_seconds)
            wanted, counts = CrawlFilter(source_ids=_source_ids(job)), CrawlCounts()
            while True:
                clock = SteadyClock(store.now())
                visitor = PoliteVisitor(fetcher, None, clock, settings)
                handler = CountingHandler(ctx, wanted, visitor=visitor, clock=clock)
                loop: WorkerLoop[PageWork, PageDone] = WorkerLoop(ctx, worker, fetcher, handler, clock=clock)
                with fewer_collections():
                    more = CrawlCounts.of(await loop.run())
                links += handler.links
                if not more.new:
                    return Seen(counts.new, links)
                counts += more


def _settings(job: Job) -> Settings:
    changes = {"crawl.delay_seconds": "0", "snapshots.markdown": str(job.is_with_markdown)}
    url = job.database or f"sqlite:///{job.folder / 'bench.db'}"
    environment = {"INGESTION_HOME": str(job.folder), "INGESTION_DATABASE_URL": url}
    return load_settings(environment, changes)


def _source_ids(job: Job) -> list[str]:
    return [f"catalog:bench-{number}" for number in range(job.hosts)]


def _register(store: Store, job: Job) -> None:
    found = [
        Definition(id=source_id, kind=Kind.CATALOG, url=url, platform="catalog", config={"recipe": RECIPE})
        for source_id, url in zip(_source_ids(job), job.starts, strict=True)
    ]
    with store.begin() as connection:
        register(connection, found, now=store.clock.now(connection))


def _names(job: Job) -> Resolver:
    async def resolve(_: str, __: int) -> Sequence[Endpoint]:
        return [Endpoint(LOOPBACK, job.port, is_exempt=True)]

    return resolve


if __name__ == "__main__":
    main(lambda job: asyncio.run(ours(job)), prepare)
