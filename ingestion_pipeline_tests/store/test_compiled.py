"""A statement's text is computed once per process; its values are never kept with it."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from sqlalchemy import event, select
from sqlalchemy.engine import make_url

from ingestion_pipeline.store import open_store
from ingestion_pipeline.store.tables import settings


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
