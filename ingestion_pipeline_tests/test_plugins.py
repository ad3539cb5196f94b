"""A system of another package: installed beside ours, it is polled, exported, checked, retained, counted and shown."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ingestion_pipeline_tests.test_extending import ROOT, blocks

PACKAGE = "exchange_rates"
DIST_INFO = {
    "METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n",
    "entry_points.txt": f"[ingestion_pipeline.systems]\nrates = {PACKAGE}.system:SYSTEM\n",
    "RECORD": "",
}


def install(site: Path, *, entry_point: str | None = None) -> Path:
    """Install the system of docs/extending.md as a package of its own."""
    (site / PACKAGE).mkdir(parents=True)
    for path, text in blocks("python"):
        if path.startswith("ingestion_pipeline/rates/"):
            own = text.replace("ingestion_pipeline.rates", PACKAGE)
            (site / PACKAGE / Path(path).name).write_text(own)
    dist_info = site / f"{PACKAGE}-1.0.dist-info"
    dist_info.mkdir()
    for name, text in DIST_INFO.items():
        (dist_info / name).write_text(text)
    if entry_point is not None:
        (dist_info / "entry_points.txt").write_text(f"[ingestion_pipeline.systems]\nrates = {entry_point}\n")
    return site


def run(script: str, site: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """Run the script in a process of its own that has the package installed."""
    home.mkdir(mode=0o700, exist_ok=True)
    variables = {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "INGESTION_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **variables},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )


OPERATED = """
import json, os
from datetime import timedelta
from pathlib import Path
import dagster as dg
from click.testing import CliRunner
from sqlalchemy import select, update
from exchange_rates.tables import rates
from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.cli.main import main
from ingestion_pipeline.definitions import defs
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.orchestration.installation import check_results, materialized, run_job, tick_sensor

def ingest(*arguments):
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout

seen = {}
with FakeWeb({"/today": b"EUR 1.08\\nGBP 0\\n"}) as web, dg.DagsterInstance.ephemeral() as instance:
    os.environ["INGESTION_ALLOW_HOSTS"] = web.host_port
    ingest("init")
    ingest("sources", "add", web.url("/today"), "--id", "rates:bank", "--kind", "rates", "--tier", "hot")
    tick = tick_sensor("new_sources", instance)
    seen["requested"] = [request.job_name for request in tick.run_requests]
    seen["partitions"] = instance.get_dynamic_partitions("rates_sources")
    polled = run_job("poll_hot", instance)
    seen["total"] = materialized(polled, "rates")["rates:bank"]["total"]
    seen["contract"] = check_results(polled)["contract"]
    again = run_job("ingest_rates", instance, tags={"dagster/partition": "rates:bank"})
    seen["ingested"] = again.success
    maintained = run_job("maintain", instance)
    seen["maintained"] = check_results(maintained)["no_zero"]
    [seen["metric"]] = [line for line in ingest("metrics").splitlines() if line.startswith("ingestion_exchange_rates")]
    health = instance.get_latest_materialization_event(dg.AssetKey("source_health")).asset_materialization
    seen["plot"] = health.metadata["exchange_rates_rates:bank"].value
    ingest("export", "rates", "--to", "jsonl", "--out", "rates.jsonl")
    seen["exported"] = sorted(json.loads(line)["currency"] for line in Path("rates.jsonl").read_text().splitlines())
    seen["listed"] = [source["id"] for source in json.loads(ingest("sources", "list", "--kind", "rates", "--json"))]
    with open_run_context() as ctx, ctx.store.begin() as connection:
        long_ago = ctx.store.clock.now(connection) - timedelta(days=400)
        connection.execute(update(rates).where(rates.c.currency == "EUR").values(changed_at=long_ago))
    run_job("maintain", instance)
    with open_run_context() as ctx, ctx.store.read() as connection:
        seen["retained"] = list(connection.execute(select(rates.c.currency)).scalars())
graph = defs.resolve_asset_graph()
node = graph.get(dg.AssetKey("rates"))
seen["group"] = node.group_name
seen["set"] = node.partitions_def.name
seen["job"] = defs.resolve_job_def("ingest_rates").name
seen["checks"] = sorted(key.name for key in graph.get_check_keys_for_assets({dg.AssetKey("rates")}))
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_an_installed_system_is_polled_exported_checked_retained_counted_and_shown(tmp_path: Path) -> None:
    process = run(OPERATED, install(tmp_path / "site"), tmp_path / "home")

    assert process.returncode == 0, process.stderr
    seen: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    assert seen == {
        "requested": ["poll_hot"],
        "partitions": ["rates:bank"],
        "total": 2,
        "contract": True,
        "ingested": True,
        "maintained": False,  # a currency costs nothing
        "metric": 'ingestion_exchange_rates{source="rates:bank"} 2',
        "plot": 2.0,
        "exported": ["EUR", "GBP"],
        "listed": ["rates:bank"],
        "retained": ["GBP"],
        "group": "rates",
        "set": "rates_sources",
        "job": "ingest_rates",
        "checks": ["contract", "no_zero"],
    }


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
