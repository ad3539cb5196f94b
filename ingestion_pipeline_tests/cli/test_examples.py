"""Every command shows how it is typed, and what it shows can be typed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ingestion_pipeline.cli.main import EXAMPLES, commands, every_command
from ingestion_pipeline_tests.cli.conftest import Ingest

FILES = ("feed.xml", "jobs.json")
COMMANDS = {path: inner for name, command in every_command().items() for path, inner in commands(command, name)}
TYPED = [(path, line) for path, lines in EXAMPLES.items() for line in lines]


def test_every_command_has_an_example_and_every_example_a_command() -> None:
    assert set(EXAMPLES) == set(COMMANDS)


@pytest.mark.parametrize(("path", "line"), TYPED, ids=[line for _, line in TYPED])
def test_an_example_is_a_line_that_its_command_takes(
    path: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsed as far as it goes without being run: options, arguments and their kinds."""
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        Path(name).touch()
    _, _, ours = line.rpartition("ingest ")
    words = shlex.split(ours.partition(" > ")[0])
    begun = path.split()

    assert words[: len(begun)] == begun
    with COMMANDS[path].make_context(path, words[len(begun) :]):
        pass  # what was opened is closed


def test_help_shows_the_examples_as_they_are_typed(ingest: Ingest) -> None:
    shown = ingest.done("dead-letters", "discard", "--help")

    assert "Examples:\n    ingest dead-letters discard 7 --reason" in shown
