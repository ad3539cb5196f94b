"""Exported values and files: the same values in every format, written atomically."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from ingestion_pipeline.engine.system_spec import ExportColumn
from ingestion_pipeline.exports.export_request import ExportRequest
from ingestion_pipeline.exports.exported_items import Ids, absolute, could_be_taken
from ingestion_pipeline.exports.exporting import BadPath, export, export_published, file_name
from ingestion_pipeline.exports.formats import (
    ABANDONED_SECONDS,
    Format,
    Row,
    exact,
    harmless,
    replacing,
    shortest,
    write,
)
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import sources
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.exports.datasets import a_course, a_dataset, an_item

# Few letters and many numbers: ids that repeat, and ids that look like another's suffix.
IDS = st.lists(st.sampled_from(["A", "A-2", "A-3", "A-2-2", "B", "B-1", "-2"]), max_size=30)


def export_ids(ids_stated: list[str]) -> list[str]:
    repeated = {id_ for id_, times in Counter(ids_stated).items() if times > 1}
    ids = Ids(repeated, {text for text in ids_stated if could_be_taken(text, repeated)})
    return [ids.unique(text) for text in ids_stated]


@given(IDS)
def test_exported_ids_are_unique_and_the_first_of_each_is_unchanged(ids: list[str]) -> None:
    unique = export_ids(ids)

    assert len(set(unique)) == len(unique)
    firsts = {text: ids.index(text) for text in ids}
    assert all(unique[place] == id_ for id_, place in firsts.items())


@given(IDS)
def test_a_repeated_id_only_gains_a_numeric_suffix(ids: list[str]) -> None:
    assert all(
        new == old or (new.startswith(f"{old}-") and new.removeprefix(f"{old}-").isdigit())
        for old, new in zip(ids, export_ids(ids), strict=True)
    )


def test_suffixes_count_from_two() -> None:
    assert export_ids(["A", "B", "A", "A"]) == ["A", "B", "A-2", "A-3"]


@given(st.decimals(allow_nan=False, allow_infinity=False, places=9, max_value=10**20))
def test_a_decimal_keeps_its_value_and_loses_its_zeros(number: Decimal) -> None:
    assert exact(number) == number
    assert Decimal(shortest(number)) == number
    assert "E" not in shortest(number)
    assert not ("." in shortest(number) and shortest(number).endswith("0"))


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, Decimal(3)),
        (0.1, Decimal("0.1")),
        ("1.50", Decimal("1.5")),
        ("1E+2", Decimal(100)),
        ("0.12345678949", Decimal("0.123456789")),
        ("9" * 30, None),
        ("NaN", None),
        ("three", None),
        (True, None),
        (None, None),
    ],
)
def test_a_number_is_exact_or_null(value: object, number: Decimal | None) -> None:
    assert exact(value) == number


@pytest.mark.parametrize(
    ("url", "absolute_url"),
    [
        ("/a?b=1", "https://x.test/a?b=1"),
        ("b", "https://x.test/list/b"),
        ("//y.test/c", "https://y.test/c"),
        ("http://y.test/d", "http://y.test/d"),
        ("http://[half", "http://[half"),
        (None, None),
    ],
)
def test_a_url_is_made_absolute_or_left_unchanged(url: str | None, absolute_url: str | None) -> None:
    assert absolute(url, "https://x.test/list/") == absolute_url


COURSES = ExportRequest(name="course")


def read_csv(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def read_jsonl(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def read_parquet(file: Path) -> Any:
    import pyarrow.parquet as pq

    return pq.read_table(file)


@pytest.mark.slow
def test_parquet_keeps_decimals_times_and_flags(store: Store, tmp_path: Path) -> None:
    course = a_course(course_credits_min=1, course_credits_max="4.25", course_non_credit=False)
    a_dataset(store, [course, a_course("CS 102")])

    exported = export(store, COURSES, Format.PARQUET, tmp_path / "x.parquet")

    table = read_parquet(exported.path)
    types = {field.name: str(field.type) for field in table.schema}
    assert types["course_credits_max"] == "decimal128(38, 9)"
    assert types["fetched_at"] == "timestamp[us, tz=UTC]"
    assert types["course_non_credit"] == "bool"
    assert types["dataset_version"] == "int64"
    assert table["course_credits_max"].to_pylist() == [Decimal("4.25"), None]
    assert table["course_non_credit"].to_pylist() == [False, None]
    assert table["fetched_at"].to_pylist() == [NOON, NOON]
    assert exported.rows == 2


def test_csv_and_json_lines_hold_the_same_rows(store: Store, tmp_path: Path) -> None:
    course = a_course(course_name='Übung, "Maß"\n日本', course_credits_max="1.50")
    a_dataset(store, [course])

    table = read_csv(export(store, COURSES, Format.CSV, tmp_path / "x.csv").path)
    lines = read_jsonl(export(store, COURSES, Format.JSONL, tmp_path / "x.jsonl").path)

    assert table[0]["course_name"] == lines[0]["course_name"] == 'Übung, "Maß"\n日本'
    assert table[0]["course_credits_min"] == lines[0]["course_credits_min"] == "1.5"
    assert table[0]["course_non_credit"] == ""
    assert lines[0]["course_non_credit"] is None
    assert table[0]["fetched_at"] == lines[0]["fetched_at"] == "2026-03-01T12:00:00+00:00"
    assert list(table[0]) == list(lines[0])


@pytest.mark.slow
@pytest.mark.parametrize("form", Format)
def test_the_same_rows_make_the_same_file(store: Store, tmp_path: Path, form: Format) -> None:
    a_dataset(store, [a_course(f"CS {number}") for number in range(7)])

    files = [export(store, COURSES, form, tmp_path / f"{name}.x", batch_rows=3).path for name in "ab"]

    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "'="])  # noqa: RUF001
def test_no_cell_is_a_formula_to_a_spreadsheet(tmp_path: Path, start: str) -> None:
    formula = f"{start}cmd|' /C calc'!A0"
    file = tmp_path / "x.csv"

    write(Format.CSV, file, [ExportColumn(name="text")], iter([[[formula]]]))

    assert read_csv(file)[0]["text"] == f"'{formula}"


@pytest.mark.parametrize("text", ["CS-101", "'tis", "3 + 4", "", "a=b"])
def test_a_text_that_is_no_formula_is_unchanged(text: str) -> None:
    assert harmless(text) == text


@given(st.text(alphabet="'=+-@\ta", max_size=8))
def test_the_escaping_apostrophe_can_be_removed(text: str) -> None:
    cell = harmless(text)

    is_escaped = cell.startswith("'") and cell.lstrip("'")[:1] in tuple("=+-@\t")
    assert (cell[1:] if is_escaped else cell) == text


def test_a_failure_in_the_middle_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "x.csv"
    target.write_text("old")

    def batches() -> Iterator[list[Row]]:
        yield [["new"]]
        raise RuntimeError("the database went away")

    with pytest.raises(RuntimeError), replacing(target) as part:
        write(Format.CSV, part, [ExportColumn(name="text")], batches())

    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


KILLED = """
import sys
from pathlib import Path
from ingestion_pipeline.engine.system_spec import ExportColumn
from ingestion_pipeline.exports.formats import Format, write
from ingestion_pipeline.exports.formats import replacing

