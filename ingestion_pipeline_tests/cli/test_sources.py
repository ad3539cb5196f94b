from __future__ import annotations

from pathlib import Path

from sqlalchemy import insert, select

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import audit_log, dead_letters
from ingestion_pipeline_tests.cli.conftest import Ingest

FILE = """sources:
  - {id: "series:filed", kind: series, url: "https://a.test/feed", tier: TIER}
"""


def add(ingest: Ingest, *more: str) -> str:
    line = ("sources", "add", "https://a.test/feed", "--id", "series:solo", "--kind", "series")
    return ingest.done(*line, *more)


def audited(database: Store) -> list[tuple[str, str]]:
    with database.read() as connection:
        query = select(audit_log.c.action, audit_log.c.actor).order_by(audit_log.c.id)
        return [(row.action, row.actor) for row in connection.execute(query)]


def test_an_added_source_is_listed_due_and_audited(ingest: Ingest, database: Store) -> None:
    add(ingest, "--name", "Solo", "--tier", "hot", "--config", '{"language": "en"}')

    (listed,) = ingest.json("sources", "list")

    assert listed["id"] == "series:solo"
    assert (listed["platform"], listed["series"], listed["tier"]) == ("rss", "solo", "hot")
    assert (listed["config"], listed["origin"]) == ({"language": "en"}, "row")
    assert listed["why"].startswith("never polled; due since")
    ((action, actor),) = audited(database)
    assert action == "source.add"
    assert actor.startswith("cli:")


def test_every_problem_of_a_declaration_is_told_at_once(ingest: Ingest) -> None:
    line = ("sources", "add", "ftp://a.test", "--id", "No Id", "--kind", "nope", "--tier", "tepid")

    said = ingest.refused(*line)

    assert all(f"{field}: " in said for field in ("id", "url", "kind", "tier"))
    assert ingest.json("sources", "list") == []


def test_a_password_in_an_address_is_refused_not_echoed_and_not_kept(ingest: Ingest, database: Store) -> None:
    address = "https://me:hunter2@a.test/feed"

    said = ingest.refused("sources", "add", address, "--id", "series:solo", "--kind", "series")

    assert "remove the part before the @" in said
    assert "hunter2" not in said
    assert (ingest.json("sources", "list"), audited(database)) == ([], [])


def test_what_the_platform_refuses_is_not_added(ingest: Ingest) -> None:
    line = ("sources", "add", "https://a.test/feed", "--id", "series:solo", "--kind", "series")

    assert "languages" in ingest.refused(*line, "--config", '{"languages": []}')
    assert "not JSON" in ingest.refused(*line, "--config", "{language")
    assert "JSON object" in ingest.refused(*line, "--config", "[1]")


def test_a_taken_id_is_refused_with_the_command_that_changes_it(ingest: Ingest) -> None:
    add(ingest)

    line = ("sources", "add", "https://b.test/feed", "--id", "series:solo", "--kind", "series")
    assert "`ingest sources update`" in ingest.refused(*line)
    assert ingest.json("sources", "show", "series:solo")["url"] == "https://a.test/feed"


def test_an_unknown_source_is_named_with_where_all_are(ingest: Ingest) -> None:
    for line in (
        ("show", "series:nope"),
        ("update", "series:nope", "--tier", "hot"),
        ("update", "series:nope", "--accept-drop"),
        ("enable", "series:nope"),
        ("disable", "series:nope"),
        ("remove", "series:nope"),
    ):
        said = ingest.refused("sources", *line)
        assert "'series:nope'; `ingest sources list`" in said


def test_a_source_is_shown_with_its_poll_and_its_dead_letters(ingest: Ingest, database: Store) -> None:
    add(ingest)
    with database.begin() as connection:
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
                failed_at=database.clock.now(connection),
            )
        )

    shown = ingest.json("sources", "show", "series:solo")

    assert shown["poll"]["status"] == "PENDING"
    assert shown["last_success_at"] is None
    assert [dead_letter["error"] for dead_letter in shown["dead_letters"]] == ["gone"]
    assert "http_404: gone" in ingest.done("sources", "show", "series:solo")


def test_an_update_changes_what_was_declared_and_nothing_else(ingest: Ingest) -> None:
    add(ingest, "--name", "Solo")

    ingest.done("sources", "update", "series:solo", "--url", "https://b.test/feed")

    shown = ingest.json("sources", "show", "series:solo")
    assert (shown["url"], shown["host"]) == ("https://b.test/feed", "b.test")
    assert (shown["name"], shown["platform"]) == ("Solo", "rss")


def test_auto_unpins_a_tier(ingest: Ingest) -> None:
    add(ingest, "--tier", "cold")

    ingest.done("sources", "update", "series:solo", "--tier", "auto")

    shown = ingest.json("sources", "show", "series:solo")
    assert (shown["tier"], shown["tier_pinned"]) == ("cold", False)


