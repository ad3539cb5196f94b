"""A statement that is marked is read and planned once per connection."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Integer, Text, bindparam, cast, event, select, text, update
from sqlalchemy.exc import DBAPIError

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.engine import prepared
from ingestion_pipeline.store.tables import settings
from ingestion_pipeline_tests.builders import NOON

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
