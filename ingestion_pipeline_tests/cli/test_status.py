from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, event, insert, update

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import batch_items, hosts, outbox, pulses, sources
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.operations.failing import broken, given


def add(ingest: Ingest, name: str) -> None:
    ingest.done("sources", "add", "https://a.test/feed", "--id", f"series:{name}", "--kind", "series")


def test_an_empty_store_says_what_to_do(ingest: Ingest) -> None:
    assert "`ingest sources add`" in ingest.done("status")


def test_every_source_is_there_with_its_reason_and_the_totals(ingest: Ingest) -> None:
    add(ingest, "one")
    add(ingest, "two")
    ingest.done("sources", "disable", "series:two", "--reason", "noisy")

    found = ingest.json("status")

    one, two = found["sources"]
    assert (one["health"], two["health"]) == ("waiting", "off")
    assert one["why"].startswith("never polled; due since")
    assert two["why"].endswith(": noisy")
    assert found["totals"]["sources"] == {"active": 1, "disabled": 1}
    assert (found["totals"]["due"], found["totals"]["in_progress"]) == (1, 0)
    assert datetime.fromisoformat(found["now"]).utcoffset() == timedelta(0)


def test_hosts_that_are_waited_for_and_unhandled_rows_are_told(ingest: Ingest, database: Store) -> None:
    with database.begin() as connection:
        now = database.clock.now(connection)
        later = now + timedelta(hours=1)
        connection.execute(insert(hosts).values(host="a.test", wanted_at=now, lease_until=later))
        connection.execute(insert(outbox).values(subject_kind="chapter", subject_id="1", payload={}, created_at=now))

    found = ingest.json("status")

    assert [one["host"] for one in found["waiting_hosts"]] == ["a.test"]
    assert found["totals"]["outbox"] == 1
    assert "host a.test is in use by another run" in ingest.done("status")


def test_a_pause_of_polling_is_told_with_its_reason_and_its_end(
    ingest: Ingest, database: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGESTION_POLLING__BACKLOG_LIMIT", "1")
    assert ingest.json("status")["polling_paused"] is None
    with database.begin() as connection:
        now = database.clock.now(connection)
        waiting = {"batch_id": "b", "fence": 1, "source_id": "series:x", "fetched": {}}
        rows = [waiting | {"task_id": n, "fetched_at": now} for n in range(2)]
        connection.execute(insert(batch_items), rows)

    said = ingest.json("status")["polling_paused"]

    assert said.startswith("polling is paused: 2 or more readings wait to be ingested")
    assert said in ingest.done("status")


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


def test_of_a_thousand_sources_the_fifty_that_fail_come_first_and_the_rest_is_counted(
    ingest: Ingest, database: Store
) -> None:
    with database.begin() as connection:
        now = database.clock.now(connection)
        ids = given(connection, 1_000, now=now)
        ways = broken(connection, ids, each=10, now=now)

    printed = ingest.done("status")
    found = ingest.json("status")

    failing = {one for some in ways.values() for one in some}
    assert {line.split()[0] for line in printed.splitlines() if ":n0" in line[:12]} == failing
    assert "and 950 more that are no worse; `ingest status --all` shows them" in printed
    assert "sources: 10 open, 10 disabled, 30 degraded, 950 healthy" in printed
    assert {one["id"] for one in found["sources"][:50]} == failing
    assert len(found["sources"]) == 1_000
    first = found["sources"][0]
    assert (first["health"], first["breaker"], first["failure_count"]) == ("open", "open", 5)
    assert first["why"].startswith("breaker open until")
    assert first["health_reason"].startswith("breaker open: 5 failed polls in a row, last success")


def test_a_probe_fails_for_a_silent_daemon_and_for_sources_that_are_unwell(ingest: Ingest, database: Store) -> None:
    probes = ("status", "--fail-on", "daemon"), ("status", "--fail-on", "sources")
    assert [ingest(*one).exit_code for one in probes] == [0, 0]

    with database.begin() as connection:
        now = database.clock.now(connection)
        broken(connection, given(connection, 5, now=now), each=1, now=now)
        long_ago = now - timedelta(minutes=10)
        connection.execute(insert(pulses).values(name="daemon", at=long_ago))
    silent, unwell = (ingest(*one) for one in probes)

    assert (silent.exit_code, unwell.exit_code) == (1, 1)
    assert "the daemon is silent: its last tick was 10m ago" in silent.stdout
    assert "1 open, 1 disabled, 3 degraded" in unwell.stderr
    assert ingest("status").exit_code == 0


def statements(ingest: Ingest, *line: str) -> Counter[str]:
    """What a command says to the database, and how often."""
    said: Counter[str] = Counter()

    def count(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        said[statement] += 1

    event.listen(Engine, "before_cursor_execute", count)
    try:
        ingest.done(*line)
    finally:
        event.remove(Engine, "before_cursor_execute", count)
    return said


def test_a_thousand_sources_take_as_many_statements_as_fifty(ingest: Ingest, database: Store) -> None:
    with database.begin() as connection:
        given(connection, 50, now=database.clock.now(connection))
    few = statements(ingest, "status").total()

    with database.begin() as connection:
        now = database.clock.now(connection)
        broken(connection, given(connection, 1_000, now=now), each=10, now=now)

    assert statements(ingest, "status").total() == few
    assert statements(ingest, "status", "--all").total() == few
    assert few <= 32
