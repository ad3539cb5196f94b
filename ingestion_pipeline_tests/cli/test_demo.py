import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert

from ingestion_pipeline.demo.commands import demo_file, follower_secrets, program
from ingestion_pipeline.demo.content import DemoState, read_state, state_file
from ingestion_pipeline.demo.report import (
    NOTICE_NUMBERS,
    explain_no_notices,
    follower_counts,
    hint,
    poll_result,
    print_details,
    received,
    summary,
)
from ingestion_pipeline.demo.site import DemoSite, Inbox, read_inboxes
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.pages.http.guard import running_server
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import notices
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask
from ingestion_pipeline_tests.builders import NOON, a_source
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.demo.expected_results import DRIFTWOOD_BOARD, expected, expected_jobs, expected_visibility
from ingestion_pipeline_tests.exports.datasets import lineage_gaps, sample_lineages
from ingestion_pipeline_tests.processes import Child, run_command

PATIENCE_SECONDS = 600
INGEST = str(Path(sys.executable).parent / "ingest")


def test_the_demos_own_declaration_is_valid() -> None:
    assert demo_file().problems == ()
    assert len(demo_file().definitions) == 18
    assert [recipient.id for recipient in demo_file().recipients] == ["ann", "ben", "cleo", "ops"]


def test_the_site_is_changed_broken_and_repaired(ingest: Ingest, home: Path) -> None:
    ingest.output("demo", "mutate")
    assert "so far: 2 each" in ingest.output("demo", "mutate")
    assert f"`{program()} demo run`" in ingest.output("demo", "break")
    assert read_state(home) == DemoState(new_chapters=2, is_broken=True)

    ingest.output("demo", "break", "--repair")
    assert read_state(home) == DemoState(new_chapters=2)


def test_a_damaged_state_is_named_with_the_cure(ingest: Ingest, home: Path) -> None:
    state_file(home).parent.mkdir()
    state_file(home).write_text("{")

    assert "delete it to restart the demo" in ingest.refused("demo", "mutate")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({}, "not polled"),
        ({"last_checked_at": NOON - timedelta(seconds=1)}, "not polled"),
        ({"last_checked_at": NOON, "last_error_class": "permanent"}, "failed"),
        ({"last_checked_at": NOON, "last_changed_at": NOON}, "changed"),
        ({"last_checked_at": NOON, "last_outcome": "unchanged"}, "unchanged"),
        ({"last_checked_at": NOON, "last_outcome": "quarantined: lists nothing"}, "quarantined"),
    ],
)
def test_a_poll_has_a_one_word_result(source: dict[str, Any], expected: str) -> None:
    assert poll_result(a_source(**source), since=NOON) == expected


def test_the_suggested_command_works_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "ingest"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert f"`{INGEST} demo mutate && {INGEST} demo run`" in hint(program())

    monkeypatch.chdir(Path(INGEST).parents[2])
    relative = Path(INGEST).relative_to(Path.cwd())
    assert f"`{relative} demo mutate && {relative} demo run`" in hint(program())

    monkeypatch.setenv("PATH", str(Path(INGEST).parent))
    assert "`ingest demo mutate && ingest demo run`" in hint(program())


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_site_and_model_serve_until_they_are_stopped(tmp_path: Path, stop: signal.Signals, code: int) -> None:
    environment = os.environ | {"INGESTION_HOME": str(tmp_path)}
    line = [INGEST, "demo", "serve", "--model"]
    with subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True) as site:
        assert site.stdout is not None
        output = list(takewhile(lambda line: "Ctrl-C" not in line, site.stdout))
        server = running_server(tmp_path)
        assert server is not None
        second = Ingest({"INGESTION_HOME": str(tmp_path)}).refused("demo", "serve")
        headers = {"Host": "feeds.demo.test"}
        page = httpx.get(f"http://127.0.0.1:{server.port}/lighthouse.xml", headers=headers)
        model = output[-1].split()[0].removeprefix("OPENAI_BASE_URL=")
        answer = httpx.post(f"{model}/responses", json={"model": "any", "input": []})
        site.send_signal(stop)
        site.stdout.read()

    assert f"127.0.0.1:{server.port}" in output[0]
    assert any("its providers almanac and weathercock answer" in line for line in output)
    assert {"  http://feeds.demo.test\n", "  http://hooks.demo.test\n"} < set(output)
    assert (page.status_code, answer.status_code) == (200, 200)
    assert f"already running, on port {server.port}" in second
    assert site.returncode == code
    assert running_server(tmp_path) is None


