"""`ingest export dbt-sources`: read, tested and built on by dbt itself, over a copy that dlt has loaded."""

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestion_pipeline.exports.dbt import dbt_sources
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.exports.test_copies import store

__all__ = ["store"]  # a fixture

# dbt's own pins do not resolve beside ours: it has an environment of its own.
REQUIREMENTS = ("dbt-core==1.10.23", "dbt-duckdb==1.10.1", "duckdb==2.0.0")
PROJECT = "name: web\nversion: '1.0'\nprofile: web\nvars: {ingestion_schema: web}\n"
PAGE = Path(__file__).parent.parent.parent / "docs" / "operating" / "changes.md"
[MODEL] = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), re.S | re.M)


def tables() -> dict[str, Any]:
    [source] = yaml.safe_load(dbt_sources())["sources"]
    return {table["name"]: table for table in source["tables"]}


def test_every_column_has_its_meaning_and_the_tests_of_its_contract() -> None:
    listings = tables()["job_listings"]
    columns = {column["name"]: column for column in listings["columns"]}

    assert all(column["description"] for table in tables().values() for column in table["columns"])
    assert columns["id"]["data_tests"] == ["unique", "not_null"]
    assert columns["status"]["data_tests"] == [{"accepted_values": {"arguments": {"values": ["open", "closed"]}}}]
    assert listings["config"] == {
        "loaded_at_field": "modified_at",
        "freshness": {"warn_after": {"count": 7, "period": "day"}},
    }


@pytest.fixture(scope="module")
def dbt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command dbt, in an environment of its own; skips only where the package index cannot be reached."""
    folder = tmp_path_factory.mktemp("dbt")
    venv.create(folder, with_pip=True)
    command = [str(folder / "bin" / "pip"), "install", "--quiet", "--retries", "1", *REQUIREMENTS]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)
    if installed.returncode and "connection" in installed.stderr.lower():
        pytest.skip("the package index cannot be reached, and dbt is not installed")
    assert installed.returncode == 0, installed.stderr
    return folder / "bin" / "dbt"


@pytest.mark.slow
def test_dbt_parses_the_sources_and_builds_on_them(store: Store, tmp_path: Path, dbt: Path) -> None:
    import dlt

    from ingestion_pipeline import dlt_source

    copy = tmp_path / "copy.duckdb"
    destination = dlt.destinations.duckdb(str(copy))
    dlt.pipeline("copy", destination=destination, dataset_name="web", pipelines_dir=str(tmp_path / "dlt")).run(
        dlt_source()
    )
    project = tmp_path / "project"
    (project / "models").mkdir(parents=True)
    (project / "dbt_project.yml").write_text(PROJECT)
    output = {"type": "duckdb", "path": str(copy), "threads": 1}
    (project / "profiles.yml").write_text(json.dumps({"web": {"target": "dev", "outputs": {"dev": output}}}))
    (project / "models" / "sources.yml").write_text(
        subprocess.run(
            [sys.executable, "-m", "ingestion_pipeline", "export", "dbt-sources"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    (project / "models" / "latest.sql").write_text(MODEL)
    variables = {**os.environ, "DO_NOT_TRACK": "1", "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"}

    def run(*arguments: str) -> str:
        process = subprocess.run(
            [str(dbt), "--no-version-check", *arguments, "--profiles-dir", "."],
            cwd=project,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stdout
        return process.stdout

    parsed, built = run("parse", "--show-all-deprecations"), run("build")
    shown = json.loads(run("--quiet", "show", "--select", "latest", "--output", "json"))

    assert "Deprecation" not in parsed
    assert "ERROR=0" in built
    assert "PASS=" in built
    assert shown["show"] == [{"series_id": "solo", "chapters": 3, "latest": 3.0}]
