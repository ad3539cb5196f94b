"""Worker processes that are killed or compete: fetched pages are kept, companies and matches are added once."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from ingestion_pipeline.companies.records import SOURCE_DISCOVERY
from ingestion_pipeline.settings import Work
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import (
    companies,
    hosts,
    sources,
    tasks,
)
from ingestion_pipeline.tasks.claims import tasks_by_id
from ingestion_pipeline.tasks.queue import Refusal, insert_tasks, spawn
from ingestion_pipeline.tasks.task import NewTask
from ingestion_pipeline_tests.companies import company_sites
from ingestion_pipeline_tests.companies.company_sites import (
    ACME,
    add_acme,
    company_row,
    process_companies_job,
    tasks_of,
)
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import WorkerJob, rows, slow_answer, wait_until
from ingestion_pipeline_tests.processes import FORKSERVER, PATIENCE_SECONDS, Child

pytestmark = [pytest.mark.slow, pytest.mark.both_databases]
# Long enough for a busy machine; the kill test expires them itself.
LEASES: Mapping[str, str] = {"work__lease_seconds": "30", "hosts__lease_seconds": "30"}


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """A store with the real clock, which the worker processes use."""
    with closing(open_store(database_url)) as store:
        yield store


@pytest.fixture
def job(database_url: str, tmp_path: Path, web: FakeWeb) -> WorkerJob:
    return WorkerJob(url=database_url, home=tmp_path / "home", port=web.port, changes=LEASES)


def assert_one_of_each(store: Store) -> None:
    assert [row.id for row in rows(store, companies)] == ["acme"]
    boards = [row.id for row in rows(store, sources) if row.kind == "job_board"]
    assert boards == ["job_board:greenhouse-acme"]
    assert [row.status for row in tasks_of(store, "company")] == ["SUCCESS"]
    assert [row.status for row in tasks_of(store, SOURCE_DISCOVERY)] == ["SUCCESS"]
    assert len([row for row in tasks_of(store, "poll") if row.source_id != ACME]) == 1
    assert company_row(store).status == "active"


def test_pages_that_a_killed_worker_fetched_are_not_fetched_again(store: Store, web: FakeWeb, job: WorkerJob) -> None:
    with job.ctx() as ctx:
        add_acme(ctx, web)
    careers_page = web.routes["acme.test/team/careers"]
    web.routes["acme.test/team/careers"] = slow_answer(b"<html></html>", 60)
    victim = Child(process_companies_job, job)
    wait_until(lambda: "/team/careers" in web.paths)

    victim.kill()
    [claimed_task] = tasks_of(store, "company")
    web.routes["acme.test/team/careers"] = careers_page
    expire_leases(store)
    counts = Child(process_companies_job, job).result()

    assert (claimed_task.status, claimed_task.stage, len(claimed_task.state["pages"])) == ("PROCESSING", "fetched", 2)
    assert counts == {"analysed": 1, "boards_active": 1}
    request_counts = Counter(request.path for request in web.requests if request.host == "acme.test")
    assert request_counts == {"/": 1, "/company/about-acme": 1, "/team/careers": 2}
    assert_one_of_each(store)


def expire_leases(store: Store) -> None:
    """Expire all leases of a killed worker, without sleeping."""
    long_ago = store.now().replace(year=2020)
    with store.begin() as connection:
        is_leased = tasks.c.lease_until.is_not(None)
        connection.execute(update(tasks).where(is_leased).values(lease_until=long_ago))
        connection.execute(update(hosts).values(lease_owner=None, lease_until=None))


def test_two_concurrent_workers_make_one_company_and_one_board(store: Store, web: FakeWeb, job: WorkerJob) -> None:
    with job.ctx() as ctx:
        add_acme(ctx, web)

    workers = [Child(process_companies_job, job) for _ in range(2)]
    counts: Counter[str] = Counter()
    for child in workers:
        counts.update(child.result())
    counts.update(process_companies_job(job))  # tasks that one worker released because the other held the host lease

    assert (counts["analysed"], counts["boards_active"]) == (1, 1)
    assert_one_of_each(store)


def spawn_together(url: str, parent_id: int, barrier: Barrier) -> Any:
    """Spawn a discovery concurrently with another process; return its id or the refusal."""
    store = open_store(url)
    with closing(store):
        with store.read() as connection:
            parent = tasks_by_id(connection, [parent_id])[parent_id]
        barrier.wait(PATIENCE_SECONDS)
        with store.begin() as connection:
            now = store.clock.now(connection)
            child = NewTask(
                kind=SOURCE_DISCOVERY, dedupe_key=company_sites.BOARD, url=company_sites.BOARD, not_before=now
            )
            spawned = spawn(connection, parent, child, now=now, policy=Work())
    return spawned.value if isinstance(spawned, Refusal) else spawned


def test_two_parents_that_spawn_the_same_board_make_one_task(store: Store, database_url: str) -> None:
    now = store.now()
    urls = ["http://a.test/", "http://b.test/"]
    new = [NewTask(kind="company", dedupe_key=url, url=url, not_before=now) for url in urls]
    with store.begin() as connection:
        parents = [insert_tasks(connection, [task], now=now)[0] for task in new]
    barrier = FORKSERVER.Barrier(2)

    children = [Child(spawn_together, database_url, parent, barrier) for parent in parents]
    results = [child.result() for child in children]

    assert sorted(map(str, results), reverse=True)[0] == "active_duplicate"
    assert len(tasks_of(store, SOURCE_DISCOVERY)) == 1
