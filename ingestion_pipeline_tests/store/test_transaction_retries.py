"""A transaction that the database aborts because of another one is retried and takes effect once."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from threading import Barrier

import pytest
from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError, OperationalError

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.database import ENDED_AT_MOST
from ingestion_pipeline.store.tables import series
from ingestion_pipeline_tests.lock_orders import ON_POSTGRES
from ingestion_pipeline_tests.polling_runs import rows

pytestmark = pytest.mark.both_databases


def add_series(store: Store, now: datetime) -> None:
    with store.begin() as connection:
        values = [{"id": series_id, "title": "0", "created_at": now} for series_id in ("a", "b")]
        connection.execute(insert(series), values)


def increment(connection: Connection, id_: str) -> None:
    query = select(series.c.title).where(series.c.id == id_).with_for_update()
    title = connection.execute(query).scalar_one()
    statement = update(series).where(series.c.id == id_)
    connection.execute(statement.values(title=str(int(title) + 1)))


@ON_POSTGRES
def test_two_deadlocked_transactions_both_take_effect_once(store: Store, now: datetime) -> None:
    add_series(store, now)
    start = Barrier(2)

    def crosswise(first: str, second: str) -> int:
        attempts = 0

        def act(connection: Connection) -> None:
            nonlocal attempts
            attempts += 1
            increment(connection, first)
            if attempts == 1:
                start.wait(20)
            increment(connection, second)

        store.write(act)
        return attempts

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(crosswise, *order) for order in ("ab", "ba")]
        attempts = sorted(future.result(30) for future in both)

    assert attempts == [1, 2]
    assert [row.title for row in rows(store, series)] == ["2", "2"]


class DeadlockDetected(Exception):
    pgcode = "40P01"


def test_a_transaction_that_is_aborted_too_often_raises(store: Store) -> None:
    attempts: list[int] = []

    def act(_: Connection) -> None:
        attempts.append(1)
        raise OperationalError("SELECT 1", {}, DeadlockDetected())

    with pytest.raises(OperationalError):
        store.write(act)
    assert len(attempts) == ENDED_AT_MOST + 1


def test_a_transaction_that_fails_by_itself_is_not_retried(store: Store, now: datetime) -> None:
    add_series(store, now)
    attempts: list[int] = []

    def act(connection: Connection) -> None:
        attempts.append(1)
        connection.execute(insert(series).values(id="a", title="again", created_at=now))

    with pytest.raises(IntegrityError):
        store.write(act)
    assert len(attempts) == 1
