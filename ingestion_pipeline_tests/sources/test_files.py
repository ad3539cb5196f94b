"""Source files: every mistake at once, where an editor jumps to it; nothing half-imported; refresh, partition keys."""

import json
import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from ingestion_pipeline.registry import check_definition
from ingestion_pipeline.sources import registry
from ingestion_pipeline.sources.declarations import BadField, SourceEntry
from ingestion_pipeline.sources.files import (
    MAX_FILE_BYTES,
    Refreshed,
    SourceFile,
    file_schema,
    fingerprints,
    import_files,
    partition_keys,
    read_file,
    read_folder,
    refresh_source,
)
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.sources.registry import Registered
from ingestion_pipeline.sources.source import Definition, Kind, Source, Tier
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import sources, tasks
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.polling_runs import rows

GOOD = """\
sources:
  - id: series:solo
    kind: series
    url: https://a.test/feed
    platform: rss
"""


def no_problems(_: Definition) -> Iterable[BadField]:
    return ()


def write_file(folder: Path, text: str | bytes, name: str = "a.yaml") -> Path:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def read(folder: Path, text: str | bytes) -> SourceFile:
    return read_file(write_file(folder, text), check=no_problems)


def problem_places(file: SourceFile) -> set[tuple[str, int, str]]:
    return {(problem.path, problem.line, problem.field) for problem in file.problems}


def test_a_declared_source_becomes_a_definition(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        """\
sources:
  - id: series:solo
    kind: series
    url: https://a.test/chapters
    name: Solo
    platform: rss
    tier: hot
    config: {language: en}
    enabled: false
    series: solo-leveling
""",
    )

    assert file.problems == ()
    changes = {"name": "Solo", "tier": Tier.HOT, "config": {"language": "en"}, "enabled": False, "origin": "a.yaml"}
    assert file.definitions == [a_definition(url="https://a.test/chapters", series="solo-leveling", **changes)]


MISTAKES = (Path(__file__).parent / "expected" / "mistakes.yaml").read_text()


def test_every_problem_of_a_file_is_listed_with_line_and_field(tmp_path: Path) -> None:
    file = read(tmp_path, MISTAKES)

    assert problem_places(file) == {
        ("a.yaml", 8, "colour"),
        ("a.yaml", 9, "id"),
        ("a.yaml", 14, "url"),
        ("a.yaml", 17, "kind"),
        ("a.yaml", 22, "platform"),
        ("a.yaml", 23, "id"),
        ("a.yaml", 29, "tier"),
        ("a.yaml", 30, "entry"),
    }
    assert file.definitions == ()


def test_a_problem_is_printed_as_editors_expect_it(tmp_path: Path) -> None:
    file = read(tmp_path, GOOD.replace("rss", "mangadx"))

    assert [str(problem) for problem in file.problems] == [
        "a.yaml:5: platform: 'mangadx' is no platform; for series there are: mangadex, rss, json, html"
    ]


def test_every_problem_of_one_entry_is_listed(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        """\
sources:
  - id: Nope
    kind: series
    url: nowhere
    platform: mangadx
    tier: tepid
    series: Not A Slug
    company: [acme]
    enabled: maybe
    config: [1]
    colour: red
""",
    )

    assert {problem.field for problem in file.problems} == {
        *("id", "url", "platform", "tier", "series", "company", "enabled", "config", "colour")
    }


def test_a_duplicate_id_is_reported_even_if_one_of_its_entries_is_invalid(tmp_path: Path) -> None:
    duplicated = GOOD + "  - {id: series:solo, kind: series, url: nowhere}\n"

    file = read(tmp_path, duplicated)

    assert problem_places(file) == {("a.yaml", 6, "id"), ("a.yaml", 6, "url")}
    assert any("is declared on line 2 already" in problem.message for problem in file.problems)


def test_a_duplicate_id_on_one_line_is_reported(tmp_path: Path) -> None:
    entry = "{id: series:solo, kind: series, url: 'https://a.test/feed'}"

    file = read(tmp_path, f"sources: [{entry}, {entry}]")

    assert problem_places(file) == {("a.yaml", 1, "id")}


def test_a_duplicate_key_is_refused(tmp_path: Path) -> None:
    file = read(tmp_path, GOOD + "    url: https://b.test/feed\n")

    assert problem_places(file) == {("a.yaml", 6, "url")}


def test_a_bad_file_does_not_affect_the_others(tmp_path: Path) -> None:
    write_file(tmp_path, GOOD, "good.yaml")
    write_file(tmp_path, MISTAKES, "bad.yml")
    write_file(tmp_path, "sources: [nonsense", "notes.txt")

    bad, good = read_folder(tmp_path, check=no_problems)

    assert (bad.path, bad.definitions) == ("bad.yml", ())
    assert [definition.id for definition in good.definitions] == ["series:solo"]


