"""Import of source files, refresh of one source, and the partition keys."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from ingestion_pipeline.registry import check_definition
from ingestion_pipeline.sources import registry
from ingestion_pipeline.sources.files import Refreshed, import_files, partition_keys, refresh_source
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.sources.registry import Registered
from ingestion_pipeline.sources.source import Kind, Source
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import sources, tasks
from ingestion_pipeline_tests.builders import NOON, a_definition

SOURCE_ENTRY = "  - {{id: series:{0}, kind: series, url: 'https://a.test/{0}.xml'}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sources").mkdir()
    return tmp_path / "sources"


def declare(folder: Path, name: str, *ids: str, more: str = "") -> None:
    body = "sources:\n" + "".join(SOURCE_ENTRY.format(source_id) for source_id in ids) + more
    (folder / name).write_text(body)


def origins(store: Store) -> dict[str, str]:
    with store.read() as connection:
        query = select(sources.c.id, sources.c.origin)
        return {id_: origin for id_, origin in connection.execute(query)}  # noqa: C416


def test_good_files_are_registered_and_bad_ones_are_reported(store: Store, folder: Path) -> None:
    declare(folder, "good.yaml", "a", "b")
    declare(folder, "bad.yaml", "c", more="  - {id: series:d, kind: series, url: nowhere}\n")

    imported = import_files(store, folder, check=check_definition)

    assert imported.registered == Registered(added=2, updated=0, unchanged=0)
    assert [(problem.path, problem.line, problem.field) for problem in imported.problems] == [("bad.yaml", 3, "url")]
    assert origins(store) == {"series:a": "good.yaml", "series:b": "good.yaml"}
    with store.read() as connection:
        assert len(connection.execute(select(tasks)).all()) == 2


def test_a_second_import_adds_nothing_and_keeps_sources_that_left_their_file(store: Store, folder: Path) -> None:
    declare(folder, "sources.yaml", "a", "b")
    import_files(store, folder, check=check_definition)
    declare(folder, "sources.yaml", "a")

    imported = import_files(store, folder, check=check_definition)

    assert imported.registered == Registered(added=0, updated=0, unchanged=1)
    assert set(origins(store)) == {"series:a", "series:b"}


def test_an_empty_folder_is_no_problem(store: Store, folder: Path) -> None:
    imported = import_files(store, folder, check=check_definition)

    assert imported.registered == Registered(added=0, updated=0, unchanged=0)
    assert list(imported.problems) == []


def test_partitions_are_the_oldest_sources_of_each_kind_up_to_the_limit(
    store: Store, clock: FixedClock, now: datetime
) -> None:
    kinds = {"series": Kind.SERIES, "catalog": Kind.CATALOG}
    with store.begin() as connection:
        for number, id_ in enumerate(["series:c", "series:a", "catalog:x", "series:b"]):
            definition = a_definition(id=id_, kind=kinds[id_.partition(":")[0]])
            moment = now + timedelta(minutes=number)
            registry.register(connection, [definition], now=moment)

    with store.read() as connection:
        assert partition_keys(connection, limit=2) == {
            Kind.SERIES: ["series:c", "series:a"],
            Kind.CATALOG: ["catalog:x"],
        }


def test_a_removed_source_has_no_partition_and_a_disabled_one_keeps_it(store: Store, now: datetime) -> None:
    with store.begin() as connection:
        definitions = [a_definition(id=f"series:{name}") for name in ("gone", "off", "on")]
        registry.register(connection, definitions, now=now)
        registry.remove(connection, "series:gone", actor="ann", now=now)
        registry.disable(connection, "series:off", actor="ann", reason="slow", now=now)
        draft = a_definition(id="series:draft", enabled=False)
        registry.register(connection, [draft], now=now)

    with store.read() as connection:
        assert partition_keys(connection, limit=9) == {Kind.SERIES: ["series:off", "series:on"]}


SOLO = "series:solo"
FILE_TEXT = "sources:\n  - {{id: series:solo, kind: series, url: '{0}', platform: rss}}\n"


def declare_url(folder: Path, url: str) -> None:
    (folder / "mine.yaml").write_text(FILE_TEXT.format(url))


def refresh(store: Store, folder: Path, source_id: str = SOLO) -> Refreshed:
    return refresh_source(store, source_id, folder=folder, check=check_definition)


def stored_source(store: Store) -> Source:
    with store.read() as connection:
        return sources_by_id(connection, [SOLO])[SOLO]


def test_a_refresh_writes_the_declaration_of_the_file(store: Store, folder: Path) -> None:
    declare_url(folder, "https://a.test/feed")
    import_files(store, folder, check=check_definition)
    declare_url(folder, "https://b.test/feed")

    refreshed = refresh(store, folder)
    assert (refreshed.source.platform, refreshed.source.status, refreshed.problems) == ("rss", "active", [])
    assert stored_source(store).url == "https://b.test/feed"


def test_a_declaration_with_a_problem_changes_nothing_and_reports_it(store: Store, folder: Path) -> None:
    declare_url(folder, "https://a.test/feed")
    import_files(store, folder, check=check_definition)
    declare_url(folder, "nowhere")

    [problem] = refresh(store, folder).problems

    assert problem.startswith("mine.yaml:2: url:")
    assert stored_source(store).url == "https://a.test/feed"


def test_a_source_without_a_file_is_validated_as_stored(store: Store, folder: Path) -> None:
    with store.begin() as connection:
        definition = a_definition(config={"limt": 5})
        registry.register(connection, [definition], now=NOON)

    [problem] = refresh(store, folder).problems

    assert problem.startswith("config: config of platform 'rss': limt")


def test_an_invalid_row_is_reported_field_by_field(store: Store, folder: Path) -> None:
    with store.begin() as connection:
        registry.register(connection, [a_definition(platform="fax")], now=NOON)

    [problem] = refresh(store, folder).problems

    assert problem.startswith("platform: ")


def test_a_source_whose_file_was_deleted_is_unchanged(store: Store, folder: Path) -> None:
    declare_url(folder, "https://a.test/feed")
    import_files(store, folder, check=check_definition)
    before = stored_source(store)
    (folder / "mine.yaml").unlink()

    assert refresh(store, folder).problems == []
    assert stored_source(store) == before


def test_an_unknown_source_is_an_error_that_names_the_command_to_list_all(store: Store, folder: Path) -> None:
    with pytest.raises(UnknownSource, match="`ingest sources list` shows all"):
        refresh(store, folder, "series:gone")
