"""The definitions, the guard of the UI, and secrets that Dagster must not show."""

import asyncio
import gc
import json
import logging
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from click.testing import CliRunner
from dagster._daemon.sensor import MIN_INTERVAL_LOOP_TIME
from starlette.types import Message, Scope

import ingestion_pipeline
from ingestion_pipeline.cli.main import main
from ingestion_pipeline.definitions import defs
from ingestion_pipeline.demo.model_server import Fail, ScriptedModel
from ingestion_pipeline.exports.contracts import CONTRACTS
from ingestion_pipeline.orchestration import runs
from ingestion_pipeline.orchestration.automation import TICKS
from ingestion_pipeline.orchestration.checks import CHECKS, reported_checks
from ingestion_pipeline.orchestration.ui import RequestGuard, served_names
from ingestion_pipeline.pages.zstd import zstd
from ingestion_pipeline.sources import Definition, Kind, Tier
from ingestion_pipeline.sources.declarations import definition_of
from ingestion_pipeline.store.tables import metadata
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.orchestration.installation import (
    PARTITION,
    Installation,
    an_entry,
    failure_message,
    run_job,
    source_file,
    tick_sensor,
)

ROOT = Path(__file__).parents[2]
REPOSITORY = defs.get_repository_def()
WEBSITES = ["website_info", "website_prompts", "website_analysis"]
TABLES = dict(zip(WEBSITES, ("businesses", "website_analyses", "website_rankings"), strict=True))
ASSETS = [
    *("sources", "pages", "datasets", "companies", "job_listings", "job_matches"),
    *WEBSITES,
    *("chapters", "notices"),
]


def spec(name: str) -> dg.AssetSpec:
    return REPOSITORY.asset_graph.get(dg.AssetKey(name)).assets_def.get_asset_spec(dg.AssetKey(name))


def test_everything_loads() -> None:
    dg.Definitions.validate_loadable(defs)

    assert {key.to_user_string() for key in REPOSITORY.asset_graph.get_all_asset_keys()} == {
        "sources",
        "pages",
        "datasets",
        "companies",
        "job_listings",
        *WEBSITES,
        "chapters",
        "job_matches",
        "notices",
        "source_health",
    }


def test_the_jobs_have_their_names() -> None:
    names = {job.name for job in REPOSITORY.get_all_jobs() if not job.name.startswith("__")}

    polls = {"poll_hot", "poll_warm", "poll_cold"}
    crawls = {"detect_recipes", "crawl_catalogs", "ingest_catalog"}
    others = {"maintain", "add_source", "ingest_series", "deliver_notices", "export_datasets", "settle_model_batches"}
    ends = {"complete_extractions", "control_extraction", "replay_dead_letters"}
    companies = {"process_companies", "ingest_company", "process_listings", "ingest_job_board"}
    websites = {"analyze_websites", "ingest_website"}
    assert names == polls | crawls | companies | websites | ends | others


def test_the_assets_and_their_partition_sets_have_their_names() -> None:
    partition_sets = {
        key.to_user_string(): getattr(REPOSITORY.asset_graph.get(key).partitions_def, "name", "not partitioned")
        for key in REPOSITORY.asset_graph.get_all_asset_keys()
    }

    assert partition_sets == {
        "sources": "sources",
        "pages": "catalogs",
        "datasets": "catalogs",
        "companies": "companies",
        **dict.fromkeys(WEBSITES, "websites"),
        "chapters": "series_sources",
        "job_matches": "job_boards",
        "job_listings": "job_boards",
        "notices": "not partitioned",
        "source_health": "not partitioned",
    }


def test_chapters_come_from_sources_partition_by_partition() -> None:
    chapters = REPOSITORY.asset_graph.get(dg.AssetKey("chapters"))

    mapping = chapters.partition_mappings[dg.AssetKey("sources")]
    assert chapters.parent_keys == {dg.AssetKey("sources")}
    assert isinstance(mapping, dg.IdentityPartitionMapping)


def test_the_schedules_run_by_default_in_utc() -> None:
    schedules = {
        schedule.name: (schedule.default_status, schedule.execution_timezone) for schedule in REPOSITORY.schedule_defs
    }

    running = (dg.DefaultScheduleStatus.RUNNING, "UTC")
    names = ("hot_polling", "warm_polling", "cold_polling", "maintenance")
    assert schedules == dict.fromkeys(names, running)


