"""An incremental export misses no change, whatever the order of commits, and replaces no file."""

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, insert, select, update

from ingestion_pipeline.engine.system_spec import ColumnType
from ingestion_pipeline.exports.export_request import TABLES, ExportRequest, table_columns
from ingestion_pipeline.exports.exporting import ChangeExport, export_changes, watermark
from ingestion_pipeline.exports.formats import Format
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import chapters, datasets, export_cursors, series
from ingestion_pipeline.store.types import Moment
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.exports.datasets import a_course, a_dataset
from ingestion_pipeline_tests.polling_runs import rows

pytestmark = pytest.mark.both_databases

CHAPTERS = ExportRequest(name="chapters")


@pytest.fixture(autouse=True)
def a_series(store: Store) -> None:
    with store.begin() as connection:
        connection.execute(insert(series).values(id="solo", title="Solo", created_at=NOON))


def a_chapter(number: int) -> dict[str, Any]:
    facts = {"series_id": "solo", "key": str(number), "number": number}
    return facts | {"first_detected_at": NOON}


def add(store: Store, *numbers: int) -> None:
    with store.begin() as connection:
        connection.execute(insert(chapters), [a_chapter(number) for number in numbers])
    wait_for_next_timestamp(store)


def wait_for_next_timestamp(store: Store) -> None:
    """Wait until the next cursor is later than the last write: SQLite's time has milliseconds."""
    with store.read() as connection:
        newest = connection.execute(select(func.max(chapters.c.modified_at))).scalar_one()
        is_fine = connection.dialect.name == "postgresql"
    while not is_fine and watermark(store) <= newest:
        pass


def numbers_in(change_export: ChangeExport) -> list[int]:
    if change_export.exported is None:
        return []
    lines = change_export.exported.path.read_text().splitlines()
    return [int(json.loads(line)["number"]) for line in lines]


def export_next_changes(store: Store, folder: Path, request: ExportRequest = CHAPTERS) -> ChangeExport:
    return export_changes(store, request, Format.JSONL, folder)


def exported_numbers(store: Store, folder: Path, times: int) -> Sequence[list[int]]:
    return [numbers_in(export_next_changes(store, folder)) for _ in range(times)]


def test_the_first_export_has_every_row_and_the_next_only_new_or_changed_rows(store: Store, tmp_path: Path) -> None:
    add(store, 1, 2)
    assert exported_numbers(store, tmp_path, 2) == [[1, 2], []]

    add(store, 3)
    with store.begin() as connection:
        connection.execute(update(chapters).where(chapters.c.key == "1").values(title="One"))
    wait_for_next_timestamp(store)

    assert exported_numbers(store, tmp_path, 2) == [[1, 3], []]
    assert len(list(tmp_path.glob("chapters.*.jsonl"))) == 2


def test_each_folder_and_each_format_has_a_cursor_of_its_own(store: Store, tmp_path: Path) -> None:
    add(store, 1)
    (tmp_path / "other").mkdir()

    assert exported_numbers(store, tmp_path, 1) == exported_numbers(store, tmp_path / "other", 1) == [[1]]
    assert export_changes(store, CHAPTERS, Format.CSV, tmp_path).exported is not None
    assert len(rows(store, export_cursors)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_late_commit_is_in_the_next_export(store: Store, tmp_path: Path) -> None:
    add(store, 1)
    with store.begin() as late:
        late.execute(insert(chapters).values(a_chapter(2)))
        before = numbers_in(export_next_changes(store, tmp_path))
        add(store, 3)

    assert before == [1]
    assert {2, 3} <= set(numbers_in(export_next_changes(store, tmp_path)))


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_on_sqlite_the_cursor_waits_for_the_writer(store: Store, database_url: str) -> None:
    second_store = open_store(database_url)
    with store.begin() as connection:
        connection.execute(insert(chapters).values(a_chapter(1)))
        stamped = connection.execute(select(chapters.c.modified_at)).scalar_one()
    try:
        assert watermark(second_store) >= stamped
    finally:
        second_store.close()


def test_an_explicit_since_moves_no_cursor(store: Store, tmp_path: Path) -> None:
    add(store, 1)
    since = watermark(store) + timedelta(days=1)
    request = ExportRequest(name="chapters", since=since)

    exported = export_changes(store, request, Format.JSONL, tmp_path, since_last=False)

    assert (exported.exported, exported.since) == (None, since)
    assert exported_numbers(store, tmp_path, 1) == [[1]]


def test_a_dataset_is_exported_again_when_published_and_not_when_confirmed(store: Store, tmp_path: Path) -> None:
    a_dataset(store, [a_course("CS 1")], source_id="catalog:a")
    courses = ExportRequest(name="course")
    first = export_next_changes(store, tmp_path, courses)

    assert first.exported is not None
    assert export_next_changes(store, tmp_path, courses).exported is None
    with store.begin() as connection:
        connection.execute(update(datasets).values(confirmed_at=connection.execute(select(Moment())).scalar_one()))
    assert export_next_changes(store, tmp_path, courses).exported is None


def test_json_columns_have_their_type_and_fit_a_parquet_file(store: Store, tmp_path: Path) -> None:
    """They were exported as text, and a Parquet file of links, listings or companies failed."""
    types = {column.name: column.holds for column in table_columns("job_listings")}
    a_dataset(store, [a_course()], source_id="catalog:a")
    with store.begin() as connection:
        connection.execute(update(datasets).values(findings=[{"gate": "drop"}]))

    exported = export_changes(store, ExportRequest(name="datasets"), Format.PARQUET, tmp_path)

    assert {types[name] for name in ("salary", "quality", "snapshot_ids")} == {ColumnType.JSON}
    assert exported.exported is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_every_table_can_be_exported_in_full_and_by_changes(store: Store, tmp_path: Path, name: str) -> None:
    columns = [column.name for column in table_columns(name)]

    assert len(columns) == len(set(columns))
    assert "modified_at" in columns
    assert export_next_changes(store, tmp_path, ExportRequest(name=name)).since is None
