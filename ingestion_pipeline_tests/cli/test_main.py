"""The `ingest` command itself: help, examples, errors and settings."""

import errno
import os
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from sqlalchemy import insert, inspect, select, text
from sqlalchemy.exc import OperationalError

from ingestion_pipeline.cli.main import COMMANDS, commands, every_command, example_lines, examples, explain
from ingestion_pipeline.cli.session import actor, shown_database, without_password
from ingestion_pipeline.cli.settings import setting_rows
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import audit_log, settings
from ingestion_pipeline_tests.cli.conftest import Ingest

INGEST = Path(sys.executable).parent / "ingest"
ROOT = Path(__file__).parents[2]


HEAVY = {
    *("dagster", "pandas", "pyarrow", "openai", "playwright", "matplotlib", "alembic"),
    *("httpx", "aiohttp", "feedparser", "selectolax", "rich", "apprise", "dateparser", "yaml"),
}
AFTER = """
import sys
from ingestion_pipeline.cli import main
main(sys.argv[1:], standalone_mode=False)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "unwanted"), [("--help", {*HEAVY, "sqlalchemy", "pydantic"}), ("status", HEAVY)], ids=["--help", "status"]
)
def test_a_quick_command_loads_nothing_heavy(home: Path, line: str, unwanted: set[str]) -> None:
    process = subprocess.run(
        [sys.executable, "-c", AFTER, line],
        env={**os.environ, "INGESTION_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )

    loaded = process.stdout.splitlines()[-1].split()
    assert "click" in loaded
    assert unwanted & set(loaded) == set()


def test_a_command_loads_no_other_command() -> None:
    script = "import sys; from ingestion_pipeline.cli import main; main.get_command(None, 'status')"
    code = "print(*(name for name in sys.modules if name.startswith('ingestion_pipeline.cli.')))"
    line = [sys.executable, "-c", f"{script}; {code}"]

    process = subprocess.run(line, capture_output=True, text=True, check=True)

    names = {name.removeprefix("ingestion_pipeline.cli.") for name in process.stdout.split()}
    assert names == {"main", "output", "session", "status"}


def test_init_writes_the_files_of_a_new_project_and_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "workspace.yaml").write_text("mine")
    ingest = Ingest({"INGESTION_HOME": str(tmp_path / "home")})

    first, second = ingest.output("init"), ingest.output("init")

    written = {path.name: path.read_text() for path in (Path("dagster.yaml"), Path("sources/example.yaml"))}
    assert written["dagster.yaml"] == (ROOT / "dagster.yaml").read_text()
    assert written["example.yaml"] == (ROOT / "sources" / "example.yaml").read_text()
    assert (tmp_path / "workspace.yaml").read_text() == "mine"
    assert (tmp_path / "sources" / "schema.json").is_file()
    assert "dagster.yaml, sources/example.yaml, sources/schema.json" in " ".join(first.split()).replace(
        f"{tmp_path}/", ""
    )
    assert "none, they exist" in second


@pytest.mark.slow
def test_the_installed_command_works_on_a_home_of_its_own(tmp_path: Path) -> None:
    environment = {"INGESTION_HOME": str(tmp_path / "home"), "PATH": ""}

    def run(*line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [INGEST, *line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    assert run("init").returncode == 0
    assert "no sources yet" in run("status").stdout
    refused = run("sources", "show", "series:nope")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: unknown_source: there is no source 'series:nope'")


def test_every_command_has_a_summary_that_is_not_cut_off(ingest: Ingest) -> None:
    for line in ([], ["sources"], ["settings"], ["dead-letters"], ["demo"]):
        summaries = ingest.output(*line, "--help").split("Commands:")[1]
        assert "..." not in summaries


def test_every_command_of_the_contract_is_there() -> None:
    nouns = {"init", "sources", "settings", "status", "dead-letters", "read", "doctor", "demo"}

    assert nouns <= COMMANDS.keys()
    assert {name for name, command in every_command().items() if command.name != name} == set()


def test_a_file_that_is_no_database_is_named(ingest: Ingest, home: Path) -> None:
    (home / "ingestion.db").write_text("not a database " * 100)

    assert "ingestion.db cannot be opened" in ingest.refused("status")


def test_a_bad_variable_is_named(ingest: Ingest) -> None:
    assert "INGESTION_LOG_LEVEL" in ingest.refused("status", INGESTION_LOG_LEVEL="LOUD")


def test_a_newer_schema_is_refused_with_the_cure(ingest: Ingest, home_store: Store) -> None:
    with home_store.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    assert "upgrade ingestion_pipeline" in ingest.refused("status")


def test_an_internal_error_keeps_its_traceback() -> None:
    assert explain(KeyError("x")) is None
    assert explain(ValueError("some library's")) is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied", "/srv/x"),
            "/srv/x: Permission denied; choose a path that you can write to",
        ),
        (
            OSError(errno.EROFS, "Read-only file system", "/mnt/x"),
            "/mnt/x: Read-only file system; choose a path that you can write to",
        ),
        (OSError(errno.ENOSPC, "No space left"), "No space left; free some space, then run the command again"),
        (
            OperationalError("UPDATE", None, sqlite3.OperationalError("database is locked")),
            "database error: database is locked; another process writes: wait for it, or stop it",
        ),
    ],
    ids=["not allowed", "read-only", "full", "locked"],
)
def test_operating_system_errors_are_named_with_a_cure(error: Exception, expected: str) -> None:
    message = explain(error)

    assert message is not None
    assert (message.exit_code, message.message) == (1, expected)


def test_passwords_are_removed_from_driver_messages() -> None:
    url = "postgresql://me:p%40ss@db/x"

    assert without_password(url, "bad: p@ss") == "bad: ***"
    assert shown_database(url) == "postgresql://me:***@db/x"


def test_the_actor_is_the_login_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")

    assert actor() == "cli:ann"


@pytest.mark.slow
def test_init_creates_a_database_in_an_empty_home_and_prints_the_next_steps(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    ingest = Ingest({"INGESTION_HOME": str(home), "INGESTION_SOURCES": str(tmp_path / "none")})

    output = ingest.output("init")

    assert f"{home}/ingestion.db" in output
    assert (tmp_path / "none" / "example.yaml").is_file()
    assert "`ingest demo run`" in output
    store = open_store(f"sqlite:///{home / 'ingestion.db'}")
    assert inspect(store.engine).has_table("sources")
    store.close()


def test_a_second_init_changes_nothing(ingest: Ingest) -> None:
    ingest.output("sources", "add", "https://a.test/feed", "--id", "series:solo", "--kind", "series")

    output = ingest.output("init")

    assert "`ingest status`" in output
    assert len(ingest.json("sources", "list")) == 1


FILES = ("feed.xml", "jobs.json")
COMMANDS_BY_PATH = {path: inner for name, command in every_command().items() for path, inner in commands(command, name)}
TYPED = [(path, line) for path in COMMANDS_BY_PATH for line in examples(path)]


def test_every_command_has_an_example_and_every_example_a_command() -> None:
    assert {path for path, _ in TYPED} == set(COMMANDS_BY_PATH)
    assert sorted(line for _, line in TYPED) == sorted(example_lines())


@pytest.mark.parametrize(("path", "line"), TYPED, ids=[line for _, line in TYPED])
def test_an_example_parses_with_its_command(
    path: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parse options, arguments and their types without running the command."""
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        Path(name).touch()
    _, _, arguments = line.rpartition("ingest ")
    words = shlex.split(arguments.partition(" > ")[0])
    command_words = path.split()

    assert words[: len(command_words)] == command_words
    with COMMANDS_BY_PATH[path].make_context(path, words[len(command_words) :]):
        pass  # the context closes opened files


