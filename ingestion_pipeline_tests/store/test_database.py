"""The engine of each database, its statement cache, and transactions that are tried again."""

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import Connection, Integer, Text, bindparam, cast, event, insert, select, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from ingestion_pipeline.store import DatabaseClock, Store, database, open_store
from ingestion_pipeline.store.database import ENDED_AT_MOST, TruncatedDatabase, prepared
from ingestion_pipeline.store.stored_settings import open_from_environment
from ingestion_pipeline.store.tables import series, settings
from ingestion_pipeline.tasks.errors import classify
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.lock_orders import ON_POSTGRES
from ingestion_pipeline_tests.polling_runs import rows

pytestmark = pytest.mark.both_databases


def test_a_failed_statement_repeats_none_of_its_values(store: Store, now: datetime) -> None:
    row = {"id": "solo", "title": "canary", "created_at": now}

    with pytest.raises(IntegrityError, match="INSERT INTO series") as caught, store.begin() as connection:
        connection.execute(insert(series), [row, row])

    assert "canary" not in str(caught.value)


def test_the_stored_text_of_a_database_error_quotes_no_row(store: Store, now: datetime) -> None:
    """PostgreSQL ends its message with the row that it refused."""
    row = {"id": "canary", "title": None, "created_at": now}

    with pytest.raises(IntegrityError) as caught, store.begin() as connection:
        connection.execute(insert(series), [row])

    stored = classify(caught.value).text
    assert "title" in stored
    assert "canary" not in stored


@pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)])
def test_an_idle_connection_that_the_server_closed_is_replaced(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "IDLE_SECONDS", 0)
    with closing(open_store(database_url)) as store, closing(open_store(database_url)) as other:
        with store.begin() as connection:
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with other.begin() as connection:
            connection.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})

        with store.begin() as connection:
            assert connection.execute(text("SELECT pg_backend_pid()")).scalar_one() != pid


@pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)])
def test_cursors_are_planned_for_all_rows_also_after_a_rollback(database_url: str) -> None:
    with closing(open_store(database_url)) as store:
        for _ in range(2):
            with store.read() as connection:
                fraction = connection.execute(text("SHOW cursor_tuple_fraction")).scalar_one()
                connection.rollback()
            assert fraction == "1"


@pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)])
def test_the_database_time_is_queried_once_a_second(database_url: str) -> None:
    passed = 0.0
    clock = DatabaseClock(monotonic=lambda: passed)
    with closing(open_store(database_url)) as store, store.read() as connection:
        first = clock.now(connection)
        passed = 0.75
        carried = clock.now(connection)
        passed = 500.0
        answered = clock.now(connection)

    assert carried - first == timedelta(seconds=0.75)
    assert timedelta() < answered - first < timedelta(seconds=60)


def test_the_latest_time_includes_the_duration_of_the_time_query(store: Store) -> None:
    """A host with a delay of 0.5 seconds was fetched after 0.48: a run had waited 20 ms for the time."""
    moments = iter([0.0, 0.25, 0.5])
    clock = DatabaseClock(monotonic=lambda: next(moments))
    with store.read() as connection:
        now, latest = clock.now(connection), clock.latest(connection)
        is_queried = connection.dialect.name == "postgresql"

    if is_queried:
        assert latest - now == timedelta(seconds=0.25 + 0.25)
    else:
        assert timedelta() <= latest - now < timedelta(seconds=1)


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_crash_of_the_machine_does_not_damage_a_sqlite_file(store: Store) -> None:
    """SQLite must sync its log at each checkpoint: NORMAL or more, never OFF."""
    with store.begin() as connection:
        journal = connection.execute(text("PRAGMA journal_mode")).scalar_one()
        synchronous = connection.execute(text("PRAGMA synchronous")).scalar_one()

    assert journal == "wal"
    assert synchronous >= 1


@pytest.mark.parametrize("level", ["DEBUG", "ERROR"])
def test_our_loggers_use_the_configured_level(tmp_path: Path, caplog: pytest.LogCaptureFixture, level: str) -> None:
    caplog.set_level("WARNING", logger="ingestion_pipeline")  # restored at the end of the test
    log = logging.getLogger("ingestion_pipeline.tasks.queue")

    _, store = open_from_environment({"INGESTION_HOME": str(tmp_path), "INGESTION_LOG_LEVEL": level})

    store.close()
    assert logging.getLevelName(log.getEffectiveLevel()) == level


