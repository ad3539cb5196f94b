from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert

from ingestion_pipeline.cli.demo import follower_secrets, hint, program
from ingestion_pipeline.cli.demo_declared import demo_file
from ingestion_pipeline.cli.demo_followers import received, say_followers, silence
from ingestion_pipeline.cli.demo_summary import Polled, came_to, sums
from ingestion_pipeline.demo.hooks import Inbox, read_inboxes
from ingestion_pipeline.demo.names import published_port
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.demo.state import DemoState, read_state, state_file
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import notices
from ingestion_pipeline.work.queue import insert_tasks
from ingestion_pipeline.work.task import NewTask
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.sources.test_status import a_source

INGEST = str(Path(sys.executable).parent / "ingest")


def test_the_demos_own_declaration_is_valid() -> None:
    assert demo_file().problems == ()
    assert len(demo_file().definitions) == 11
    assert [one.id for one in demo_file().recipients] == ["ann", "ben"]


def test_the_site_is_changed_broken_and_repaired(ingest: Ingest, home: Path) -> None:
    ingest.done("demo", "mutate")
    assert "so far: 2 each" in ingest.done("demo", "mutate")
    assert f"`{program()} demo run`" in ingest.done("demo", "break")
    assert read_state(home) == DemoState(new_chapters=2, is_broken=True)

    ingest.done("demo", "break", "--repair")
    assert read_state(home) == DemoState(new_chapters=2)


def test_a_damaged_state_is_named_with_the_cure(ingest: Ingest, home: Path) -> None:
    state_file(home).parent.mkdir()
    state_file(home).write_text("{")

    assert "delete it to start the demo afresh" in ingest.refused("demo", "mutate")


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
def test_a_poll_comes_to_one_word(source: dict[str, Any], expected: str) -> None:
    assert came_to(a_source(**source), since=NOON) == expected


def test_the_sums_count_sources_and_new_records() -> None:
    words = {"changed": 3, "unchanged": 0, "failed": 0, "not polled": 0}
    polled = [Polled(source=a_source(), came_to=word, new=new) for word, new in words.items()]

    assert sums(polled) == "3 polled, 1 changed, 3 new, 1 unchanged, 1 failed"


def test_the_hint_can_be_typed_where_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "ingest"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert f"`{INGEST} demo mutate && {INGEST} demo run`" in hint(program())

    monkeypatch.chdir(Path(INGEST).parents[2])
    shown = Path(INGEST).relative_to(Path.cwd())
    assert f"`{shown} demo mutate && {shown} demo run`" in hint(program())

    monkeypatch.setenv("PATH", str(Path(INGEST).parent))
    assert "`ingest demo mutate && ingest demo run`" in hint(program())


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_site_and_model_serve_until_they_are_told_to_stop(
    tmp_path: Path, stop: signal.Signals
) -> None:
    environment = os.environ | {"INGESTION_HOME": str(tmp_path)}
    line = [INGEST, "demo", "serve", "--model"]
    with subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True) as site:
        assert site.stdout is not None
        said = [site.stdout.readline() for _ in range(14)]
        port = published_port(tmp_path)
        second = Ingest({"INGESTION_HOME": str(tmp_path)}).refused("demo", "serve")
        headers = {"Host": "feeds.demo.test"}
        page = httpx.get(f"http://127.0.0.1:{port}/lighthouse.xml", headers=headers)
        model = said[-2].split()[0].removeprefix("OPENAI_BASE_URL=")
        answer = httpx.post(f"{model}/responses", json={"model": "any", "input": []})
        site.send_signal(stop)
        rest = site.stdout.read()

    assert f"127.0.0.1:{port}" in said[0]
    assert {"  http://feeds.demo.test\n", "  http://hooks.demo.test\n"} < set(said)
    assert (page.status_code, answer.status_code) == (200, 200)
    assert f"already, on port {port}" in second
    assert rest == "stopped\n"
    assert site.returncode == 0
    assert published_port(tmp_path) is None


def test_the_site_is_not_served_for_nobody(ingest: Ingest, home: Path) -> None:
    assert ingest.done("demo", "serve", "--if-registered") == ""
    assert published_port(home) is None


def test_what_came_is_told_message_by_message_and_silence_is_explained() -> None:
    before = {"ann": Inbox(taken={"m1": "One"}, repeats=1, refused=1)}
    after = {
        "ann": Inbox(taken={"m1": "One", "m2": "Two"}, repeats=3, refused=1),
        "ben": Inbox(taken={"m3": "Three"}),
    }

    assert received(before, before, otherwise="no news") == "no news"
    assert received(before, after, otherwise="no news").splitlines() == [
        "hooks.demo.test took 2 messages, 2 repeats; every signature was valid",
        "  ann: Two",
        "  ben: Three",
    ]
    assert received({}, before, otherwise="no news").startswith(
        "hooks.demo.test took 1 message, 1 repeat; 1 refused as not genuine"
    )