def test_the_site_is_not_served_without_registered_demo_sources(ingest: Ingest, home: Path) -> None:
    assert ingest.output("demo", "serve", "--if-registered") == ""
    assert running_server(home) is None


def test_received_messages_are_listed_with_repeats_and_forgeries() -> None:
    before = {"ann": Inbox(taken={"m1": "One"}, repeats=1, refused=1)}
    after = {"ann": Inbox(taken={"m1": "One", "m2": "Two"}, repeats=3, refused=1), "ben": Inbox(taken={"m3": "Three"})}

    assert received(before, before) == {"received": [], "repeats": 0, "refused_messages": 0}
    assert received(before, after) == {
        "received": [{"follower": "ann", "title": "Two"}, {"follower": "ben", "title": "Three"}],
        "repeats": 2,
        "refused_messages": 0,
    }
    assert received({}, before)["refused_messages"] == 1


def test_notices_of_this_run_and_all_pending_ones_are_counted(store: Store) -> None:
    def notice_row(number: int, recipient: str, at: datetime, **changes: Any) -> dict[str, Any]:
        base = {"recipient": recipient, "subject_kind": "chapter", "subject_id": str(number)}
        state = {"status": "pending", "sent_at": None, "delivery_id": None}
        return base | state | {"mode": "digest", "payload": {}, "created_at": at} | changes

    before, due = NOON - timedelta(days=2), NOON + timedelta(hours=5)
    just_sent = {"status": "sent", "sent_at": NOON, "delivery_id": "m2"}
    rows = [
        notice_row(1, "ann", before, status="sent", sent_at=before, delivery_id="m1"),
        notice_row(2, "ann", NOON, **just_sent),
        notice_row(3, "ann", NOON, **just_sent),
        notice_row(2, "ben", before),
        notice_row(3, "ben", NOON),
    ]
    with store.begin() as connection:
        assert explain_no_notices(connection, since=NOON) == "none; nothing is new"
        connection.execute(insert(notices), rows)
        task = NewTask(kind="deliver", dedupe_key="ben", payload={}, not_before=due)
        insert_tasks(connection, [task], now=NOON)
        counted = follower_counts(connection, demo_file().recipients, since=NOON)
        assert explain_no_notices(connection, since=NOON) == "no message was sent yet"

    ann, ben, cleo, ops = [list(row.values()) for row in counted]
    assert ann == ["ann", "immediate", None, 2, 2, 1, 0, 0, None]
    assert ben == ["ben", "digest", "en", 1, 0, 0, 2, 0, due]
    assert [cleo[0], *ops] == ["cleo", "ops", *cleo[1:]]
    assert cleo[1:] == ["immediate", None, 0, 0, 0, 0, 0, None]


def test_a_follower_gets_a_test_message_and_a_new_key_works_at_once(
    ingest: Ingest, home: Path, home_store: Store
) -> None:
    ingest.output("recipients", "add", "ann", "http://hooks.demo.test/ann")
    with DemoSite(home, secret_of=follower_secrets(home_store)):
        assert "answered 200" in ingest.output("recipients", "test", "ann")
        ingest.output("recipients", "secret", "ann")
        assert "answered 200" in ingest.output("recipients", "test", "ann")

    inbox = read_inboxes(home)["ann"]
    assert (len(inbox.taken), inbox.refused) == (2, 0)