def test_the_hot_schedule_ticks_every_five_minutes_and_the_cold_one_every_hour() -> None:
    minutes = {schedule.name: schedule.cron_schedule for schedule in REPOSITORY.schedule_defs}

    assert minutes["hot_polling"] == "*/5 * * * *"
    assert minutes["maintenance"] == "*/5 * * * *"
    assert minutes["cold_polling"] == TICKS[Tier.COLD] == "7 * * * *"


def test_the_sensors_run_by_default() -> None:
    sensors = {sensor.name: sensor.default_status for sensor in REPOSITORY.sensor_defs}

    own_sensors = ("new_sources", "pending_work", "extraction_completion")
    names = (*own_sensors, "stale_runs", "run_failures")
    assert sensors == dict.fromkeys(names, dg.DefaultSensorStatus.RUNNING)


def test_the_sensors_tick_whenever_the_daemon_does() -> None:
    seconds = {sensor.name: sensor.minimum_interval_seconds for sensor in REPOSITORY.sensor_defs}

    # Not "at most": a tick that comes a moment early would be skipped, and wait twice as long.
    assert max(seconds["new_sources"] or 0, seconds["pending_work"] or 0) < MIN_INTERVAL_LOOP_TIME
    assert seconds["stale_runs"] == 30


@pytest.mark.parametrize("name", ASSETS)
def test_an_asset_has_a_description_an_owner_and_columns(name: str) -> None:
    asset_spec = spec(name)

    columns = asset_spec.metadata["dagster/column_schema"]
    assert isinstance(columns, dg.TableSchema)
    assert {column.description is None for column in columns.columns} == {False}
    assert len(asset_spec.description or "") > 40
    assert asset_spec.owners == ["team:ingestion"]
    assert asset_spec.kinds
    assert asset_spec.group_name in {*("sources", "catalogs", "companies", "websites", "series", "notices")}


@pytest.mark.parametrize("name", ASSETS)
def test_an_asset_has_checks_with_descriptions(name: str) -> None:
    keys = REPOSITORY.asset_graph.get_check_keys_for_assets({dg.AssetKey(name)})

    own = {key for key in CHECKS if key.asset_key == dg.AssetKey(name)}
    contract = {dg.AssetCheckKey(dg.AssetKey(name), "contract")} if name in CONTRACTS else set()
    assert keys == own | contract
    assert keys
    assert all(len(CHECKS[key].description) > 40 for key in own)


def test_the_columns_an_asset_names_are_columns_of_its_table() -> None:
    for name in ASSETS:
        if name in CONTRACTS:  # compared with the export in test_contracts.py
            continue
        columns = spec(name).metadata["dagster/column_schema"].columns
        table = metadata.tables[TABLES.get(name, name)]
        assert {column.name for column in columns} <= set(table.columns.keys())


def test_the_events_of_polls_do_not_grow_with_the_chapters() -> None:
    """`no_gaps` reads every chapter number: evaluated by each poll, polls grew with history."""
    cheap = {"no_drop", "no_lost_fields", "boards_fresh"}
    assert {key.name for key in reported_checks(None)} == {"not_empty_after_full", "sources_fresh"} | cheap


def test_the_job_of_one_source_plans_no_check_it_would_skip() -> None:
    job = defs.resolve_job_def("ingest_series")

    assert job.asset_layer.selected_asset_keys == {dg.AssetKey("chapters")}
    assert set(job.asset_layer.asset_graph.asset_check_keys) == set()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check defs", "list defs --json", "launch --job poll_hot"])
