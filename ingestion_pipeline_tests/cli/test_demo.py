import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert

from ingestion_pipeline.demo.commands import demo_file, follower_secrets, program
from ingestion_pipeline.demo.content import DemoState, read_state, state_file
from ingestion_pipeline.demo.report import (
    PolledSource,
    describe_received,
    explain_no_notices,
    hint,
    poll_result,
    print_followers,
    sums,
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
from ingestion_pipeline_tests.demo.expected_results import (
    DRIFTWOOD_BOARD,
    expected,
    expected_jobs,
    expected_visibility,
)
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


def test_the_sums_count_sources_and_new_records() -> None:
    new_by_result = {"changed": 3, "unchanged": 0, "failed": 0, "not polled": 0}
    polled = [PolledSource(source=a_source(), result=result, new=new) for result, new in new_by_result.items()]

    assert sums(polled) == "3 polled, 1 changed, 3 new, 1 unchanged, 1 failed"


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
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_site_and_model_serve_until_they_are_stopped(tmp_path: Path, stop: signal.Signals) -> None:
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
        rest = site.stdout.read()

    assert f"127.0.0.1:{server.port}" in output[0]
    assert any("its providers almanac and weathercock answer" in line for line in output)
    assert {"  http://feeds.demo.test\n", "  http://hooks.demo.test\n"} < set(output)
    assert (page.status_code, answer.status_code) == (200, 200)
    assert f"already running, on port {server.port}" in second
    assert rest == "stopped\n"
    assert site.returncode == 0
    assert running_server(tmp_path) is None


def test_the_site_is_not_served_without_registered_demo_sources(ingest: Ingest, home: Path) -> None:
    assert ingest.output("demo", "serve", "--if-registered") == ""
    assert running_server(home) is None


def test_received_messages_are_listed_and_their_absence_is_explained() -> None:
    before = {"ann": Inbox(taken={"m1": "One"}, repeats=1, refused=1)}
    after = {"ann": Inbox(taken={"m1": "One", "m2": "Two"}, repeats=3, refused=1), "ben": Inbox(taken={"m3": "Three"})}

    assert describe_received(before, before, otherwise="no news") == "no news"
    assert describe_received(before, after, otherwise="no news").splitlines() == [
        "hooks.demo.test took 2 messages, 2 repeats; every signature was valid",
        "  ann: Two",
        "  ben: Three",
    ]
    only_ops = {"ops": Inbox(taken={"m4": "series:a is degraded"})}
    description = describe_received({}, only_ops, otherwise="no news", besides=["ops"])
    assert description.splitlines()[1:] == ["  ops: series:a is degraded", "no news"]
    assert describe_received({}, before, otherwise="no news").startswith(
        "hooks.demo.test took 1 message, 1 repeat; 1 refused as not genuine"
    )


def test_the_table_counts_notices_of_this_run_and_all_pending_ones(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
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
        assert explain_no_notices(connection, since=NOON) == "no notices: nothing is new"
        connection.execute(insert(notices), rows)
        task = NewTask(kind="deliver", dedupe_key="ben", payload={}, not_before=due)
        insert_tasks(connection, [task], now=NOON)
        print_followers(connection, demo_file().recipients, since=NOON, now=NOON)
        assert explain_no_notices(connection, since=NOON) == "no message went out yet"

    ann, ben, cleo, ops = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert ann == ["ann", "at", "once", "2", "2", "1", "0", "0", "-"]
    assert ben == ["ben", "digest", "(en)", "1", "0", "0", "2", "0", "in", "5h"]
    assert [cleo[0], *ops] == ["cleo", "ops", *cleo[1:]]
    assert cleo[1:] == ["at", "once", "0", "0", "0", "0", "0", "-"]


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


def check_datasets(*runs: dict[str, list[str]]) -> None:
    """As shipped, as shipped, then mutated once and with a model."""
    outcomes, unlike = ("catalog:harbour-outcomes", {"catalog:harbour-members", "catalog:harbour-annex"})
    # extraction, items, flagged, pages, version, state
    for datasets, added, version in zip(runs, (0, 0, 1), ("1", "1", "2"), strict=True):
        counts = expected(DemoState(new_chapters=added), has_browser=False)
        for name in counts.keys() - {outcomes, *unlike}:
            items, pages = str(counts[name].items), str(counts[name].pages)
            assert datasets[name] == ["COMPLETE", items, "0", pages, version, "published"]
    first, _, third = runs
    assert first[outcomes] == ["IN_PROGRESS", "-", "-", "0", "-", "-"]
    assert third[outcomes] == ["COMPLETE", "6", "1", "2", "1", "published"]


def board(output: str, name: str) -> list[str]:
    """Return the row of a board: result, jobs, filtered, skipped, matched, and the first word of the reason."""
    lines = output.partition("\nboard ")[2].splitlines()
    return next(line.split()[1:] for line in lines if line.startswith(f"{name} "))


def check_jobs(*runs: str) -> None:
    """Two unchanged runs, then one mutation: removed jobs are accepted only in the next run."""
    states = (DemoState(), DemoState(), DemoState(new_chapters=1))
    for output, state in zip(runs, states, strict=True):
        counts = expected_jobs(state, is_removal_confirmed=False)
        for name, board_counts in counts.items():
            numbers = [board_counts.jobs, board_counts.filtered, board_counts.skipped, board_counts.matched]
            assert board(output, name)[1:5] == [str(number) for number in numbers]
        matches = output.rpartition("\nscore  priority ")[2].splitlines()
        match_lines = [line for line in matches if re.match(r" *\d+ +(high|medium|low) ", line)]
        repeats = sum(count.repeats for count in counts.values())
        assert len(match_lines) == sum(count.matched for count in counts.values()) - repeats
    first, second, third = runs
    assert "job_board:kestrel waited for approval (confidence low: " in first
    assert first.count("refused by the spawn guard: job ") == 1
    assert "-> company http://kestrel.demo.test/ (in ancestry)" in first
    for output in (second, third):
        assert "refused" not in output
        assert "waited for approval" not in output
    assert "16 found, 1 new, 1 updated, 1 missing once" in " ".join(third.split())


def check_visibility(*runs: str) -> None:
    """Two unchanged runs, then one mutation: every provider's answers and the names in them."""
    names = {"website:saltmarsh": "Saltmarsh Coffee", "website:radwerft": "Radwerft"}
    states = (DemoState(), DemoState(), DemoState(new_chapters=1))
    for output, state in zip(runs, states, strict=True):
        table = " ".join(output.rpartition("\nbusiness ")[2].split())
        for (source_id, provider), expected_row in expected_visibility(state).items():
            start = f"{names[source_id]} {provider} {expected_row.answered} of {expected_row.questions}"
            assert f"{start} {expected_row.visibility:.0%} " in table
            for name, count in expected_row.competitors.items():
                assert f"{name} {count / expected_row.answered:.0%}" in table.partition(start)[2]
            failed = expected_row.questions - expected_row.answered
            reason = f"{source_id}: {provider} left {failed} unanswered: http_500"
            assert (reason in output) == (failed > 0)
    # mean rank and score: named after its competitors, a business is worth less
    assert "Radwerft almanac 7 of 7 100% 1.0 84 " in " ".join(runs[1].split())
    assert "Radwerft almanac 7 of 7 100% 1.9 72 " in " ".join(runs[2].split())


def check_rankings(database: Path) -> None:
    """Four analyses of two businesses store one ranking each; another after midnight."""
    with closing(sqlite3.connect(database)) as rows:
        assert rows.execute("select count(*) from website_analyses").fetchone() == (8,)
        days = rows.execute("select business_id, day from website_rankings").fetchall()
    assert len({business for business, _ in days}) == 2
    assert len(days) in {2, 4}


def check_alerts(*runs: str) -> None:
    """Two unchanged runs, a mutation, an outage: one message for everything that changed."""
    alerts = [[line for line in run_output.splitlines() if "  ops: " in line] for run_output in runs]
    first = "catalog:harbour-members is disabled until it is enabled by hand, and 1 more"
    fourth = "catalog:harbour is degraded, and 5 more"
    assert alerts == [[f"  ops: {first}"], [], [], [f"  ops: {fourth}"]]
    counts = [output.partition("\nhealth: ")[2].partition(" degraded")[0] for output in runs]
    assert counts == ["1 disabled, 1", "1 disabled, 1", "1 disabled, 1", "1 disabled, 7"]


def broken_lineages(home: Path) -> list[str]:
    """Return the lineage gaps of ten rows of each entity."""
    url = f"sqlite:///{home / 'ingestion.db'}"
    with closing(open_store(url)) as store, store.read() as connection:
        chains_by_table = sample_lineages(connection, ContentStore(home / "content"))
    assert [len(chains) >= 5 for chains in chains_by_table.values()] == [True] * 5
    return [gap for chains in chains_by_table.values() for chain in chains for gap in lineage_gaps(chain)]


def check_oddities(first: str, second: str) -> None:
    """Failed pages have a reason in each run; unusual pages only in the first."""
    for output in (first, second):
        assert "catalog:harbour-members is disabled (behind a login wall)" in output
        for reason in ("blocked by robots ", "decompression bomb ", "needs browser "):
            assert f"\n{reason}" in output
    for oddity in ("redirect ", "slow page ", "charset ", "crawl delay "):
        assert f"\n{oddity}" in first


@pytest.mark.slow
def test_a_second_demo_run_finds_nothing_new_and_a_mutation_is_detected_and_notified(tmp_path: Path) -> None:
    variables = {"INGESTION_HOME": str(tmp_path / "home"), "INGESTION_BROWSER": "none"}
    variables |= {"PATH": "/usr/bin:/bin", "INGESTION_WEBSITE__ANSWER_SECONDS": "600"}
    warnings: list[str] = []

    def run(*line: str) -> str:
        child = Child(run_command, str(tmp_path), [INGEST, "demo", *line], variables)
        result = child.result(within_seconds=PATIENCE_SECONDS)
        assert result.code == 0, result.errors
        warnings.append(result.errors)
        return result.out

    first, second = run("run"), run("run")
    mutated = run("mutate")
    third = run("run", "--model")
    run("break")
    fourth = run("run")

    def table(output: str) -> list[list[str]]:
        return [line.split() for line in output.splitlines() if line.startswith("catalog:") and " is " not in line]

    def catalogs(output: str) -> list[list[str]]:
        return table(output.partition("\ndataset ")[0])

    def datasets(output: str) -> dict[str, list[str]]:
        return {name: row for name, *row in table(output.partition("\ndataset ")[2])}

    def recipient_table(output: str) -> list[list[str]]:
        return [line.split() for line in output.splitlines() if line.startswith(("ann ", "ben ", "cleo "))]

    assert f"`{INGEST} status`" in first
    assert "7 polled, 6 changed, 80 new, 0 unchanged, 1 failed" in first
    assert "7 polled, 0 changed, 0 new, 6 unchanged, 1 failed" in second
    assert f"`{INGEST} demo run`" in mutated
    assert "7 polled, 3 changed, 3 new, 3 unchanged, 1 failed" in third
    assert "new among them: 2; outbox rows: 2" in third
    assert "requests to the demo's model: " in third
    # new, sent, messages, waiting, failed
    assert recipient_table(first)[0] == ["ann", "at", "once", "0", "0", "0", "0", "0", "-"]
    assert "no notices: a first sync" in first
    assert "no notices: nothing is new" in second
    assert recipient_table(third) == [
        ["ann", "at", "once", "2", "2", "2", "0", "0", "-"],
        ["ben", "digest", "(en)", "2", "0", "0", "2", "0", "in", "24h"],
        ["cleo", "at", "once", "2", "2", "1", "0", "0", "-"],
    ]
    assert broken_lineages(tmp_path / "home") == []
    assert "took 3 messages, 0 repeats; every signature was valid" in third
    assert "  ann: The Lighthouse Keeper: Chapter 23: " in third
    assert "  ann: The Clockmaker's Map: Chapter 13: " in third
    # pages, new, changed, unchanged, failed
    assert catalogs(first) == [
        ["catalog:harbour", "17", "15", "0", "0", "2", "complete"],
        ["catalog:tidewater", "4", "4", "0", "0", "0", "complete"],
        ["catalog:harbour-annex", "4", "3", "0", "0", "1", "complete"],
        ["catalog:harbour-members", "1", "0", "0", "0", "1", "disabled"],
        ["catalog:lantern", "3", "3", "0", "0", "0", "complete"],
        ["catalog:meadow", "18", "18", "0", "0", "0", "complete"],
        ["catalog:harbour-outcomes", "3", "3", "0", "0", "0", "unread"],
    ]
    assert catalogs(second)[0] == ["catalog:harbour", "17", "0", "0", "15", "2", "complete"]
    assert catalogs(second)[1] == ["catalog:tidewater", "4", "0", "0", "4", "0", "complete"]
    assert catalogs(second)[3][1:] == ["0", "0", "0", "0", "0", "disabled"]
    assert catalogs(third)[0] == ["catalog:harbour", "18", "1", "2", "13", "2", "complete"]
    assert catalogs(third)[1] == ["catalog:tidewater", "4", "0", "2", "2", "0", "complete"]
    check_datasets(datasets(first), datasets(second), datasets(third))
    check_jobs(first, second, third)
    check_visibility(first, second, third)
    check_rankings(tmp_path / "home" / "ingestion.db")
    assert "".join(warnings).splitlines() == [
        "spawn refused kind=company url=http://kestrel.demo.test/ reason=in_ancestry"
    ]
    assert "  cleo: " in third
    # the API has other field names: a gap of an earlier run is still reported
    assert board(fourth, DRIFTWOOD_BOARD)[0] == "quarantined"
    assert board(fourth, DRIFTWOOD_BOARD)[1:5] == board(third, DRIFTWOOD_BOARD)[1:5]
    assert "known jobs have lost their description" in " ".join(fourth.split())
    check_alerts(first, second, third, fourth)
    check_oddities(first, second)
