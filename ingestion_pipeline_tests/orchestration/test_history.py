"""Dagster's own history: old runs are deleted, runs that an asset's page shows stay."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import TickStatus
from sqlalchemy import insert

from ingestion_pipeline.orchestration.jobs import delete_runs
from ingestion_pipeline.store import tables
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.orchestration.installation import Installation, run_job

KEYS = dg.StaticPartitionsDefinition(["a", "b"])
LATER = datetime(2100, 1, 1, tzinfo=UTC)


@dg.asset(partitions_def=KEYS)
def things() -> None: ...


@dg.asset
def summary() -> None: ...


def a_run(instance: dg.DagsterInstance, asset: dg.AssetsDefinition, key: str | None = None) -> str:
    result = dg.materialize([asset], instance=instance, partition_key=key)
    return result.run_id


def remaining_runs(instance: dg.DagsterInstance) -> set[str]:
    return set(instance.get_run_ids())


@pytest.mark.slow
def test_old_runs_are_deleted_except_those_with_the_newest_materialization_of_a_partition(
    instance: dg.DagsterInstance,
) -> None:
    runs = [a_run(instance, things, key) for key in ("a", "a", "b")]
    runs += [a_run(instance, summary) for _ in range(2)]

    assert delete_runs(instance, before=LATER, at_most=10, dry_run=True) == 2
    assert remaining_runs(instance) == set(runs)
    assert delete_runs(instance, before=LATER, at_most=10) == 2

    assert remaining_runs(instance) == {runs[1], runs[2], runs[4]}
    assert instance.get_materialized_partitions(dg.AssetKey("things")) == {"a", "b"}
    assert delete_runs(instance, before=LATER, at_most=10) == 0


@pytest.mark.slow
def test_the_oldest_runs_are_deleted_first_up_to_the_limit(instance: dg.DagsterInstance) -> None:
    runs = [a_run(instance, summary) for _ in range(4)]

    assert delete_runs(instance, before=LATER, at_most=2) == 2

    assert remaining_runs(instance) == set(runs[2:])


@pytest.mark.slow
def test_runs_of_a_job_can_have_a_shorter_retention(instance: dg.DagsterInstance) -> None:
    @dg.job
    def often() -> None: ...

    kept_run = a_run(instance, summary)
    for _ in range(2):
        often.execute_in_process(instance=instance)

    assert delete_runs(instance, before=LATER, at_most=10, job="often") == 2
    assert remaining_runs(instance) == {kept_run}


@pytest.mark.slow
def test_ticks_are_retained_for_the_configured_days(tmp_path: Path) -> None:
    """Dagster purges them itself; five-second sensors leave 17,000 a day."""
    shutil.copy(Path(__file__).parents[2] / "dagster.yaml", tmp_path)
    with dg.DagsterInstance.from_config(str(tmp_path)) as real:
        sensors = real.get_tick_retention_settings(InstigatorType.SENSOR)
        schedules = real.get_tick_retention_settings(InstigatorType.SCHEDULE)

    assert sensors[TickStatus.SKIPPED] == 2
    assert sensors[TickStatus.SUCCESS] == schedules[TickStatus.SUCCESS] == 30


@pytest.mark.slow
def test_recent_and_active_runs_stay(instance: dg.DagsterInstance) -> None:
    for _ in range(2):
        a_run(instance, summary)
    instance.create_run_for_job(dg.job(name="idle")(lambda: None))

    yesterday = datetime.now(UTC) - timedelta(days=1)
    assert delete_runs(instance, before=yesterday, at_most=10) == 0
    assert delete_runs(instance, before=LATER, at_most=10) == 1
    assert len(remaining_runs(instance)) == 2


@pytest.mark.slow
def test_a_dry_run_of_maintain_counts_and_changes_nothing(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    with installation.open() as ctx, ctx.store.begin() as connection:
        long_ago = {"started_at": NOON, "lease_until": NOON, "ended_at": NOON}
        row = {"run_id": "r", "lease_owner": "o", "job": "j"} | long_ago
        connection.execute(insert(tables.runs).values(row))

    def sweep(*, dry_run: bool) -> object:
        config = {"ops": {"keep": {"config": {"dry_run": dry_run}}}}
        result = run_job("maintain", instance, config=config)
        [output] = [event for event in result.all_events if event.is_successful_output]
        return output.step_output_data.metadata["runs"].value

    assert [sweep(dry_run=True), sweep(dry_run=True), sweep(dry_run=False)] == [1, 1, 1]
    assert sweep(dry_run=False) == 0
