"""Whole poll runs, fetch to rows, against a web on loopback: in this process, or in one that can be killed."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Table, func, insert, select
from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.engine.context import IngestResult, RunContext
from ingestion_pipeline.engine.ingesting import extract_batch, ingest_batch
from ingestion_pipeline.engine.poll_handler import PollCounts, PollRunResult, fetch_feeds
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.pages.http.fetcher import FetchLimits, HttpFetcher
from ingestion_pipeline.pages.http.guard import Endpoint, Guard, Resolver, system_resolver
from ingestion_pipeline.pages.politeness.robots import as_stored, rules_of_answer
from ingestion_pipeline.registry import deferred_systems, polled_systems
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.source import Definition
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import hosts, sources, tasks
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline.tasks.errors import WorkError
from ingestion_pipeline_tests.fakes import LOOPBACK, FakeWeb, RawAnswer
from ingestion_pipeline_tests.processes import PATIENCE_SECONDS, POLLS, stop_here

if TYPE_CHECKING:
    import pytest


# Fast enough for tests: no spacing, and backoffs that a run waits for.
FAST_SETTINGS = {
    "hosts.delay_seconds": "0",
    "crawl.delay_seconds": "0",
    "work.backoff_base_seconds": "0.05",
    "crawl.backoff_base_seconds": "0.05",
    "extraction.quiet_seconds": "0",
}


class RunningClock:
    """A store's clock that starts at a given time and runs; it may be moved ahead."""

    def __init__(self, at: datetime) -> None:
        self._at = at
        self._started = time.monotonic()

    def now(self, connection: Connection) -> datetime:
        return self._at + timedelta(seconds=time.monotonic() - self._started)

    def latest(self, connection: Connection) -> datetime:
        return self.now(connection)

    def advance(self, **units: float) -> None:
        self._at += timedelta(**units)


@dataclass(frozen=True, kw_only=True)
class PollRunOutcome:
    """Counts of a whole run: fetch, extraction and ingestion."""

    fetched: PollCounts
    counts: PollCounts
    ingested: Sequence[IngestResult]
    owner: str


def fast_settings(home: Path, url: str, **changes: str) -> Settings:
    """Return fast settings; a change is named `group__name`."""
    overrides = FAST_SETTINGS | {name.replace("__", "."): text for name, text in changes.items()}
    environment = {"INGESTION_HOME": str(home), "INGESTION_DATABASE_URL": url}
    return load_settings(environment, overrides)


def a_run_context(store: Store, settings: Settings) -> RunContext:
    content = ContentStore(settings.home / "content")
    return RunContext(
        store=store,
        settings=settings,
        content=content,
        systems=polled_systems(),
        deferred_systems=deferred_systems(),
        random=Random(7),
    )


def with_settings(ctx: RunContext, **changes: str) -> RunContext:
    """Return the context with other settings."""
    old = ctx.settings
    return replace(ctx, settings=fast_settings(old.home, old.database_url, **changes))


def loopback_resolver(port: int) -> Resolver:
    """Return a resolver that maps every name under .test to the web on that port, and others as the system does."""

    async def resolve(host: str, requested_port: int) -> Sequence[Endpoint]:
        if host.endswith(".test"):
            return [Endpoint(LOOPBACK, port, is_exempt=True)]
        return await system_resolver(host, requested_port)

    return resolve


def a_fetcher(settings: Settings, port: int) -> HttpFetcher:
    limits = FetchLimits(max_bytes=settings.fetch.max_bytes, deadline_seconds=settings.fetch.deadline_seconds)
    return HttpFetcher("tests", limits, Guard(settings.allowed_hosts, loopback_resolver(port)))


async def fetch_async(
    ctx: RunContext, port: int, claim_filter: ClaimFilter = POLLS, worker: Worker | None = None
) -> tuple[Worker, PollRunResult]:
    worker = worker or Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds)
    async with a_fetcher(ctx.settings, port) as fetcher:
        return worker, await fetch_feeds(ctx, worker, fetcher, claim_filter)


def fetch(ctx: RunContext, web: FakeWeb, claim_filter: ClaimFilter = POLLS) -> tuple[Worker, PollRunResult]:
    """Run the fetch step."""
    return asyncio.run(fetch_async(ctx, web.port, claim_filter))


def ingest(ctx: RunContext, worker: Worker, fetching: PollRunResult) -> PollRunOutcome:
    """Run extraction and ingestion of a fetched run."""
    counts = fetching.counts
    ingested: list[IngestResult] = []
    for batch_id in fetching.batch_ids:
        counts += extract_batch(ctx, worker, batch_id)
        ingestion = ingest_batch(ctx, worker, batch_id)
        counts += ingestion.counts
        ingested += ingestion.ingested
    return PollRunOutcome(fetched=fetching.counts, counts=counts, ingested=ingested, owner=fetching.owner)


def poll(ctx: RunContext, web: FakeWeb, claim_filter: ClaimFilter = POLLS) -> PollRunOutcome:
    """Run fetch, extraction and ingestion."""
    return ingest(ctx, *fetch(ctx, web, claim_filter))