def test_an_update_is_audited_with_what_it_changed(ingest: Ingest, database: Store) -> None:
    add(ingest)

    ingest.done("sources", "update", "series:solo", "--name", "Solo")
    ingest.done("sources", "update", "series:solo", "--name", "Solo")

    with database.read() as connection:
        query = select(audit_log.c.detail).where(audit_log.c.action == "source.update")
        assert list(connection.execute(query).scalars()) == [{"name": {"from": None, "to": "Solo"}}]


def test_a_bad_update_changes_nothing(ingest: Ingest) -> None:
    add(ingest)

    said = ingest.refused("sources", "update", "series:solo", "--url", "nowhere", "--tier", "tepid")

    assert "url: " in said
    assert "tier: " in said
    assert "nothing to change" in ingest.refused("sources", "update", "series:solo")
    assert ingest.json("sources", "show", "series:solo")["url"] == "https://a.test/feed"


def test_an_accepted_drop_is_noted_and_audited(ingest: Ingest, database: Store) -> None:
    add(ingest)

    ingest.done("sources", "update", "series:solo", "--accept-drop")

    assert ingest.json("sources", "show", "series:solo")["accepts_drop"] is True
    assert audited(database)[-1][0] == "source.accept_drop"


def test_what_a_file_declares_is_changed_in_the_file(ingest: Ingest, folder: Path) -> None:
    (folder / "mine.yaml").write_text(FILE.replace("TIER", "hot"))
    ingest.done("sources", "import")

    for option in ("--url", "--name", "--platform", "--series"):
        said = ingest.refused("sources", "update", "series:filed", option, "rss")
        assert f"{option[2:]} of series:filed: owned by mine.yaml" in said
    assert "tier of" in ingest.refused("sources", "update", "series:filed", "--tier", "cold")
    ingest.done("sources", "update", "series:filed", "--accept-drop")


def test_a_tier_that_its_file_leaves_open_can_be_pinned_and_unpinned(ingest: Ingest, folder: Path) -> None:
    (folder / "mine.yaml").write_text(FILE.replace("TIER", "auto"))
    ingest.done("sources", "import")

    ingest.done("sources", "update", "series:filed", "--tier", "cold")
    pinned = ingest.json("sources", "show", "series:filed")
    ingest.done("sources", "update", "series:filed", "--tier", "auto")
    unpinned = ingest.json("sources", "show", "series:filed")

    assert (pinned["tier"], pinned["tier_pinned"], pinned["origin"]) == ("cold", True, "mine.yaml")
    assert unpinned["tier_pinned"] is False


def test_a_disabled_source_says_who_and_why_until_it_is_enabled(ingest: Ingest) -> None:
    add(ingest)

    ingest.done("sources", "disable", "series:solo", "--reason", "too noisy")
    disabled = ingest.json("sources", "show", "series:solo")
    ingest.done("sources", "enable", "series:solo", "--reason", "quiet now")
    enabled = ingest.json("sources", "show", "series:solo")

    assert disabled["why"].startswith("disabled by cli:")
    assert disabled["why"].endswith(": too noisy")
    assert (enabled["status"], enabled["status_reason"]) == ("active", None)


def test_enabling_against_a_file_warns_that_it_will_not_last(ingest: Ingest, folder: Path) -> None:
    entry = FILE.replace("tier: TIER", "enabled: false")
    (folder / "mine.yaml").write_text(entry)
    ingest.done("sources", "import")

    result = ingest("sources", "enable", "series:filed")

    assert result.exit_code == 0
    assert "mine.yaml says `enabled: false`" in result.stderr


def test_a_removed_source_stays_as_a_row_and_is_not_polled(ingest: Ingest) -> None:
    add(ingest)

    assert "its rows stay" in ingest.done("sources", "remove", "series:solo")

    shown = ingest.json("sources", "show", "series:solo")
    assert (shown["status"], shown["poll"]["status"]) == ("disabled", "SKIPPED")
    assert "removed" in shown["why"]


def test_the_list_can_be_of_one_kind(ingest: Ingest) -> None:
    add(ingest)

    assert len(ingest.json("sources", "list", "--kind", "series")) == 1
    assert ingest.json("sources", "list", "--kind", "catalog") == []
    assert "'nope'" in ingest.refused("sources", "list", "--kind", "nope")


def test_a_long_id_is_never_cut_out_of_the_table(ingest: Ingest, database: Store) -> None:
    long_id = "series:" + "q" * 100
    ingest.done("sources", "add", "https://a.test/feed", "--id", long_id, "--kind", "series")

    printed = ingest.done("sources", "list")

    assert max(map(len, printed.splitlines())) <= 100
    assert printed.count("q") == 100
    assert "\x1b" not in printed
