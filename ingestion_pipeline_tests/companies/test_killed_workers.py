"""Worker processes that are killed or compete: fetched pages are kept, companies and matches are added once."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from sqlalchemy import update

from ingestion_pipeline.companies.records import SOURCE_DISCOVERY
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import (
    companies,
    hosts,
    sources,
    tasks,
)
from ingestion_pipeline_tests.companies.company_sites import (
    ACME,
    add_acme,
    company_row,
    process_companies_job,
    tasks_of,
)
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import WorkerJob, rows, slow_answer, wait_until
from ingestion_pipeline_tests.processes import Child

pytestmark = [pytest.mark.slow, pytest.mark.both_databases, pytest.mark.real_time]
# Long enough for a busy machine; the kill test expires them itself.
LEASES: Mapping[str, str] = {"work__lease_seconds": "30", "hosts__lease_seconds": "30"}


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
