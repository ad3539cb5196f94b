from __future__ import annotations

from pathlib import Path

import pytest

from ingestion_pipeline_tests.cli.conftest import Ingest

ENTRY = '  - {{id: "series:{name}", kind: series, url: "https://a.test/feed"}}\n'


def write(folder: Path, file: str, *names: str, more: str = "") -> None:
    entries = "".join(ENTRY.format(name=name) for name in names)
    (folder / file).write_text(f"sources:\n{entries}{more}")


def ids(ingest: Ingest) -> list[str]:
    return [source["id"] for source in ingest.json("sources", "list")]


def test_the_sources_folder_is_imported_and_a_second_time_nothing_changes(ingest: Ingest, folder: Path) -> None:
    write(folder, "a.yaml", "one", "two")
    write(folder, "b.yml", "three")

    first = ingest.done("sources", "import")
    second = ingest.done("sources", "import")

    assert ids(ingest) == ["series:one", "series:three", "series:two"]
    assert "a.yaml: 2 added, 0 updated, 0 unchanged" in first
    assert "a.yaml: 0 added, 0 updated, 2 unchanged" in second


def test_a_bad_file_gives_nothing_and_the_good_ones_are_imported(ingest: Ingest, folder: Path) -> None:
    write(folder, "good.yaml", "one")
    write(folder, "bad.yaml", "two", more="  - id: nonsense\n    colour: red\n")

    result = ingest("sources", "import")

    assert result.exit_code == 2
    assert "bad.yaml:4: colour: unknown key" in result.stderr
    assert "bad.yaml:3: kind: is missing" in result.stderr
    assert "Traceback" not in result.output
    assert ids(ingest) == ["series:one"]


@pytest.mark.parametrize("how", ["path", "name"])
def test_one_file_is_imported_by_its_path_or_by_its_name(ingest: Ingest, folder: Path, how: str) -> None:
    write(folder, "a.yaml", "one")
    write(folder, "b.yaml", "two")

    ingest.done("sources", "import", str(folder / "a.yaml") if how == "path" else "a.yaml")

    assert ids(ingest) == ["series:one"]


def test_a_missing_path_is_refused(ingest: Ingest, folder: Path) -> None:
    assert "no such file or folder" in ingest.refused("sources", "import", "nowhere.yaml")
    folder.rmdir()
    assert "INGESTION_SOURCES" in ingest.refused("sources", "import")


def test_an_empty_folder_is_no_mistake(ingest: Ingest, folder: Path) -> None:
    assert "nothing to import" in ingest.done("sources", "import")


def test_an_operators_disable_survives_an_import(ingest: Ingest, folder: Path) -> None:
    write(folder, "a.yaml", "one")
    ingest.done("sources", "import")
    ingest.done("sources", "disable", "series:one")

    ingest.done("sources", "import")

    assert ingest.json("sources", "show", "series:one")["status"] == "disabled"
