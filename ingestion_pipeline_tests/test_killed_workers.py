"""Whole polls in real processes, some of which die: every source once, every effect once."""

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from ingestion_pipeline.sources.source import Tier
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import (
    batch_items,
    chapter_sources,
    chapters,
    dead_letters,
    metadata,
    outbox,
    sources,
    tasks,
)
from ingestion_pipeline_tests import polling_runs
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import WorkerJob, a_feed, add_sources, rows, slow_answer, wait_until
from ingestion_pipeline_tests.processes import Child, stop_outside_a_transaction

pytestmark = [pytest.mark.slow, pytest.mark.both_databases]
ON_POSTGRES = pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)])
SHORT_LEASES = {"work__lease_seconds": "2", "hosts__lease_seconds": "2"}
LONGER_LEASES = {"work__lease_seconds": "6", "hosts__lease_seconds": "2"}
PER_SERIES = 2  # so many sources deliver the same chapter


@pytest.fixture
def web() -> Iterator[FakeWeb]:
    with FakeWeb() as web:
        yield web


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """By the real clock, as all the processes have it."""
    with closing(open_store(database_url)) as store:
        yield store


@pytest.fixture
def job(database_url: str, tmp_path: Path, web: FakeWeb) -> WorkerJob:
    return a_job(database_url, tmp_path, web)


def a_job(
    url: str, folder: Path, web: FakeWeb, changes: Mapping[str, str] = SHORT_LEASES, days_off: int = 0
) -> WorkerJob:
    home = folder / "home"
    return WorkerJob(url=url, home=home, port=web.port, changes=changes, days_off=days_off)


def add_polled_sources(store: Store, web: FakeWeb, count: int, *, seconds: float, hosts: int = 12) -> None:
    """Add sources that were synced long ago, each with one new chapter and a slow response."""
    definitions = [
        a_definition(
            id=f"series:{number}",
            url=f"http://{number % hosts}.test/{number}",
            series=f"series-{number // PER_SERIES}",
            tier=Tier.HOT,
        )
        for number in range(count)
    ]
    add_sources(store, *definitions)
    with store.begin() as connection:
        connection.execute(update(sources).values(synced_at=NOON))
    web.routes |= {f"/{number}": slow_answer(a_feed(1), seconds) for number in range(count)}


def assert_one_effect_each(store: Store, count: int) -> None:
    assert [row.last_success_at for row in rows(store, sources)].count(None) == 0
    links = Counter((row.source_id, row.chapter_id) for row in rows(store, chapter_sources))
    assert Counter(row.source_id for row in rows(store, chapter_sources)) == Counter(
        f"series:{number}" for number in range(count)
    )
    assert set(links.values()) == {1}
    assert len(rows(store, chapters)) == len(rows(store, outbox)) == count / PER_SERIES
    assert {(row.status, row.attempts) for row in rows(store, tasks)} == {("PENDING", 0)}
    assert rows(store, dead_letters) == []
    assert rows(store, batch_items) == []


def all_rows(store: Store) -> Mapping[str, Any]:
    tables = [table for name, table in metadata.tables.items() if name != "hosts"]
    return {table.name: rows(store, table) for table in tables}


def test_two_concurrent_pollers_fetch_each_source_once(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    add_polled_sources(store, web, 60, seconds=0.05)
    job = a_job(database_url, tmp_path, web, LONGER_LEASES)

    pair = [Child(polling_runs.poll_until_done, job) for _ in range(2)]
    ingested = [child.result() for child in pair]

    assert Counter(web.paths) == {f"/{number}": 1 for number in range(60)}
    assert sum(ingested) == 60
    assert_one_effect_each(store, 60)


def test_the_tasks_of_a_killed_worker_are_finished_by_another(store: Store, web: FakeWeb, job: WorkerJob) -> None:
    add_polled_sources(store, web, 40, seconds=0.15)
    victim = Child(polling_runs.poll_until_done, job)
    wait_until(lambda: len(web.requests) >= 15)

    victim.kill()
    in_hand = [row for row in rows(store, tasks) if row.status == "PROCESSING"]
    ingested = Child(polling_runs.poll_until_done, job).result()

    assert len(in_hand) == ingested == 40
    assert_one_effect_each(store, 40)


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
def test_a_fetch_suspended_past_its_lease_changes_nothing_when_it_resumes(
    store: Store, web: FakeWeb, job: WorkerJob
) -> None:
    add_polled_sources(store, web, 16, seconds=0.3, hosts=4)
    with killed_on_exit(Child(polling_runs.poll_until_done, job)) as sleeper:
        wait_until(lambda: len(web.requests) >= 6)
        stop_outside_a_transaction(sleeper, store)

        assert Child(polling_runs.poll_until_done, job).result() == 16
        before = all_rows(store)
        sleeper.resume()

        assert sleeper.result() == 0
    assert all_rows(store) == before
    assert_one_effect_each(store, 16)


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


def kill_workers_repeatedly(job: WorkerJob, *, workers: int, every: float, seconds: float) -> int:
    """Run polling workers, kill and replace a random one repeatedly, then let them finish."""
    choose, killed = random.Random(11), 0
    children = [Child(polling_runs.poll_until_done, job) for _ in range(workers)]
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        time.sleep(every)
        index = choose.randrange(workers)
        children[index].kill()
        killed += 1
        children[index] = Child(polling_runs.poll_until_done, job)
    for child in children:
        child.result()
    return killed


def assert_a_kill_loop_loses_nothing(
    store: Store, web: FakeWeb, job: WorkerJob, *, count: int, workers: int, every: float, seconds: float
) -> None:
    add_polled_sources(store, web, count, seconds=0.4)

    killed = kill_workers_repeatedly(job, workers=workers, every=every, seconds=seconds)

    assert killed >= seconds / every / 3
    assert_one_effect_each(store, count)


KILL_LOOP = {
    "work__lease_seconds": "1",
    "hosts__lease_seconds": "1",
    "polling__batch_size": "8",
    "work__max_attempts": "100",  # here every death is ours, not the source's
}


def test_repeatedly_killed_workers_lose_and_duplicate_nothing(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    job = a_job(database_url, tmp_path, web, changes=KILL_LOOP)
    assert_a_kill_loop_loses_nothing(store, web, job, count=40, workers=3, every=0.5, seconds=6)


@pytest.mark.soak
def test_a_minute_of_kills_loses_and_duplicates_nothing(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    job = a_job(database_url, tmp_path, web, changes=KILL_LOOP)
    assert_a_kill_loop_loses_nothing(store, web, job, count=500, workers=6, every=0.3, seconds=60)
