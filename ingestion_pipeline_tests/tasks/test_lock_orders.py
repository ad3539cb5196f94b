"""Tasks are locked by id, as the heartbeat locks them, and dead letters by their tasks."""

from datetime import datetime

from sqlalchemy import Connection, select

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import dead_letters, tasks
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker, set_stage
from ingestion_pipeline.tasks.ended_tasks import DeadLetterEntry, add_dead_letters, discard
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline_tests.builders import a_new_task, a_task
from ingestion_pipeline_tests.lock_orders import (
    ON_POSTGRES,
    disable_index_scans,
    move_to_end,
    rows_locked_while_waiting,
)
from ingestion_pipeline_tests.polling_runs import rows

pytestmark = ON_POSTGRES
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


def test_dead_letters_are_updated_in_the_order_of_their_tasks(store: Store, now: datetime) -> None:
    entries = add_two_dead_letters(store, now)

    def write(connection: Connection) -> None:
        add_dead_letters(connection, entries, now=now)

    held = DEAD_LETTER_TASK_IDS.where(dead_letters.c.task_id == 2)
    assert rows_locked_while_waiting(store, write, held=held, among=DEAD_LETTER_TASK_IDS) == [1]


def test_dead_letters_are_discarded_in_the_order_of_their_tasks(store: Store, now: datetime) -> None:
    add_two_dead_letters(store, now)
    ids = [row.id for row in rows(store, dead_letters)]

    def close(connection: Connection) -> None:
        disable_index_scans(connection)
        discard(connection, ids, reason="known", actor="test", now=now)

    held = DEAD_LETTER_TASK_IDS.where(dead_letters.c.task_id == 2)
    assert rows_locked_while_waiting(store, close, held=held, among=DEAD_LETTER_TASK_IDS) == [1]
