"""Commands that may take more than two seconds show their progress on a terminal, and nothing of it in a pipe."""

import contextlib
import os
import pty
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

COMMANDS = {
    "init": "database",
    "doctor --offline": "checks",
    "sources import": "1/1",
    "export sources --out rows.csv": "sources",
    "export sources --since-last": "sources",
}
SOURCE = "sources: [{id: 'series:one', kind: series, url: 'https://one.test/feed.xml', platform: rss}]"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "mine.yaml").write_text(SOURCE)
    run(tmp_path, "sources import", stderr=subprocess.PIPE)
    return tmp_path


def run(home: Path, command: str, *, stderr: int) -> bytes:
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    variables = {"INGESTION_HOME": str(home / "home"), "TERM": "xterm", "COLUMNS": "80", **inherited}
    line = [sys.executable, "-m", "ingestion_pipeline", *command.split()]
    done = subprocess.run(line, cwd=home, env=variables, stdout=subprocess.PIPE, stderr=stderr, check=False)
    assert done.returncode in {0, 1}, done.stdout
    return done.stderr or b""


def shown_on_a_terminal(home: Path, command: str) -> bytes:
    """Return what the command writes to its terminal; it is read meanwhile, since a write blocks after 4 kB."""
    ours, theirs = pty.openpty()
    try:
        with ThreadPoolExecutor(1) as pool:
            shown = pool.submit(read_to_end, ours)
            try:
                run(home, command, stderr=theirs)
            finally:
                os.close(theirs)
            return shown.result()
    finally:
        os.close(ours)


def read_to_end(handle: int) -> bytes:
    shown = b""
    with contextlib.suppress(OSError):  # what the end of a terminal looks like on Linux
        while part := os.read(handle, 100_000):
            shown += part
    return shown


@pytest.mark.slow
@pytest.mark.parametrize(("command", "step"), COMMANDS.items())
def test_a_long_command_shows_its_progress_on_a_terminal_alone(home: Path, command: str, step: str) -> None:
    on_a_terminal = shown_on_a_terminal(home, command)
    in_a_pipe = run(home, command, stderr=subprocess.PIPE)

    assert step.encode() in on_a_terminal
    assert b"\x1b[" in on_a_terminal
    assert b"\x1b[" not in in_a_pipe
