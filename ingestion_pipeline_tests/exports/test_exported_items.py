"""Exported items of datasets, and frames for notebooks."""

import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import insert, text

from ingestion_pipeline.exports import frame
from ingestion_pipeline.exports.export_request import (
    TABLES,
    BadRequest,
    ExportRequest,
    NoSourceOfRows,
    NothingPublished,
    UnknownDataset,
    UnknownExport,
)
from ingestion_pipeline.exports.exporting import open_export_rows
from ingestion_pipeline.exports.formats import frame_of
from ingestion_pipeline.sources.lookup import UnknownSource
from ingestion_pipeline.store import Store, tables
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.exports.datasets import ABSENT, COLLEGE, a_course, a_dataset, an_item

pytestmark = pytest.mark.both_databases


def rows_of(store: Store, name: str = "course", **options: Any) -> list[dict[str, Any]]:
    # Batches of two: state carried from row to row must survive a batch.
    with open_export_rows(store, ExportRequest(name=name, **options), batch_rows=2) as (columns, _, batches):
        names = [column.name for column in columns]
        return [dict(zip(names, row, strict=True)) for batch in batches for row in batch]


def column(store: Store, field: str, **options: Any) -> list[Any]:
    return [row[field] for row in rows_of(store, **options)]


def test_an_item_is_a_row_with_its_fields_and_its_origin(store: Store) -> None:
    dataset = a_dataset(store, [a_course("CS 101", course_credits_max=3)])

    (row,) = rows_of(store)

    assert row["course_id"] == "CS 101"
    assert (row["source_id"], row["dataset_id"], row["dataset_version"]) == (COLLEGE, dataset, 1)
    assert row["page_url"] == "https://college.test/courses/1"
    assert (row["extraction_method"], row["model"], row["confidence"]) == ("layout", None, 0.9)
    assert row["fetched_at"] == row["read_at"] == NOON
    assert row["snapshot_id"] is not None
    assert "course_id__evidence" not in row
    assert "is_flagged" not in row


def test_the_newest_published_version_is_exported_unless_another_is_requested(store: Store) -> None:
    first = a_dataset(store, [a_course("CS 1")], version=1)
    a_dataset(store, [a_course("CS 2")], version=2)
    a_dataset(store, [a_course("CS 3")], version=3, status="quarantined")
    a_dataset(store, [a_course("CS 4")], version=4, status="building")

    assert column(store, "course_id") == ["CS 2"]
    assert column(store, "course_id", source_id=COLLEGE, version=3) == ["CS 3"]
    assert column(store, "course_id", source_id=COLLEGE, version=4) == ["CS 4"]
    assert column(store, "course_id", dataset_id=first) == ["CS 1"]


def test_every_source_is_exported_unless_one_is_requested(store: Store) -> None:
    a_dataset(store, [a_course("B 1")], source_id="catalog:b")
    a_dataset(store, [a_course("A 1")], source_id="catalog:a")

    assert column(store, "course_id") == ["A 1", "B 1"]
    assert column(store, "course_id", source_id="catalog:b") == ["B 1"]


def test_flagged_and_repeated_items_are_exported_only_on_request(store: Store) -> None:
    flagged = a_course("CS 2", is_flagged=True, grounding={"course_name": ABSENT})
    a_dataset(store, [a_course("CS 1"), flagged, a_course("CS 1", is_repeat=True)])

    assert column(store, "course_id") == ["CS 1"]
    rows = rows_of(store, with_flagged=True)
    flags = [(row["course_id"], row["is_flagged"], row["is_repeat"]) for row in rows]
    assert flags == [("CS 1", False, False), ("CS 1-2", False, True), ("CS 2", True, False)]
    assert rows[2]["course_name"] == "Introduction"
    assert rows[2]["ungrounded_fields"] == "course_name"


@pytest.mark.parametrize("status", ["absent", "unverifiable", "made up", None])
def test_an_ungrounded_value_is_blank(store: Store, status: str | None) -> None:
    proof = {"course_prerequisites": {"status": status}}
    a_dataset(store, [a_course(course_prerequisites="Invented 7", grounding=proof)])

    (row,) = rows_of(store)

    assert row["course_prerequisites"] is None
    assert row["ungrounded_fields"] == "course_prerequisites"
    assert row["grounded_fields"] == "course_id, course_name, course_description"
    assert row["grounded_percent"] == 75.0


def test_evidence_is_the_status_and_the_span_of_each_field(store: Store) -> None:
    a_dataset(store, [a_course(course_ceu_credits=2, grounding={"course_ceu_credits": ABSENT})])

    (row,) = rows_of(store, evidence=True)

    evidence = tuple(row[f"course_id__{part}"] for part in ("evidence", "start", "end"))
    assert evidence == ("exact", 3, 9)
    assert row["course_ceu_credits__evidence"] == "absent"
    assert row["course_prerequisites__evidence"] is None


