"""Whatever is typed wrong, or is not there: a sentence and a cure, nothing half-written."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from ingestion_pipeline.cli.output import cell_width
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.processes import Child, run_without_a_reader
from ingestion_pipeline_tests.reading.tables import table

INGEST = str(Path(sys.executable).parent / "ingest")
LONG = "x" * 50_000


@pytest.mark.slow
@pytest.mark.parametrize(("line", "message"), table(__file__, "test_bad_input_is_refused_with_a_cure"))
def test_bad_input_is_refused_with_a_cure(ingest: Ingest, line: str, message: str) -> None:
    assert message in ingest.refused(*line.split())


@pytest.mark.parametrize("line", [("explain", LONG), ("export", LONG), ("sources", "show", LONG), ("read", LONG)])
def test_a_huge_argument_is_refused(ingest: Ingest, line: tuple[str, ...]) -> None:
    message = ingest.refused(*line)

    assert 0 < len(message) < 2 * len(LONG)  # one message, which may repeat the argument once


def test_a_folder_is_no_file(ingest: Ingest, tmp_path: Path) -> None:
    message = ingest.refused("read", str(tmp_path), "--platform", "rss", "--kind", "series")

    assert str(tmp_path) in " ".join(message.split())


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:////proc/none/x.db", "cannot be opened"),
        ("sqlite://", "name a file"),
        ("postgresql://me:hush@127.0.0.1:1/x", "postgresql+psycopg2://me:***@127.0.0.1:1/x"),
        ("postgresql://127.0.0.1:1/x?user=me&password=hush", "127.0.0.1:1/x?user=me"),
        ("postgresql://nobody@127.0.0.1:1/none", "is the server running"),
        ("mysql://me:hush@db/x", "takes sqlite:///FILE and postgresql://"),
        ("hush hush", "INGESTION_DATABASE_URL"),
    ],
)
@pytest.mark.parametrize("line", ["status", "export chapters", "explain chapters:1"])
def test_a_database_that_cannot_be_opened_is_named_without_its_password(
    ingest: Ingest, url: str, message: str, line: str
) -> None:
    refusal = ingest.refused(*line.split(), INGESTION_DATABASE_URL=url)

    assert message in refusal
    assert "hush" not in refusal


def test_a_home_that_is_a_file_is_named(ingest: Ingest, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert "check the file and its folder" in ingest.refused("status", INGESTION_HOME=str(tmp_path / "file"))


def test_broken_yaml_is_reported_with_its_line(ingest: Ingest, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("sources:\n- id: [")
    result = ingest("sources", "import", str(tmp_path / "bad.yaml"))

    assert result.exit_code in {1, 2}
    assert "bad.yaml:" in result.output
    assert "Traceback" not in result.output


def test_no_color_and_a_plain_locale_change_no_text(ingest: Ingest) -> None:
    plain = ingest("sources", "list", NO_COLOR="1", LC_ALL="C", PYTHONIOENCODING="ascii")

    assert plain.exit_code == 0
    assert "\x1b" not in plain.output


def start_command(home: Path, *line: str) -> subprocess.Popen[bytes]:
    variables = {**os.environ, "INGESTION_HOME": str(home)}
    pipe = subprocess.PIPE
    return subprocess.Popen([INGEST, *line], env=variables, stdout=pipe, stderr=pipe)


@pytest.mark.slow
def test_a_locked_file_and_ctrl_c_leave_nothing_partially_written(home: Path) -> None:
    with closing(sqlite3.connect(home / "ingestion.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        process = start_command(home, "export", "sources", "--since-last")
        exports, patience = home / "exports", time.monotonic() + 60
        while not exports.is_dir() and time.monotonic() < patience:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        other.execute("ROLLBACK")  # SQLite itself waits for it, and handles no signal meanwhile
        _, message = process.communicate(timeout=60)

    assert process.returncode == 130
    assert message.strip().startswith(b"error: interrupted: stopped by Ctrl-C: no partial result was written")
    assert b"Traceback" not in message
    assert list(exports.iterdir()) == []


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(home: Path) -> None:
    with start_command(home, "settings", "list") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        message = process.stderr.read()

    assert message == b""


@pytest.fixture(scope="module")
def demo_home(tmp_path_factory: pytest.TempPathFactory) -> Ingest:
    """A home in which the demo has run, so that every table has rows."""
    folder = tmp_path_factory.mktemp("demo")
    ingest = Ingest({"INGESTION_HOME": str(folder / "home"), "INGESTION_SOURCES": str(folder)})
    ingest.output("demo", "run")
    return ingest


LISTINGS = (
    *("status", "status --json", "status --workers", "sources list", "sources list --json"),
    *("settings list", "dead-letters list", "dead-letters list --grouped", "series list"),
    *("companies list", "listings list", "matches list", "notices list", "extractions list"),
    *("websites list", "recipients list", "metrics", "profile example", "--help", "read --help"),
)


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{}, {"COLUMNS": "80"}], ids=["piped", "80 columns"])
def test_every_table_fits_80_columns(demo_home: Ingest, variables: dict[str, str]) -> None:
    tables = [
        line for line in LISTINGS if "--" not in line and line.split()[0] not in {"metrics", "profile", "settings"}
    ]
    shown = {line: demo_home.with_variables(variables, *line.split()).stdout.splitlines() for line in tables}

    too_wide = {line: [text for text in lines if cell_width(text) > 80] for line, lines in shown.items()}
    assert {line: texts for line, texts in too_wide.items() if texts} == {}
    assert all(len(lines) > 2 for line, lines in shown.items() if line != "extractions list")


@pytest.mark.slow
def test_every_list_command_tolerates_a_closed_pipe(home: Path) -> None:
    outcomes = Child(run_without_a_reader, str(home), [line.split() for line in LISTINGS]).result()

    assert {line: message for line, message in zip(LISTINGS, outcomes, strict=True) if message != (1, "")} == {}


@pytest.mark.parametrize(
    ("line", "variables", "code", "message"),
    [
        ("status", {"INGESTION_HOME": "/sys/none"}, 2, "set INGESTION_HOME"),
        ("demo mutate", {"INGESTION_HOME": "/sys/none"}, 1, "choose a path that you can write to"),
        ("export sources --out /sys/x.csv", {}, 2, "cannot write /sys/x.csv"),
        ("metrics --out /sys/x.prom", {}, 1, "choose a path that you can write to"),
        ("sources import", {"INGESTION_SOURCES": "/sys/none"}, 2, "INGESTION_SOURCES names"),
    ],
)
def test_an_unwritable_path_is_named_with_the_cure(
    ingest: Ingest, line: str, variables: dict[str, str], code: int, message: str
) -> None:
    result = ingest.with_variables(variables, *line.split())

    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(("line", "code"), table(__file__, "test_a_refusal_has_a_stable_code"))
def test_a_refusal_has_a_stable_code(ingest: Ingest, line: str, code: str) -> None:
    assert ingest.refused(*line.split()).startswith(f"error: {code}: ")


@pytest.mark.parametrize("command", ["settings set crawl.delay_secs 1", "settings unset crawl.delay_secs"])
def test_a_misspelt_setting_is_refused_with_the_nearest_names(ingest: Ingest, command: str) -> None:
    assert "did you mean crawl.delay_seconds" in ingest.refused(*command.split())