def batches():
    yield [["row"]] * 1000
    print("half", flush=True)
    sys.stdin.read()

with replacing(Path(sys.argv[1])) as part:
    write(Format.CSV, part, [ExportColumn(name="text")], batches())
"""


@pytest.mark.slow
def test_a_killed_process_leaves_no_partial_file(tmp_path: Path) -> None:
    target = tmp_path / "x.csv"
    line = [sys.executable, "-c", KILLED, str(target)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half\n"
        process.send_signal(signal.SIGKILL)
    (part_file,) = tmp_path.iterdir()
    assert part_file.name.endswith(".part")

    os.utime(part_file, (0, part_file.stat().st_mtime - ABANDONED_SECONDS - 1))
    with replacing(target) as part:
        write(Format.CSV, part, [ExportColumn(name="text")], iter([[["row"]]]))

    assert list(tmp_path.iterdir()) == [target]


def test_the_part_file_of_a_live_writer_is_kept(tmp_path: Path) -> None:
    with replacing(tmp_path / "x.csv") as first, replacing(tmp_path / "x.csv") as second:
        first.write_text("first")
        second.write_text("second")

    assert (tmp_path / "x.csv").read_text() == "first"


def test_a_bad_path_is_named(store: Store, tmp_path: Path) -> None:
    a_dataset(store, [a_course()])

    with pytest.raises(BadPath, match="is a folder: name a file in it"):
        export(store, COURSES, Format.CSV, tmp_path)
    with pytest.raises(BadPath, match="there is no folder"):
        export(store, COURSES, Format.CSV, tmp_path / "none" / "x.csv")


def test_a_token_in_an_address_of_an_older_row_is_not_exported(store: Store, tmp_path: Path) -> None:
    a_dataset(store, [a_course()], source_id="catalog:a")
    with store.begin() as connection:
        address = "https://a.test/list?page=1&token=canary-4711"
        connection.execute(update(sources).values(url=address))

    exported = export(store, ExportRequest(name="sources"), Format.JSONL, tmp_path / "x.jsonl")

    assert [row["url"] for row in read_jsonl(exported.path)] == ["https://a.test/list?page=1"]


@pytest.mark.parametrize("form", Format)
def test_exports_are_readable_by_their_owner_only(store: Store, tmp_path: Path, form: Format) -> None:
    a_dataset(store, [a_course()])
    folder = tmp_path / "exports" / "daily"
    before = os.umask(0o022)
    try:
        (exported,) = export_published(store, folder, form)
    finally:
        os.umask(before)

    assert exported.path.stat().st_mode & 0o777 == 0o600
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]


def test_two_requests_never_share_a_file() -> None:
    requests = [
        ExportRequest(name="course"),
        ExportRequest(name="course", source_id="catalog:a"),
        ExportRequest(name="course", source_id="catalog:a", version=2),
        ExportRequest(name="course", source_id="catalog:a", evidence=True),
        ExportRequest(name="course", dataset_id=2),
        ExportRequest(name="course", with_flagged=True),
    ]
    names = {file_name(request, Format.CSV) for request in requests}

    assert len(names) == len(requests)
    assert "course.catalog~a.v2.csv" in names


def test_every_published_dataset_gets_its_file(store: Store, tmp_path: Path) -> None:
    a_dataset(store, [a_course()], source_id="catalog:a")
    a_dataset(store, [a_course()], source_id="catalog:b")
    a_dataset(store, [a_course()], source_id="catalog:c", status="quarantined")

    exports = export_published(store, tmp_path / "exports", Format.CSV)

    assert [exported.path.name for exported in exports] == ["course.catalog~a.csv", "course.catalog~b.csv"]
    assert [exported.rows for exported in exports] == [1, 1]


def test_nothing_published_writes_no_file_and_fails_for_a_named_source(store: Store, tmp_path: Path) -> None:
    assert export_published(store, tmp_path, Format.CSV) == []
    a_dataset(store, [], status="building")

    with pytest.raises(LookupError, match="is building"):
        export_published(store, tmp_path, Format.CSV, source_ids=["catalog:college"])


def test_items_of_a_custom_type_are_exported(store: Store, tmp_path: Path) -> None:
    (tmp_path / "bird.yaml").write_text("name: bird\nfields: [{name: ring, kind: text}]")
    a_dataset(store, [a_course()], source_id="catalog:a")
    a_dataset(store, [an_item({"ring": "R-1"})], source_id="catalog:b", kind="bird")

    exports = export_published(store, tmp_path, Format.JSONL, entities=tmp_path)

    assert [exported.path.name for exported in exports] == ["course.catalog~a.jsonl", "bird.catalog~b.jsonl"]
    assert [row["ring"] for row in read_jsonl(exports[1].path)] == ["R-1"]
    with pytest.raises(LookupError, match=r"there are: .*bird"):
        ExportRequest(name="fish", entities=tmp_path).check()