def test_repeated_ids_of_one_dataset_get_numbers_in_a_fixed_order(store: Store) -> None:
    same = [a_course("CS 1", course_name=name) for name in ("Beta", "Alpha", "Gamma")]
    a_dataset(store, [*same, a_course("CS 1-2")], source_id="catalog:a")
    a_dataset(store, [a_course("CS 1")], source_id="catalog:b")

    ids = [(row["course_name"], row["course_id"]) for row in rows_of(store)]

    assert ids == [
        ("Introduction", "CS 1-2"),
        ("Alpha", "CS 1"),
        ("Beta", "CS 1-3"),
        ("Gamma", "CS 1-4"),
        ("Introduction", "CS 1"),
    ]


@pytest.mark.parametrize(
    ("stored", "exported"),
    [
        ((None, 3), (Decimal(3), None)),
        ((3, 3), (Decimal(3), None)),
        ((1, "4.5"), (Decimal(1), Decimal("4.5"))),
        ((None, 0.1), (Decimal("0.1"), None)),
        ((2, None), (Decimal(2), None)),
        ((None, None), (None, None)),
    ],
)
def test_a_maximum_is_written_for_a_real_range_only(
    store: Store, stored: Sequence[Any], exported: Sequence[Any]
) -> None:
    low, high = stored
    a_dataset(store, [a_course(course_credits_min=low, course_credits_max=high)])

    (row,) = rows_of(store, evidence=True)

    assert (row["course_credits_min"], row["course_credits_max"]) == tuple(exported)
    assert row["course_credits_min__evidence"] == (None if exported[0] is None else "exact")
    assert row["course_credits_max__evidence"] == (None if exported[1] is None else "exact")


def test_a_framework_precedes_its_competencies_once(store: Store) -> None:
    def competency(text: str, framework: str | None, **changes: Any) -> Any:
        return an_item({"text": text, "competency_framework": framework}, **changes)

    invented = {"competency_framework": ABSENT}
    a_dataset(
        store,
        [
            competency("Weld", "Metal"),
            competency("Saw", "Wood"),
            competency("Cut", "Metal"),
            competency("Listen", None),
            competency("Glue", "Paper", grounding=invented),
        ],
        kind="competency",
    )

    rows = rows_of(store, "competency")
    assert [(row["row_type"], row["competency_framework"], row["text"]) for row in rows] == [
        ("competency", None, "Glue"),
        ("competency", None, "Listen"),
        ("competency_framework", "Metal", None),
        ("competency", "Metal", "Cut"),
        ("competency", "Metal", "Weld"),
        ("competency_framework", "Wood", None),
        ("competency", "Wood", "Saw"),
    ]
    assert {row["source_id"] for row in rows} == {COLLEGE}


def test_a_relative_url_is_resolved_against_the_source(store: Store) -> None:
    a_dataset(store, [a_course()], page_url="../course?id=1")

    assert column(store, "page_url") == ["https://college.test/course?id=1"]


def test_items_of_all_types_share_one_export(store: Store) -> None:
    a_dataset(store, [a_course("CS 1")], source_id="catalog:a")
    diploma = an_item({"credential_name": "Diploma", "credential_type": "Diploma"})
    a_dataset(store, [diploma], source_id="catalog:b", kind="credential")

    rows = rows_of(store, "data_items")

    items = [(row["entity_type"], row["course_id"], row["credential_name"]) for row in rows]
    assert items == [("course", "CS 1", None), ("credential", None, "Diploma")]
    assert len(rows_of(store, "credential")) == 1


def test_with_nothing_published_the_error_lists_the_existing_versions(store: Store) -> None:
    with pytest.raises(NothingPublished, match="nothing was extracted so far"):
        rows_of(store)
    a_dataset(store, [a_course()], status="quarantined")

    with pytest.raises(NothingPublished, match="version 1 of catalog:college is quarantined"):
        rows_of(store)
    with pytest.raises(NothingPublished, match="no items of the type credential are published"):
        rows_of(store, "credential")
    with pytest.raises(UnknownDataset, match=r"no version 7 .* version 1 of catalog:college"):
        rows_of(store, source_id=COLLEGE, version=7)
    with pytest.raises(UnknownSource, match="catalog:nobody"):
        rows_of(store, source_id="catalog:nobody")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "course", "version": 1}, "name the source"),
        ({"name": "chapters", "evidence": True}, "only items have"),
        ({"name": "course", "source_id": "x", "version": 1, "dataset_id": 1}, "not both"),
    ],
)
def test_contradictory_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        ExportRequest(**options).check()


def test_an_unknown_name_is_refused_with_the_known_names() -> None:
    with pytest.raises(UnknownExport, match=r"'curses'.*chapters.*course"):
        ExportRequest(name="curses").check()


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
