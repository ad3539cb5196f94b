"""A statement's text is computed once per process; its values are never kept with it."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Integer, Text, bindparam, cast, event, select, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.engine import prepared
from ingestion_pipeline.store.tables import settings
from ingestion_pipeline_tests.builders import NOON


def compiled_on(url: str, key: str) -> tuple[Any, list[str]]:
    """What an engine of its own compiled to look for the key, and what it found."""
    seen: list[Any] = []
    with closing(open_store(url)) as store:

        def see(_: Any, __: Any, ___: Any, ____: Any, context: Any, _____: Any) -> None:
            seen.append(context.compiled)

        with store.read() as connection:
            event.listen(connection, "before_cursor_execute", see)
            query = select(settings.c.key).where(settings.c.key == key)
            result = list(connection.execute(query).scalars())
    return seen[-1], result


def given_setting(url: str, key: str) -> None:
    with closing(open_store(url)) as store, store.begin() as connection:
        values = {"key": key, "value": "1", "value_type": "int", "description": ""}
        connection.execute(settings.insert().values(values | {"updated_at": store.now()}))


def test_a_database_that_is_opened_again_compiles_nothing_again(database_url: str) -> None:
    given_setting(database_url, "a")

    first, result = compiled_on(database_url, "a")
    second, found_again = compiled_on(database_url, "b")

    assert first is second
    assert (result, found_again) == (["a"], [])


def test_the_text_for_one_database_is_not_given_to_the_other(database_url: str, tmp_path: Any) -> None:
    other, _ = compiled_on(f"sqlite:///{tmp_path / 'other' / 'ingestion.db'}", "a")
    here, _ = compiled_on(database_url, "a")

    assert (here is other) is (make_url(database_url).get_backend_name() == "sqlite")


ON_POSTGRES = pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)])
ECHO = prepared(select(cast(bindparam("given"), Text).concat("100 %").label("said")))
SHORTEN = prepared(update(settings).values(value=bindparam("short")))
DIVIDE = prepared(select(12 / cast(bindparam("by"), Integer)))


def names_of_the_prepared(connection: Any) -> list[str]:
    query = text("SELECT name FROM pg_prepared_statements WHERE name LIKE 'ingestion%'")
    return list(connection.execute(query).scalars())


def test_results_and_counts_are_those_of_the_statement(store: Store) -> None:
    with store.begin() as connection:
        row = {"value": "1", "value_type": "int", "description": "", "updated_at": NOON}
        connection.execute(settings.insert(), [{"key": key, **row} for key in "ab"])

        assert [connection.execute(SHORTEN, {"short": n}).rowcount for n in "67"] == [2, 2]
        assert connection.execute(ECHO, {"given": "it's "}).mappings().all() == [{"said": "it's 100 %"}]
        assert set(connection.execute(select(settings.c.value)).scalars()) == {"7"}


@ON_POSTGRES
def test_a_connection_prepares_a_statement_once(store: Store) -> None:
    sent: list[str] = []

    @event.listens_for(store.engine, "before_cursor_execute")
    def listen(_: Any, __: Any, statement: str, *___: Any) -> None:
        sent.append(statement.split(maxsplit=1)[0])

    with store.begin() as connection, store.begin() as other:
        for item in (connection, other, connection):
            assert item.execute(ECHO, {"given": ""}).scalar_one() == "100 %"
        assert sent == ["EXECUTE"] * 3
        assert len(names_of_the_prepared(connection)) == len(names_of_the_prepared(other)) == 1


@ON_POSTGRES
def test_what_is_prepared_outlives_a_transaction_that_fails(store: Store) -> None:
    for _ in range(2):
        with pytest.raises(DBAPIError, match="division by zero"), store.begin() as connection:
            connection.execute(DIVIDE, {"by": 0})

    with store.begin() as connection:
        assert connection.execute(DIVIDE, {"by": 4}).scalar_one() == 3
        assert len(names_of_the_prepared(connection)) == 1
