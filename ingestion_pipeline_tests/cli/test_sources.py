from pathlib import Path

import pytest
from sqlalchemy import insert, select

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import audit_log, dead_letters
from ingestion_pipeline_tests.cli.conftest import Ingest

FILE = """sources:
  - {id: "series:filed", kind: series, url: "https://a.test/feed", tier: TIER}
"""


def add(ingest: Ingest, *options: str) -> str:
    line = ("sources", "add", "https://a.test/feed", "--id", "series:solo", "--kind", "series")
    return ingest.output(*line, *options)


def audit_rows(home_store: Store) -> list[tuple[str, str]]:
    with home_store.read() as connection:
        query = select(audit_log.c.action, audit_log.c.actor).order_by(audit_log.c.id)
        return [(row.action, row.actor) for row in connection.execute(query)]


def test_an_added_source_is_listed_due_and_audited(ingest: Ingest, home_store: Store) -> None:
    add(ingest, "--name", "Solo", "--tier", "hot", "--config", '{"language": "en"}')

    (source,) = ingest.json("sources", "list")

    assert source["id"] == "series:solo"
    assert (source["platform"], source["series"], source["tier"]) == ("rss", "solo", "hot")
    assert (source["config"], source["origin"]) == ({"language": "en"}, "row")
    assert source["why"].startswith("never polled; due since")
    ((action, actor),) = audit_rows(home_store)
    assert action == "source.add"
    assert actor.startswith("cli:")


def test_every_problem_of_a_declaration_is_reported_at_once(ingest: Ingest) -> None:
    line = ("sources", "add", "ftp://a.test", "--id", "No Id", "--kind", "nope", "--tier", "tepid")

    message = ingest.refused(*line)

    assert all(f"{field}: " in message for field in ("id", "url", "kind", "tier"))
    assert ingest.json("sources", "list") == []


def test_a_password_in_a_url_is_refused_not_echoed_and_not_stored(ingest: Ingest, home_store: Store) -> None:
    address = "https://me:hunter2@a.test/feed"

    message = ingest.refused("sources", "add", address, "--id", "series:solo", "--kind", "series")

    assert "remove the part before the @" in message
    assert "hunter2" not in message
    assert (ingest.json("sources", "list"), audit_rows(home_store)) == ([], [])


def test_a_taken_id_is_refused_with_the_command_that_changes_it(ingest: Ingest) -> None:
    add(ingest)

    line = ("sources", "add", "https://b.test/feed", "--id", "series:solo", "--kind", "series")
    assert "`ingest sources update`" in ingest.refused(*line)
    assert ingest.json("sources", "show", "series:solo")["url"] == "https://a.test/feed"


def test_a_source_is_shown_with_its_poll_and_its_dead_letters(ingest: Ingest, home_store: Store) -> None:
    add(ingest)
    with home_store.begin() as connection:
        connection.execute(
            insert(dead_letters).values(
                task_id=1,
                task_kind="poll",
                source_id="series:solo",
                payload={},
                error_class="permanent",
                error_code="http_404",
                error="gone",
                attempts=1,
                tracking_id="t",
                failed_at=home_store.clock.now(connection),
            )
        )

    source = ingest.json("sources", "show", "series:solo")

    assert source["poll"]["status"] == "PENDING"
    assert source["last_success_at"] is None
    assert [dead_letter["error"] for dead_letter in source["dead_letters"]] == ["gone"]
    assert "http_404: gone" in ingest.output("sources", "show", "series:solo")


def test_an_update_changes_what_was_declared_and_nothing_else(ingest: Ingest) -> None:
    add(ingest, "--name", "Solo")

    ingest.output("sources", "update", "series:solo", "--url", "https://b.test/feed")

    source = ingest.json("sources", "show", "series:solo")
    assert (source["url"], source["host"]) == ("https://b.test/feed", "b.test")
    assert (source["name"], source["platform"]) == ("Solo", "rss")


def test_auto_unpins_a_tier(ingest: Ingest) -> None:
    add(ingest, "--tier", "cold")

    ingest.output("sources", "update", "series:solo", "--tier", "auto")

    source = ingest.json("sources", "show", "series:solo")
    assert (source["tier"], source["tier_pinned"]) == ("cold", False)


def test_an_update_is_audited_with_what_it_changed(ingest: Ingest, home_store: Store) -> None:
    add(ingest)

    ingest.output("sources", "update", "series:solo", "--name", "Solo")
    ingest.output("sources", "update", "series:solo", "--name", "Solo")

    with home_store.read() as connection:
        query = select(audit_log.c.detail).where(audit_log.c.action == "source.update")
        assert list(connection.execute(query).scalars()) == [{"name": {"from": None, "to": "Solo"}}]


def test_a_bad_update_changes_nothing(ingest: Ingest) -> None:
    add(ingest)

    message = ingest.refused("sources", "update", "series:solo", "--url", "nowhere", "--tier", "tepid")

    assert "url: " in message
    assert "tier: " in message
    assert "nothing to change" in ingest.refused("sources", "update", "series:solo")
    assert ingest.json("sources", "show", "series:solo")["url"] == "https://a.test/feed"


def test_an_accepted_drop_is_noted_and_audited(ingest: Ingest, home_store: Store) -> None:
    add(ingest)

    ingest.output("sources", "update", "series:solo", "--accept-drop")

    assert ingest.json("sources", "show", "series:solo")["accepts_drop"] is True
    assert audit_rows(home_store)[-1][0] == "source.accept_drop"


