"""Whole polls in real processes that compete, are suspended or have wrong clocks: every effect once."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, func, select

from ingestion_pipeline.engine.context import IngestResult, PolledFeed
from ingestion_pipeline.engine.poll_handler import PollCounts
from ingestion_pipeline.pages.visits.page import StoredPage
from ingestion_pipeline.series.system import SeriesSystem
from ingestion_pipeline.sources.source import Kind, Source
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import dead_letters, metadata, sources, tasks
from ingestion_pipeline_tests import polling_runs
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.kill_loops import (
    LEASES,
    add_polled_sources,
    assert_one_effect_each,
    registered_worker,
    release_runs,
)
from ingestion_pipeline_tests.polling_runs import WorkerJob, fetch_async, ingest, rows
from ingestion_pipeline_tests.processes import Child

pytestmark = [pytest.mark.slow, pytest.mark.both_databases, pytest.mark.real_time]
ON_POSTGRES = pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)])
SHORT_LEASES = {"work__lease_seconds": "2", "hosts__lease_seconds": "2"}
LONGER_LEASES = {"work__lease_seconds": "6", "hosts__lease_seconds": "2"}


@pytest.fixture
def job(database_url: str, tmp_path: Path, web: FakeWeb) -> WorkerJob:
    return a_job(database_url, tmp_path, web)


def a_job(
    url: str, folder: Path, web: FakeWeb, changes: Mapping[str, str] = SHORT_LEASES, days_off: int = 0
) -> WorkerJob:
    home = folder / "home"
    return WorkerJob(url=url, home=home, port=web.port, changes=changes, days_off=days_off)


def all_rows(store: Store) -> Mapping[str, Any]:
    tables = [table for name, table in metadata.tables.items() if name != "hosts"]
    return {table.name: rows(store, table) for table in tables}


def poll_for(job: WorkerJob, seconds: float) -> int:
    """Poll what is due, again and again; return how many sources were ingested."""
    ends, ingested = time.monotonic() + seconds, 0
    with job.ctx() as ctx:
        while time.monotonic() < ends:
            ingested += polling_runs.poll_once(job, ctx)
            time.sleep(0.05)
    return ingested


@pytest.mark.soak
def test_two_schedulers_poll_no_source_twice_in_an_interval_for_two_minutes(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    count, interval = 60, 5
    add_polled_sources(store, web, count, seconds=0.02)
    job = a_job(database_url, tmp_path, web, {**LONGER_LEASES, "interval__series_hot": f"{interval}"})

    pair = [Child(poll_for, job, 120.0) for _ in range(2)]
    ingested = [child.result(within_seconds=180) for child in pair]

    assert min(ingested) > 0
    times = {
        f"/{number}": [request.at for request in web.requests if request.path == f"/{number}"]
        for number in range(count)
    }
    gaps = [after - before for polled_at in times.values() for before, after in pairwise(polled_at)]
    assert len(gaps) > count * 5
    assert min(gaps) > interval * 0.85  # the jitter is a tenth


@contextmanager
def killed_on_exit(child: Child) -> Iterator[Child]:
    """Kill the child on exit in any case; a suspended one never ends by itself."""
    try:
        yield child
    finally:
        child.kill()


def test_a_batch_suspended_past_its_lease_changes_nothing_when_it_resumes(
    store: Store, web: FakeWeb, job: WorkerJob
) -> None:
    add_polled_sources(store, web, 6, seconds=0)
    # Long enough for a busy machine to fetch six feeds within it.
    patient = replace(job, changes=LONGER_LEASES)
    with killed_on_exit(Child(polling_runs.stop_between_fetch_and_ingest, patient)) as sleeper:
        sleeper.wait_until_stopped()

        assert Child(polling_runs.poll_until_done, job).result() == 6
        before = all_rows(store)
        sleeper.resume()

        assert sleeper.result() == {"fetched": 6, "ingested": 0}
    assert all_rows(store) == before
    assert_one_effect_each(store, 6)


@ON_POSTGRES
def test_workers_whose_clocks_are_days_apart_agree_on_what_is_due(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    add_polled_sources(store, web, 40, seconds=0.05)
    ahead, behind = (a_job(database_url, tmp_path, web, LONGER_LEASES, days_off=days) for days in (1, -1))

    pair = [Child(polling_runs.poll_until_done, job) for job in (ahead, behind)]
    assert sum(child.result() for child in pair) == 40
    assert [Child(polling_runs.poll_once, job).result() for job in (ahead, behind)] == [0, 0]

    assert Counter(web.paths) == {f"/{number}": 1 for number in range(40)}
    assert_one_effect_each(store, 40)
    with store.read() as connection:
        query = select(func.min(sources.c.next_check_at), func.max(sources.c.next_check_at))
        first, last = connection.execute(query).one()
    assert timedelta(0) < first - store.now() < last - store.now() < timedelta(minutes=20)


KILLS_READER, KILLS_WRITER = "series:3", "series:37"


class PoisonedSeries(SeriesSystem):
    """Kills its process over two feeds: while one is parsed, and while the other is written."""

    def read(self, source: Source, pages: Sequence[StoredPage]) -> bytes:
        if source.id == KILLS_READER:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(source, pages)

    def ingest(self, connection: Connection, feeds: Sequence[PolledFeed], **more: Any) -> Sequence[IngestResult]:
        if any(feed.source.id == KILLS_WRITER for feed in feeds):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().ingest(connection, feeds, **more)


def poll_poisoned_feeds(job: WorkerJob) -> None:
    """Poll until no source is due."""
    with job.ctx() as opened:
        ctx, is_done = replace(opened, systems={Kind.SERIES: PoisonedSeries()}), False
        while not is_done:
            with registered_worker(ctx) as worker:
                _, fetching = asyncio.run(fetch_async(ctx, job.port, worker=worker))
                ingest(ctx, worker, fetching)
            is_done = fetching.counts == PollCounts()


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.soak)])
def test_a_feed_that_kills_its_worker_does_not_condemn_its_batch(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path, count: int
) -> None:
    deaths, attempts = 0, set[int]()
    add_polled_sources(store, web, count, seconds=0, hosts=8)
    job = a_job(database_url, tmp_path, web, LEASES)
    while (child := Child(poll_poisoned_feeds, job)).wait():
        release_runs(store, child)
        deaths += 1
        attempts |= {row.attempts for row in rows(store, tasks) if row.source_id not in {KILLS_READER, KILLS_WRITER}}
        assert deaths < 20

    assert deaths == 7  # one in the whole batch, and each of the two three times alone
    letters = [(row.source_id, row.error_code) for row in rows(store, dead_letters)]
    assert sorted(letters) == [(KILLS_READER, "worker_lost"), (KILLS_WRITER, "worker_lost")]
    polled = {row.id for row in rows(store, sources) if row.last_success_at is not None}
    assert len(polled) == count - 2
    assert not polled & {KILLS_READER, KILLS_WRITER}
    assert attempts == {0, 1}
