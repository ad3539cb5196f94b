import logging
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, text
from sqlalchemy.exc import IntegrityError

from ingestion_pipeline.store import DatabaseClock, Store, database, open_store
from ingestion_pipeline.store.database import TruncatedDatabase
from ingestion_pipeline.store.stored_settings import open_from_environment
from ingestion_pipeline.store.tables import series
from ingestion_pipeline.tasks.errors import classify

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
