"""`ingest` in this process, on a home of its own, and the store it works on."""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ingestion_pipeline.cli import main
from ingestion_pipeline.store import Store, open_store


class Ingest:
    """The `ingest` command with an environment of its own; calling it runs a command line."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)

    def __call__(self, *arguments: str, stdin: bytes = b"", **variables: str) -> Result:
        return self.with_variables(variables, *arguments, stdin=stdin)

    def with_variables(self, variables: Mapping[str, str], *arguments: str, stdin: bytes = b"") -> Result:
        """Run the command with these variables added."""
        runner = CliRunner(env={**self.environment, **variables})
        return runner.invoke(main, list(arguments), input=stdin)

    def output(self, *arguments: str) -> str:
        """Return the stdout of a command that must succeed."""
        result = self(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str) -> Any:
        """Return the parsed `--json` output of a command that must succeed."""
        return json.loads(self.output(*arguments, "--json"))

    def refused(self, *arguments: str, **variables: str) -> str:
        """Return the stderr of a command that must refuse its input."""
        result = self.with_variables(variables, *arguments)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        return result.stderr


@pytest.fixture
def home(tmp_path: Path, sqlite_template: Path) -> Path:
    """A home with a migrated SQLite in it."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    shutil.copy(sqlite_template, folder / "ingestion.db")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of source files."""
    sources_folder = tmp_path / "sources"
    sources_folder.mkdir()
    return sources_folder


@pytest.fixture
def ingest(home: Path, folder: Path) -> Ingest:
    return Ingest({"INGESTION_HOME": str(home), "INGESTION_SOURCES": str(folder)})


@pytest.fixture
def home_store(home: Path) -> Iterator[Store]:
    """The store that `ingest` works on, at the real time."""
    store = open_store(f"sqlite:///{home / 'ingestion.db'}")
    yield store
    store.close()
