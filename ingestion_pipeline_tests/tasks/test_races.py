"""Many workers at once, some of which die, and the order in which they lock tasks and dead letters."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, func, select

from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import dead_letters, outbox, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker, set_stage
from ingestion_pipeline.tasks.ended_tasks import DeadLetterEntry, add_dead_letters, discard
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import Task, released
from ingestion_pipeline_tests import processes
from ingestion_pipeline_tests.builders import NOON, a_new_task, a_task
from ingestion_pipeline_tests.lock_orders import (
    ON_POSTGRES,
    disable_index_scans,
    move_to_end,
    rows_locked_while_waiting,
)
from ingestion_pipeline_tests.polling_runs import rows
from ingestion_pipeline_tests.processes import POLLS, Child

pytestmark = [pytest.mark.slow, pytest.mark.both_databases]
HOUR = timedelta(hours=1)
ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"])


@contextmanager
def open_stores(url: str, count: int) -> Iterator[list[Store]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(open_store(url))) for _ in range(count)]


def add_tasks(store: Store, count: int) -> None:
    """Add tasks that are long overdue by any clock."""
    due = NOON - timedelta(days=365)
    with store.begin() as connection:
        new = [a_new_task(dedupe_key=f"{number}", not_before=due) for number in range(count)]
        insert_tasks(connection, new, now=due)


def counts_by_status(store: Store) -> dict[str, int]:
    with store.read() as connection:
        query = select(tasks.c.status, func.count()).group_by(tasks.c.status)
        return {status: count for status, count in connection.execute(query)}  # noqa: C416


def effects(store: Store) -> list[str]:
    return [row.subject_id for row in rows(store, outbox)]


@pytest.mark.parametrize(
    ("database", "connections"),
    [pytest.param("sqlite", 8, id="sqlite"), pytest.param("postgres", 32, id="postgres", marks=pytest.mark.postgres)],
)
def test_concurrent_connections_claim_every_task_exactly_once(database_url: str, connections: int) -> None:
    def claim_all(store: Store) -> list[int]:
        worker, ids = Worker(store, lease_seconds=600), list[int]()
        barrier.wait(30)
        while batch := worker.claim(POLLS, limit=50):
            ids.extend(task.id for task in batch)
        return ids

    barrier = threading.Barrier(connections)
    with open_stores(database_url, connections) as stores:
        add_tasks(stores[0], 10_000)
        with ThreadPoolExecutor(connections) as pool:
            claimed = Counter[int]()
            for ids in pool.map(claim_all, stores):
                claimed.update(ids)

    assert len(claimed) == 10_000
    assert set(claimed.values()) == {1}


@ON_POSTGRES
def test_a_heartbeat_and_a_finish_of_the_same_claims_never_deadlock(database_url: str) -> None:
    """A heartbeat thread once locked the rows in its own order while their batch was released."""
    done = threading.Event()

    def beat(store: Store) -> int:
        beats = 0
        while not done.is_set():
            with store.begin() as connection:
                claimed = reversed(claims.claimed_by(connection, "first").items())
                claims.heartbeat(connection, list(claimed), now=NOON, lease=HOUR)
            with store.begin() as connection:
                claims.expire(connection, owner="first", now=NOON)
            beats += 1
        return beats

    with open_stores(database_url, 2) as [store, other], ThreadPoolExecutor(1) as pool:
        add_tasks(store, 300)
        beating = pool.submit(beat, other)
        try:
            for _ in range(25):
                release_all(store, claim_count(store, 300))
        finally:
            done.set()
        assert beating.result() > 10


def claim_count(store: Store, count: int) -> list[Task]:
    """Claim `count` tasks for "first"; a claim skips rows that a heartbeat has locked."""
    claimed: list[Task] = []
    while len(claimed) < count:
        with store.begin() as connection:
            claimed += claims.claim(connection, POLLS, owner="first", now=NOON, lease=HOUR, limit=count - len(claimed))
    return claimed


def release_all(store: Store, claimed: list[Task]) -> None:
    with store.begin() as connection:
        moves = [released(task, None, not_before=task.not_before) for task in reversed(claimed)]
        claims.apply(connection, moves, now=NOON)


def assert_a_file_is_shared(url: str, *, count: int, processes_count: int) -> None:
    with closing(open_store(url)) as store:
        add_tasks(store, count)
        victim = Child(processes.stop_inside_a_transaction, url)
        victim.wait_until_stopped()
        workers = [Child(processes.work_until_done, url, 1.0) for _ in range(processes_count)]
        time.sleep(1)  # by now they wait for the victim's lock

        victim.kill()
        finished = [worker.result() for worker in workers]

        assert sum(finished) == count
        assert counts_by_status(store) == {"SUCCESS": count}
        assert sorted(effects(store)) == sorted(f"{number}" for number in range(count))
        with store.read() as connection:
            reclaimed = select(func.count()).select_from(tasks).where(tasks.c.fence > 1)
            assert connection.execute(reclaimed).scalar_one() >= 10


@ON_SQLITE
def test_four_processes_share_one_sqlite_file_while_one_is_killed_inside_a_transaction(database_url: str) -> None:
    assert_a_file_is_shared(database_url, count=1_000, processes_count=4)


@ON_SQLITE
@pytest.mark.soak
def test_eight_processes_share_one_sqlite_file_for_a_minute(database_url: str) -> None:
    assert_a_file_is_shared(database_url, count=20_000, processes_count=8)


@ON_POSTGRES
def test_a_worker_whose_clock_is_a_day_ahead_claims_no_leased_task(database_url: str) -> None:
    with closing(open_store(database_url)) as store:
        add_tasks(store, 1)
        assert len(Worker(store, lease_seconds=600).claim(POLLS, limit=10)) == 1

        taken = Child(processes.claim_with_a_wrong_clock, database_url, 1, 600).result()

        assert taken == []


@ON_POSTGRES
def test_a_worker_whose_clock_is_a_day_behind_keeps_its_claims(database_url: str) -> None:
    with closing(open_store(database_url)) as store:
        add_tasks(store, 1)

        taken = Child(processes.claim_with_a_wrong_clock, database_url, -1, 600).result()

        assert len(taken) == 1
        assert Worker(store, lease_seconds=600).claim(POLLS, limit=10) == []


TASK_IDS = select(tasks.c.id)
GONE = Permanent("it answered 410", code="http_410")
DEAD_LETTER_TASK_IDS = select(dead_letters.c.task_id)


def add_two_dead_letters(store: Store, now: datetime) -> list[DeadLetterEntry]:
    """Add two dead letters; that of the second task is older."""
    entries = [DeadLetterEntry(task=a_task(id=id_), error=GONE) for id_ in (2, 1)]
    for entry in entries:
        with store.begin() as connection:
            add_dead_letters(connection, [entry], now=now)
    return entries


@ON_POSTGRES
def test_a_stage_is_written_to_claims_in_the_order_of_the_heartbeat(store: Store, now: datetime) -> None:
    with store.begin() as connection:
        new = [a_new_task(dedupe_key=name) for name in ("first", "second")]
        insert_tasks(connection, new, now=now)
    claimed = Worker(store, lease_seconds=60).claim(ClaimFilter(kind="poll"), limit=2)
    first, second = sorted(task.id for task in claimed)
    move_to_end(store, tasks, first)

    def store_stage(connection: Connection) -> None:
        disable_index_scans(connection)
        set_stage(connection, [(task.id, task.fence) for task in claimed], "extracted")

    held = TASK_IDS.where(tasks.c.id == second)
    assert rows_locked_while_waiting(store, store_stage, held=held, among=TASK_IDS) == [first]


@ON_POSTGRES
def test_dead_letters_are_updated_in_the_order_of_their_tasks(store: Store, now: datetime) -> None:
    entries = add_two_dead_letters(store, now)

    def write(connection: Connection) -> None:
        add_dead_letters(connection, entries, now=now)

    held = DEAD_LETTER_TASK_IDS.where(dead_letters.c.task_id == 2)
    assert rows_locked_while_waiting(store, write, held=held, among=DEAD_LETTER_TASK_IDS) == [1]


@ON_POSTGRES
def test_dead_letters_are_discarded_in_the_order_of_their_tasks(store: Store, now: datetime) -> None:
    add_two_dead_letters(store, now)
    ids = [row.id for row in rows(store, dead_letters)]

    def close(connection: Connection) -> None:
        disable_index_scans(connection)
        discard(connection, ids, reason="known", actor="test", now=now)

    held = DEAD_LETTER_TASK_IDS.where(dead_letters.c.task_id == 2)
    assert rows_locked_while_waiting(store, close, held=held, among=DEAD_LETTER_TASK_IDS) == [1]
