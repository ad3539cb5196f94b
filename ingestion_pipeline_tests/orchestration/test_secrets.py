"""Secrets as canaries: sent to whom they are for, and written down nowhere."""

import json
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner

from ingestion_pipeline.cli.main import main
from ingestion_pipeline.demo.model_server import Fail, ScriptedModel
from ingestion_pipeline.pages.zstd import zstd
from ingestion_pipeline.sources import Definition, Kind
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
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGESTION_SECRETS", "ACME_TOKEN@api.acme.test")
    installation.add(a_board(BOARD, web, "/jobs", place="bearer"))

    run_job("ingest_job_board", instance, tags={PARTITION: BOARD})

    assert web.requests == []
    assert installation.poll_task(BOARD)["error_code"] == "no_secret"
    assert installation.source(BOARD).failure_count == 0


def test_the_launchpad_adds_no_source_that_sends_a_secret(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    stolen = a_board(BOARD, web, "/jobs", place="bearer")
    fields = {"id": BOARD, "kind": "job_board", "url": stolen.url, "platform": "json"}
    config = {"ops": {"register": {"config": {**fields, "config": dict(stolen.config)}}}}

    failure = failure_message(run_job("add_source", instance, config=config))

    assert "config.auth: is not taken from the Launchpad" in failure
    assert installation.rows("sources") == []
