"""A statement is compiled once per process, without its values, and a marked one is prepared once per connection."""

from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Integer, Text, bindparam, cast, event, select, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.database import prepared
from ingestion_pipeline.store.tables import settings
from ingestion_pipeline_tests.builders import NOON

pytestmark = pytest.mark.both_databases


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


ON_POSTGRES = pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)])
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
