import threading
from collections import Counter
from datetime import datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path

import pytest
from sqlalchemy import Engine, insert, update

from ingestion_pipeline.cli.metrics import open_server
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import batch_items, hosts, outbox, service_heartbeats, sources
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.operations.failing_sources import add_healthy_sources, break_sources
from ingestion_pipeline_tests.statements import recorded_statements


def add(ingest: Ingest, name: str) -> None:
    ingest.output("sources", "add", "https://a.test/feed", "--id", f"series:{name}", "--kind", "series")


def test_the_status_of_an_empty_store_suggests_the_next_step(ingest: Ingest) -> None:
    assert "`ingest sources add`" in ingest.output("status")


def test_every_source_is_listed_with_its_reason_and_the_totals(ingest: Ingest) -> None:
    add(ingest, "one")
    add(ingest, "two")
    ingest.output("sources", "disable", "series:two", "--reason", "noisy")

    status = ingest.json("status")

    never_polled, disabled = status["sources"]
    assert (never_polled["health"], disabled["health"]) == ("waiting", "off")
    assert never_polled["why"].startswith("never polled; due since")
    assert disabled["why"].endswith(": noisy")
    assert status["totals"]["sources"] == {"active": 1, "disabled": 1}
    assert (status["totals"]["due"], status["totals"]["in_progress"]) == (1, 0)
    assert datetime.fromisoformat(status["now"]).utcoffset() == timedelta(0)


def test_waiting_hosts_and_unhandled_rows_are_reported(ingest: Ingest, home_store: Store) -> None:
    with home_store.begin() as connection:
        now = home_store.clock.now(connection)
        later = now + timedelta(hours=1)
        connection.execute(insert(hosts).values(host="a.test", requested_at=now, lease_until=later))
        connection.execute(insert(outbox).values(subject_kind="chapter", subject_id="1", payload={}, created_at=now))

    status = ingest.json("status")

    assert [host["host"] for host in status["waiting_hosts"]] == ["a.test"]
    assert status["totals"]["outbox"] == 1
    assert "host a.test is in use by another run" in ingest.output("status")


