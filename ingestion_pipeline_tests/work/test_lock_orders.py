"""Dead letters are locked by their tasks, whoever buries or discards them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, select

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import dead_letters
from ingestion_pipeline.work.dead_letters import Burial, bury, discard
from ingestion_pipeline.work.errors import Permanent
from ingestion_pipeline_tests.builders import a_task
from ingestion_pipeline_tests.lock_orders import ON_POSTGRES, as_of_large_tables, locked_meanwhile
from ingestion_pipeline_tests.pollers import rows

pytestmark = ON_POSTGRES
GONE = Permanent("it answered 410", code="http_410")
OF_TASKS = select(dead_letters.c.task_id)


def bury_two(store: Store, now: datetime) -> list[Burial]:
    """The letter of the second task is the older one."""
    burials = [Burial(task=a_task(id=id_), error=GONE) for id_ in (2, 1)]
    for one in burials:
        with store.begin() as connection:
            bury(connection, [one], now=now)
    return burials


def test_letters_are_written_again_in_the_order_of_their_tasks(store: Store, now: datetime) -> None:
    burials = bury_two(store, now)

    def write(connection: Connection) -> None:
        bury(connection, burials, now=now)

    held = OF_TASKS.where(dead_letters.c.task_id == 2)
    assert locked_meanwhile(store, write, held=held, among=OF_TASKS) == [1]


def test_letters_are_discarded_in_the_order_of_their_tasks(store: Store, now: datetime) -> None:
    bury_two(store, now)
    ids = [row.id for row in rows(store, dead_letters)]

    def close(connection: Connection) -> None:
        as_of_large_tables(connection)
        discard(connection, ids, reason="known", actor="test", now=now)

    held = OF_TASKS.where(dead_letters.c.task_id == 2)
    assert locked_meanwhile(store, close, held=held, among=OF_TASKS) == [1]
