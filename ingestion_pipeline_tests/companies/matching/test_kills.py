"""Judges in real processes, one of which dies in the middle: every listing once, told once."""

from __future__ import annotations

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
from ingestion_pipeline_tests.companies.matching.listings import GOOD, PROFILE, Listings, Unhurried, a_row
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import Job, a_run_context, rows, settings_of, slowly, wait_until
from ingestion_pipeline_tests.processes import PATIENCE_SECONDS, Child

pytestmark = pytest.mark.slow
COUNT = 24
PAGE = f"<html><main><h1>Engineer</h1><p>{GOOD}</p></main>".encode()


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """By the real clock, as all the processes have it."""
    with closing(open_store(database_url)) as store:
        yield store


def judge_all(job: Job, profile: Path) -> None:
    """What a run of `process_listings` does, until nothing waits."""
    with job.ctx() as opened:
        settings = settings_of(job.home, job.url, match__profile=str(profile), **job.changes)
        ctx = replace(opened, settings=settings, systems={Kind.JOB_BOARD: Unhurried()})  # pyright: ignore[reportArgumentType]
        some = Listings(ctx=ctx, profile=profile, port=job.port)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while _unjudged(some) and time.monotonic() < deadline:
            asyncio.run(some.run_async())
            time.sleep(0.05)


def _unjudged(some: Listings) -> int:
    return sum(row.verdict is None for row in some.rows(job_listings))


def test_a_run_that_is_killed_in_the_middle_loses_and_doubles_nothing(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE)
    web.routes |= {f"/{n}": slowly(PAGE, 0.05) for n in range(COUNT)}
    leases = {"work__lease_seconds": "2", "hosts__lease_seconds": "2"}
    job = Job(url=database_url, home=tmp_path / "home", port=web.port, changes=leases)
    given(store, profile, web)

    victim = Child(judge_all, job, profile)
    wait_until(lambda: len(web.requests) > COUNT // 3, seconds=60)
    victim.kill()
    Child(judge_all, job, profile).result()

    judged = Counter(row.verdict for row in rows(store, job_listings))
    assert judged == {"matched": COUNT}
    assert len(rows(store, job_matches)) == len(rows(store, outbox)) == COUNT
    assert len(rows(store, companies)) == 1
    ended = Counter(row.status for row in rows(store, tasks) if row.kind == "job")
    assert ended == {"SUCCESS": COUNT}
    assert rows(store, dead_letters) == []


def given(store: Store, profile: Path, web: FakeWeb) -> None:
    home = profile.parent / "home"
    ctx = a_run_context(store, settings_of(home, "sqlite://"))
    some = Listings(ctx=ctx, profile=profile, port=web.port)
    some.board()
    now = store.now()
    for number in range(COUNT):
        values = a_row(url=f"http://jobs.test/{number}", description=None, posted_at=now)
        some.add(**values)
