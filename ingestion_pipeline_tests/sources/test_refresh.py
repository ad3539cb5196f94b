"""One source's declaration, checked again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingestion_pipeline.registry import check_definition
from ingestion_pipeline.sources import registry
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.sources.operator_changes import Refreshed, import_files, refresh_source
from ingestion_pipeline.sources.source import Source
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.builders import NOON, a_definition

SOLO = "series:solo"
ENTRY = "sources:\n  - {{id: series:solo, kind: series, url: '{0}', platform: rss}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sources").mkdir()
    return tmp_path / "sources"


def declare(folder: Path, url: str) -> None:
    (folder / "mine.yaml").write_text(ENTRY.format(url))


def refresh(store: Store, folder: Path, source_id: str = SOLO) -> Refreshed:
    return refresh_source(store, source_id, folder=folder, check=check_definition)


def the_source(store: Store) -> Source:
    with store.read() as connection:
        return sources_by_id(connection, [SOLO])[SOLO]


def test_the_row_says_what_its_file_says(store: Store, folder: Path) -> None:
    declare(folder, "https://a.test/feed")
    import_files(store, folder, check=check_definition)
    declare(folder, "https://b.test/feed")

    result = refresh(store, folder)
    assert (result.source.platform, result.source.status, result.problems) == ("rss", "active", [])
    assert the_source(store).url == "https://b.test/feed"


def test_a_declaration_with_a_problem_changes_nothing_and_says_so(store: Store, folder: Path) -> None:
    declare(folder, "https://a.test/feed")
    import_files(store, folder, check=check_definition)
    declare(folder, "nowhere")

    [problem] = refresh(store, folder).problems

    assert problem.startswith("mine.yaml:2: url:")
    assert the_source(store).url == "https://a.test/feed"


def test_a_source_without_a_file_is_checked_as_it_stands(store: Store, folder: Path) -> None:
    with store.begin() as connection:
        definition = a_definition(config={"limt": 5})
        registry.register(connection, [definition], now=NOON)

    [problem] = refresh(store, folder).problems

    assert problem.startswith("config: config of platform 'rss': limt")


def test_a_row_that_no_declaration_would_make_is_told_field_by_field(store: Store, folder: Path) -> None:
    with store.begin() as connection:
        registry.register(connection, [a_definition(platform="fax")], now=NOON)

    [problem] = refresh(store, folder).problems

    assert problem.startswith("platform: ")


def test_a_source_whose_file_is_gone_stays_as_it_was(store: Store, folder: Path) -> None:
    declare(folder, "https://a.test/feed")
    import_files(store, folder, check=check_definition)
    before = the_source(store)
    (folder / "mine.yaml").unlink()

    assert refresh(store, folder).problems == []
    assert the_source(store) == before


def test_an_unknown_source_is_an_error_that_says_where_to_look(store: Store, folder: Path) -> None:
    with pytest.raises(UnknownSource, match="`ingest sources list` shows all"):
        refresh(store, folder, "series:gone")
