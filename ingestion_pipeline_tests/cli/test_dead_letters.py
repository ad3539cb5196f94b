from pathlib import Path

import pytest
from sqlalchemy import insert, select

from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import audit_log, dead_letters, snapshots, tasks
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.polling_runs import rows


@pytest.fixture
def dead_letter(ingest: Ingest, home_store: Store) -> int:
    """A dead letter of a source whose poll waits for tomorrow."""
    ingest.output("sources", "add", "https://a.test/feed", "--id", "series:solo", "--kind", "series")
    return add_dead_letter(home_store, error_class="permanent")


def add_dead_letter(home_store: Store, *, error_class: str) -> int:
    with home_store.begin() as connection:
        statement = insert(dead_letters).values(
            task_id=connection.execute(select(tasks.c.id)).scalar_one(),
            task_kind="poll",
            source_id="series:solo",
            payload={"url": "https://a.test/feed"},
            stage="fetched",
            error_class=error_class,
            error_code=f"{error_class}_404",
            error="answered 404",
            stack="Traceback: here",
            attempts=1,
            tracking_id="t",
            failed_at=home_store.clock.now(connection),
        )
        return connection.execute(statement.returning(dead_letters.c.id)).scalar_one()


def test_dead_letters_are_listed_by_class_and_source(ingest: Ingest, home_store: Store, dead_letter: int) -> None:
    other = add_dead_letter(home_store, error_class="transient")

    def listed(*filters: str) -> list[int]:
        return [row["id"] for row in ingest.json("dead-letters", "list", *filters)]

    assert listed() == [other, dead_letter]
    assert listed("--class", "permanent") == [dead_letter]
    assert listed("--source", "series:solo") == [other, dead_letter]
    assert "answered 404" in ingest.output("dead-letters", "list")


def test_a_dead_letter_is_shown_with_payload_and_stack(ingest: Ingest, dead_letter: int) -> None:
    entry = ingest.json("dead-letters", "show", str(dead_letter))

    assert entry["payload"] == {"url": "https://a.test/feed"}
    assert (entry["stage"], entry["stack"]) == ("fetched", "Traceback: here")
    assert "Traceback: here" in ingest.output("dead-letters", "show", str(dead_letter))


def test_a_replayed_dead_letter_is_not_open(ingest: Ingest, dead_letter: int) -> None:
    assert f"{dead_letter}: queued" in ingest.output("dead-letters", "replay", str(dead_letter))

    assert ingest.json("dead-letters", "list") == []
    assert [row["id"] for row in ingest.json("dead-letters", "list", "--replayed")] == [dead_letter]


def test_dead_letters_are_replayed_by_class(ingest: Ingest, home_store: Store, dead_letter: int) -> None:
    other = add_dead_letter(home_store, error_class="transient")

    ingest.output("dead-letters", "replay", "--class", "permanent")

    assert [row["id"] for row in ingest.json("dead-letters", "list")] == [other]


def test_dead_letters_are_replayed_by_source(ingest: Ingest, dead_letter: int) -> None:
    ingest.output("dead-letters", "replay", "--source", "series:solo")

    assert ingest.json("dead-letters", "list") == []


def test_a_dry_run_reports_and_changes_nothing(ingest: Ingest, home_store: Store, dead_letter: int) -> None:
    output = ingest.output("dead-letters", "replay", str(dead_letter), "--dry-run")

    assert f"{dead_letter}: would be queued" in output
    assert [row["id"] for row in ingest.json("dead-letters", "list")] == [dead_letter]
    actions = [row.action for row in rows(home_store, audit_log)]
    assert "dead_letter.replay" not in actions


def test_a_dead_letter_that_cannot_be_replayed_stays_open_and_fails_the_command(
    ingest: Ingest, dead_letter: int
) -> None:
    ingest.output("sources", "disable", "series:solo")

    result = ingest("dead-letters", "replay", str(dead_letter))

    assert result.exit_code == 1
    assert "its source is disabled" in result.stdout
    assert len(ingest.json("dead-letters", "list")) == 1


def test_one_unknown_id_replays_nothing(ingest: Ingest, dead_letter: int) -> None:
    assert "no dead letter 99" in ingest.refused("dead-letters", "replay", str(dead_letter), "99")
    assert len(ingest.json("dead-letters", "list")) == 1


def test_dead_letters_are_grouped_with_their_newest_id(ingest: Ingest, home_store: Store, dead_letter: int) -> None:
    other = add_dead_letter(home_store, error_class="transient")

    groups = ingest.json("dead-letters", "list", "--grouped")

    assert [(group["error_class"], group["newest"]) for group in groups] == [
        ("permanent", dead_letter),
        ("transient", other),
    ]
    assert "permanent_404" in ingest.output("dead-letters", "list", "--grouped")
    assert "leave out" in ingest.refused("dead-letters", "list", "--grouped", "--decided")


def test_dead_letters_are_discarded_only_with_a_reason(ingest: Ingest, home_store: Store, dead_letter: int) -> None:
    other = add_dead_letter(home_store, error_class="transient")
    chosen = ("dead-letters", "discard", "--class", "transient", "--reason", "the host is gone")

    assert "1 to discard" in ingest.output(*chosen, "--dry-run")
    assert len(ingest.json("dead-letters", "list")) == 2
    assert "1 discarded" in ingest.output(*chosen)

    assert [row["id"] for row in ingest.json("dead-letters", "list")] == [dead_letter]
    entry = ingest.json("dead-letters", "show", str(other))
    assert (entry["state"], entry["discard_reason"]) == ("discarded", "the host is gone")
    assert "--reason" in ingest.refused("dead-letters", "discard", str(dead_letter))
    assert "with a reason" in ingest.refused("dead-letters", "discard", str(dead_letter), "--reason", " ")


def test_a_dead_letter_is_shown_with_its_snapshots(
    ingest: Ingest, home_store: Store, home: Path, dead_letter: int
) -> None:
    nothing = ingest("dead-letters", "show", str(dead_letter), "--body")
    assert (nothing.exit_code, "no response of" in nothing.stderr) == (1, True)
    body = ContentStore(home / "content").put(b"<rss>broken")
    with home_store.begin() as connection:
        row = {"url": "https://a.test/feed", "source_id": "series:solo", "size_bytes": 11}
        row |= {"content_hash": body, "body_hash": body, "status_code": 200}
        now = home_store.clock.now(connection)
        connection.execute(insert(snapshots).values(row | {"fetched_at": now}))

    assert ingest.output("dead-letters", "show", str(dead_letter), "--body") == "<rss>broken"
    [entry] = ingest.json("dead-letters", "show", str(dead_letter))["snapshots"]
    assert (entry["status_code"], entry["url"]) == (200, "https://a.test/feed")
    assert "status 200, 11 bytes" in ingest.output("dead-letters", "show", str(dead_letter))
