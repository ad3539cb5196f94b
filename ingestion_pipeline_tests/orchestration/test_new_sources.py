"""The sensor `new_sources`: rows and files become partitions and first runs, without a restart."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
import time_machine

from ingestion_pipeline.sources.registry import disable, remove
from ingestion_pipeline.sources.source import SOURCE_ID
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.orchestration.installation import LIGHTHOUSE, SALT, Installation, an_entry, source_file

SETS = ("sources", "series_sources")


@pytest.fixture(autouse=True)
def at_noon() -> Iterator[time_machine.Traveller]:
    with time_machine.travel(datetime(2026, 3, 1, 12, tzinfo=UTC), tick=False) as clock:
        yield clock


def partitions(instance: dg.DagsterInstance) -> list[list[str]]:
    return [sorted(instance.get_dynamic_partitions(name)) for name in SETS]


def test_a_new_entry_becomes_a_partition_and_a_run_without_a_restart(installation: Installation) -> None:
    before = installation.tick_sensor("new_sources")
    (installation.sources / "mine.yaml").write_text(source_file([an_entry()]))

    data = installation.tick_sensor("new_sources", cursor=before.cursor)

    shard = installation.source(LIGHTHOUSE).shard % 2
    [request] = data.run_requests
    assert request.job_name == "poll_hot"
    assert request.tags["ingestion/shard"] == f"hot:{shard}"
    assert request.run_key == f"hot:{shard}:new:20260301T120000"
    assert partitions(installation.instance) == [[LIGHTHOUSE], [LIGHTHOUSE]]


def test_a_new_source_counts_as_declared_so_that_nobody_is_warned_of_its_upstream(installation: Installation) -> None:
    installation.add_demo(LIGHTHOUSE, SALT)

    data = installation.tick_sensor("new_sources")

    events = [(event.asset_key.to_user_string(), event.partition) for event in data.asset_events]
    assert sorted(events) == [("sources", LIGHTHOUSE), ("sources", SALT)]
    tiers = {event.partition: event.metadata["tier"].value for event in data.asset_events}
    assert tiers == {LIGHTHOUSE: "hot (pinned)", SALT: "warm (pinned)"}


def test_another_database_is_filled_from_the_files_that_have_not_changed(installation: Installation) -> None:
    """As when SQLite is left for PostgreSQL, and Dagster's history stays."""
    (installation.sources / "mine.yaml").write_text(source_file([an_entry()]))
    first = installation.tick_sensor("new_sources")
    installation.clear_database()

    installation.tick_sensor("new_sources", cursor=first.cursor)

    assert [row["id"] for row in installation.rows("sources")] == [LIGHTHOUSE]


def test_a_second_tick_requests_nothing(installation: Installation) -> None:
    (installation.sources / "mine.yaml").write_text(source_file([an_entry()]))
    first = installation.tick_sensor("new_sources")

    second = installation.tick_sensor("new_sources", cursor=first.cursor)

    assert not second.run_requests
    assert not second.dynamic_partitions_requests
    assert second.skip_message == "nothing new among 1 sources"


def test_a_row_added_by_anyone_becomes_a_partition(installation: Installation) -> None:
    first = installation.tick_sensor("new_sources")
    installation.add_demo(SALT)

    data = installation.tick_sensor("new_sources", cursor=first.cursor)

    assert [request.job_name for request in data.run_requests] == ["poll_warm"]
    assert partitions(installation.instance) == [[SALT], [SALT]]


@pytest.mark.slow
def test_many_new_sources_are_one_run_per_tier_and_shard(installation: Installation) -> None:
    installation.add(*(a_definition(id=f"series:s{n}", url=f"https://h{n}.test/") for n in range(20)))

    data = installation.tick_sensor("new_sources")

    assert [request.tags["ingestion/shard"] for request in data.run_requests] == ["warm:0", "warm:1"]
    assert len(partitions(installation.instance)[0]) == 20


def test_every_partition_key_is_a_source_id(installation: Installation) -> None:
    installation.add_demo(LIGHTHOUSE, SALT)

    installation.tick_sensor("new_sources")

    assert all(SOURCE_ID.fullmatch(key) for keys in partitions(installation.instance) for key in keys)


