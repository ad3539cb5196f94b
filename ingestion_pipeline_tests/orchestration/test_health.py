"""The asset `source_health`: numbers, table and picture, by hand and with every maintenance."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import dagster as dg
from sqlalchemy import select, update

from ingestion_pipeline.definitions import defs
from ingestion_pipeline.orchestration.events import plain
from ingestion_pipeline.orchestration.health import breakable
from ingestion_pipeline.store.tables import outbox, sources
from ingestion_pipeline_tests.operations.failing import broken, given
from ingestion_pipeline_tests.orchestration.house import House, run_job, tick_sensor

KEY = dg.AssetKey("source_health")


def fill(house: House, count: int, *, each: int) -> dict[str, list[str]]:
    with house.open() as ctx, ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        return broken(connection, given(connection, count, now=now), each=each, now=now)


def newest(instance: dg.DagsterInstance) -> dict[str, object]:
    event = instance.get_latest_materialization_event(KEY)
    assert event is not None
    assert event.asset_materialization is not None
    return {name: one.value for name, one in event.asset_materialization.metadata.items()}


def test_maintenance_refreshes_the_health_of_all_and_tells_what_changed_once(
    house: House, instance: dg.DagsterInstance
) -> None:
    fill(house, 60, each=2)

    results = [run_job("maintain", instance) for _ in range(2)]

    assert all(one.success for one in results)
    found = newest(instance)
    expected = {"sources_open": 2, "sources_degraded": 6, "sources_healthy": 50, "queue_poll": 58}
    assert {name: found[name] for name in expected} == expected
    assert found["dagster/row_count"] == 60
    assert str(found["freshness"]).startswith("![freshness](data:image/png;base64,")
    with house.open() as ctx, ctx.store.read() as connection:
        kinds = list(connection.execute(select(outbox.c.subject_kind)).scalars())
    assert len(kinds) == 10


def test_it_is_materialized_by_hand_and_a_strangers_text_does_nothing_in_its_table(
    house: House, instance: dg.DagsterInstance
) -> None:
    ways = fill(house, 5, each=1)
    with house.open() as ctx, ctx.store.begin() as connection:
        said = {"last_outcome": "failed: <script>x</script> [a](http://evil.test) | **b**"}
        connection.execute(update(sources).values(said))

    result = dg.materialize(
        [defs.get_assets_def("source_health")],
        instance=instance,
        resources=dict(defs.resources or {}),
        selection=dg.AssetSelection.assets(KEY),
    )

    assert result.success
    found = newest(instance)
    table = str(found["worst"])
    lines = table.splitlines()
    assert lines[2].startswith(f"| {ways['down'][0]}".replace(":", r"\:").replace("_", r"\_"))
    assert "**open**" in lines[2]
    assert len({line.count("|") - line.count(r"\|") for line in lines}) == 1
    assert r"\<script\>" in table
    assert re.search(r"(?<!\\)[<\[]", table) is None


def test_a_dry_run_shows_and_tells_nothing(house: House, instance: dg.DagsterInstance) -> None:
    fill(house, 5, each=1)

    config = {"ops": {"keep": {"config": {"dry_run": True}}}}
    result = run_job("maintain", instance, config=config)

    assert result.success
    [output] = [one for one in result.all_events if one.is_successful_output]
    assert output.step_output_data.metadata["health"].value == 5
    assert instance.get_latest_materialization_event(KEY) is None
    assert house.rows("outbox") == []
    assert house.rows("source_health") == []


def test_a_tick_of_the_daemon_is_its_sign_of_life(house: House, instance: dg.DagsterInstance) -> None:
    tick_sensor("stale_runs", instance)

    [pulse] = house.rows("pulses")
    assert datetime.now(UTC) - pulse["at"] < timedelta(minutes=1)


def test_an_address_in_the_table_may_be_broken_at_its_slashes() -> None:
    shown = breakable(plain("http://lists.demo.test/clockmaker answered 503"))

    longest = max(len(part) for part in re.split("[ \N{ZERO WIDTH SPACE}]", shown))
    assert longest < 25