def test_help_shows_the_examples(ingest: Ingest) -> None:
    output = ingest.output("dead-letters", "discard", "--help")

    assert "Examples:\n    ingest dead-letters discard 7 --reason" in output


def listed_setting(ingest: Ingest, key: str) -> dict[str, Any]:
    return next(setting for setting in ingest.json("settings", "list") if setting["key"] == key)


def test_a_setting_says_where_its_value_comes_from() -> None:
    environment = {"INGESTION_HOSTS__DELAY_SECONDS": "7"}
    table = {"hosts.delay_seconds": "5", "polling.shards": "3"}

    rows = {setting["key"]: (setting["value"], setting["from"]) for setting in setting_rows(environment, table)}

    assert rows["hosts.delay_seconds"] == ("7", "environment")
    assert rows["polling.shards"] == ("3", "table")
    assert rows["work.max_attempts"] == ("3", "default")


def test_the_list_never_shows_a_password() -> None:
    environment = {"INGESTION_DATABASE_URL": "postgresql://me:hush@db/x?password=hush2", "OPENAI_API_KEY": "hush3"}

    rows = {setting["key"]: setting["value"] for setting in setting_rows(environment, {})}

    assert rows["database_url"] == "postgresql://me:***@db/x"
    assert "hush" not in "".join(rows.values())