def test_dg_works_in_a_checkout(command: str, installation: Installation) -> None:
    dg_command = Path(sys.executable).with_name("dg")

    done = subprocess.run([dg_command, *command.split()], check=False, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    if "--json" in command:
        listed = json.loads(done.stdout)
        assert {asset["asset_key"] for asset in listed["assets"]} == {*ASSETS, "source_health"}


@pytest.mark.parametrize(
    "source_id", ["https://a.test/feed", "series:https://a.test/feed", "series:a,b", "series:", "series:A"]
)
def test_a_partition_key_is_never_a_url(source_id: str) -> None:
    raw: dict[str, Any] = {"id": source_id, "kind": "series", "url": "https://a.test/feed"}

    definition, problems = definition_of(raw | {"platform": "rss"})

    assert definition is None
    assert [problem.field for problem in problems] == ["id"]


def test_the_limits_of_dagster_yaml_use_the_tags_of_runs() -> None:
    limits = yaml.safe_load((ROOT / "dagster.yaml").read_text())

    bounded = {limit["key"]: limit for limit in limits["concurrency"]["runs"]["tag_concurrency_limits"]}
    assert bounded.keys() == {runs.SHARD, runs.TIER}
    assert bounded[runs.SHARD]["value"] == {"applyLimitPerUniqueValue": True}
    assert bounded[runs.TIER]["value"] == Tier.COLD.value


def test_a_hanging_run_is_ended_and_telemetry_is_off() -> None:
    limits = yaml.safe_load((ROOT / "dagster.yaml").read_text())

    assert limits["run_monitoring"]["enabled"] is True
    assert limits["run_monitoring"]["max_runtime_seconds"] == 900
    assert limits["run_monitoring"]["max_resume_run_attempts"] == 0
    assert limits["telemetry"] == {"enabled": False}
    assert "storage" not in limits


def test_loading_the_definitions_restores_the_garbage_collector() -> None:
    assert gc.isenabled()
    assert ingestion_pipeline.defs is defs
    assert gc.isenabled()


OURS = "localhost:3000"
MUTATION = b"query=mutation+%7B+launchRun+%7D"


def status_of(
    path: str = "/graphql",
    *,
    method: str = "POST",
    host: str = OURS,
    query: bytes = b"",
    kind: str = "http",
    names: str = "",
    **headers: str,
) -> int | str:
    """Return the status, or how a websocket is refused; 200 if it was passed on."""
    sent: list[Message] = []

    async def app(scope: Scope, receive: object, send: object) -> None:
        sent.append({"type": "http.response.start", "status": 200})

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    request_headers = {"host": host} | {name.replace("_", "-"): value for name, value in headers.items()}
    scope: Scope = {
        "type": kind,
        "method": method,
        "path": path,
        "query_string": query,
        "headers": [(name.encode(), value.encode()) for name, value in request_headers.items()],
    }
    guard = RequestGuard(app, hosts=served_names({"INGESTION_UI_HOSTS": names}))
    asyncio.run(guard(scope, receive, send))
    return sent[0].get("status") or sent[0]["type"]


@pytest.mark.parametrize("host", [OURS, "127.0.0.1:3000", "[::1]:3000", "LOCALHOST", "localhost"])
def test_our_own_pages_and_commands_are_accepted(host: str) -> None:
    assert status_of(host=host) == 200
    assert status_of(host=host, origin=f"http://{host}", sec_fetch_site="same-origin") == 200
    assert status_of("/runs", host=host, method="GET", sec_fetch_site="none") == 200
    assert status_of(host=host, kind="websocket", origin=f"http://{host}") == 200


@pytest.mark.parametrize("host", ["evil.test:3000", "localhost.evil.test", "10.0.0.7:3000", "", "["])
def test_a_foreign_host_name_is_refused_against_dns_rebinding(host: str) -> None:
    assert status_of("/", host=host, method="GET") == 403
    assert status_of(host=host) == 403


def test_the_host_name_of_a_proxy_is_accepted_once_configured() -> None:
    name, origin = "ui.example.test", "https://ui.example.test"

    assert status_of(host=name, origin=origin) == 403
    assert status_of(host=name, origin=origin, names="UI.example.test") == 200


def test_a_mutation_by_get_is_refused_whoever_sends_it() -> None:
    """An image on any page sends it: without Origin, and in old browsers without Sec-Fetch-Site."""
    assert status_of(method="GET", query=MUTATION) == 403
    assert status_of(method="GET", query=MUTATION, sec_fetch_site="none") == 403
    assert status_of("/prefix/graphql/", method="GET", query=MUTATION) == 403
    assert status_of(method="GET") == 200  # the page to try queries on


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize("origin", ["https://evil.test", "http://localhost:8000", "http://127.0.0.1:3000", "null"])
def test_a_page_of_another_origin_is_refused(kind: str, origin: str) -> None:
    refused: Sequence[int | str] = (403, "websocket.close")

    assert status_of(kind=kind, origin=origin) in refused
    assert status_of("/report_asset_materialization/x", kind=kind, origin=origin) in refused


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_cross_site_request_is_refused_unless_it_only_opens_a_page(site: str) -> None:
    assert status_of(sec_fetch_site=site) == 403
    assert status_of(method="GET", sec_fetch_site=site) == 403
    assert status_of("/assets", method="GET", sec_fetch_site=site) == 200


MODEL_KEY, BOARD_TOKEN = "sk-canary-model-4711", "canary/board+token 0815"
COOKIE, PASSWORD = "canary-cookie-1234", "canary-password-5678"
IN_URL = "canary%2Fboard%2Btoken%200815"
CANARIES = (MODEL_KEY, BOARD_TOKEN, IN_URL, COOKIE, PASSWORD)
BOARD, PROSE, BROKEN = "job_board:acme", "catalog:prose", "job_board:broken"
LIST = {"items": "jobs", "fields": {"external_id": "id", "title": "title", "url": "url"}}


def a_board(source_id: str, web: FakeWeb, path: str, **auth: str) -> Definition:
    config = LIST | {"auth": {"env": "ACME_TOKEN", **auth}, "company": "Acme"}
    return Definition(id=source_id, kind=Kind.JOB_BOARD, url=web.url(path), platform="json", config=config)


@pytest.fixture
def web(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWeb]:
    """A board that repeats the token in its list, one in its error page; a page of prose."""
    job = {"id": "1", "title": f"Engineer {BOARD_TOKEN}", "url": "https://a.test/1"}
    reply = Reply(
        json.dumps({"jobs": [job], "you_sent": BOARD_TOKEN}).encode(),
        headers={"Set-Cookie": f"session={COOKIE}", "ETag": f'"{BOARD_TOKEN}"'},
    )
    echo = Reply(f"<h1>Error</h1><pre>token={BOARD_TOKEN}</pre>".encode(), status=400)
    prose = Reply(
        b"<html><title>On learning</title><main><p>" + b"We teach many things. " * 40 + b"</main>",
        headers={"Set-Cookie": f"session={COOKIE}"},
    )
    routes = {"/jobs": reply, f"/broken?token={IN_URL}": echo, "/prose": prose, "/robots.txt": 404}
    with FakeWeb(routes) as running:
        monkeypatch.setenv("INGESTION_ALLOW_HOSTS", running.host_port)
        monkeypatch.setenv("ACME_TOKEN", BOARD_TOKEN)
        monkeypatch.setenv("INGESTION_SECRETS", f"ACME_TOKEN@{running.host_port}")
        yield running


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedModel]:
    """A model's server that refuses the key, and repeats it."""
    refusal = Fail(status=401, message=f"Incorrect API key provided: {MODEL_KEY}")
    with ScriptedModel(lambda _: refusal) as running:
        monkeypatch.setenv("OPENAI_API_KEY", MODEL_KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", running.base_url)
        yield running


def readable_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every file under a folder as text: databases dumped, objects of the content store opened."""
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        body = path.read_bytes()
        if body.startswith(b"SQLite format 3"):
            with sqlite3.connect(path) as database:
                body = "\n".join(database.iterdump()).encode()
        if path.is_relative_to(folder / "content"):
            body = zstd.decompress(body)
        yield path, body.decode("utf-8", "replace")


@pytest.mark.slow
def test_no_secret_is_found_in_database_logs_events_dead_letters_or_exports(
    installation: Installation, web: FakeWeb, model: ScriptedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    recipe = {"page_type": "DETAIL"}
    prose = {"id": PROSE, "kind": Kind.CATALOG, "platform": "catalog", "config": {"recipe": recipe}}
    installation.add(
        a_board(BOARD, web, "/jobs", place="bearer"),
        a_board(BROKEN, web, "/broken", place="query", name="token"),
        Definition(**prose, url=web.url("/prose")),
    )
    with_password = an_entry(url=f"https://me:{PASSWORD}@feeds.demo.test/x.xml")
    (installation.sources / "bad.yaml").write_text(source_file([with_password]))
    (history := tmp_path / "dagster").mkdir()

    with dg.DagsterInstance.local_temp(str(history)) as instance:
        tick = tick_sensor("new_sources", instance)
        for name, key in (("job_board", BOARD), ("job_board", BROKEN), ("catalog", PROSE)):
            run_job(f"ingest_{name}", instance, tags={PARTITION: key})
        commands = [
            ("sources", "add", f"https://me:{PASSWORD}@a.test/", "--id", "series:x", "--kind", "series"),
            *(("sources", "show", source_id) for source_id in (BOARD, BROKEN, PROSE)),
            *(("dead-letters", "list"), ("status",), ("doctor",)),
            ("export", "sources", "--to", "jsonl"),
        ]
        outputs = [CliRunner().invoke(main, list(arguments)).output for arguments in commands]

    sent = [request.headers.get("authorization") for request in web.requests if request.path == "/jobs"]
    assert (set(sent), bool(model.requests)) == ({f"Bearer {BOARD_TOKEN}"}, True)
    texts = dict(readable_files(installation.home)) | dict(readable_files(history))
    texts |= {Path("log"): caplog.text, Path("tick"): f"{tick}", Path("typed"): "\n".join(outputs)}
    leaks = {str(path) for path, text in texts.items() for canary in CANARIES if canary in text}
    assert leaks == set()
    assert any("Engineer ..." in text for text in texts.values()), "the job is kept without it"
    assert any(BROKEN in text for path, text in texts.items() if path.suffix == ".jsonl")


@pytest.mark.slow
def test_a_source_that_names_a_variable_gets_no_secret_that_is_not_bound_to_its_host(
    installation: Installation, web: FakeWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGESTION_SECRETS", "ACME_TOKEN@api.acme.test")
    installation.add(a_board(BOARD, web, "/jobs", place="bearer"))

    installation.run_job("ingest_job_board", tags={PARTITION: BOARD})

    assert web.requests == []
    assert installation.poll_task(BOARD)["error_code"] == "no_secret"
    assert installation.source(BOARD).failure_count == 0


def test_the_launchpad_adds_no_source_that_sends_a_secret(installation: Installation, web: FakeWeb) -> None:
    stolen = a_board(BOARD, web, "/jobs", place="bearer")
    fields = {"id": BOARD, "kind": "job_board", "url": stolen.url, "platform": "json"}
    config = {"ops": {"register": {"config": {**fields, "config": dict(stolen.config)}}}}

    failure = failure_message(installation.run_job("add_source", config=config))

    assert "config.auth: is not taken from the Launchpad" in failure
    assert installation.rows("sources") == []


@pytest.mark.parametrize("name", [*ASSETS, "source_health"])
def test_every_asset_says_which_job_schedule_or_sensor_refreshes_it(name: str) -> None:
    _, _, refreshed_by = (spec(name).description or "").partition("Refreshed by ")

    started = {schedule.name for schedule in REPOSITORY.schedule_defs} | {
        sensor.name for sensor in REPOSITORY.sensor_defs
    }
    named = set(refreshed_by.split("`")[1::2])
    assert named & started
    assert named <= started | {job.name for job in REPOSITORY.get_all_jobs()}


def test_the_pages_of_assets_with_an_own_job_name_the_sensor_as_their_automation() -> None:
    [sensor] = [sensor for sensor in REPOSITORY.sensor_defs if sensor.name == "pending_work"]

    targets = {target.job_name for target in sensor.targets}
    own_jobs = {"ingest_series", "ingest_job_board", "ingest_company", "ingest_catalog", "ingest_website"}
    assert own_jobs | {"deliver_notices"} <= targets


def test_the_columns_of_chapters_start_with_number_and_title() -> None:
    columns = [column.name for column in spec("chapters").metadata["dagster/column_schema"].columns]

    assert columns[:2] == ["number", "title"]
    assert {"url", "source_id"} <= set(columns)


def test_the_lineage_connects_companies_with_matches_and_chapters_with_notices() -> None:
    parents = {name: REPOSITORY.asset_graph.get(dg.AssetKey(name)).parent_keys for name in (*ASSETS, "source_health")}

    assert dg.AssetKey("companies") in parents["job_listings"]
    assert parents["job_matches"] == {dg.AssetKey("job_listings")}
    assert parents["notices"] == {dg.AssetKey("chapters"), dg.AssetKey("datasets"), dg.AssetKey("job_matches")}
    for name, keys in parents.items():
        assert {key.to_user_string() for key in keys} == set(runs.PARENTS.get(name, ()))