def test_an_emptied_database_file_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ingestion.db'}"
    open_store(url).close()
    (tmp_path / "ingestion.db").write_bytes(b"")

    with pytest.raises(TruncatedDatabase, match=r"0 bytes.*backup"):
        open_store(url)

    assert (tmp_path / "ingestion.db").read_bytes() == b""


def test_a_new_database_file_is_readable_by_its_owner_only_and_leaves_no_other_file(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path / 'home' / 'ingestion.db'}").close()

    assert [path.name for path in (tmp_path / "home").iterdir()] == ["ingestion.db"]
    assert (tmp_path / "home" / "ingestion.db").stat().st_mode & 0o777 == 0o600


def compiled_on(url: str, key: str) -> tuple[Any, list[str]]:
    """Query the key on a new engine; return the compiled statement and the keys found."""
    compiled: list[Any] = []
    with closing(open_store(url)) as store:

        def record(_: Any, __: Any, ___: Any, ____: Any, context: Any, _____: Any) -> None:
            compiled.append(context.compiled)

        with store.read() as connection:
            event.listen(connection, "before_cursor_execute", record)
            query = select(settings.c.key).where(settings.c.key == key)
            keys = list(connection.execute(query).scalars())
    return compiled[-1], keys


def add_setting(url: str, key: str) -> None:
    with closing(open_store(url)) as store, store.begin() as connection:
        values = {"key": key, "value": "1", "value_type": "int", "description": ""}
        connection.execute(settings.insert().values(values | {"updated_at": store.now()}))


def test_reopening_a_database_reuses_compiled_statements(database_url: str) -> None:
    add_setting(database_url, "a")

    first, found_keys = compiled_on(database_url, "a")
    second, missing_keys = compiled_on(database_url, "b")

    assert first is second
    assert (found_keys, missing_keys) == (["a"], [])


def test_compiled_statements_are_not_shared_between_dialects(database_url: str, tmp_path: Any) -> None:
    other, _ = compiled_on(f"sqlite:///{tmp_path / 'other' / 'ingestion.db'}", "a")
    here, _ = compiled_on(database_url, "a")

    assert (here is other) is (make_url(database_url).get_backend_name() == "sqlite")


ECHO = prepared(select(cast(bindparam("value"), Text).concat("100 %").label("text")))
SHORTEN = prepared(update(settings).values(value=bindparam("short")))
DIVIDE = prepared(select(12 / cast(bindparam("by"), Integer)))


def prepared_names(connection: Any) -> list[str]:
    query = text("SELECT name FROM pg_prepared_statements WHERE name LIKE 'ingestion%'")
    return list(connection.execute(query).scalars())


def test_a_prepared_statement_returns_the_results_of_the_statement(store: Store) -> None:
    with store.begin() as connection:
        row = {"value": "1", "value_type": "int", "description": "", "updated_at": NOON}
        connection.execute(settings.insert(), [{"key": key, **row} for key in "ab"])

        assert [connection.execute(SHORTEN, {"short": n}).rowcount for n in "67"] == [2, 2]
        assert connection.execute(ECHO, {"value": "it's "}).mappings().all() == [{"text": "it's 100 %"}]
        assert set(connection.execute(select(settings.c.value)).scalars()) == {"7"}


@ON_POSTGRES
def test_a_connection_prepares_a_statement_once(store: Store) -> None:
    commands: list[str] = []

    @event.listens_for(store.engine, "before_cursor_execute")
    def listen(_: Any, __: Any, statement: str, *___: Any) -> None:
        commands.append(statement.split(maxsplit=1)[0])

    with store.begin() as connection, store.begin() as other:
        for current in (connection, other, connection):
            assert current.execute(ECHO, {"value": ""}).scalar_one() == "100 %"
        assert commands == ["EXECUTE"] * 3
        assert len(prepared_names(connection)) == len(prepared_names(other)) == 1


@ON_POSTGRES
def test_prepared_statements_survive_a_failed_transaction(store: Store) -> None:
    for _ in range(2):
        with pytest.raises(DBAPIError, match="division by zero"), store.begin() as connection:
            connection.execute(DIVIDE, {"by": 0})

    with store.begin() as connection:
        assert connection.execute(DIVIDE, {"by": 4}).scalar_one() == 3
        assert len(prepared_names(connection)) == 1


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

    # The aborted one may lock its first row again before the other, which waits for that row, wakes up.
    assert attempts[-1] > 1
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
