"""The Dagster home after `ingest demo run`: what `ingest dev` shows of it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from ingestion_pipeline.definitions import defs
from ingestion_pipeline_tests.processes import Child, run_command

pytestmark = pytest.mark.slow

PREVIEWS = (dg.TableMetadataValue, dg.MarkdownMetadataValue)
NUMBERS = (dg.IntMetadataValue, dg.FloatMetadataValue)
MOST_NUMBERS = 12
INGEST = str(Path(sys.executable).with_name("ingest"))
EVENTS = sorted(key.to_user_string() for key in defs.resolve_all_asset_keys() if key.path != ["sources"])


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    """The persistent instance that the commands of the README write to."""
    folder = tmp_path_factory.mktemp("demo")
    home = folder / "home"
    variables = {"INGESTION_HOME": str(home), "INGESTION_BROWSER": "none", "PATH": "/usr/bin:/bin"}
    variables |= {"DAGSTER_HOME": str(home / "dagster"), "INGESTION_WEBSITE__ANSWER_SECONDS": "600"}
    maintain = ["dagster", "job", "execute", "-m", "ingestion_pipeline", "-j", "maintain"]
    for command in ([INGEST, "demo", "run"], maintain):
        result = Child(run_command, str(folder), command, variables).result(within_seconds=300)
        assert result.code == 0, result.errors
    with dg.DagsterInstance.from_config(str(home / "dagster")) as instance:
        yield instance


def test_the_runs_of_a_demo_are_listed_with_the_jobs_of_the_code_location(instance: dg.DagsterInstance) -> None:
    listed = dg.RunsFilter(tags={".dagster/repository": "__repository__@ingestion_pipeline"})

    jobs = {run.job_name for run in instance.get_runs(listed) if run.remote_job_origin is not None}

    assert {"poll_hot", "crawl_catalogs", "process_companies", "analyze_websites", "deliver_notices"} <= jobs


@pytest.mark.parametrize("asset", EVENTS)
def test_an_event_shows_a_preview_first_then_a_dozen_numbers_at_the_most(
    instance: dg.DagsterInstance, asset: str
) -> None:
    event = instance.get_latest_materialization_event(dg.AssetKey(asset))
    assert event is not None
    assert event.asset_materialization is not None
    metadata = {
        name: value for name, value in event.asset_materialization.metadata.items() if not name.startswith("dagster/")
    }

    kinds = "".join(_kind(value) for value in metadata.values())

    assert kinds == "".join(sorted(kinds))  # previews, then numbers, then the rest
    assert kinds.startswith("1")
    assert kinds.count("2") <= MOST_NUMBERS


@pytest.mark.parametrize("partition", ["catalog:harbour-members", "series:ghost-broken"])
def test_a_source_that_gave_nothing_is_not_green(instance: dg.DagsterInstance, partition: str) -> None:
    green = {asset for asset in EVENTS if partition in instance.get_materialized_partitions(dg.AssetKey(asset))}

    assert green == set()


def _kind(value: object) -> str:
    return "1" if isinstance(value, PREVIEWS) else "2" if isinstance(value, NUMBERS) else "3"