def test_a_bad_file_imports_nothing_of_itself_and_is_warned_about_once(installation: Installation) -> None:
    (installation.sources / "bad.yaml").write_text(source_file([an_entry(), an_entry("series:b", kind="x")]))
    (installation.sources / "good.yaml").write_text(source_file([an_entry("series:good", series="good")]))
    log_lines: list[str] = []

    first = installation.tick_sensor("new_sources", log_lines=log_lines)
    installation.tick_sensor("new_sources", cursor=first.cursor, log_lines=log_lines)

    warned = [line for line in log_lines if line.startswith("WARNING")]
    assert len(warned) == 1
    assert warned[0].startswith("WARNING: not imported: bad.yaml:")
    assert partitions(installation.instance)[0] == ["series:good"]


def test_a_bad_file_is_imported_after_correction(installation: Installation) -> None:
    file = installation.sources / "mine.yaml"
    file.write_text("sources:\n  - id: [")
    first = installation.tick_sensor("new_sources")
    file.write_text(source_file([an_entry()]))

    data = installation.tick_sensor("new_sources", cursor=first.cursor)

    assert len(data.run_requests) == 1
    assert partitions(installation.instance)[0] == [LIGHTHOUSE]


@pytest.mark.slow
def test_a_removed_source_loses_its_partition(installation: Installation) -> None:
    installation.add_demo(LIGHTHOUSE, SALT)
    first = installation.tick_sensor("new_sources")
    with installation.open() as ctx, ctx.store.begin() as connection:
        remove(connection, SALT, actor="cli:ada", now=ctx.store.clock.now(connection))

    data = installation.tick_sensor("new_sources", cursor=first.cursor)

    assert partitions(installation.instance) == [[LIGHTHOUSE], [LIGHTHOUSE]]
    assert [request.tags["ingestion/tier"] for request in data.run_requests] == ["hot"]


@pytest.mark.slow
def test_a_change_that_leaves_the_counts_equal_is_mirrored_within_five_minutes(
    installation: Installation, at_noon: time_machine.Traveller
) -> None:
    """Disabled first and removed later, a source kept its partition: the counts were the same."""
    installation.add_demo(LIGHTHOUSE)
    with installation.open() as ctx, ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        disable(connection, LIGHTHOUSE, actor="cli:ada", reason="loud", now=now)
    first = installation.tick_sensor("new_sources")
    assert partitions(installation.instance)[0] == [LIGHTHOUSE]
    with installation.open() as ctx, ctx.store.begin() as connection:
        remove(connection, LIGHTHOUSE, actor="cli:ada", now=ctx.store.clock.now(connection))

    at_noon.shift(timedelta(minutes=5))
    installation.tick_sensor("new_sources", cursor=first.cursor)

    assert partitions(installation.instance) == [[], []]


def test_an_entry_that_is_switched_on_later_is_polled_at_once(installation: Installation) -> None:
    """The examples are shipped switched off: known for long, they waited for their tier's tick."""
    file = installation.sources / "mine.yaml"
    file.write_text(source_file([an_entry(enabled=False)]))
    first = installation.tick_sensor("new_sources")
    assert not first.run_requests
    file.write_text(source_file([an_entry(enabled=True)]))

    data = installation.tick_sensor("new_sources", cursor=first.cursor)

    assert [request.job_name for request in data.run_requests] == ["poll_hot"]
    assert partitions(installation.instance)[0] == [LIGHTHOUSE]


def test_a_source_beyond_the_partition_limit_is_still_polled(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGESTION_POLLING__PARTITION_LIMIT", "1")
    installation.add_demo(LIGHTHOUSE)
    installation.add_demo(SALT)

    data = installation.tick_sensor("new_sources")

    assert partitions(installation.instance) == [[LIGHTHOUSE], [LIGHTHOUSE]]
    assert {request.job_name for request in data.run_requests} == {"poll_hot", "poll_warm"}


def test_a_missing_folder_is_no_error(installation: Installation) -> None:
    installation.sources.rmdir()

    data = installation.tick_sensor("new_sources")

    assert json.loads(data.cursor)["files"] == {}
    assert not data.run_requests
