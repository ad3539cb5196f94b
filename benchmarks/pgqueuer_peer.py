"""pgqueuer on the same server: its two statements alone, and its whole worker, with no-op jobs.

The optional extra `bench` installs it; without it these figures are skipped with the reason.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from importlib.util import find_spec
from typing import Any
from uuid import uuid4

from sqlalchemy.engine import make_url

from benchmarks.database import Database
from benchmarks.figure import Cost

ENTRYPOINT = "bench"
STALE_AFTER = timedelta(minutes=5)

Drain = Callable[[Any, int, int], Awaitable[int]]


def reason_to_skip() -> str | None:
    """Why it cannot be measured here; None if it can."""
    missing = [name for name in ("pgqueuer", "asyncpg") if find_spec(name) is None]
    return f"no {' and no '.join(missing)}: pip install -e '.[bench]'" if missing else None


def cost(database: Database, drain: Drain, *, count: int, batch: int) -> Cost:
    """What draining as many jobs takes; to enqueue them is not counted."""
    return asyncio.run(_cost(database, drain, count, batch))


async def statements(connection: Any, count: int, batch: int) -> int:  # noqa: ANN401
    """`dequeue` and `log_jobs`, once a batch, as its worker sends them; no worker around them."""
    from pgqueuer.ports.repository import EntrypointExecutionParameter

    queries, manager, done = _queries(connection), uuid4(), 0
    while done < count:
        jobs = await queries.dequeue(
            batch_size=batch,
            entrypoints={ENTRYPOINT: EntrypointExecutionParameter(concurrency_limit=0)},
            queue_manager_id=manager,
            global_concurrency_limit=None,
            heartbeat_timeout=STALE_AFTER,
        )
        await queries.log_jobs([(job, "successful", None) for job in jobs])
        done += len(jobs)
    return done


async def worker(connection: Any, count: int, batch: int) -> int:  # noqa: ANN401
    """Its own worker, until the queue is empty."""
    from pgqueuer.qm import QueueManager
    from pgqueuer.types import QueueExecutionMode

    manager, done = QueueManager(_queries(connection)), 0

    @manager.entrypoint(ENTRYPOINT)
    async def nothing(_: Any) -> None:  # noqa: ANN401
        nonlocal done
        done += 1

    await manager.run(batch_size=batch, mode=QueueExecutionMode.drain)
    if done != count:
        raise RuntimeError(f"pgqueuer did {done} of {count} jobs")
    return done


def _queries(connection: Any) -> Any:  # noqa: ANN401
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.queries import Queries

    return Queries(AsyncpgDriver(connection))


async def _cost(database: Database, drain: Drain, count: int, batch: int) -> Cost:
    import asyncpg

    url = make_url(database.url)
    connection = await asyncpg.connect(user=url.username, database=url.database, host=url.query["host"])
    try:
        queries = _queries(connection)
        if not await queries.has_table("pgqueuer"):
            await queries.install()
        await queries.enqueue([ENTRYPOINT] * count, [None] * count, [0] * count)
        before, started = database.meter.cpu_seconds(), time.perf_counter()
        items = await drain(connection, count, batch)
        wall = time.perf_counter() - started
        cpu = database.meter.cpu_seconds() - before
        return Cost(items=items, wall_seconds=wall, cpu_seconds=cpu)
    finally:
        await connection.close()
