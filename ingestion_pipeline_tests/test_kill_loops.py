"""Every kind of work while its workers are killed, suspended past their leases, or days apart: each effect once."""

import math
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ingestion_pipeline.demo.model_server import ModelRequest, Reply, ScriptedModel
from ingestion_pipeline.store import open_store
from ingestion_pipeline.store.tables import dead_letters, tasks
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.kill_loops import (
    LEASES,
    WORKERS,
    WORKLOADS,
    Scene,
    assert_no_answer_is_paid_twice,
    await_answers,
    interrupt_workers,
    work_until_done,
)
from ingestion_pipeline_tests.polling_runs import WorkerJob, wait_until
from ingestion_pipeline_tests.postgres import PostgresServer, start_server
from ingestion_pipeline_tests.processes import PATIENCE_SECONDS, Child

pytestmark = [pytest.mark.slow, pytest.mark.both_databases]
EVERY_KIND = pytest.mark.parametrize("kind", WORKLOADS)


@contextmanager
def scene_of(kind: str, url: str, folder: Path, size: int, *, lease_seconds: int = 60) -> Iterator[Scene]:
    # No live worker loses its claims on a busy machine, nor gives up a question: three quarters of a lease is its
    # limit. What a dead one held is freed at once; other work of a host waits for the host's own lease.
    workload, leases = WORKLOADS[kind], {**LEASES, "work__lease_seconds": str(lease_seconds)}

    with closing(open_store(url)) as store, FakeWeb() as web:

        def reply(request: ModelRequest) -> Reply:
            time.sleep(workload.reply_seconds)
            if not workload.is_batched:
                wait_until(web.gate.pass_one, seconds=PATIENCE_SECONDS)
            return workload.reply(request)

        with ScriptedModel(reply) as model:
            if workload.is_batched:
                model.batches.polls_needed = 20
                model.batches.before_answer = lambda: wait_until(web.gate.pass_one, seconds=PATIENCE_SECONDS)
            changes = {**leases, **workload.settings_for(model.base_url, folder)}
            job = WorkerJob(url=url, home=folder / "home", port=web.port, changes=changes)
            yield Scene(store=store, web=web, model=model, job=job, size=size)


def assert_interruptions_change_nothing(kind: str, scene: Scene, *, kills: int) -> None:
    WORKLOADS[kind].prepare(scene)

    killed = interrupt_workers(scene, kind, kills=kills, seed=11)

    assert killed >= kills / 2
    assert scene.rows(dead_letters) == []
    assert max(row.fence for row in scene.rows(tasks)) > 1  # some work was interrupted
    WORKLOADS[kind].check(scene)
    assert_no_answer_is_paid_twice(scene)


@EVERY_KIND
def test_killed_and_suspended_workers_lose_and_duplicate_nothing(kind: str, database_url: str, tmp_path: Path) -> None:
    with scene_of(kind, database_url, tmp_path, WORKLOADS[kind].size) as scene:
        assert_interruptions_change_nothing(kind, scene, kills=3)


@pytest.mark.soak
@EVERY_KIND
def test_many_kills_lose_and_duplicate_nothing(kind: str, database_url: str, tmp_path: Path) -> None:
    with scene_of(kind, database_url, tmp_path, WORKLOADS[kind].soak_size) as scene:
        assert_interruptions_change_nothing(kind, scene, kills=20)


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that may be killed."""
    server = start_server(durable=True)
    yield server
    server.stop()


def assert_crashes_of_the_database_change_nothing(
    kind: str, server: PostgresServer, folder: Path, *, size: int, crashes: int
) -> None:
    with scene_of(kind, server.url(server.create_database()), folder, size, lease_seconds=15) as scene:
        WORKLOADS[kind].prepare(scene)
        scene.web.gate.allow(0)
        children = [Child(work_until_done, scene.job, kind, True) for _ in range(WORKERS)]
        for _ in range(crashes):
            await_answers(scene, kind, size // 4)
            server.crash()
            server.start_again()
            scene.store.engine.dispose()  # this process's own connections are gone, too
        scene.web.gate.allow(math.inf)
        broken = [child.result() for child in children]

        assert sum(broken) >= 1
        assert scene.rows(dead_letters) == []
        WORKLOADS[kind].check(scene)


@pytest.mark.postgres
def test_work_survives_a_crash_of_the_database(own_server: PostgresServer, tmp_path: Path) -> None:
    assert_crashes_of_the_database_change_nothing("polls", own_server, tmp_path, size=60, crashes=1)


@pytest.mark.postgres
@pytest.mark.soak
@pytest.mark.parametrize("kind", ["crawl", "websites"])
def test_work_survives_many_crashes_of_the_database(kind: str, own_server: PostgresServer, tmp_path: Path) -> None:
    size = WORKLOADS[kind].soak_size
    assert_crashes_of_the_database_change_nothing(kind, own_server, tmp_path, size=size, crashes=4)
