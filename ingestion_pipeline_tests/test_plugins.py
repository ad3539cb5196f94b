"""A system of another package, installed beside ours: polled, worked on, exported, checked, retained and shown."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ingestion_pipeline_tests.fakes import closed_port
from ingestion_pipeline_tests.test_extending import ROOT, blocks

PACKAGE = "exchange_rates"
DIST_INFO = {
    "METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n",
    "entry_points.txt": (
        f"[ingestion_pipeline.systems]\nrates = {PACKAGE}.system:SYSTEM\n"
        f"[ingestion_pipeline.commands]\nrates = {PACKAGE}.commands:rates\n"
    ),
    "RECORD": "",
}


def install(site: Path, *, entry_point: str | None = None) -> Path:
    """Install the system of docs/extending.md as a package of its own."""
    (site / PACKAGE).mkdir(parents=True)
    for path, text in blocks("python"):
        if path.startswith("ingestion_pipeline/rates/"):
            own = text.replace("ingestion_pipeline.rates", PACKAGE)
            own = own.replace("events=_events,", 'events=_events, after=("sources", "chapters"),')
            (site / PACKAGE / Path(path).name).write_text(own)
    dist_info = site / f"{PACKAGE}-1.0.dist-info"
    dist_info.mkdir()
    for name, text in DIST_INFO.items():
        (dist_info / name).write_text(text)
    if entry_point is not None:
        (dist_info / "entry_points.txt").write_text(f"[ingestion_pipeline.systems]\nrates = {entry_point}\n")
    return site


def environment(site: Path, home: Path, database_url: str | None = None) -> dict[str, str]:
    """Return the variables of a process that has the package installed."""
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    variables = {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "INGESTION_SOURCES": str(home / "sources")}
    variables |= dict.fromkeys(("INGESTION_HOME", "DAGSTER_HOME"), str(home))
    return {**os.environ, **variables} | ({} if database_url is None else {"INGESTION_DATABASE_URL": database_url})


def run(script: str, site: Path, home: Path, database_url: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the script in a process of its own that has the package installed."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env=environment(site, home, database_url),
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )


OPERATED = """
import json, os
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
import dagster as dg
from click.testing import CliRunner
from sqlalchemy import select, update
from exchange_rates.tables import rates
from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.cli.main import main
from ingestion_pipeline.definitions import defs
from ingestion_pipeline.store.tables import notices
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.orchestration.installation import check_results, materialized, run_job, tick_sensor

def ingest(*arguments):
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout

seen = {}
with FakeWeb({"/today": b"EUR 1.08\\nGBP 0\\n", "/hook": 200}) as web, dg.DagsterInstance.get() as instance:
    os.environ["INGESTION_ALLOW_HOSTS"] = web.host_port
    ingest("init")
    ingest("recipients", "add", "ann", web.url("/hook"), "--kinds", "rate_change")
    ingest("sources", "add", web.url("/today"), "--id", "rates:bank", "--kind", "rates", "--tier", "hot")
    tick = tick_sensor("new_sources", instance)
    seen["requested"] = [request.job_name for request in tick.run_requests]
    seen["partitions"] = instance.get_dynamic_partitions("rates_sources")
    polled = run_job("poll_hot", instance)
    seen["total"] = materialized(polled, "rates")["rates:bank"]["total"]
    seen["contract"] = check_results(polled)["contract"]
    pending = [request.job_name for request in tick_sensor("pending_work", instance).run_requests]
    seen["pending"] = sorted({name for name in pending if not name.startswith("poll_")})
    reviewed = run_job("review_rates", instance)
    seen["reviewed"] = materialized(reviewed, "rate_reviews")["rates:bank"]["reviewed"]
    [dead_letter] = json.loads(ingest("dead-letters", "list", "--json"))
    seen["dead_letter"] = [dead_letter["task_kind"], dead_letter["error_code"]]
    seen["health"] = json.loads(ingest("status", "--json"))["sources"][0]["health_reason"]
    with open_run_context() as ctx, ctx.store.begin() as connection:
        connection.execute(update(rates).where(rates.c.currency == "GBP").values(rate=Decimal(2)))
    ingest("dead-letters", "replay", str(dead_letter["id"]))
    run_job("review_rates", instance)
    seen["command"] = ingest("rates").splitlines()
    Path("saved.txt").write_text("CHF 1.1")
    seen["read"] = json.loads(ingest("read", "saved.txt", "--platform", "rates", "--json"))["records"]
    ingest("export", "rate_reviews", "--to", "jsonl", "--out", "reviews.jsonl")
    seen["replayed"] = sorted(json.loads(line)["currency"] for line in Path("reviews.jsonl").read_text().splitlines())
    run_job("deliver_notices", instance)
    with open_run_context() as ctx, ctx.store.read() as connection:
        kinds = connection.execute(select(notices.c.subject_kind)).scalars()
        seen["announced"] = sorted(kinds)
    with open_run_context() as ctx, ctx.store.begin() as connection:
        connection.execute(update(rates).where(rates.c.currency == "GBP").values(rate=Decimal(0)))
    again = run_job("ingest_rates", instance, tags={"dagster/partition": "rates:bank"})
    seen["ingested"] = again.success
    maintained = run_job("maintain", instance)
    seen["maintained"] = check_results(maintained)["no_zero"]
    [seen["metric"]] = [line for line in ingest("metrics").splitlines() if line.startswith("ingestion_exchange_rates")]
    health = instance.get_latest_materialization_event(dg.AssetKey("source_health")).asset_materialization
    details = {record.data["detail"]: record.data["value"] for record in health.metadata["details"].records}
    seen["detail"] = details["exchange rates rates:bank"]
    ingest("export", "rates", "--to", "jsonl", "--out", "rates.jsonl")
    seen["exported"] = sorted(json.loads(line)["currency"] for line in Path("rates.jsonl").read_text().splitlines())
    seen["listed"] = [source["id"] for source in json.loads(ingest("sources", "list", "--kind", "rates", "--json"))]
    with open_run_context() as ctx, ctx.store.begin() as connection:
        long_ago = ctx.store.clock.now(connection) - timedelta(days=400)
        connection.execute(update(rates).where(rates.c.currency == "EUR").values(changed_at=long_ago))
    run_job("maintain", instance)
    with open_run_context() as ctx, ctx.store.read() as connection:
        seen["retained"] = list(connection.execute(select(rates.c.currency)).scalars())
    recorded = [json.loads(line) for line in ingest("changes", "--table", "rates", "--json").splitlines()]
    seen["recorded"] = [[change["row_key"], change["op"], change["cause"]] for change in recorded]
