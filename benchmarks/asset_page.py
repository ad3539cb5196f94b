"""The UI's page of an asset: how long Dagster takes to answer it, by partitions.

A real `dagster-webserver` with our definitions, Dagster's own database on SQLite, a materialization
for each partition. Beyond the largest size sources have no partition
(`sources/files.py`).
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.crawlers.job import LOOPBACK
from benchmarks.database import Database
from benchmarks.table import Line

ASSET = "sources"
SIZES = (1_000, 10_000, 25_000)
ROUNDS = 3
PATIENCE_SECONDS = 120
# What the page asks of partitions: the bar, the list, and which of them are there.
PAGE = """
query Page($path: [String!]!) {
  assetNodeOrError(assetKey: {path: $path}) {
    ... on AssetNode {
      partitionStats { numMaterialized numFailed numPartitions }
      partitionKeysByDimension { name partitionKeys }
      assetPartitionStatuses {
        ... on DefaultPartitionStatuses { materializedPartitions unmaterializedPartitions }
      }
    }
  }
}
"""


def measure(database: Database, sizes: tuple[int, ...] = SIZES) -> Iterator[Line]:
    """The least of some rounds, wall time: nobody else asks the server."""
    seconds = {count: _least(count) for count in sizes}
    shown = ", ".join(f"{count:,}: {one * 1_000:,.0f}" for count, one in seconds.items())
    yield Line(
        claim="the UI's page of an asset, ms by partitions",
        database=database.name,
        peer=shown,
        ratio=seconds[max(seconds)],
        limit=1.0,
        is_less_better=True,
    )


def _least(partitions: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        _materialize(home, partitions)
        with _webserver(home) as url:
            return min(_asked(url, partitions) for _ in range(ROUNDS))


def _materialize(home: Path, partitions: int) -> None:
    import dagster as dg

    keys = [f"series:example-{number}" for number in range(partitions)]
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.add_dynamic_partitions(ASSET, keys)
        for key in keys:
            instance.report_runless_asset_event(dg.AssetMaterialization(ASSET, partition=key))


@contextmanager
def _webserver(home: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "dagster_webserver", "-w", "workspace.yaml"]
    command += ["-h", LOOPBACK, "-p", str(port)]
    environment = os.environ | {"DAGSTER_HOME": str(home), "INGESTION_HOME": str(home)}
    root = Path(__file__).parents[1]
    with subprocess.Popen(
        command, cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            url = f"http://{LOOPBACK}:{port}/graphql"
            _wait_for(url)
            yield url
        finally:
            process.terminate()


def _wait_for(url: str) -> None:
    """Until the definitions are loaded, which the first answer does not wait for."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < give_up_at:
        try:
            if _page(url):
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise RuntimeError(f"{url} did not know the asset {ASSET} after {PATIENCE_SECONDS} seconds")


def _asked(url: str, partitions: int) -> float:
    started = time.perf_counter()
    page = _page(url)
    taken = time.perf_counter() - started
    if page["partitionStats"]["numMaterialized"] != partitions:
        raise RuntimeError(f"not all of {partitions} are materialized: {page['partitionStats']}")
    return taken


def _page(url: str) -> dict[str, Any]:
    asked = json.dumps({"query": PAGE, "variables": {"path": [ASSET]}}).encode()
    request = urllib.request.Request(url, asked, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return json.load(answer)["data"]["assetNodeOrError"]