def test_an_id_in_two_files_is_a_problem_of_both_and_of_no_third(tmp_path: Path) -> None:
    write_file(tmp_path, GOOD, "first.yaml")
    write_file(tmp_path, "# a comment\n" + GOOD, "second.yaml")
    write_file(tmp_path, GOOD.replace("solo", "other"), "third.yaml")

    files = {file.path: file for file in read_folder(tmp_path, check=no_problems)}

    message = "'series:solo' is declared in first.yaml and second.yaml"
    assert [str(problem) for problem in files["first.yaml"].problems] == [f"first.yaml:2: id: {message}"]
    assert [str(problem) for problem in files["second.yaml"].problems] == [f"second.yaml:3: id: {message}"]
    assert [len(file.definitions) for file in files.values()] == [0, 0, 1]


@pytest.mark.parametrize(
    ("text", "line", "field", "message"),
    [
        pytest.param("sources: [", 1, "yaml", "not readable as YAML", id="cut off"),
        pytest.param("sources:\n\t- a", 2, "yaml", "not readable as YAML", id="tab"),
        pytest.param(b"sources: \xff\xfe", 1, "yaml", "not readable as YAML", id="not utf-8"),
        pytest.param("a: \x00", 1, "yaml", "not readable as YAML", id="NUL"),
        pytest.param("[" * 1_000, 1, "yaml", "nested too deeply", id="too deep"),
        pytest.param("- id: series:a", 1, "sources", "a list under `sources:`", id="bare list"),
        pytest.param("source: []", 1, "sources", "found source", id="misspelt"),
        pytest.param("{}", 1, "sources", "found none", id="no key"),
        pytest.param("sources: {a: b}", 1, "sources", "must be a list", id="mapping"),
        pytest.param("sources: []\nmore: 1", 1, "sources", "found sources, more", id="more keys"),
        pytest.param("sources: [!!set {a, b}]", 1, "entry", "without a tag", id="set"),
        pytest.param("sources: [!!python/object:x.Y {}]", 1, "entry", "tag", id="python object"),
        pytest.param("sources: [{? [a] : b}]", 1, "entry", "unhashable", id="list as key"),
        pytest.param("sources: [{id: 2001-99-99}]", 1, "entry", "month", id="no such day"),
    ],
)
def test_an_invalid_source_file_is_one_problem(
    tmp_path: Path, text: str | bytes, line: int, field: str, message: str
) -> None:
    file = read(tmp_path, text)

    assert [(problem.line, problem.field) for problem in file.problems] == [(line, field)]
    assert message in file.problems[0].message


@pytest.mark.parametrize("text", ["", "\n# nothing yet\n", "sources:\n", "sources: []\n"])
def test_a_file_that_declares_nothing_is_no_problem(tmp_path: Path, text: str) -> None:
    file = read(tmp_path, text)

    assert (list(file.definitions), file.problems) == ([], ())


def test_aliases_are_refused_before_they_expand(tmp_path: Path) -> None:
    laughs = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{following}: &{following} [{', '.join([f'*{name}'] * 9)}]\n"
        for name, following in zip("abcdefgh", "bcdefghi", strict=True)
    )

    file = read(tmp_path, laughs)

    assert [(problem.line, problem.field) for problem in file.problems] == [(2, "yaml")]
    assert "aliases (*name) are not accepted" in file.problems[0].message


@pytest.mark.parametrize(
    "url",
    [
        "https://me:hunter2@a.test/feed",
        "https://hunter2@a.test/feed",
        "https://me:hunter2/x@a.test/feed",
        "ftp://me:hunter2@a.test/",
        "https://me:hunter2@[bad/feed",
    ],
)
def test_a_password_is_refused_and_never_repeated(tmp_path: Path, url: str) -> None:
    write_file(tmp_path, GOOD.replace("https://a.test/feed", f"'{url}'"))

    [file] = read_folder(tmp_path, check=check_definition)

    assert [problem.field for problem in file.problems] == ["url"]
    assert "hunter2" not in str(file.problems[0])


def test_a_problem_of_the_systems_check_has_the_line_of_its_field(tmp_path: Path) -> None:
    path = write_file(tmp_path, GOOD + "    config: {limt: 5}\n")

    file = read_file(path, check=check_definition)

    assert [(problem.line, problem.field) for problem in file.problems] == [(6, "config")]
    assert "limt" in file.problems[0].message
    assert file.definitions == ()


def test_a_file_over_the_size_limit_is_not_parsed(tmp_path: Path) -> None:
    file = read(tmp_path, b"#" * (MAX_FILE_BYTES + 1))

    assert [(problem.field, problem.line) for problem in file.problems] == [("file", 1)]


def test_a_file_that_cannot_be_opened_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere")

    files = read_folder(tmp_path, check=no_problems)

    assert [problem.field for file in files for problem in file.problems] == ["file", "file"]
    assert set(fingerprints(tmp_path)) == {"folder.yaml", "gone.yaml"}


