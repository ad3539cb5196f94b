"""Workers that die or stop within the work loop: the cause is found, and nothing is lost or done twice."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import update

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.worker_loop import WorkerLoop
from ingestion_pipeline.store import FixedClock, Store, open_store
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.tables import dead_letters, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline.tasks.errors import Fatal
from ingestion_pipeline.tasks.task import Suspicion, Task
from ingestion_pipeline_tests.engine.example_handler import (
    KIND,
    ExampleHandler,
    add_tasks,
    effects,
    failing,
    run,
    statuses,
    succeed,
)
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import a_run_context, fast_settings, rows
from ingestion_pipeline_tests.processes import Child, stop_here

pytestmark = pytest.mark.both_databases


def test_a_task_that_lost_all_its_workers_is_dead_lettered_without_being_executed(
    ctx: RunContext, web: FakeWeb, clock: FixedClock
) -> None:
    add_tasks(ctx, "a")
    for _ in range(3):
        [task] = Worker(ctx.store, lease_seconds=60).claim(ClaimFilter(kind=KIND), limit=1)
        with ctx.store.begin() as connection:
            claims.set_suspicion(connection, [(task.id, task.fence)], Suspicion.ALONE)
        clock.advance(minutes=2)
    handler = ExampleHandler()

    counts = run(ctx, handler, web)

    assert (counts, handler.executed) == ({"failed": 1}, [])
    assert [row.error_code for row in rows(ctx.store, dead_letters)] == ["worker_lost"]


def test_a_task_whose_worker_died_is_executed_while_nothing_else_is(
    ctx: RunContext, web: FakeWeb, clock: FixedClock
) -> None:
    add_tasks(ctx, "a", "b")
    Worker(ctx.store, lease_seconds=60).claim(ClaimFilter(kind=KIND), limit=2)
    clock.advance(minutes=2)
    add_tasks(ctx, "c", "d")
    running: set[str] = set()
    beside: dict[str, set[str]] = {}

    async def action(task: Task) -> str:
        running.add(task.dedupe_key)
        await asyncio.sleep(0.05)
        beside[task.dedupe_key] = set(running)
        running.discard(task.dedupe_key)
        return await succeed(task)

    counts = run(ctx, ExampleHandler(action=action), web)

    assert counts == {"completed": 4}
    assert (beside["a"], beside["b"]) == ({"a"}, {"b"})
    assert {row.dedupe_key: row.attempts for row in rows(ctx.store, tasks) if row.kind == KIND} == {
        "a": 1,
        "b": 1,
        "c": 1,
        "d": 1,
    }


def test_suspects_that_a_stopped_run_has_not_started_are_released(
    ctx: RunContext, web: FakeWeb, clock: FixedClock
) -> None:
    add_tasks(ctx, "a", "b")
    Worker(ctx.store, lease_seconds=60).claim(ClaimFilter(kind=KIND), limit=2)
    clock.advance(minutes=2)

    with pytest.raises(Fatal, match="disk"):
        run(ctx, ExampleHandler(action=failing(Fatal("disk"))), web)

    ended = [(row.status, row.attempts, row.suspicion) for row in rows(ctx.store, tasks) if row.kind == KIND]
    assert ended == [("PENDING", 0, Suspicion.CROWD)] * 2


def work_until_done(
    url: str, home: str, *, seconds: float, poison: str | None = None, loading_kills: Sequence[str] = ()
) -> dict[str, int]:
    """Execute tasks without a host in this process; a poison task kills it."""

    async def action(task: Task) -> str:
        await asyncio.sleep(seconds)
        if task.dedupe_key == poison:
            os.kill(os.getpid(), signal.SIGKILL)
        return await succeed(task)

    async def work(ctx: RunContext) -> dict[str, int]:
        handler = ExampleHandler(
            action=action, capacity=50, concurrency=20, flush_after=5, kills_while_loaded=loading_kills
        )
        worker = Worker(ctx.store, lease_seconds=60)
        return dict(await WorkerLoop(ctx, worker, None, handler, clock=SteadyClock(ctx.store.now())).run())

    with closing(open_store(url)) as store:
        return asyncio.run(work(a_run_context(store, fast_settings(Path(home), url))))


def work_with_a_stop(url: str, home: str) -> dict[str, int]:
    """Execute tasks without a host in this process, which stops within the first of them until it is resumed."""

    async def action(task: Task) -> str:
        if task.dedupe_key == "a":
            stop_here()
        return await succeed(task)

    with closing(open_store(url)) as store:
        ctx, worker = a_run_context(store, fast_settings(Path(home), url)), Worker(store, lease_seconds=60)
        handler = ExampleHandler(action=action, concurrency=1)
        return dict(asyncio.run(WorkerLoop(ctx, worker, None, handler, clock=SteadyClock(store.now())).run()))


def expire_leases(store: Store) -> None:
    with store.begin() as connection:
        is_claimed = update(tasks).where(tasks.c.status == "PROCESSING")
        connection.execute(is_claimed.values(lease_until=store.clock.now(connection) - timedelta(seconds=1)))


@pytest.fixture
def real_time_ctx(store: Store, database_url: str, tmp_path: Path) -> Iterator[RunContext]:
    """A context on the database of `store`, with the real clock that child processes have."""
    with closing(open_store(database_url)) as real_store:
        yield a_run_context(real_store, fast_settings(tmp_path / "home", database_url))


def work_despite_deaths(ctx: RunContext, work: Callable[[str, str], object], url: str, home: Path) -> int:
    """Start workers until nothing is left to do; return how many were killed."""
    deaths = 0
    while {"PENDING", "PROCESSING"} & set(statuses(ctx).values()):
        deaths += Child(work, url, str(home)).wait() == -signal.SIGKILL
        expire_leases(ctx.store)
    return deaths


@pytest.mark.slow
def test_a_task_that_kills_its_worker_is_dead_lettered_and_no_other_task_loses_an_attempt(
    real_time_ctx: RunContext, database_url: str, tmp_path: Path
) -> None:
    ctx, keys = real_time_ctx, [f"t{n:02}" for n in range(45)]
    add_tasks(ctx, *keys, **dict.fromkeys(keys))

    deaths = work_despite_deaths(ctx, partial(work_until_done, poison="t07", seconds=0.01), database_url, tmp_path)

    assert deaths == 5  # among all, in a group, and three times alone
    assert [(row.payload["url"], row.error_code) for row in rows(ctx.store, dead_letters)] == [
        ("http://a.test/t07", "worker_lost")
    ]
    assert {key for key, status in statuses(ctx).items() if status != "SUCCESS"} == {"t07"}
    assert effects(ctx) == [f"did {key}" for key in keys if key != "t07"]
    assert {row.attempts for row in rows(ctx.store, tasks) if row.status == "SUCCESS"} == {1}


@pytest.mark.slow
def test_a_task_whose_loading_kills_its_worker_is_dead_lettered_alone(
    real_time_ctx: RunContext, database_url: str, tmp_path: Path
) -> None:
    ctx, keys = real_time_ctx, [f"t{n:02}" for n in range(30)]
    add_tasks(ctx, *keys, **dict.fromkeys(keys))
    work = partial(work_until_done, loading_kills=["t07"], seconds=0.01)

    deaths = work_despite_deaths(ctx, work, database_url, tmp_path)

    assert deaths == 6  # among all, in a group, three times alone, and once more for the dead letter
    assert [(row.payload["url"], row.error_code) for row in rows(ctx.store, dead_letters)] == [
        ("http://a.test/t07", "worker_lost")
    ]
    assert effects(ctx) == [f"did {key}" for key in keys if key != "t07"]
    assert {row.attempts for row in rows(ctx.store, tasks) if row.status == "SUCCESS"} == {1}


@pytest.mark.slow
def test_a_worker_that_was_stopped_beyond_its_lease_records_nothing_that_another_has_done(
    real_time_ctx: RunContext, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    ctx = real_time_ctx
    add_tasks(ctx, *"abc", **dict.fromkeys("abc"))
    stopped = Child(work_with_a_stop, database_url, str(tmp_path))
    stopped.wait_until_stopped()
    expire_leases(ctx.store)

    counts = run(ctx, ExampleHandler(), web)
    stopped.resume()

    assert counts == {"completed": 3}
    assert "completed" not in stopped.result()
    assert effects(ctx) == ["did a", "did b", "did c"]
    assert {row.attempts for row in rows(ctx.store, tasks) if row.kind == KIND} == {1}


@pytest.mark.slow
def test_twenty_kills_lose_no_task_and_dead_letter_none(
    real_time_ctx: RunContext, database_url: str, tmp_path: Path
) -> None:
    ctx, keys, random = real_time_ctx, [f"t{n:04}" for n in range(1_500)], Random(7)
    add_tasks(ctx, *keys, **dict.fromkeys(keys))
    # So many and so slow that much is left for every worker: the last few would be hit again and again.
    work = partial(work_until_done, seconds=0.1)
    for _ in range(20):
        child = Child(work, database_url, str(tmp_path))
        time.sleep(0.2 + random.random() / 3)
        child.kill()
        expire_leases(ctx.store)
    Child(work, database_url, str(tmp_path)).result()

    assert set(statuses(ctx).values()) == {"SUCCESS"}
    assert rows(ctx.store, dead_letters) == []
    assert effects(ctx) == [f"did {key}" for key in keys]
