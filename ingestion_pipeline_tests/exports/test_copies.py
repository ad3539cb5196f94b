"""Copies of published rows that are kept up to date: by dlt, in Delta Lake and in Iceberg."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, func, select, update

from ingestion_pipeline.catalogs.datasets.item_changes import record_published
from ingestion_pipeline.exports.export_request import ExportRequest
from ingestion_pipeline.exports.exporting import watermark
from ingestion_pipeline.exports.lake import NAMESPACE, TableFormat, export_to_table
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import changes, chapter_sources, chapters
from ingestion_pipeline_tests.cli.test_series import sync
from ingestion_pipeline_tests.exports.datasets import COLLEGE, a_course, a_dataset

CHAPTERS, COURSES = ExportRequest(name="chapters"), ExportRequest(name="course")
Read = Callable[[Path, str], list[dict[str, Any]]]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_template: Path) -> Iterator[Store]:
    """A series with the chapters 1 to 3 and a catalogue with two courses, in a home of its own."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("INGESTION_HOME", str(home))
    (home / "ingestion.db").write_bytes(sqlite_template.read_bytes())
    opened = open_store(f"sqlite:///{home / 'ingestion.db'}")
    sync(opened, "series:solo", "solo", [1, 2, 3])
    publish(opened, 1, [a_course("CS 101", item_key="a"), a_course("CS 102", item_key="b")])
    yield opened
    opened.close()


def publish(store: Store, version: int, courses: list[Any]) -> None:
    dataset_id = a_dataset(store, courses, version=version)
    with store.begin() as connection:
        record_published(connection, dataset_id, now=store.clock.now(connection), is_decided=False)
    wait(store)


def wait(store: Store) -> None:
    """Wait until the next cursor is later than the last change: SQLite's time has milliseconds."""
    with store.read() as connection:
        last = connection.execute(select(func.max(changes.c.occurred_at))).scalar_one()
    while watermark(store) <= last:
        pass


def change(store: Store) -> None:
    """Rename a chapter, delete another, and publish the catalogue without its second course."""
    with store.begin() as connection:
        connection.execute(update(chapters).where(chapters.c.key == "1").values(title="First"))
        gone = select(chapters.c.id).where(chapters.c.key == "3").scalar_subquery()
        connection.execute(delete(chapter_sources).where(chapter_sources.c.chapter_id == gone))
        connection.execute(delete(chapters).where(chapters.c.key == "3"))
    publish(store, 2, [a_course("CS 101", item_key="a", course_name="Advanced")])


def of_delta(folder: Path, name: str) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    return DeltaTable(str(folder / f"{name}.delta")).to_pyarrow_table().to_pylist()


def of_iceberg(folder: Path, name: str) -> list[dict[str, Any]]:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog(NAMESPACE, uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=folder.as_uri())
    return catalog.load_table(f"{NAMESPACE}.{name}").scan().to_arrow().to_pylist()


@pytest.mark.parametrize(("form", "read"), [(TableFormat.DELTA, of_delta), (TableFormat.ICEBERG, of_iceberg)])
def test_a_table_follows_the_rows_with_their_deletions(
    store: Store, tmp_path: Path, form: TableFormat, read: Read
) -> None:
    folder = tmp_path / "lake"
    firsts = [export_to_table(store, request, form, folder) for request in (CHAPTERS, COURSES)]
    again = [export_to_table(store, request, form, folder) for request in (CHAPTERS, COURSES)]
    change(store)
    seconds = [export_to_table(store, request, form, folder) for request in (CHAPTERS, COURSES)]

    assert [(done.rows, done.deleted) for done in (*firsts, *again, *seconds)] == [
        *((3, 0), (2, 0)),
        *((0, 0), (0, 0)),
        *((1, 1), (1, 1)),
    ]
    assert {row["key"]: row["title"] for row in read(folder, "chapters")} == {"1": "First", "2": None}
    assert [(row["source_id"], row["course_name"]) for row in read(folder, "course")] == [(COLLEGE, "Advanced")]


def test_earlier_versions_of_a_delta_table_stay_readable(store: Store, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    export_to_table(store, CHAPTERS, TableFormat.DELTA, tmp_path)
    change(store)
    export_to_table(store, CHAPTERS, TableFormat.DELTA, tmp_path)

    first = DeltaTable(str(tmp_path / "chapters.delta"), version=0)
    assert sorted(row["key"] for row in first.to_pyarrow_table().to_pylist()) == ["1", "2", "3"]


def loaded(pipeline: Any) -> dict[str, int]:
    """Load what there is; return the rows of our tables that this load brought."""
    from ingestion_pipeline import dlt_source

    pipeline.run(dlt_source(["chapters", "course"]), loader_file_format="jsonl")
    counts = pipeline.last_trace.last_normalize_info.row_counts
    return {name: count for name, count in counts.items() if not name.startswith("_dlt")}


def test_dlt_loads_what_changed_and_deletes_what_is_gone(store: Store, tmp_path: Path) -> None:
    import dlt

    pipeline = dlt.pipeline(
        "copy",
        destination=dlt.destinations.duckdb(str(tmp_path / "copy.duckdb")),
        dataset_name="web",
        pipelines_dir=str(tmp_path / "dlt"),
    )

    assert loaded(pipeline) == {"chapters": 3, "course": 2}
    assert loaded(pipeline) == {}
    change(store)
    assert loaded(pipeline) == {"chapters": 2, "course": 2}

    with pipeline.sql_client() as client:
        titles = client.execute_sql("SELECT key, title FROM chapters ORDER BY key")
        names = client.execute_sql("SELECT source_id, item_key, course_name FROM course")
    assert titles == [("1", "First"), ("2", None)]
    assert names == [(COLLEGE, "a#0", "Advanced")]


def test_dlt_loads_into_files_and_a_second_time_nothing(store: Store, tmp_path: Path) -> None:
    import dlt

    pipeline = dlt.pipeline(
        "files",
        destination=dlt.destinations.filesystem((tmp_path / "lake").as_uri()),
        dataset_name="web",
        pipelines_dir=str(tmp_path / "dlt"),
    )

    assert loaded(pipeline) == {"chapters": 3, "course": 2}
    assert loaded(pipeline) == {}
    assert len(list((tmp_path / "lake" / "web" / "chapters").glob("*.jsonl*"))) == 1


PAGE = Path(__file__).parent.parent.parent / "docs" / "operating" / "changes.md"


def test_the_examples_of_the_docs_load_and_read_copies(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DLT_DATA_DIR", str(tmp_path / "dlt"))
    load, read = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)

    loaded: dict[str, Any] = {}
    exec(load, loaded)
    with loaded["pipeline"].sql_client() as client:
        assert client.execute_sql("SELECT count(*) FROM job_listings") == [(0,)]
        assert client.execute_sql("SELECT count(*) FROM chapters") == [(3,)]
    export_to_table(store, CHAPTERS, TableFormat.DELTA, Path("lake"))
    exported: dict[str, Any] = {}
    exec(read, exported)
    assert sorted(exported["first"]["key"]) == ["1", "2", "3"]