def by(rows: list[dict[str, Any]], *keys: str) -> dict[Any, dict[str, Any]]:
    return {row[keys[0]] if len(keys) == 1 else tuple(row[key] for key in keys): row for row in rows}


def check_datasets(*runs: dict[str, Any]) -> None:
    """As shipped, as shipped, then mutated once and with a model."""
    outcomes, unlike = ("catalog:harbour-outcomes", {"catalog:harbour-members", "catalog:harbour-annex"})
    datasets = [{name: [*row.values()][1:] for name, row in by(run["datasets"], "source").items()} for run in runs]
    # extraction, items, flagged, pages, version, state
    for rows, added, version in zip(datasets, (0, 0, 1), (1, 1, 2), strict=True):
        counts = expected(DemoState(new_chapters=added), has_browser=False)
        for name in counts.keys() - {outcomes, *unlike}:
            assert rows[name] == ["COMPLETE", counts[name].items, 0, counts[name].pages, version, "published"]
    first, _, third = datasets
    assert first[outcomes] == ["IN_PROGRESS", None, None, 0, None, None]
    assert third[outcomes] == ["COMPLETE", 6, 1, 2, 1, "published"]


def check_crawls(first: dict[str, Any], second: dict[str, Any], third: dict[str, Any]) -> None:
    def catalogs(report: dict[str, Any]) -> list[list[Any]]:
        return [[*row.values()] for row in report["catalogs"]]

    # pages, new, changed, unchanged, failed
    assert catalogs(first) == [
        ["catalog:harbour", 17, 15, 0, 0, 2, "complete"],
        ["catalog:tidewater", 4, 4, 0, 0, 0, "complete"],
        ["catalog:harbour-annex", 4, 3, 0, 0, 1, "complete"],
        ["catalog:harbour-members", 1, 0, 0, 0, 1, "disabled"],
        ["catalog:lantern", 3, 3, 0, 0, 0, "complete"],
        ["catalog:meadow", 18, 18, 0, 0, 0, "complete"],
        ["catalog:harbour-outcomes", 3, 3, 0, 0, 0, "unread"],
    ]
    assert catalogs(second)[0] == ["catalog:harbour", 17, 0, 0, 15, 2, "complete"]
    assert catalogs(second)[1] == ["catalog:tidewater", 4, 0, 0, 4, 0, "complete"]
    assert catalogs(second)[3][1:] == [0, 0, 0, 0, 0, "disabled"]
    assert catalogs(third)[0] == ["catalog:harbour", 18, 1, 2, 13, 2, "complete"]
    assert catalogs(third)[1] == ["catalog:tidewater", 4, 0, 2, 2, 0, "complete"]


def check_jobs(*runs: dict[str, Any]) -> None:
    """Two unchanged runs, then one mutation: removed jobs are accepted only in the next run."""
    states = (DemoState(), DemoState(), DemoState(new_chapters=1))
    for run, state in zip(runs, states, strict=True):
        counts, boards = expected_jobs(state, is_removal_confirmed=False), by(run["boards"], "board")
        for name, count in counts.items():
            numbers = {"jobs": count.jobs, "filtered": count.filtered, "skipped": count.skipped}
            assert boards[name].items() >= (numbers | {"matched": count.matched}).items()
        repeats = sum(count.repeats for count in counts.values())
        assert len(run["matches"]) == sum(count.matched for count in counts.values()) - repeats
        assert all(match["priority"] in {"high", "medium", "low"} and match["reason"] for match in run["matches"])
    first, second, third = runs
    [approved], [refused] = first["approved"], first["refused"]
    assert approved["board"] == "job_board:kestrel"
    assert approved["reason"].startswith("confidence low: ")
    assert (refused["kind"], refused["url"]) == ("company", "http://kestrel.demo.test/")
    assert refused["reason"] == "in ancestry"
    for run in (second, third):
        assert (run["refused"], run["approved"]) == ([], [])
    assert "16 found, 1 new, 1 updated, 1 missing once" in by(third["boards"], "board")[DRIFTWOOD_BOARD]["details"]