def test_a_pause_of_polling_is_reported_with_its_reason_and_its_end(
    ingest: Ingest, home_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGESTION_POLLING__BACKLOG_LIMIT", "1")
    assert ingest.json("status")["polling_paused"] is None
    with home_store.begin() as connection:
        now = home_store.clock.now(connection)
        waiting = {"batch_id": "b", "fence": 1, "source_id": "series:x", "fetched": {}}
        rows = [waiting | {"task_id": n, "fetched_at": now} for n in range(2)]
        connection.execute(insert(batch_items), rows)

    pause = ingest.json("status")["polling_paused"]

    assert pause.startswith("polling is paused: 2 or more readings wait to be ingested")
    assert pause in ingest.output("status")


def test_text_of_pages_cannot_control_the_terminal(ingest: Ingest, home_store: Store) -> None:
    add(ingest, "one")
    with home_store.begin() as connection:
        connection.execute(update(sources).values(last_outcome="failed: \x1b[2J[bold]gone\x07"))

    output = ingest.output("status")

    assert "\x1b" not in output
    assert "\x07" not in output
    assert "[bold]gone" in output


def test_the_table_shows_ids_whole_and_fits_the_page(ingest: Ingest, home_store: Store) -> None:
    add(ingest, "a-name-of-rather-more-than-average-length")
    with home_store.begin() as connection:
        connection.execute(update(sources).values(last_outcome="failed: " + "because " * 50))

    output = ingest.output("status")

    assert "series:a-name-of-rather-more-than-average-length" in output
    assert max(map(len, output.splitlines())) <= 100


@pytest.mark.slow
def test_fifty_failing_sources_of_a_thousand_come_first_and_the_others_are_counted(
    ingest: Ingest, home_store: Store
) -> None:
    with home_store.begin() as connection:
        now = home_store.clock.now(connection)
        ids = add_healthy_sources(connection, 1_000, now=now)
        ids_by_failure = break_sources(connection, ids, per_failure=10, now=now)

    output = ingest.output("status")
    status = ingest.json("status")

    failing = {source_id for source_ids in ids_by_failure.values() for source_id in source_ids}
    assert {line.split()[0] for line in output.splitlines() if ":n0" in line[:12]} == failing
    assert "950 more sources, none worse; `ingest status --all` shows them" in output
    assert "sources: 10 open, 10 disabled, 30 degraded, 950 healthy" in output
    assert {source["id"] for source in status["sources"][:50]} == failing
    assert len(status["sources"]) == 1_000
    first = status["sources"][0]
    assert (first["health"], first["breaker"], first["failure_count"]) == ("open", "open", 5)
    assert first["why"].startswith("breaker open until")
    assert first["health_reason"].startswith("breaker open: 5 failed polls in a row, last success")


@pytest.mark.slow
def test_a_probe_fails_for_a_silent_daemon_and_for_unhealthy_sources(ingest: Ingest, home_store: Store) -> None:
    probes = ("status", "--fail-on", "daemon"), ("status", "--fail-on", "sources")
    assert [ingest(*probe).exit_code for probe in probes] == [0, 0]

    with home_store.begin() as connection:
        now = home_store.clock.now(connection)
        break_sources(connection, add_healthy_sources(connection, 5, now=now), per_failure=1, now=now)
        long_ago = now - timedelta(minutes=10)
        connection.execute(insert(service_heartbeats).values(name="daemon", at=long_ago))
    silent, unwell = (ingest(*probe) for probe in probes)

    assert (silent.exit_code, unwell.exit_code) == (1, 1)
    assert "daemon not ticking: last tick 10m ago" in silent.stdout
    assert "1 open, 1 disabled, 3 degraded" in unwell.stderr
    assert ingest("status").exit_code == 0


def count_statements(ingest: Ingest, *line: str) -> Counter[str]:
    """Return the number of statements that a command sends to the home_store."""
    with recorded_statements(Engine) as statements:
        ingest.output(*line)
    return Counter(statement for statement, _ in statements)


@pytest.mark.slow
def test_a_thousand_sources_take_as_many_statements_as_fifty(ingest: Ingest, home_store: Store) -> None:
    with home_store.begin() as connection:
        add_healthy_sources(connection, 50, now=home_store.clock.now(connection))
    few = count_statements(ingest, "status").total()

    with home_store.begin() as connection:
        now = home_store.clock.now(connection)
        break_sources(connection, add_healthy_sources(connection, 1_000, now=now), per_failure=10, now=now)

    assert count_statements(ingest, "status").total() == few
    assert count_statements(ingest, "status", "--all").total() == few
    assert few <= 34


def test_metrics_are_printed_or_written_atomically(ingest: Ingest, tmp_path: Path) -> None:
    out = tmp_path / "ingestion.prom"
    output = ingest.output("metrics")

    ingest.output("metrics", "--out", str(out))

    assert "# TYPE ingestion_polls_total counter\n" in output
    assert out.read_text().splitlines()[:-1] == output.splitlines()[:-1]  # but for the time
    assert list(tmp_path.glob(".*.part")) == []
    assert "use one of them" in ingest.refused("metrics", "--out", str(out), "--serve", "0")


def test_a_missing_metrics_folder_is_a_one_line_error(ingest: Ingest, tmp_path: Path) -> None:
    result = ingest("metrics", "--out", str(tmp_path / "nowhere" / "x.prom"))

    assert result.exit_code == 1
    assert "No such file" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_scrape_of_loopback_is_answered(ingest: Ingest, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGESTION_HOME", str(home))
    with open_server(0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.request("GET", "/")
        other = connection.getresponse().status
        server.shutdown()

    assert (answer.status, other) == (200, 404)
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "ingestion_sources{" in body
    assert server.server_address[0] == "127.0.0.1"