def a_feed(*numbers: int, note: str = "") -> bytes:
    """Return an RSS feed of these chapters, newest first."""
    items = "".join(
        f"<item><title>Chapter {number}{note}</title><guid>c{number}</guid><link>http://a.test/c/{number}</link></item>"
        for number in sorted(numbers, reverse=True)
    )
    return f'<rss version="2.0"><channel><title>S</title>{items}</channel></rss>'.encode()


def slow_answer(body: bytes, seconds: float) -> RawAnswer:
    """Return a good answer that takes this long."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    return answer


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for a condition that other threads or processes fulfil."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition was never met")
        time.sleep(0.01)


def record_fsyncs(monkeypatch: "pytest.MonkeyPatch") -> list[int]:
    """Return a list to which the handle of every fsync from now on is added."""
    synced: list[int] = []
    sync = os.fsync

    def record(handle: int) -> None:
        sync(handle)
        synced.append(handle)

    monkeypatch.setattr(os, "fsync", record)
    return synced


def add_sources(store: Store, *definitions: Definition) -> None:
    with store.begin() as connection:
        register(connection, definitions, now=store.clock.now(connection))


def add_robots(store: Store, *names: str, text: bytes = b"", agent: str = "tests") -> None:
    """Store robots.txt of these hosts, so that a test about pace need not fetch it."""
    with store.begin() as connection:
        now = store.clock.now(connection)
        stored_rules = as_stored(rules_of_answer(200, {}, text, now=now), agent)
        values = [{"host": name, "robots": {f"http://{name}": stored_rules}} for name in names]
        connection.execute(insert(hosts), values)


def rows(store: Store, table: Table) -> list[Any]:
    with store.read() as connection:
        return list(connection.execute(select(table).order_by(*table.primary_key)))


def source_row(store: Store, source_id: str = "series:solo") -> Any:
    return next(row for row in rows(store, sources) if row.id == source_id)


def task_row(store: Store, source_id: str = "series:solo") -> Any:
    return next(row for row in rows(store, tasks) if row.source_id == source_id)


@dataclass(frozen=True, kw_only=True)
class WorkerJob:
    """Arguments of a worker process: database, home, port of the web, settings."""

    url: str
    home: Path
    port: int
    changes: Mapping[str, str]
    days_off: int = 0

    @contextmanager
    def ctx(self) -> Iterator[RunContext]:
        """Open the context of the process, whose own clock may be days off."""
        import time_machine

        moment = datetime.now(UTC) + timedelta(days=self.days_off)
        with time_machine.travel(moment) if self.days_off else nullcontext():
            store = open_store(self.url)
            yield a_run_context(store, fast_settings(self.home, self.url, **self.changes))
            store.close()


def poll_until_done(job: WorkerJob) -> int:
    """Poll as runs do until every source has been polled; return how many sources this process ingested."""
    ingested, deadline = 0, time.monotonic() + PATIENCE_SECONDS
    with job.ctx() as ctx:
        while _unpolled(ctx.store) and time.monotonic() < deadline:
            ingested += poll_once(job, ctx)
            time.sleep(0.02)
    return ingested


def poll_through_outages(job: WorkerJob, acknowledged: Path) -> int:
    """Poll until every source has been polled while the database goes away: a broken run is followed by another.

    Ingested sources are appended to `acknowledged` after the commit. Return how many runs broke off.
    """
    broken, deadline = 0, time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            with job.ctx() as ctx:
                while _unpolled(ctx.store):
                    worker, fetching = asyncio.run(fetch_async(ctx, job.port))
                    source_ids = [source_id.source_id for source_id in ingest(ctx, worker, fetching).ingested]
                    with acknowledged.open("a") as file:
                        file.writelines(f"{time.monotonic()} {source_id}\n" for source_id in source_ids)
                    time.sleep(0.02)
                return broken
        except (SQLAlchemyError, WorkError):
            broken += 1
            time.sleep(0.2)
    raise TimeoutError("the database never came back")


def poll_once(job: WorkerJob, ctx: RunContext | None = None) -> int:
    """Run once; return how many sources were ingested."""
    if ctx is None:
        with job.ctx() as opened:
            return poll_once(job, opened)
    worker, fetching = asyncio.run(fetch_async(ctx, job.port))
    return len(ingest(ctx, worker, fetching).ingested)


def _unpolled(store: Store) -> int:
    with store.read() as connection:
        query = select(func.count()).select_from(sources).where(sources.c.last_success_at.is_(None))
        return connection.execute(query).scalar_one()


def stop_between_fetch_and_ingest(job: WorkerJob) -> dict[str, int]:
    """Fetch and extract a batch, stop, and ingest it after being resumed."""
    with job.ctx() as ctx:
        worker, fetching = asyncio.run(fetch_async(ctx, job.port))
        [batch_id] = fetching.batch_ids
        extract_batch(ctx, worker, batch_id)
        stop_here()
        ingestion = ingest_batch(ctx, worker, batch_id)
    return {"fetched": fetching.counts.changed, "ingested": len(ingestion.ingested)}


def poll_on_a_full_disk(job: WorkerJob, limit_bytes: int) -> str:
    """Return the error of a run whose files may not grow beyond the limit."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    with job.ctx() as ctx:
        try:
            asyncio.run(fetch_async(ctx, job.port))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "no error"