def check_visibility(*runs: dict[str, Any]) -> None:
    """Two unchanged runs, then one mutation: every provider's answers and the names in them."""
    names = {"website:saltmarsh": "Saltmarsh Coffee", "website:radwerft": "Radwerft"}
    states = (DemoState(), DemoState(), DemoState(new_chapters=1))
    tables = [by(run["visibility"], "source", "provider") for run in runs]
    for table, state in zip(tables, states, strict=True):
        for key, expected_row in expected_visibility(state).items():
            row = table[key]
            assert (row["business"], row["answers"], row["prompts"]) == (
                names[key[0]],
                expected_row.answered,
                expected_row.questions,
            )
            assert row["visible"] == pytest.approx(expected_row.visibility, abs=0.01)
            for name, count in expected_row.competitors.items():
                assert row["competitors"][name] == pytest.approx(count / expected_row.answered, abs=0.01)
            failed = expected_row.questions - expected_row.answered
            assert (row["failure"] or "").startswith(f"{failed} unanswered: http_500" if failed else "")
            assert (row["failure"] is None) == (failed == 0)
    # mean rank and score: named after its competitors, a business is worth less
    ranks = [table["website:radwerft", "almanac"] for table in tables]
    assert [(row["visible"], row["rank"], row["score"]) for row in ranks[1:]] == [(1.0, 1.0, 84), (1.0, 1.9, 72)]


def check_rankings(database: Path) -> None:
    """Four analyses of two businesses store one ranking each; another after midnight."""
    with closing(sqlite3.connect(database)) as rows:
        assert rows.execute("select count(*) from website_analyses").fetchone() == (8,)
        days = rows.execute("select business_id, day from website_rankings").fetchall()
    assert len({business for business, _ in days}) == 2
    assert len(days) in {2, 4}


def check_alerts(*runs: dict[str, Any]) -> None:
    """Two unchanged runs, a mutation, an outage: one message for everything that changed."""
    alerts = [[row["title"] for row in run["received"] if row["follower"] == "ops"] for run in runs]
    first = "catalog:harbour-members is disabled until it is enabled by hand, and 1 more"
    fourth = "catalog:harbour is degraded, and 5 more"
    assert alerts == [[first], [], [], [fourth]]
    assert [(run["health_counts"]["disabled"], run["health_counts"]["degraded"]) for run in runs] == [
        *((1, 1), (1, 1), (1, 1)),
        (1, 7),
    ]


def broken_lineages(home: Path) -> list[str]:
    """Return the lineage gaps of ten rows of each entity."""
    url = f"sqlite:///{home / 'ingestion.db'}"
    with closing(open_store(url)) as store, store.read() as connection:
        chains_by_table = sample_lineages(connection, ContentStore(home / "content"))
    assert [len(chains) >= 5 for chains in chains_by_table.values()] == [True] * 5
    return [gap for chains in chains_by_table.values() for chain in chains for gap in lineage_gaps(chain)]


