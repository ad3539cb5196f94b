"""Row sources and bulk inserts: accepted and refused values, existing rows; the column types are in test_contract."""

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Connection, String, Text, insert, select

from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.statements import MANY, NewRows, insert_missing, row_source
from ingestion_pipeline.store.tables import chapter_sources, chapters, series
from ingestion_pipeline.store.types import ExactDecimal, Id, Json, UtcDateTime
from ingestion_pipeline_tests.builders import a_definition

pytestmark = pytest.mark.both_databases


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param({"id": 2**70}, {"id": 2**70}, id="beyond 64 bits"),
        pytest.param({7: "seven"}, {"7": "seven"}, id="keys that are no text"),
    ],
)
def test_a_document_accepts_values_of_yaml(store: Store, value: Any, expected: Any) -> None:
    with store.read() as connection:
        row_cte = row_source(connection, {"document": Json}, [(value,)], "given")
        document = connection.execute(select(row_cte.c.document)).scalar_one()

    assert document == expected


def test_a_time_without_zone_is_refused(store: Store) -> None:
    naive = datetime(2026, 3, 1, 12)  # noqa: DTZ001 - what is refused

    with store.read() as connection, pytest.raises(ValueError, match="has no time zone"):
        row_source(connection, {"at": UtcDateTime()}, [(naive,)], "given")


def test_a_value_without_a_column_type_is_refused(store: Store) -> None:
    with store.read() as connection, pytest.raises(TypeError, match="cannot hold"):
        row_source(connection, {"words": String()}, [(object(),)], "given")


def test_a_text_is_never_truncated(store: Store) -> None:
    """A truncated text could equal another one."""
    with store.read() as connection:
        row_cte = row_source(connection, {"id": String(3)}, [("abcdef",)], "given")
        text = connection.execute(select(row_cte.c.id)).scalar_one()

    assert text == "abcdef"


AT = datetime(2026, 3, 1, 12, 30, tzinfo=timezone(timedelta(hours=2)))
LINK = {"chapter_id": Id, "source_id": Text(), "url": Text(), "releases": Json}
CHAPTER = {"series_id": Text(), "key": Text(), "number": ExactDecimal(), "title": Text(), "published_at": UtcDateTime()}


@pytest.fixture(params=[3, MANY], ids=["few", "many"])
def count(request: pytest.FixtureRequest) -> int:
    return request.param


def insert_chapters(connection: Connection, *rows: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    new = NewRows(
        table=chapters,
        columns=CHAPTER,
        rows=rows,
        identity=("series_id", "key"),
        shared={"first_detected_at": (UtcDateTime(), AT)},
    )
    return sorted(insert_missing(connection, new, returning=("key", "id")))


def test_existing_rows_stay_and_only_inserted_ones_are_returned(store: Store, count: int) -> None:
    with store.begin() as connection:
        connection.execute(insert(series).values(id="s", title="s", created_at=AT))
        insert_chapters(connection, ("s", "1", Decimal(1), "first", None))

        new_rows = [("s", str(n), Decimal(n), "later", AT) for n in range(1, count + 1)]
        inserted = insert_chapters(connection, *new_rows)
        inserted_again = insert_chapters(connection, *new_rows)
        rows = {row.key: row for row in connection.execute(select(chapters))}

    assert inserted == sorted((key, row.id) for key, row in rows.items() if key != "1")
    assert inserted_again == []
    assert len(rows) == count
    assert (rows["1"].title, rows["1"].published_at) == ("first", None)


def test_each_value_is_returned_unchanged(store: Store, count: int) -> None:
    numbers = [None, Decimal("1E+2"), *(Decimal(n) / 8 for n in range(count - 2))]
    titles = [None, 'one "two"\n\u6b21', *("more" for _ in numbers[2:])]
    with store.begin() as connection:
        connection.execute(insert(series).values(id="s", title="s", created_at=AT))
        new_rows = [
            ("s", str(n), number, title, AT) for n, (number, title) in enumerate(zip(numbers, titles, strict=True))
        ]
        insert_chapters(connection, *new_rows)
        rows = connection.execute(select(chapters).order_by(chapters.c.id)).all()

    assert {(row.key, row.number, row.title) for row in rows} == {
        (key, number, title) for _, key, number, title, _ in new_rows
    }
    assert {row.published_at for row in rows} == {row.first_detected_at for row in rows} == {AT}
    assert None not in {row.modified_at for row in rows}


def test_a_document_is_returned_unchanged(store: Store, count: int) -> None:
    message = [{"title": 'one "two" \u6b21', "number": None, "at": {"7": [1.5, True]}}]
    with store.begin() as connection:
        register(connection, [a_definition(id="series:a")], now=AT)
        connection.execute(insert(series).values(id="s", title="s", created_at=AT))
        inserted = insert_chapters(connection, *(("s", str(n), None, None, None) for n in range(count)))
        links = NewRows(
            table=chapter_sources,
            columns=LINK,
            rows=[(id_, "series:a", None, message) for _, id_ in inserted],
            identity=("source_id", "chapter_id"),
            shared={"detected_at": (UtcDateTime(), AT), "fingerprint": (Text(), "f")},
        )
        returned = insert_missing(connection, links)
        stored_links = connection.execute(select(chapter_sources)).all()

    assert returned == []
    assert [row.releases for row in stored_links] == [message] * count
    assert {(row.fingerprint, row.url, row.available) for row in stored_links} == {("f", None, True)}


def test_a_time_without_zone_is_refused_in_bulk_inserts(store: Store, count: int) -> None:
    naive = datetime(2026, 3, 1, 12)  # noqa: DTZ001 - what is refused
    rows = [("s", str(n), None, None, naive) for n in range(count)]

    with store.begin() as connection, pytest.raises(ValueError, match="has no time zone"):
        insert_chapters(connection, *rows)