def test_fingerprints_change_with_their_file_and_cover_source_files_only(tmp_path: Path) -> None:
    file = write_file(tmp_path, GOOD)
    write_file(tmp_path, GOOD, "other.yml")
    write_file(tmp_path, GOOD, "not_read.yxml")
    before = fingerprints(tmp_path)

    file.write_text(GOOD + "\n")

    after = fingerprints(tmp_path)
    assert after.keys() == {"a.yaml", "other.yml"}
    assert after["a.yaml"] != before["a.yaml"]
    assert after["other.yml"] == before["other.yml"]


def test_a_missing_folder_has_no_files(tmp_path: Path) -> None:
    assert read_folder(tmp_path / "sources", check=no_problems) == []
    assert fingerprints(tmp_path / "sources") == {}


@pytest.mark.slow
def test_ten_thousand_sources_are_read_in_bounded_time(tmp_path: Path) -> None:
    entry = "  - {{id: series:s{0}, kind: series, url: 'https://a.test/{0}.rss'}}\n"
    body = "sources:\n" + "".join(entry.format(number) for number in range(10_000))
    started = time.process_time()

    file = read(tmp_path, body)

    assert len(file.definitions) == 10_000
    assert time.process_time() - started < 25  # 2 s on a quiet machine; quadratic is minutes


# T30: whatever is under `sources:`, the result is definitions or problems.
STRANGE_TEXTS = st.text(max_size=8) | st.sampled_from(
    ["series:a", "series", "rss", "https://a.test/feed", "http://a\\]", "hot", "auto", "a\0b"]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | STRANGE_TEXTS
    | st.dates()
    | st.datetimes()
    | st.binary(max_size=4)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(STRANGE_TEXTS | st.integers() | st.booleans(), inner, max_size=3)
    ),
    max_leaves=8,
)
GOOD_ENTRY = {"id": "series:a", "kind": "series", "url": "https://a.test/feed"}
KEYS = ["id", "kind", "url", "name", "platform", "tier", "config", "enabled", "series", "company"]
ENTRIES = st.dictionaries(st.sampled_from(KEYS) | STRANGE_TEXTS, ANYTHING, max_size=6).map(
    lambda changed: GOOD_ENTRY | changed
)


@pytest.mark.slow
@given(entries=st.lists(ENTRIES | ANYTHING, max_size=4) | ANYTHING)
@example(entries=[GOOD_ENTRY])
@example(entries=[GOOD_ENTRY | {"config": {1: "a", "b": "c"}}])
@example(entries=[GOOD_ENTRY | {"url": "https://a.test\\]/feed"}])
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arbitrary_data_is_definitions_or_problems_and_never_raises(tmp_path: Path, entries: Any) -> None:
    body = yaml.safe_dump({"sources": entries}, allow_unicode=False).encode(errors="surrogatepass")

    file = read_file(write_file(tmp_path, body), check=check_definition)

    assert not (file.definitions and file.problems)
    expected = len(entries) if isinstance(entries, list) else 0
    assert len(file.definitions) == expected or file.problems
    assert all(problem.line >= 1 and problem.message for problem in file.problems)


def test_the_config_of_an_entry_is_checked_even_if_another_field_is_wrong(tmp_path: Path) -> None:
    entry = "  - id: catalog:mine\n    kind: catalog\n    url: nowhere\n    tier: tepid\n    config: {recip: {}}\n"

    file = read_file(write_file(tmp_path, f"sources:\n{entry}"), check=check_definition)

    assert problem_places(file) == {("a.yaml", 4, "url"), ("a.yaml", 5, "tier"), ("a.yaml", 6, "config")}


def test_a_wrong_section_does_not_hide_the_mistakes_of_the_others(tmp_path: Path) -> None:
    file = read(tmp_path, GOOD.replace("rss", "mangadx") + "recipients: {}\n")

    assert problem_places(file) == {("a.yaml", 1, "sources"), ("a.yaml", 5, "platform")}


def test_a_key_that_is_repeated_inside_the_config_is_refused(tmp_path: Path) -> None:
    file = read(tmp_path, GOOD + "    config:\n      language: en\n      language: de\n")

    assert problem_places(file) == {("a.yaml", 8, "config.language")}


def test_the_schema_beside_the_example_is_that_of_the_models() -> None:
    folder = Path(__file__).parents[2] / "sources"
    schema = json.loads((folder / "schema.json").read_text())

    assert schema == file_schema()
    entry = schema["$defs"]["SourceEntry"]
    assert list(entry["properties"]) == SourceEntry.file_keys()
    assert entry["required"] == ["id", "kind", "url"]
    assert "$schema=schema.json" in (folder / "example.yaml").read_text().splitlines()[0]


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
    assert len(rows(store, tasks)) == 2


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