print(json.dumps(seen))
"""


# What the page of an asset asks for.
ASSET_PAGE = """
query Page($path: [String!]!) { assetNodeOrError(assetKey: {path: $path}) { ... on AssetNode {
  groupName jobNames partitionDefinition { name } dependencyKeys { path }
  assetChecksOrError { ... on AssetChecks { checks { name } } }
  assetMaterializations(limit: 1) { partition metadataEntries { label } }
} } }
"""


@contextmanager
def webserver(site: Path, home: Path, database_url: str) -> Iterator[str]:
    """Run the UI until the block ends; yield the address of its GraphQL."""
    port = closed_port()
    command = [sys.executable, "-m", "ingestion_pipeline.orchestration.ui", "-m", "ingestion_pipeline", "-p", str(port)]
    with (home / "ui.log").open("w") as log:
        process = subprocess.Popen(command, env=environment(site, home, database_url), cwd=home, stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}/graphql"
        finally:
            process.terminate()
            process.wait(timeout=30)


def asset_page(graphql: str, asset: str) -> dict[str, Any]:
    """Return the asset as its page shows it, once the UI answers."""
    body = json.dumps({"query": ASSET_PAGE, "variables": {"path": [asset]}}).encode()
    request = urllib.request.Request(graphql, body, {"Content-Type": "application/json"})
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)["data"]["assetNodeOrError"]
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.both_databases
def test_an_installed_system_is_polled_worked_on_exported_checked_retained_and_shown(
    tmp_path: Path, empty_database_url: str
) -> None:
    site, home = install(tmp_path / "site"), tmp_path / "home"
    process = run(OPERATED, site, home, empty_database_url)

    assert process.returncode == 0, process.stderr
    seen: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    assert seen == {
        "requested": ["poll_hot"],
        "partitions": ["rates:bank"],
        "total": 2,
        "pending": ["review_rates"],
        "reviewed": 1,
        "dead_letter": ["review_rate", "zero_rate"],
        "health": "GBP costs nothing",
        "command": ["EUR 1.08", "GBP 2"],
        "read": [{"currency": "CHF", "rate": "1.1"}],
        "replayed": ["EUR", "GBP"],
        "announced": ["rate_change", "rate_change"],
        "contract": True,
        "ingested": True,
        "maintained": False,  # a currency costs nothing
        "metric": 'ingestion_exchange_rates{source="rates:bank"} 2',
        "detail": 2.0,
        "exported": ["EUR", "GBP"],
        "listed": ["rates:bank"],
        "retained": ["GBP"],
        "recorded": [
            ["rates:bank/EUR", "insert", "first_sync"],
            ["rates:bank/GBP", "insert", "first_sync"],
            ["rates:bank/GBP", "update", "operator"],
            ["rates:bank/GBP", "update", "operator"],
            ["rates:bank/EUR", "update", "operator"],
            ["rates:bank/EUR", "delete", "retention"],
        ],
    }
    with webserver(site, home, empty_database_url) as graphql:
        page, review = asset_page(graphql, "rates"), asset_page(graphql, "rate_reviews")
    assert page["groupName"] == review["groupName"] == "rates"
    assert page["partitionDefinition"] == {"name": "rates_sources"}
    assert "ingest_rates" in page["jobNames"]
    assert sorted(check["name"] for check in page["assetChecksOrError"]["checks"]) == ["contract", "no_zero"]
    assert sorted(key["path"] for key in page["dependencyKeys"]) == [["chapters"], ["sources"]]
    [event] = page["assetMaterializations"]
    labels = [entry["label"] for entry in event["metadataEntries"]]
    assert (event["partition"], labels[0]) == ("rates:bank", "total")  # numbers first, texts after them
    assert "outcome" in labels
    assert review["dependencyKeys"] == [{"path": ["rates"]}]
    assert [event["partition"] for event in review["assetMaterializations"]] == ["rates:bank"]


@pytest.mark.parametrize(
    ("entry_point", "problem"),
    [
        ("exchange_rates.gone:SYSTEM", "cannot be loaded"),
        ("exchange_rates.system:ABANDONED", "is no SystemSpec"),
        ("ingestion_pipeline.series.system:SYSTEM", "uses names that another system has"),
    ],
)
def test_a_package_that_cannot_be_used_is_named_with_the_cure(tmp_path: Path, entry_point: str, problem: str) -> None:
    site = install(tmp_path / "site", entry_point=entry_point)

    process = run("from ingestion_pipeline.registry import systems; systems()", site, tmp_path / "home")

    assert process.returncode == 1
    assert f"the package {PACKAGE} {problem}" in process.stderr
    assert f"pip uninstall {PACKAGE}" in process.stderr
