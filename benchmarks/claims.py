"""Claim and finish tasks in batches of 100; peer: SELECT one, then UPDATE it, twice."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from sqlalchemy import delete, select, update

from benchmarks.figure import Figure, rate
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import tasks
from ingestion_pipeline.work import claims
from ingestion_pipeline.work.claims import Wanted
from ingestion_pipeline.work.queue import insert_tasks
from ingestion_pipeline.work.task import NewTask, finished

TASKS = 5_000
PEER_TASKS = 500
LEASE = timedelta(minutes=5)


def measure(store: Store) -> Iterator[Figure]:
    _fill(store, TASKS)
    ours = rate(lambda: _in_batches(store))
    _fill(store, PEER_TASKS)
    yield Figure("claim + finish, batches of 100", ours, rate(lambda: _one_by_one(store)))


def _fill(store: Store, count: int) -> None:
    with store.begin() as connection:
        now = store.clock.now(connection)
        connection.execute(delete(tasks))
        new = [NewTask(kind="bench", dedupe_key=str(n), not_before=now) for n in range(count)]
        for start in range(0, count, 500):
            insert_tasks(connection, new[start : start + 500], now=now)


def _in_batches(store: Store) -> int:
    done = 0
    while True:
        with store.begin() as connection:
            now = store.clock.now(connection)
            mine = claims.claim(
                connection, Wanted(kind="bench"), owner="me", now=now, lease=LEASE, limit=100
            )
        if not mine:
            return done
        with store.begin() as connection:
            claims.apply(connection, [finished(task) for task in mine], now=now)
        done += len(mine)


def _one_by_one(store: Store) -> int:
    done = 0
    while True:
        with store.begin() as connection:
            now = store.clock.now(connection)
            waiting = select(tasks.c.id).where(tasks.c.status == "PENDING").limit(1)
            found = connection.execute(waiting).scalar_one_or_none()
            if found is None:
                return done
            row = update(tasks).where(tasks.c.id == found)
            connection.execute(row.values(status="PROCESSING", lease_until=now + LEASE))
        with store.begin() as connection:
            connection.execute(row.values(status="SUCCESS", lease_until=None))
        done += 1
