from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingestion_pipeline.cli.demo import demo_file, hint, program
from ingestion_pipeline.cli.demo_summary import Polled, came_to, sums
from ingestion_pipeline.demo.names import published_port
from ingestion_pipeline.demo.state import DemoState, read_state, state_file
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.sources.test_status import a_source

INGEST = str(Path(sys.executable).parent / "ingest")


def test_the_demos_own_declaration_is_valid() -> None:
    assert demo_file().problems == ()
    assert len(demo_file().definitions) == 7


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
def test_the_site_serves_until_it_is_told_to_stop(tmp_path: Path, stop: signal.Signals) -> None:
    environment = os.environ | {"INGESTION_HOME": str(tmp_path)}
    line = [INGEST, "demo", "serve"]
    with subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True) as site:
        assert site.stdout is not None
        said = [site.stdout.readline() for _ in range(7)]
        port = published_port(tmp_path)
        second = Ingest({"INGESTION_HOME": str(tmp_path)}).refused("demo", "serve")
        headers = {"Host": "feeds.demo.test"}
        page = httpx.get(f"http://127.0.0.1:{port}/lighthouse.xml", headers=headers)
        site.send_signal(stop)
        rest = site.stdout.read()

    assert f"127.0.0.1:{port}" in said[0]
    assert "  http://feeds.demo.test\n" in said
    assert page.status_code == 200
    assert f"already, on port {port}" in second
    assert rest == "stopped\n"
    assert site.returncode == 0
    assert published_port(tmp_path) is None


def test_the_site_is_not_served_for_nobody(ingest: Ingest, home: Path) -> None:
    assert ingest.done("demo", "serve", "--if-registered") == ""
    assert published_port(home) is None


@pytest.mark.slow
def test_a_second_demo_run_finds_nothing_new_and_a_mutation_is_found(tmp_path: Path) -> None:
    variables = {"INGESTION_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
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
    third = run("run")

    assert f"`{INGEST} status`" in first
    assert "7 polled, 6 changed, 80 new, 0 unchanged, 1 failed" in first
    assert "7 polled, 0 changed, 0 new, 6 unchanged, 1 failed" in second
    assert f"`{INGEST} demo run`" in mutated
    assert "7 polled, 3 changed, 3 new, 3 unchanged, 1 failed" in third
    assert "new among them: 2; outbox rows: 2" in third
