"""A worker process that is killed while it evaluates listings: each is evaluated and announced once."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import companies, dead_letters, job_listings, job_matches, outbox, tasks
from ingestion_pipeline_tests.companies.matching.listings import (
    MATCHING_TEXT,
    PROFILE,
    Listings,
    UndelayedBoards,
    a_listing_row,
)
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import (
    WorkerJob,
    a_run_context,
    fast_settings,
    rows,
    slow_answer,
    wait_until,
)
from ingestion_pipeline_tests.processes import PATIENCE_SECONDS, Child

pytestmark = [pytest.mark.slow, pytest.mark.both_databases]
COUNT = 24
PAGE = f"<html><main><h1>Engineer</h1><p>{MATCHING_TEXT}</p></main>".encode()


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """A store with the real clock, which the worker processes use."""
    with closing(open_store(database_url)) as store:
        yield store


def evaluate_all(job: WorkerJob, profile: Path) -> None:
    """Run what `process_listings` runs until every listing is evaluated."""
    with job.ctx() as opened:
        settings = fast_settings(job.home, job.url, match__profile=str(profile), **job.changes)
        ctx = replace(opened, settings=settings, systems={Kind.JOB_BOARD: UndelayedBoards()})  # pyright: ignore[reportArgumentType]
        listings = Listings(ctx=ctx, profile=profile, port=job.port)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while _unevaluated(listings) and time.monotonic() < deadline:
            asyncio.run(listings.run_async())
            time.sleep(0.05)


def _unevaluated(listings: Listings) -> int:
    return sum(row.decision is None for row in listings.rows(job_listings))


def test_a_run_killed_midway_neither_loses_nor_duplicates_a_match(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE)
    web.routes |= {f"/{n}": slow_answer(PAGE, 0.05) for n in range(COUNT)}
    leases = {"work__lease_seconds": "2", "hosts__lease_seconds": "2"}
    job = WorkerJob(url=database_url, home=tmp_path / "home", port=web.port, changes=leases)
    add_listings(store, profile, web)

    victim = Child(evaluate_all, job, profile)
    wait_until(lambda: len(web.requests) > COUNT // 3, seconds=60)
    victim.kill()
    Child(evaluate_all, job, profile).result()

    decisions = Counter(row.decision for row in rows(store, job_listings))
    assert decisions == {"matched": COUNT}
    assert len(rows(store, job_matches)) == len(rows(store, outbox)) == COUNT
    assert len(rows(store, companies)) == 1
    ended = Counter(row.status for row in rows(store, tasks) if row.kind == "job")
    assert ended == {"SUCCESS": COUNT}
    assert rows(store, dead_letters) == []


def add_listings(store: Store, profile: Path, web: FakeWeb) -> None:
    home = profile.parent / "home"
    ctx = a_run_context(store, fast_settings(home, "sqlite://"))
    listings = Listings(ctx=ctx, profile=profile, port=web.port)
    listings.add_board()
    now = store.now()
    for number in range(COUNT):
        values = a_listing_row(url=f"http://jobs.test/{number}", description=None, posted_at=now)
        listings.add(**values)