def test_a_source_declared_in_a_file_is_changed_only_in_the_file(ingest: Ingest, folder: Path) -> None:
    (folder / "mine.yaml").write_text(FILE.replace("TIER", "hot"))
    ingest.output("sources", "import")

    for option in ("--url", "--name", "--platform", "--series"):
        message = ingest.refused("sources", "update", "series:filed", option, "rss")
        assert f"{option[2:]} of series:filed: owned by mine.yaml" in message
    assert "tier of" in ingest.refused("sources", "update", "series:filed", "--tier", "cold")
    ingest.output("sources", "update", "series:filed", "--accept-drop")


def test_a_tier_that_its_file_leaves_open_can_be_pinned_and_unpinned(ingest: Ingest, folder: Path) -> None:
    (folder / "mine.yaml").write_text(FILE.replace("TIER", "auto"))
    ingest.output("sources", "import")

    ingest.output("sources", "update", "series:filed", "--tier", "cold")
    pinned = ingest.json("sources", "show", "series:filed")
    ingest.output("sources", "update", "series:filed", "--tier", "auto")
    unpinned = ingest.json("sources", "show", "series:filed")

    assert (pinned["tier"], pinned["tier_pinned"], pinned["origin"]) == ("cold", True, "mine.yaml")
    assert unpinned["tier_pinned"] is False


def test_a_disabled_source_says_who_and_why_until_it_is_enabled(ingest: Ingest) -> None:
    add(ingest)

    ingest.output("sources", "disable", "series:solo", "--reason", "too noisy")
    disabled = ingest.json("sources", "show", "series:solo")
    ingest.output("sources", "enable", "series:solo", "--reason", "quiet now")
    enabled = ingest.json("sources", "show", "series:solo")

    assert disabled["why"].startswith("disabled by cli:")
    assert disabled["why"].endswith(": too noisy")
    assert (enabled["status"], enabled["status_reason"]) == ("active", None)


def test_enabling_against_a_file_warns_that_it_will_not_last(ingest: Ingest, folder: Path) -> None:
    entry = FILE.replace("tier: TIER", "enabled: false")
    (folder / "mine.yaml").write_text(entry)
    ingest.output("sources", "import")

    result = ingest("sources", "enable", "series:filed")

    assert result.exit_code == 0
    assert "mine.yaml says `enabled: false`" in result.stderr


def test_a_removed_source_keeps_its_row_and_is_not_polled(ingest: Ingest) -> None:
    add(ingest)

    assert "its rows stay" in ingest.output("sources", "remove", "series:solo")

    source = ingest.json("sources", "show", "series:solo")
    assert (source["status"], source["poll"]["status"]) == ("disabled", "SKIPPED")
    assert "removed" in source["why"]


def test_the_list_can_be_of_one_kind(ingest: Ingest) -> None:
    add(ingest)

    assert len(ingest.json("sources", "list", "--kind", "series")) == 1
    assert ingest.json("sources", "list", "--kind", "catalog") == []
    assert "'nope'" in ingest.refused("sources", "list", "--kind", "nope")


def test_a_long_id_is_never_cut_out_of_the_table(ingest: Ingest, home_store: Store) -> None:
    long_id = "series:" + "q" * 100
    ingest.output("sources", "add", "https://a.test/feed", "--id", long_id, "--kind", "series")

    output = ingest.output("sources", "list")

    assert max(map(len, output.splitlines())) <= 100
    assert output.count("q") == 100
    assert "\x1b" not in output


ENTRY = '  - {{id: "series:{name}", kind: series, url: "https://a.test/feed"}}\n'


def write_source_file(folder: Path, file: str, *names: str, more: str = "") -> None:
    entries = "".join(ENTRY.format(name=name) for name in names)
    (folder / file).write_text(f"sources:\n{entries}{more}")


def listed_ids(ingest: Ingest) -> list[str]:
    return [source["id"] for source in ingest.json("sources", "list")]


def test_the_sources_folder_is_imported_and_a_second_time_nothing_changes(ingest: Ingest, folder: Path) -> None:
    write_source_file(folder, "a.yaml", "one", "two")
    write_source_file(folder, "b.yml", "three")

    first = ingest.output("sources", "import")
    second = ingest.output("sources", "import")

    assert listed_ids(ingest) == ["series:one", "series:three", "series:two"]
    assert "a.yaml: 2 added, 0 updated, 0 unchanged" in first
    assert "a.yaml: 0 added, 0 updated, 2 unchanged" in second


def test_nothing_of_a_bad_file_is_imported_and_good_files_are(ingest: Ingest, folder: Path) -> None:
    write_source_file(folder, "good.yaml", "one")
    write_source_file(folder, "bad.yaml", "two", more="  - id: nonsense\n    colour: red\n")

    result = ingest("sources", "import")

    assert result.exit_code == 2
    assert "bad.yaml:4: colour: unknown key" in result.stderr
    assert "bad.yaml:3: kind: is missing" in result.stderr
    assert "Traceback" not in result.output
    assert listed_ids(ingest) == ["series:one"]


@pytest.mark.slow
@pytest.mark.parametrize("argument", ["path", "name"])
def test_one_file_is_imported_by_its_path_or_by_its_name(ingest: Ingest, folder: Path, argument: str) -> None:
    write_source_file(folder, "a.yaml", "one")
    write_source_file(folder, "b.yaml", "two")

    ingest.output("sources", "import", str(folder / "a.yaml") if argument == "path" else "a.yaml")

    assert listed_ids(ingest) == ["series:one"]


def test_a_missing_path_is_refused(ingest: Ingest, folder: Path) -> None:
    assert "no such file or folder" in ingest.refused("sources", "import", "nowhere.yaml")
    folder.rmdir()
    assert "INGESTION_SOURCES" in ingest.refused("sources", "import")


def test_an_empty_folder_is_no_mistake(ingest: Ingest, folder: Path) -> None:
    assert "nothing to import" in ingest.output("sources", "import")
