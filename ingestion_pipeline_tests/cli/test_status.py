from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import insert, update

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import hosts, outbox, sources
from ingestion_pipeline_tests.cli.conftest import Ingest


def add(ingest: Ingest, name: str) -> None:
    ingest.done(
        "sources", "add", "https://a.test/feed", "--id", f"series:{name}", "--kind", "series"
    )


def test_an_empty_store_says_what_to_do(ingest: Ingest) -> None:
    assert "`ingest sources add`" in ingest.done("status")


def test_every_source_is_there_with_its_reason_and_the_totals(ingest: Ingest) -> None:
    add(ingest, "one")
    add(ingest, "two")
    ingest.done("sources", "disable", "series:two", "--reason", "noisy")

    found = ingest.json("status")

    one, two = found["sources"]
    assert one["why"].startswith("never polled; due since")
    assert two["why"].endswith(": noisy")
    assert found["totals"]["sources"] == {"active": 1, "disabled": 1}
    assert (found["totals"]["due"], found["totals"]["in_progress"]) == (1, 0)
    assert datetime.fromisoformat(found["now"]).utcoffset() == timedelta(0)


def test_hosts_that_are_waited_for_and_unhandled_rows_are_told(
    ingest: Ingest, database: Store
) -> None:
    with database.begin() as connection:
        now = database.clock.now(connection)
        later = now + timedelta(hours=1)
        connection.execute(insert(hosts).values(host="a.test", wanted_at=now, lease_until=later))
        connection.execute(
            insert(outbox).values(
                subject_kind="chapter", subject_id="1", payload={}, created_at=now
            )
        )

    found = ingest.json("status")

    assert [one["host"] for one in found["waiting_hosts"]] == ["a.test"]
    assert found["totals"]["outbox"] == 1
    assert "host a.test is waited for" in ingest.done("status")


def test_a_strangers_text_cannot_command_the_terminal(ingest: Ingest, database: Store) -> None:
    add(ingest, "one")
    with database.begin() as connection:
        connection.execute(update(sources).values(last_outcome="failed: \x1b[2J[bold]gone\x07"))

    printed = ingest.done("status")

    assert "\x1b" not in printed
    assert "\x07" not in printed
    assert "[bold]gone" in printed


def test_the_table_shows_ids_whole_and_fits_the_page(ingest: Ingest, database: Store) -> None:
    add(ingest, "a-name-of-rather-more-than-average-length")
    with database.begin() as connection:
        connection.execute(update(sources).values(last_outcome="failed: " + "because " * 50))

    printed = ingest.done("status")

    assert "series:a-name-of-rather-more-than-average-length" in printed
    assert max(map(len, printed.splitlines())) <= 100
