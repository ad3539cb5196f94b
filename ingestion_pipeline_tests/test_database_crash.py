"""The database is killed under load: workers recover, and every acknowledged commit is stored."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ingestion_pipeline.store import open_store
from ingestion_pipeline.store.tables import chapter_sources
from ingestion_pipeline_tests import polling_runs
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.kill_loops import LEASES, add_polled_sources, assert_one_effect_each
from ingestion_pipeline_tests.polling_runs import WorkerJob, rows, wait_until
from ingestion_pipeline_tests.postgres import PostgresServer, start_server
from ingestion_pipeline_tests.processes import Child

pytestmark = [pytest.mark.soak, pytest.mark.postgres, pytest.mark.both_databases]
COUNT, CRASHES = 240, 3


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    server = start_server(durable=True)
    yield server
    server.stop()


def lines(file: Path) -> list[tuple[float, str]]:
    """When each source was acknowledged."""
    if not file.exists():
        return []
    pairs = [line.split() for line in file.read_text().splitlines(keepends=True) if line[-1] == "\n"]
    return [(float(at), source_id) for at, source_id in pairs]


def test_workers_survive_a_crash_of_the_database(server: PostgresServer, tmp_path: Path) -> None:
    url, acknowledged = server.url(server.create_database()), tmp_path / "acknowledged"
    returns: list[float] = []
    with FakeWeb() as web:
        with closing(open_store(url)) as store:
            add_polled_sources(store, web, COUNT, seconds=0.3, hosts=24)
        job = WorkerJob(url=url, home=tmp_path / "home", port=web.port, changes={**LEASES, "polling__batch_size": "8"})
        workers = [Child(polling_runs.poll_through_outages, job, acknowledged) for _ in range(3)]
        for _ in range(CRASHES):
            before = len(lines(acknowledged))
            wait_until(lambda before=before: len(lines(acknowledged)) > before + 20)
            server.crash()
            message = len(lines(acknowledged))
            server.start_again()
            began = time.monotonic()
            with closing(open_store(url)) as store:
                stored = {row.source_id for row in rows(store, chapter_sources)}
            assert {source_id for _, source_id in lines(acknowledged)[:message]} <= stored
            wait_until(lambda message=message: len(lines(acknowledged)) > message)
            returns.append(time.monotonic() - began)
        broken = [child.result() for child in workers]
    print(f"runs broken off: {broken}; back after {[round(worker, 1) for worker in returns]} s")

    assert sum(broken) >= CRASHES
    assert max(returns) <= 10
    with closing(open_store(url)) as store:
        assert_one_effect_each(store, COUNT)
    said_so = [source_id for _, source_id in lines(acknowledged)]
    assert len(said_so) == len(set(said_so))
