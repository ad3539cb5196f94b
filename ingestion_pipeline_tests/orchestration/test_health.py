"""The asset `source_health`: numbers, table and picture, manually and with every maintenance run."""

import re
from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
from sqlalchemy import select, update

from ingestion_pipeline.definitions import defs
from ingestion_pipeline.engine.system_spec import plain
from ingestion_pipeline.orchestration.health_report import breakable
from ingestion_pipeline.store.tables import outbox, sources
from ingestion_pipeline_tests.operations.failing_sources import add_healthy_sources, break_sources
from ingestion_pipeline_tests.orchestration.installation import Installation, run_job, tick_sensor

KEY = dg.AssetKey("source_health")


def add_failing_sources(installation: Installation, count: int, *, per_failure: int) -> dict[str, list[str]]:
    with installation.open() as ctx, ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        return break_sources(
            connection, add_healthy_sources(connection, count, now=now), per_failure=per_failure, now=now
        )


def latest_metadata(instance: dg.DagsterInstance) -> dict[str, object]:
    event = instance.get_latest_materialization_event(KEY)
    assert event is not None
    assert event.asset_materialization is not None
    return {name: value.value for name, value in event.asset_materialization.metadata.items()}


@pytest.mark.slow
def test_maintenance_updates_the_health_of_every_source_and_alerts_once(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    add_failing_sources(installation, 60, per_failure=2)

    results = [run_job("maintain", instance) for _ in range(2)]

    assert all(result.success for result in results)
    metadata = latest_metadata(instance)
    expected = {"sources_open": 2, "sources_degraded": 6, "sources_healthy": 50, "queue_poll": 58}
    assert {name: metadata[name] for name in expected} == expected
    assert metadata["dagster/row_count"] == 60
    assert str(metadata["freshness"]).startswith("![freshness](data:image/png;base64,")
    with installation.open() as ctx, ctx.store.read() as connection:
        kinds = list(connection.execute(select(outbox.c.subject_kind)).scalars())
    assert len(kinds) == 10


@pytest.mark.slow
def test_source_health_is_materialized_manually_and_escapes_text_of_pages(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    ids_by_failure = add_failing_sources(installation, 5, per_failure=1)
    with installation.open() as ctx, ctx.store.begin() as connection:
        outcome = {"last_outcome": "failed: <script>x</script> [a](http://evil.test) | **b**"}
        connection.execute(update(sources).values(outcome))

    result = dg.materialize(
        [defs.get_assets_def("source_health")],
        instance=instance,
        resources=dict(defs.resources or {}),
        selection=dg.AssetSelection.assets(KEY),
    )

    assert result.success
    metadata = latest_metadata(instance)
    table = str(metadata["worst"])
    lines = table.splitlines()
    assert lines[2].startswith(f"| {ids_by_failure['down'][0]}".replace(":", r"\:").replace("_", r"\_"))
    assert "**open**" in lines[2]
    assert len({line.count("|") - line.count(r"\|") for line in lines}) == 1
    assert r"\<script\>" in table
    assert re.search(r"(?<!\\)[<\[]", table) is None


@pytest.mark.slow
def test_a_dry_run_materializes_nothing_and_sends_no_alert(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    add_failing_sources(installation, 5, per_failure=1)

    config = {"ops": {"keep": {"config": {"dry_run": True}}}}
    result = run_job("maintain", instance, config=config)

    assert result.success
    [output] = [event for event in result.all_events if event.is_successful_output]
    assert output.step_output_data.metadata["health"].value == 5
    assert instance.get_latest_materialization_event(KEY) is None
    assert installation.rows("outbox") == []
    assert installation.rows("source_health") == []


def test_a_tick_of_the_daemon_is_its_heartbeat(installation: Installation, instance: dg.DagsterInstance) -> None:
    tick_sensor("stale_runs", instance)

    [pulse] = installation.rows("service_heartbeats")
    assert datetime.now(UTC) - pulse["at"] < timedelta(minutes=1)


def test_a_url_in_the_table_can_wrap_at_its_slashes() -> None:
    cell = breakable(plain("http://lists.demo.test/clockmaker answered 503"))

    longest = max(len(part) for part in re.split("[ \N{ZERO WIDTH SPACE}]", cell))
    assert longest < 25