def check_oddities(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Failed pages have a reason in each run; unusual pages only in the first."""
    for run in (first, second):
        members = by(run["unhealthy"], "source")["catalog:harbour-members"]
        assert members["reason"].startswith("disabled, behind a login wall")
        codes = {page["code"] for page in run["failed_pages"]}
        assert codes >= {"blocked by robots", "decompression bomb", "needs browser"}
    assert {page["kind"] for page in first["unusual_pages"]} >= {"redirect", "slow page", "charset", "crawl delay"}


def check_summaries(capsys: pytest.CaptureFixture[str], *runs: dict[str, Any]) -> None:
    """What people read: one block per system, and almost nothing where nothing has changed."""
    lines = [summary(run, INGEST) for run in runs]
    assert [len("\n".join(text).splitlines()) for text in lines][1] <= 5
    for text in (lines[0], lines[2], lines[3]):
        assert len("\n".join(text).splitlines()) < 40
        starts = [line.split()[0] for line in text if line and not line.startswith((" ", "Next", "`"))]
        assert starts == ["series", "catalogues", "companies", "jobs", "websites", "notices", "health"]
    print_details(runs[0])
    assert "job_board:kestrel" in capsys.readouterr().out


@pytest.mark.slow
def test_a_second_demo_run_finds_nothing_new_and_a_mutation_is_detected_and_notified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = {"INGESTION_HOME": str(tmp_path / "home"), "INGESTION_BROWSER": "none"}
    variables |= {"PATH": "/usr/bin:/bin", "INGESTION_WEBSITE__ANSWER_SECONDS": "600"}
    warnings: list[str] = []

    def run(*line: str) -> str:
        child = Child(run_command, str(tmp_path), [INGEST, "demo", *line], variables)
        result = child.result(within_seconds=PATIENCE_SECONDS)
        assert result.code == 0, result.errors
        warnings.append(result.errors)
        return result.out

    def facts(*line: str) -> dict[str, Any]:
        return json.loads(run("run", "--json", *line))

    def results(report: dict[str, Any]) -> tuple[Counter[str], int]:
        return Counter(row["result"] for row in report["polled"]), sum(row["new"] for row in report["polled"])

    first, second = facts(), facts()
    mutated = run("mutate")
    third = facts("--model")
    run("break")
    fourth = facts()

    def recipient_table(report: dict[str, Any]) -> dict[str, list[Any]]:
        return {row["follower"]: [row[name] for name in NOTICE_NUMBERS] for row in report["followers"]}

    assert results(first) == ({"changed": 6, "failed": 1}, 80)
    assert results(second) == ({"unchanged": 6, "failed": 1}, 0)
    assert f"`{INGEST} demo run`" in mutated
    assert results(third) == ({"changed": 3, "unchanged": 3, "failed": 1}, 3)
    assert (third["chapters"]["new"], third["chapters"]["outbox"]) == (2, 2)
    assert sum(third["model_requests"].values()) > 0
    assert [report["is_changed"] for report in (first, second, third, fourth)] == [True, False, True, True]
    # new, sent, messages, waiting, failed
    assert recipient_table(first)["ann"] == [0, 0, 0, 0, 0]
    assert (first["quiet"], second["quiet"]) == ("none; a first sync sends none", "none; nothing is new")
    assert (
        recipient_table(third).items()
        >= {"ann": [2, 2, 2, 0, 0], "ben": [2, 0, 0, 2, 0], "cleo": [2, 2, 1, 0, 0]}.items()
    )
    digest = datetime.fromisoformat(by(third["followers"], "follower")["ben"]["next_message_at"])
    assert timedelta(hours=22) < digest - datetime.now(UTC) <= timedelta(hours=24)
    assert broken_lineages(tmp_path / "home") == []
    messages = [(row["follower"], row["title"]) for row in third["received"]]
    assert (len(messages), third["repeats"], third["refused_messages"]) == (3, 0, 0)
    assert any(title.startswith("The Lighthouse Keeper: Chapter 23: ") for name, title in messages if name == "ann")
    assert any(title.startswith("The Clockmaker's Map: Chapter 13: ") for name, title in messages if name == "ann")
    assert "cleo" in dict(messages)
    check_crawls(first, second, third)
    check_datasets(first, second, third)
    check_jobs(first, second, third)
    check_visibility(first, second, third)
    check_rankings(tmp_path / "home" / "ingestion.db")
    assert "".join(warnings) == ""
    # the API has other field names: a gap of an earlier run is still reported
    broken, before = (by(report["boards"], "board")[DRIFTWOOD_BOARD] for report in (fourth, third))
    assert broken["result"] == "quarantined"
    assert [*broken.values()][2:6] == [*before.values()][2:6]
    assert "known jobs have lost their description" in broken["details"]
    check_summaries(capsys, first, second, third, fourth)
    check_alerts(first, second, third, fourth)
    check_oddities(first, second)
