"""Claiming and finishing tasks that do nothing: the price of a durable queue alone.

Peers: pgqueuer at equal batch size on the same server, and SELECT, then UPDATE, one task at a time,
as hand-written queues do it, by 1, 4 and 16 processes.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

from sqlalchemy import delete, select, update

from benchmarks import pgqueuer_peer
from benchmarks.database import Database
from benchmarks.figure import Cost, Figure, Skipped, middle
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import ACTIVE, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask, TaskStatus, finished

KIND = "bench"
LEASE = timedelta(minutes=5)
PATIENCE_SECONDS = 120


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is claimed; the peer that goes one by one gets fewer tasks."""

    tasks: int = 5_000
    one_by_one: int = 150
    batches: tuple[int, ...] = (10, 100)
    workers: tuple[int, ...] = (1, 4, 16)
    rounds: int = 3


def measure(database: Database, sizes: Sizes | None = None) -> Iterator[Figure | Skipped]:
    """Against pgqueuer at each batch size, then against SELECT + UPDATE with each worker count."""
    sizes = sizes or Sizes()
    for batch in sizes.batches:
        if database.name == "PostgreSQL":
            yield from _against_pgqueuer(database, batch, sizes)
    for workers in sizes.workers:
        ours = _together(database, workers, sizes.tasks, partial(in_batches, batch=100))
        theirs = _together(database, workers, sizes.one_by_one, one_by_one)
        yield Figure(
            claim=f"claim + finish, batches of 100, {workers} processes",
            database=database.name,
            peer="SELECT, then UPDATE, one by one",
            ours=ours,
            theirs=theirs,
        )


def _against_pgqueuer(database: Database, batch: int, sizes: Sizes) -> Iterator[Figure | Skipped]:
    claim = f"claim + finish, batches of {batch}"
    if why := pgqueuer_peer.reason_to_skip():
        yield Skipped(claim, database.name, why)
        return
    peers = {"pgqueuer's worker": pgqueuer_peer.worker, "pgqueuer's statements, no worker": pgqueuer_peer.statements}
    ours: list[Cost] = []
    theirs: dict[str, list[Cost]] = {name: [] for name in peers}
    for _ in range(sizes.rounds):
        fill(database.store, sizes.tasks)
        ours.append(database.meter.cost(lambda: in_batches(database.store, batch=batch)[0]))
        for name, drain in peers.items():
            theirs[name].append(pgqueuer_peer.cost(database, drain, count=sizes.tasks, batch=batch))
    for name, costs in theirs.items():
        yield Figure(
            claim=claim,
            database=database.name,
            peer=name,
            ours=middle(ours),
            theirs=middle(costs),
            bar=1.0 if name == "pgqueuer's worker" else None,
        )


def fill(store: Store, count: int) -> None:
    """As many tasks wait, and nothing else is in the table."""
    with store.begin() as connection:
        now = store.clock.now(connection)
        connection.execute(delete(tasks))
        new = [NewTask(kind=KIND, dedupe_key=str(n), not_before=now) for n in range(count)]
        for start in range(0, count, 500):
            insert_tasks(connection, new[start : start + 500], now=now)


def in_batches(store: Store, *, batch: int) -> tuple[int, int]:
    """Our way: two transactions a batch; how many were done, and how many claims were lost."""
    owner, done = str(uuid4()), 0
    while True:
        with store.begin() as connection:
            now = store.clock.now(connection)
            mine = claims.claim(connection, ClaimFilter(kind=KIND), owner=owner, now=now, lease=LEASE, limit=batch)
        if not mine:
            return done, 0
        with store.begin() as connection:
            now = store.clock.now(connection)
            claims.apply(connection, [finished(task) for task in mine], now=now)
        done += len(mine)


def one_by_one(store: Store) -> tuple[int, int]:
    """Look for a task, take it if nobody was quicker, finish it."""
    done = lost = 0
    waiting = (
        select(tasks.c.id)
        .where(ACTIVE, tasks.c.kind == KIND, tasks.c.status == TaskStatus.PENDING.value)
        .order_by(tasks.c.priority, tasks.c.not_before, tasks.c.created_at)
        .limit(1)
    )
    while True:
        with store.read() as connection:
            found = connection.execute(waiting).scalar_one_or_none()
        if found is None:
            return done, lost
        row = update(tasks).where(tasks.c.id == found)
        with store.begin() as connection:
            until = store.clock.now(connection) + LEASE
            free = row.where(tasks.c.status == TaskStatus.PENDING.value)
            taken = free.values(status=TaskStatus.PROCESSING.value, lease_until=until)
            if connection.execute(taken).rowcount == 0:
                lost += 1
                continue
        with store.begin() as connection:
            connection.execute(row.values(status=TaskStatus.SUCCESS.value, lease_until=None))
        done += 1


Work = Callable[[Store], tuple[int, int]]


def _together(database: Database, workers: int, count: int, work: Work) -> Cost:
    """What the tasks cost as many processes; opening the database is not counted."""
    fill(database.store, count)
    database.store.close()  # a connection must not be inherited
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(workers + 1), context.SimpleQueue()
    crew = [context.Process(target=_worker, args=(database.url, work, start, results)) for _ in range(workers)]
    for one in crew:
        one.start()
    server = database.meter.server_seconds()
    start.wait(PATIENCE_SECONDS)
    started = time.perf_counter()
    reports: list[tuple[int, int, float]] = [results.get() for _ in crew]
    wall = time.perf_counter() - started
    for one in crew:
        one.join()
    cpu = sum(seconds for _, _, seconds in reports) + database.meter.server_seconds() - server
    return Cost(items=sum(done for done, _, _ in reports), wall_seconds=wall, cpu_seconds=cpu)


def _worker(url: str, work: Work, start: Any, results: Any) -> None:  # noqa: ANN401
    with closing(open_store(url)) as store:
        start.wait(PATIENCE_SECONDS)
        cpu = time.process_time()
        done, lost = work(store)
        results.put((done, lost, time.process_time() - cpu))
