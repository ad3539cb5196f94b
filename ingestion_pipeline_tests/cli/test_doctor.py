"""`ingest doctor`: every check, good and bad, with the cure; what it reaches over the network."""

import json
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text, update

from ingestion_pipeline.cli import doctor as checks
from ingestion_pipeline.cli.doctor import DoctorCheck, allow_list, model_server, versions
from ingestion_pipeline.demo.commands import demo_files
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.sources.files import FileProblem, SourceFile
from ingestion_pipeline.store import Store, database
from ingestion_pipeline.store.database import schema_revision
from ingestion_pipeline.store.tables import runs, settings, sources, tasks
from ingestion_pipeline_tests.builders import NOON, a_definition, a_source
from ingestion_pipeline_tests.catalog_extractions import LINKS
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.polling_runs import add_sources
from ingestion_pipeline_tests.postgres import PostgresServer

ENTRY = 'sources:\n  - {id: "series:filed", kind: series, url: "https://a.test/feed"}\n'


@pytest.fixture(autouse=True)
def browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A browser that only knows its version, whatever this machine has."""
    program = tmp_path / "browser"
    program.write_text("#!/bin/sh\necho 'Chromium 156.0.1 built somewhere'\n")
    program.chmod(0o700)
    monkeypatch.setenv("INGESTION_BROWSER", str(program))
    return program


def run_doctor(ingest: Ingest, **variables: str) -> tuple[int, dict[str, Any]]:
    result = ingest.with_variables(variables, "doctor", "--offline", "--json")
    return result.exit_code, {check["name"]: check for check in json.loads(result.stdout)["checks"]}


def names_in_state(checks: dict[str, Any], *expected: str) -> set[str]:
    return {name for name, check in checks.items() if check["state"] in expected}


def test_a_fresh_installation_is_in_order(ingest: Ingest) -> None:
    exit_code, checks = run_doctor(ingest)

    assert exit_code == 0
    assert names_in_state(checks, "warning", "failed") == set()


def test_a_missing_database_is_not_created(ingest: Ingest, tmp_path: Path) -> None:
    exit_code, checks = run_doctor(ingest, INGESTION_HOME=str(tmp_path / "new"))

    assert exit_code == 0
    assert checks["database"]["cure"] == "`ingest init` creates it"
    assert not (tmp_path / "new").exists()


def test_an_empty_database_file_fails_and_is_unchanged(ingest: Ingest, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    exit_code, checks = run_doctor(ingest, INGESTION_DATABASE_URL=f"sqlite:///{tmp_path / 'empty'}")

    assert (exit_code, checks["database"]["state"]) == (1, "failed")
    assert "backup" in checks["database"]["found"]
    assert (tmp_path / "empty").read_bytes() == b""


@pytest.mark.parametrize("size", [0, 7, -5])
def test_damaged_objects_of_the_content_store_are_counted_and_not_moved(ingest: Ingest, home: Path, size: int) -> None:
    content = ContentStore(home / "content")
    names = [content.put(f"page {number} ".encode() * 50) for number in range(3)]
    path = home / "content" / names[0][:2] / names[0][2:]
    path.write_bytes(path.read_bytes()[:size])

    _, checks = run_doctor(ingest)

    assert checks["content store"]["state"] == "warning"
    assert checks["content store"]["found"].startswith("1 of 3 objects are damaged")
    assert names[0] in checks["content store"]["found"]
    assert content.has(names[0])


def test_a_secret_in_a_stored_url_is_a_warning_without_the_secret(ingest: Ingest, home_store: Store) -> None:
    add_sources(home_store, a_definition(url="https://a.test/feed?token=canary-4711"))

    result = ingest("doctor", "--offline", "--json")

    checks_by_name = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert checks_by_name["secrets"]["state"] == "warning"
    assert "series:solo" in checks_by_name["secrets"]["found"]
    assert "canary" not in result.stdout


def test_an_intact_content_store_passes(ingest: Ingest, home: Path) -> None:
    ContentStore(home / "content").put_together([[b"a page", b"its text"]])

    _, checks = run_doctor(ingest)

    assert checks["content store"]["state"] == "ok"


@pytest.mark.postgres
def test_an_empty_postgresql_stays_empty(ingest: Ingest, postgres_server: PostgresServer) -> None:
    url = postgres_server.url(postgres_server.create_database())

    exit_code, checks = run_doctor(ingest, INGESTION_DATABASE_URL=url)

    assert exit_code == 0
    assert checks["database"]["found"].endswith("is empty")
    assert checks["database"]["cure"] == "`ingest init` creates it"
    assert schema_revision(url) is None


def test_an_older_database_is_not_migrated(ingest: Ingest, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (home / "ingestion.db").read_bytes()
    monkeypatch.setattr(database, "HEAD", "9999")

    exit_code, checks = run_doctor(ingest)

    assert exit_code == 1
    assert checks["database"]["cure"] == "back it up; `ingest init` migrates it"
    assert "freshness" not in checks
    assert (home / "ingestion.db").read_bytes() == before


@pytest.mark.parametrize("url", ["postgresql://me:hush@127.0.0.1:1/x", "nonsense:hush"])
def test_an_unreachable_database_fails_without_its_password(ingest: Ingest, url: str) -> None:
    exit_code, checks = run_doctor(ingest, INGESTION_DATABASE_URL=url)

    assert exit_code == 1
    assert names_in_state(checks, "failed") == {"database"}
    assert "hush" not in str(checks)


def test_a_database_of_a_newer_program_fails(ingest: Ingest, home_store: Store) -> None:
    with home_store.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    exit_code, checks = run_doctor(ingest)

    assert exit_code == 1
    assert "newer version" in checks["database"]["found"]


def test_bad_settings_fail_and_unknown_variables_warn(ingest: Ingest) -> None:
    exit_code, checks = run_doctor(ingest, INGESTION_POLLING__SHARDS="x", INGESTION_SHARDS="2")

    assert exit_code == 1
    assert "INGESTION_POLLING__SHARDS" in checks["settings"]["found"]
    assert checks["variables"]["found"] == "nothing reads INGESTION_SHARDS"


def test_a_bad_row_of_the_settings_table_fails(ingest: Ingest, home_store: Store) -> None:
    with home_store.begin() as connection:
        row = {"key": "polling.shards", "value": "x", "value_type": "int", "description": ""}
        now = home_store.clock.now(connection)
        connection.execute(insert(settings).values(updated_at=now, **row))

    exit_code, checks = run_doctor(ingest)

    assert exit_code == 1
    assert names_in_state(checks, "failed") == {"settings table"}


def test_a_bad_source_file_fails_with_its_line(ingest: Ingest, folder: Path) -> None:
    (folder / "bad.yaml").write_text("sources:\n  - id: x\n")

    exit_code, checks = run_doctor(ingest)

    assert exit_code == 1
    assert "bad.yaml:2: kind: is missing" in checks["source files"]["found"]


@pytest.mark.slow
def test_an_entry_that_left_its_file_is_named_until_it_is_removed(ingest: Ingest, folder: Path) -> None:
    (folder / "mine.yaml").write_text(ENTRY)
    ingest.output("sources", "import")
    assert run_doctor(ingest)[1]["declarations"]["state"] == "ok"

    (folder / "mine.yaml").write_text("sources: []\n")
    _, checks = run_doctor(ingest)
    ingest.output("sources", "remove", "series:filed")
    _, afterwards = run_doctor(ingest)

    assert "series:filed (mine.yaml)" in checks["declarations"]["found"]
    assert checks["declarations"]["state"] == "warning"
    assert afterwards["declarations"]["state"] == "ok"


def test_sources_of_the_demos_files_count_as_declared() -> None:
    declared = [(file.path, definition.id) for file in demo_files() for definition in file.definitions]
    registered = [a_source(id=id_, origin=f"bundled:{path}") for path, id_ in declared]

    files = {"sources.yaml", "catalogs.yaml", "companies.yaml", "websites.yaml"}
    assert {path for path, _ in declared} == files
    origins = [entry.origin for file in demo_files() for entry in file.definitions]
    assert origins == [source.origin for source in registered]
    assert checks.undeclared(registered, []).state == "ok"


def test_a_file_with_mistakes_proves_nothing_about_its_entries() -> None:
    filed = a_source(origin="mine.yaml")
    mistake = FileProblem(path="mine.yaml", line=1, field="id", message="is missing")
    spoiled = SourceFile(path="mine.yaml", fingerprint="", definitions=(), problems=[mistake])

    assert checks.undeclared([filed], [spoiled]).state == "ok"
    assert checks.undeclared([filed], []).state == "warning"


def test_stale_sources_silent_workers_and_silent_runs_are_warnings(ingest: Ingest, home_store: Store) -> None:
    ingest.output("sources", "add", "https://a.test/feed", "--id", "series:old", "--kind", "series")
    with home_store.begin() as connection:
        now = home_store.clock.now(connection)
        long_ago = now - timedelta(days=30)
        connection.execute(update(sources).values(created_at=long_ago))
        connection.execute(update(tasks).values(status="PROCESSING", lease_until=long_ago))
        run = {"run_id": "r1", "lease_owner": "w", "job": "poll_hot", "started_at": long_ago}
        connection.execute(insert(runs).values(lease_until=long_ago, **run))

    exit_code, checks = run_doctor(ingest)

    assert exit_code == 0
    assert names_in_state(checks, "warning") == {"freshness", "claims", "runs", "user agent"}
    assert "series:old" in checks["freshness"]["found"]
    assert "r1" in checks["runs"]["found"]


def test_a_clock_that_was_set_back_is_a_failure(ingest: Ingest, home_store: Store) -> None:
    ingest.output("sources", "add", "https://a.test/feed", "--id", "series:old", "--kind", "series")
    with home_store.begin() as connection:
        tomorrow = home_store.clock.now(connection) + timedelta(days=1)
        claimed = {"status": "PROCESSING", "lease_until": tomorrow, "updated_at": tomorrow}
        connection.execute(update(tasks).values(claimed))

    exit_code, checks = run_doctor(ingest)

    assert (exit_code, checks["clock"]["state"]) == (1, "failed")
    assert "the clock was set back" in checks["clock"]["found"]


@pytest.mark.slow
def test_the_default_user_agent_is_a_warning_while_public_sites_are_polled(ingest: Ingest) -> None:
    ingest.output("sources", "add", "https://a.test/feed", "--id", "series:new", "--kind", "series")

    _, by_default = run_doctor(ingest)
    _, named = run_doctor(ingest, INGESTION_USER_AGENT="mine (+mailto:me@example.com)")
    ingest.output("sources", "disable", "series:new")
    _, disabled = run_doctor(ingest)

    assert by_default["user agent"]["state"] == "warning"
    assert by_default["user agent"]["cure"] == "set INGESTION_USER_AGENT with a way to reach you"
    assert {named["user agent"]["state"], disabled["user agent"]["state"]} == {"ok"}


def test_the_demos_own_site_needs_no_user_agent() -> None:
    demo = a_source(origin="bundled:sources.yaml")

    assert checks.user_agent([demo], is_default=True).state == "ok"


def test_a_silent_daemon_is_a_warning_while_work_is_due(ingest: Ingest, tmp_path: Path) -> None:
    ingest.output("sources", "add", "https://a.test/feed", "--id", "series:new", "--kind", "series")

    _, with_daemon = run_doctor(ingest, DAGSTER_HOME=str(tmp_path))
    _, without = run_doctor(ingest)

    assert with_daemon["daemon"]["state"] == "warning"
    assert "daemon" not in without


@pytest.mark.parametrize(
    ("minutes", "due", "state"),
    [(1, 5, "ok"), (14, 5, "ok"), (16, 5, "warning"), (16, 0, "ok"), (None, 0, "ok"), (None, 1, "warning")],
)
def test_a_daemon_is_silent_after_a_quarter_of_an_hour(minutes: int | None, due: int, state: str) -> None:
    newest = None if minutes is None else NOON - timedelta(minutes=minutes)

    assert checks.daemon(newest, due=due, now=NOON).state == state


@pytest.mark.parametrize(("seconds", "state"), [(0, "ok"), (-5, "ok"), (6, "warning")])
def test_clocks_may_differ_by_five_seconds(seconds: int, state: str) -> None:
    assert checks.clock(NOON + timedelta(seconds=seconds), NOON, None).state == state


def test_a_home_needs_free_space_and_write_permission() -> None:
    home = Path("home")

    assert checks.home(home, is_writable=True, free_bytes=10**9).state == "ok"
    assert checks.home(home, is_writable=True, free_bytes=10**8).state == "failed"
    assert checks.home(home, is_writable=False, free_bytes=10**9).state == "failed"


def test_the_browser_and_its_version_are_named(ingest: Ingest, browser: Path) -> None:
    _, checks = run_doctor(ingest)

    assert checks["browser"]["found"] == f"Chromium 156.0.1, {browser}"


def test_a_broken_browser_matters_only_to_sources_that_need_one(ingest: Ingest, browser: Path) -> None:
    browser.write_text("#!/bin/sh\necho 'no display' >&2; exit 1\n")
    broken_code, broken = run_doctor(ingest)
    browser.unlink()
    ingest.output("sources", "add", "https://a.test/feed", "--id", "series:new", "--kind", "series")
    missing_code, missing = run_doctor(ingest)

    assert (broken_code, broken["browser"]["state"]) == (0, "warning")
    assert "no display" in broken["browser"]["found"]
    assert (missing_code, missing["browser"]["state"]) == (0, "warning")
    assert "INGESTION_BROWSER" in missing["browser"]["cure"]
    assert missing["rendered sources"]["state"] == "ok"


@pytest.mark.parametrize(
    "config",
    [
        {"render": True},
        {"recipe": {"page_type": "DETAIL", "render": True}},
        {"recipe": {"page_type": "DETAIL", "setup": [{"click": "#all"}]}},
        {"recipe": {**LINKS, "links": {"page_type": "DETAIL", "render": True}}},
    ],
    ids=["source", "recipe", "setup", "inner level"],
)
def test_the_doctor_finds_the_sources_that_need_a_browser(
    ingest: Ingest, browser: Path, config: dict[str, Any]
) -> None:
    browser.unlink()
    line = ("sources", "add", "https://a.test/", "--kind", "catalog", "--platform", "catalog")
    ingest.output(*line, "--id", "catalog:plain", "--config", json.dumps({"recipe": LINKS}))
    ingest.output(*line, "--id", "catalog:shown", "--config", json.dumps(config))

    code, checks = run_doctor(ingest)

    assert (code, checks["rendered sources"]["state"]) == (1, "failed")
    assert "catalog:shown" in checks["rendered sources"]["found"]
    assert "catalog:plain" not in checks["rendered sources"]["found"]


def test_a_source_that_needs_a_browser_fails_without_one() -> None:
    assert checks.rendered(["a"], has_browser=True, cure="c").state == "ok"
    assert checks.rendered([], has_browser=False, cure="c").state == "ok"
    assert checks.rendered(["a"], has_browser=False, cure="c").state == "failed"


def test_the_text_output_is_a_table_with_cures(ingest: Ingest, folder: Path) -> None:
    folder.rmdir()

    output = ingest.output("doctor")

    assert "1 warning, 0 failed" in output
    assert max(map(len, output.splitlines())) <= 100


def test_without_a_model_the_doctor_names_what_waits(ingest: Ingest) -> None:
    _, checks = run_doctor(ingest)

    assert (checks["model"]["state"], checks["model"]["found"]) == (
        "ok",
        "none configured: work that needs one waits for OPENAI_API_KEY",
    )


def test_the_models_and_their_prices_are_named_and_the_key_is_not(ingest: Ingest) -> None:
    _, checks = run_doctor(ingest, OPENAI_API_KEY="geheim", INGESTION_MODEL_STRONG="gpt-4.1")

    assert checks["model"]["state"] == "ok"
    assert checks["model"]["found"] == (
        "gpt-5-mini (0.25/0.025/2 USD per million tokens),"
        " gpt-4.1 (2/0.5/8 USD per million tokens) at https://api.openai.com/v1"
    )
    assert "geheim" not in json.dumps(checks)


def test_a_model_without_a_price_is_a_warning_with_its_cure(ingest: Ingest) -> None:
    variables = {"OPENAI_BASE_URL": "http://127.0.0.1:8080/v1", "INGESTION_MODEL_CHEAP": "own"}

    exit_code, checks = run_doctor(ingest, **variables)

    assert (exit_code, checks["model"]["state"]) == (0, "warning")
    assert checks["model"]["found"].startswith("own (no price known), gpt-5 (1.25/")
    assert "at http://127.0.0.1:8080/v1" in checks["model"]["found"]
    assert "own=input/cached input/output" in checks["model"]["cure"]


KEY = "sk-canary-1234567890"


def reach_model(base_url: str) -> DoctorCheck:
    return model_server(load_settings({"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": base_url}))


def model_list(*names: str) -> dict[str, object]:
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "us"} for name in names]
    return {"object": "list", "data": models}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "body", "state", "detail"),
    [
        (200, model_list("gpt-5-mini", "gpt-5"), "ok", "answers in"),
        (200, model_list("other"), "warning", "does not list gpt-5-mini, gpt-5"),
        (401, {"error": {"message": f"bad key {KEY}"}}, "failed", "refuses the key (401)"),
        (403, {"error": {"message": "no"}}, "failed", "refuses the key (403)"),
        (404, {"error": {"message": "no such page"}}, "ok", "answers in"),
        (503, {"error": {"message": "busy"}}, "warning", "answers 503"),
    ],
)
def test_answers_to_the_model_list_request_are_distinguished(
    web: FakeWeb, status: int, body: object, state: str, detail: str
) -> None:
    web.routes["/v1/models"] = Reply(json.dumps(body).encode(), status, {"Content-Type": "application/json"})

    check = reach_model(web.url("/v1"))

    assert (check.state, detail in check.found) == (state, True), check
    assert KEY not in f"{check}"


def test_an_unreachable_server_fails_with_its_address_and_the_cure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    check = reach_model(f"http://127.0.0.1:{port}/v1")

    assert check.state == "failed"
    assert f"127.0.0.1:{port}" in check.found
    assert "OPENAI_BASE_URL" in check.cure


@pytest.mark.slow
def test_the_doctor_contacts_the_server_unless_offline(ingest: Ingest, web: FakeWeb) -> None:
    web.routes["/v1/models"] = 401
    variables = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": web.url("/v1")}

    online = ingest.with_variables(variables, "doctor", "--json")
    offline = ingest.with_variables(variables, "doctor", "--offline", "--json")

    assert (online.exit_code, "refuses the key" in online.stdout) == (1, True)
    assert (offline.exit_code, "refuses the key" in offline.stdout) == (0, False)


def test_exempt_hosts_are_named_and_unused_ones_are_a_warning() -> None:
    source = a_source(url="http://intra.test:8080/feed")

    assert allow_list([], [source]).state == "ok"
    assert "intra.test:8080" in allow_list(["intra.test:8080"], [source]).found
    unused = allow_list(["intra.test:8080", "10.0.0.7:80"], [source])
    assert (unused.state, unused.found) == ("warning", "no source is at 10.0.0.7:80")


def test_incompatible_packages_are_named_with_their_requirement() -> None:
    assert versions().state == "ok"
    needed = ["pytest>=1", "dagster==0.0.1", "no-such-package>=2", "scrapy==0; extra == 'bench'"]

    check = versions(needed)

    assert check.state == "failed"
    assert "dagster is 1." in check.found
    assert "no-such-package>=2 is not installed" in check.found
    assert "scrapy" not in check.found
