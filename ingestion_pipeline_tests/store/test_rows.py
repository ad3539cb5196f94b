"""What a row source takes beyond the plain, and what it refuses; the types are in the contract."""

from __future__ import annotations

import gc
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import String, select

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.bulk import making_rows, row_source
from ingestion_pipeline.store.types import Json, UtcDateTime


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        pytest.param({"id": 2**70}, {"id": 2**70}, id="beyond 64 bits"),
        pytest.param({7: "seven"}, {"7": "seven"}, id="keys that are no text"),
    ],
)
def test_a_document_may_hold_what_yaml_may_hold(store: Store, held: Any, expected: Any) -> None:
    with store.read() as connection:
        row_cte = row_source(connection, {"document": Json}, [(held,)], "given")
        document = connection.execute(select(row_cte.c.document)).scalar_one()

    assert document == expected


def test_a_time_without_zone_is_refused(store: Store) -> None:
    naive = datetime(2026, 3, 1, 12)  # noqa: DTZ001 - what is refused

    with store.read() as connection, pytest.raises(ValueError, match="has no time zone"):
        row_source(connection, {"at": UtcDateTime()}, [(naive,)], "given")


def test_what_has_no_column_type_is_refused(store: Store) -> None:
    with store.read() as connection, pytest.raises(TypeError, match="cannot hold"):
        row_source(connection, {"words": String()}, [(object(),)], "given")


def test_a_text_is_never_cut(store: Store) -> None:
    """A cut one would be taken for another's: the statement reads what it was given."""
    with store.read() as connection:
        row_cte = row_source(connection, {"id": String(3)}, [("abcdef",)], "given")
        result = connection.execute(select(row_cte.c.id)).scalar_one()

    assert result == "abcdef"


def test_garbage_is_collected_again_once_the_rows_are_made() -> None:
    def fail() -> None:
        with making_rows():
            assert not gc.isenabled()
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail()
    assert gc.isenabled()
