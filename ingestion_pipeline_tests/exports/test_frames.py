"""`frame(name)`: the frame for a notebook, and its import cost."""

import subprocess
import sys
from decimal import Decimal

import pytest
from sqlalchemy import insert, text

from ingestion_pipeline.exports import frame
from ingestion_pipeline.exports.export_request import TABLES, ExportRequest, NoSourceOfRows, UnknownExport
from ingestion_pipeline.exports.formats import frame_of
from ingestion_pipeline.sources.lookup import UnknownSource
from ingestion_pipeline.store import Store, tables
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.exports.datasets import ABSENT, COLLEGE, a_course, a_dataset

pytestmark = pytest.mark.both_databases


@pytest.mark.slow
def test_a_frame_of_items_has_nullable_types(store: Store) -> None:
    a_dataset(store, [a_course("CS 1", course_credits_max="3.5", course_non_credit=True), a_course("CS 2")])

    frame = frame_of(store, ExportRequest(name="course"))

    assert list(frame["course_id"]) == ["CS 1", "CS 2"]
    assert [frame["course_credits_min"].sum()] == [Decimal("3.5")]
    assert str(frame["course_credits_min"].dtype) == "decimal128(38, 9)[pyarrow]"
    assert str(frame["course_non_credit"].dtype) == "boolean"
    assert list(frame["course_non_credit"].isna()) == [False, True]
    assert str(frame["dataset_version"].dtype) == "Int64"
    assert str(frame["fetched_at"].dtype) == "datetime64[us, UTC]"
    assert list(frame["fetched_at"]) == [NOON, NOON]


def test_frame_reads_the_database_that_the_environment_names(
    store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_dataset(store, [a_course("CS 1")])
    monkeypatch.setenv("INGESTION_DATABASE_URL", database_url)

    assert list(frame("course")["course_id"]) == ["CS 1"]
    assert list(frame("datasets")["status"]) == ["published"]
    assert list(frame("sources")["id"]) == [COLLEGE]
    assert "config" not in frame("sources").columns


def test_an_unknown_name_opens_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGESTION_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")

    with pytest.raises(UnknownExport, match="there is no export 'nothing'; there are: sources"):
        frame("nothing")


@pytest.mark.parametrize("name", TABLES)
def test_an_empty_table_is_a_frame_with_its_columns(store: Store, name: str) -> None:
    frame = frame_of(store, ExportRequest(name=name))

    assert len(frame) == 0
    assert frame.columns[0] == "id"


def test_chapter_numbers_are_exact(store: Store) -> None:
    with store.begin() as connection:
        connection.execute(
            insert(tables.series).values(id="solo", title="Solo", latest_chapter=Decimal("10.5"), created_at=NOON)
        )
        connection.execute(
            insert(tables.chapters).values(series_id="solo", key="10.5", number=Decimal("10.5"), first_detected_at=NOON)
        )

    assert list(frame_of(store, ExportRequest(name="chapters"))["number"]) == [Decimal("10.5")]


@pytest.mark.parametrize("name", ["sources", "pages", "extractions", "datasets"])
def test_a_frame_can_be_limited_to_one_source(store: Store, name: str) -> None:
    a_dataset(store, [a_course()], source_id="catalog:a")
    a_dataset(store, [a_course()], source_id="catalog:b")

    assert len(frame_of(store, ExportRequest(name=name))) == 2
    assert len(frame_of(store, ExportRequest(name=name, source_id="catalog:b"))) == 1
    with pytest.raises(UnknownSource):
        frame_of(store, ExportRequest(name=name, source_id="catalog:c"))


def test_a_table_without_sources_refuses_a_source_filter(store: Store) -> None:
    with pytest.raises(NoSourceOfRows, match="rows of series belong to no single source"):
        frame_of(store, ExportRequest(name="series", source_id="catalog:a"))


@pytest.mark.slow
def test_importing_frame_loads_neither_pandas_nor_pyarrow() -> None:
    code = (
        "import sys; from ingestion_pipeline.exports import frame;"
        " print(*{'pandas', 'pyarrow', 'dagster', 'alembic'} & set(sys.modules))"
    )

    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert process.stdout.split() == []


def test_the_view_shows_the_published_grounded_items(store: Store) -> None:
    a_dataset(store, [a_course("CS 0")], version=1)
    a_dataset(
        store,
        [
            a_course(
                "CS 1",
                course_non_credit=True,
                course_credits_max=1.5,
                course_prerequisites="Invented 7",
                grounding={"course_prerequisites": ABSENT},
            ),
            a_course("CS 2", is_flagged=True),
            a_course("CS 3", is_repeat=True),
        ],
        version=2,
    )
    a_dataset(store, [a_course("CS 4")], version=3, status="quarantined")

    query = text("SELECT * FROM v_datasets_current").columns(data=tables.data_items.c.data.type)
    with store.read() as connection:
        (row,) = connection.execute(query).mappings()

    assert row["data"] == {
        "course_id": "CS 1",
        "course_name": "Introduction",
        "course_description": "What it is about.",
        "course_non_credit": True,
        "course_credits_max": 1.5,
    }
    assert (row["source_id"], row["dataset_version"]) == (COLLEGE, 2)
    assert row["page_url"] == "https://college.test/courses/1"
