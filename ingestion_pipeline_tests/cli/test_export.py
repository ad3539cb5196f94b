"""`ingest export`: a file, how many rows, and a line that works when it is pasted."""

import subprocess
from pathlib import Path

import pytest

from ingestion_pipeline.cli.rows import FORMATS, READERS
from ingestion_pipeline.exports.export_request import known_names
from ingestion_pipeline.exports.formats import Format
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.exports.datasets import COLLEGE, a_course, a_dataset

BIRD = "name: bird\nabout: a bird\nkey: [ring]\nfields: [{name: ring, kind: text, required: true}]\n"


@pytest.fixture
def courses(home_store: Store) -> None:
    a_dataset(home_store, [a_course("CS 1", course_credits_max="1.5"), a_course("CS 2")])


@pytest.mark.usefixtures("courses")
def test_items_are_written_to_the_exports_folder(ingest: Ingest, home: Path) -> None:
    output = ingest.output("export", "course")

    file = home / "exports" / "course.parquet"
    assert file.is_file()
    assert str(file) in output.replace("\n", "")
    assert "version 1, published" in output


@pytest.mark.slow
@pytest.mark.usefixtures("courses")
def test_the_suggested_query_runs(ingest: Ingest, tmp_path: Path) -> None:
    folder = tmp_path / "it's a folder"
    folder.mkdir()

    line = ingest.json("export", "course", "--out", str(folder))["query"]

    process = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert "CS 1" in process.stdout


@pytest.mark.usefixtures("courses")
def test_json_has_the_facts(ingest: Ingest, tmp_path: Path) -> None:
    exported = ingest.json("export", "course", "--out", str(tmp_path / "x.csv"), "--evidence")

    assert (exported["rows"], exported["format"]) == (2, "csv")
    assert exported["bytes"] == (tmp_path / "x.csv").stat().st_size
    assert "course_id__evidence" in exported["columns"]
    assert exported["datasets"] == [{"source_id": COLLEGE, "version": 1, "status": "published"}]


def test_a_table_is_exported_by_its_name(ingest: Ingest, tmp_path: Path) -> None:
    assert ingest.json("export", "chapters", "--to", "jsonl")["rows"] == 0


@pytest.mark.usefixtures("courses")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["course", "--source", COLLEGE, "--version", "9"], "there is no version 9"),
        (["credential"], "no items of the type credential are published yet"),
        (["chapters", "--with-flagged"], "only items have"),
    ],
)
def test_a_bad_option_is_a_one_line_message(ingest: Ingest, arguments: list[str], message: str) -> None:
    assert message in ingest.refused("export", *arguments)


def test_an_unpublished_version_is_reported_and_exported_on_request(ingest: Ingest, home_store: Store) -> None:
    a_dataset(home_store, [a_course()], status="quarantined")

    assert "version 1 of catalog:college is quarantined" in ingest.refused("export", "course")
    assert ingest.json("export", "course", "--source", COLLEGE, "--version", "1")["rows"] == 1


def test_the_formats_are_those_of_the_exports_package() -> None:
    assert list(FORMATS) == [form.value for form in Format] == list(READERS)


def test_columns_are_shown_with_their_meaning(ingest: Ingest, home: Path) -> None:
    columns_by_export = {name: ingest.json("export", name, "--columns") for name in known_names()}
    proved = ingest.json("export", "course", "--columns", "--evidence")

    every = [column for columns in columns_by_export.values() for column in columns]
    assert all(len(column["meaning"].split()) >= 3 and column["holds"] for column in every)
    names = [column["name"] for column in proved]
    assert names[:3] == ["course_id", "course_id__evidence", "course_id__start"]
    assert proved[0]["meaning"].startswith("its code, such as CS 101; null:")
    assert "when a statement last wrote the row" in ingest.output("export", "chapters", "--columns")
    assert not (home / "exports").exists()


def test_rows_are_written_to_standard_output(ingest: Ingest) -> None:
    assert ingest.output("export", "sources", "--out", "-").startswith("id,")