def test_a_value_is_set_audited_and_unset(ingest: Ingest, home_store: Store) -> None:
    ingest.output("settings", "set", "polling.shards", "3")
    assert listed_setting(ingest, "polling.shards")["value"] == "3"

    ingest.output("settings", "unset", "polling.shards")

    assert listed_setting(ingest, "polling.shards")["from"] == "default"
    with home_store.read() as connection:
        actions = connection.execute(select(audit_log.c.action, audit_log.c.actor)).all()
    assert [action for action, _ in actions] == ["settings.set", "settings.unset"]
    assert all(actor.startswith("cli:") for _, actor in actions)


def test_a_value_that_the_environment_overrides_is_set_with_a_warning(ingest: Ingest) -> None:
    result = ingest("settings", "set", "polling.shards", "3", INGESTION_POLLING__SHARDS="4")

    assert result.exit_code == 0
    assert "INGESTION_POLLING__SHARDS" in result.stderr


def test_a_bad_settings_table_can_be_shown_and_corrected(ingest: Ingest, home_store: Store) -> None:
    with home_store.begin() as connection:
        now = home_store.clock.now(connection)
        extra = {"value_type": "int", "description": "", "updated_at": now}
        connection.execute(insert(settings).values(key="polling.shards", value="many", **extra))
        connection.execute(insert(settings).values(key="old.name", value="1", **extra))

    assert "`ingest settings unset KEY`" in ingest.refused("status")
    assert listed_setting(ingest, "polling.shards")["value"] == "many"
    assert "no such setting" in listed_setting(ingest, "old.name")["meaning"]
    ingest.output("settings", "unset", "polling.shards")
    ingest.output("settings", "unset", "old.name")
    ingest.output("status")


def test_the_table_of_settings_fits_the_page(ingest: Ingest) -> None:
    output = ingest.output("settings", "list")

    assert "interval.series_hot" in output
    assert max(map(len, output.splitlines())) <= 100


def test_a_changing_command_prints_its_result_as_json(ingest: Ingest) -> None:
    assert ingest.json("settings", "set", "hosts.delay_seconds", "2") == {
        "setting": "hosts.delay_seconds",
        "value": "2",
    }
    assert ingest.json("demo", "mutate")["new_chapters"] == 1


def test_every_option_has_help_and_every_listing_or_change_has_json() -> None:
    every = [each for name, command in every_command().items() for each in commands(command, name)]
    without_help = [
        (path, option.opts)
        for path, command in every
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    servers_and_documents = {"demo serve", "dev", "feed", "mcp", "metrics", "profile example", "sources schema"}

    assert without_help == []
    assert {
        path for path, command in every if "--json" not in {name for option in command.params for name in option.opts}
    } == servers_and_documents