def test_the_table_counts_this_runs_notices_and_all_that_wait(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(nth: int, who: str, at: datetime, **more: Any) -> dict[str, Any]:
        base = {"recipient": who, "subject_kind": "chapter", "subject_id": str(nth)}
        went = {"status": "pending", "sent_at": None, "delivery_id": None}
        return base | went | {"mode": "digest", "payload": {}, "created_at": at} | more

    before, due = NOON - timedelta(days=2), NOON + timedelta(hours=5)
    just_sent = {"status": "sent", "sent_at": NOON, "delivery_id": "m2"}
    rows = [
        told(1, "ann", before, status="sent", sent_at=before, delivery_id="m1"),
        told(2, "ann", NOON, **just_sent),
        told(3, "ann", NOON, **just_sent),
        told(2, "ben", before),
        told(3, "ben", NOON),
    ]
    with store.begin() as connection:
        assert silence(connection, since=NOON) == "nobody is told: there is no news"
        connection.execute(insert(notices), rows)
        task = NewTask(kind="deliver", dedupe_key="ben", payload={}, not_before=due)
        insert_tasks(connection, [task], now=NOON)
        say_followers(connection, demo_file().recipients, since=NOON, now=NOON)
        assert silence(connection, since=NOON) == "no message went out yet"

    ann, ben = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert ann == ["ann", "at", "once", "2", "2", "1", "0", "0", "-"]
    assert ben == ["ben", "digest", "(en)", "1", "0", "0", "2", "0", "in", "5h"]


def test_a_follower_gets_a_test_message_and_another_key_is_known_at_once(
    ingest: Ingest, home: Path, database: Store
) -> None:
    ingest.done("recipients", "add", "ann", "http://hooks.demo.test/ann")
    with DemoSite(home, secret_of=follower_secrets(database)):
        assert "answered 200" in ingest.done("recipients", "test", "ann")
        ingest.done("recipients", "secret", "ann")
        assert "answered 200" in ingest.done("recipients", "test", "ann")

    inbox = read_inboxes(home)["ann"]
    assert (len(inbox.taken), inbox.refused) == (2, 0)


@pytest.mark.slow
def test_a_second_demo_run_finds_nothing_new_and_a_mutation_is_found_and_told(
    tmp_path: Path,
) -> None:
    variables = {"INGESTION_HOME": str(tmp_path / "home"), "INGESTION_BROWSER": "none"}
    variables |= {"PATH": "/usr/bin:/bin"}
    environment = {**os.environ, **variables}

    def run(*line: str) -> str:
        done = subprocess.run(
            [INGEST, "demo", *line],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    first, second = run("run"), run("run")
    mutated = run("mutate")
    third = run("run", "--model")

    def table(said: str, heading: str) -> list[list[str]]:
        under = said.partition(f"\n{heading} ")[2].partition("\n\n")[0]
        return [line.split() for line in under.splitlines() if line.startswith("catalog:")]

    def catalogs(said: str) -> list[list[str]]:
        return table(said, "catalogue")

    def told(said: str) -> list[list[str]]:
        return [line.split() for line in said.splitlines() if line.startswith(("ann ", "ben "))]

    assert f"`{INGEST} status`" in first
    assert "7 polled, 6 changed, 80 new, 0 unchanged, 1 failed" in first
    assert "7 polled, 0 changed, 0 new, 6 unchanged, 1 failed" in second
    assert f"`{INGEST} demo run`" in mutated
    assert "7 polled, 3 changed, 3 new, 3 unchanged, 1 failed" in third
    assert "new among them: 2; outbox rows:" in third
    # extraction, items, flagged, pages, version, state
    assert table(first, "dataset") == [
        ["catalog:harbour", "COMPLETE", "11", "0", "11", "1", "published"],
        ["catalog:tidewater", "COMPLETE", "22", "0", "3", "1", "published"],
        ["catalog:harbour-annex", "COMPLETE", "2", "0", "2", "1", "published"],
        ["catalog:harbour-members", "STALE", "-", "-", "0", "-", "-"],
        ["catalog:lantern", "COMPLETE", "45", "0", "3", "1", "published"],
        ["catalog:meadow", "COMPLETE", "14", "0", "14", "1", "published"],
        ["catalog:harbour-outcomes", "IN_PROGRESS", "-", "-", "0", "-", "-"],
    ]
    assert "/outcomes/navigation: no model configured" in " ".join(first.split())
    assert [row[2] for row in table(second, "dataset")[:3]] == ["11", "22", "2"]
    assert [row[5] for row in table(second, "dataset")[:3]] == ["1", "1", "1"]
    assert [row[2] for row in table(third, "dataset")] == ["12", "23", "2", "-", "46", "15", "6"]
    # What waited for a model is read by it; what it invents is flagged.
    assert table(third, "dataset")[6][1:4] == ["COMPLETE", "6", "1"]
    assert "the demo's model was asked: demo-cheap" in third
    # new, sent, messages, waiting, failed
    assert told(first)[0] == ["ann", "at", "once", "0", "0", "0", "0", "0", "-"]
    assert "nobody is told of a first sync" in first
    assert "nobody is told: there is no news" in second
    assert told(third) == [
        ["ann", "at", "once", "2", "2", "2", "0", "0", "-"],
        ["ben", "digest", "(en)", "2", "0", "0", "2", "0", "in", "24h"],
    ]
    assert "took 2 messages, 0 repeats; every signature was valid" in third
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
        ["catalog:harbour-outcomes", "3", "3", "0", "0", "0", "complete"],
    ]
    assert catalogs(second)[0] == ["catalog:harbour", "17", "0", "0", "15", "2", "complete"]
    assert catalogs(second)[1] == ["catalog:tidewater", "4", "0", "0", "4", "0", "complete"]
    assert catalogs(second)[3][1:] == ["0", "0", "0", "0", "0", "disabled"]
    assert catalogs(third)[0] == ["catalog:harbour", "18", "1", "2", "13", "2", "complete"]
    assert catalogs(third)[1] == ["catalog:tidewater", "4", "0", "2", "2", "0", "complete"]
    for said in (first, second):
        assert "catalog:harbour-members is disabled (behind a login wall)" in said
        for reason in ("blocked by robots ", "decompression bomb ", "needs browser "):
            assert f"\n{reason}" in said
