"""Partition sets, event metadata, and the deletion of old runs."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import TickStatus
from sqlalchemy import insert

from ingestion_pipeline.engine.system_spec import MAX_PICTURE_BYTES, MAX_TITLE_CHARS, picture, plain
from ingestion_pipeline.orchestration.jobs import delete_runs
from ingestion_pipeline.orchestration.mount import set_names
from ingestion_pipeline.orchestration.runs import asset_event, differences, register_keys
from ingestion_pipeline.series.series_reports import ListedChapter, SourceReport, chapter_event, chapter_table
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.store import tables
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.orchestration.installation import Installation
from ingestion_pipeline_tests.processes import FORKSERVER, Child

NAME = "series_sources"
ROUNDS = [[f"series:s{turn}-{number}" for number in range(3)] for turn in range(10)]


def register_in_step(folder: str, barrier: Barrier) -> None:
    """Register the keys of each round in the same moment as the others."""
    with dg.DagsterInstance.local_temp(folder) as instance:
        for keys in ROUNDS:
            barrier.wait(60)
            register_keys(instance, NAME, keys)


def test_a_source_is_in_the_set_of_all_and_in_its_own() -> None:
    assert set_names(Kind.SERIES) == ["sources", NAME]
    assert set_names(Kind.CATALOG) == ["sources", "catalogs"]
    assert set_names(Kind.COMPANY) == ["sources", "companies"]
    assert set_names(Kind.JOB_BOARD) == ["sources", "job_boards"]
    assert set_names(Kind.WEBSITE) == ["sources", "websites"]


def test_differences_are_added_and_removed_keys() -> None:
    assert differences(["b", "a", "c"], ["c", "d"]) == (["a", "b"], ["d"])


def test_existing_keys_are_left_alone(instance: dg.DagsterInstance) -> None:
    register_keys(instance, NAME, ["series:a"])

    register_keys(instance, NAME, ["series:b", "series:a", "series:b"])

    assert instance.get_dynamic_partitions(NAME) == ["series:a", "series:b"]


@pytest.mark.slow
def test_two_runs_that_register_the_same_keys_at_the_same_moment_both_succeed(tmp_path: Path) -> None:
    """On SQLite Dagster selects and then inserts: every third such pair raised IntegrityError."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        instance.get_dynamic_partitions(NAME)  # the tables are there
        barrier = FORKSERVER.Barrier(2)

        for child in [Child(register_in_step, str(tmp_path), barrier) for _ in range(2)]:
            child.result()

        keys_registered = instance.get_dynamic_partitions(NAME)
    assert sorted(keys_registered) == sorted(key for keys in ROUNDS for key in keys)


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
def test_a_dry_run_of_maintain_counts_and_changes_nothing(installation: Installation) -> None:
    with installation.open() as ctx, ctx.store.begin() as connection:
        long_ago = {"started_at": NOON, "lease_until": NOON, "ended_at": NOON}
        row = {"run_id": "r", "lease_owner": "o", "job": "j"} | long_ago
        connection.execute(insert(tables.runs).values(row))

    def sweep(*, dry_run: bool) -> object:
        config = {"ops": {"sweep": {"config": {"dry_run": dry_run}}}}
        result = installation.run_job("maintain", config=config)
        [output] = [event for event in result.all_events if event.is_successful_output]
        return output.step_output_data.metadata["runs"].value

    assert [sweep(dry_run=True), sweep(dry_run=True), sweep(dry_run=False)] == [1, 1, 1]
    assert sweep(dry_run=False) == 0


REPORT = SourceReport(
    source_id="series:solo",
    series_title="Solo",
    url="https://solo.test/feed",
    tier="hot",
    outcome="1 new",
    polls=16,
    changes=2,
    new=1,
    updated=3,
    withdrawn=4,
    total=20,
    latest_chapter=Decimal("20.5"),
    newest=[],
    delay_minutes=12.345,
)


def numbers(report: SourceReport) -> dict[str, Any]:
    """What the UI draws."""
    return {
        name: value.value
        for name, value in asset_event(chapter_event(report)).metadata.items()
        if isinstance(value, dg.IntMetadataValue | dg.FloatMetadataValue)
    }


def test_every_number_is_plottable_in_the_ui() -> None:
    assert numbers(REPORT) == {
        "polled": 16,
        "changed": 2,
        "new": 1,
        "updated": 3,
        "withdrawn": 4,
        "total": 20,
        "latest_chapter": 20.5,
        "delay_minutes": 12.3,
    }


def test_an_unknown_number_is_absent_and_never_zero() -> None:
    incomplete = numbers(replace(REPORT, delay_minutes=None, latest_chapter=None))

    assert numbers(REPORT).keys() - incomplete.keys() == {"delay_minutes", "latest_chapter"}
    assert numbers(replace(REPORT, delay_minutes=0.0))["delay_minutes"] == 0


CHAPTER = ListedChapter(
    number=Decimal("17.50"), title="The Cat", published_at=NOON - timedelta(days=1), detected_at=NOON, is_new=True
)


def test_a_chapter_is_a_row_of_the_table() -> None:
    unknown = replace(CHAPTER, number=None, title=None, published_at=None, is_new=False)

    assert chapter_table([CHAPTER, unknown]).splitlines()[2:] == [
        "| 17.5 | The Cat | 2026-02-28 12:00 | 2026-03-01 12:00 | **new** |",
        "|  |  |  | 2026-03-01 12:00 |  |",
    ]


def test_no_chapter_is_no_table() -> None:
    assert chapter_table([]) == "no chapters"


@pytest.mark.parametrize(
    ("title", "markdown"),
    [
        ("a | b", r"a \| b"),
        ("one\n| two\r\x1b[31m", r"one \| two \[31m"),
        ("[x](javascript:y)", r"\[x\]\(javascript\:y\)"),
        ("<img src=x>", r"\<img src\=x\>"),
        ("&lt; `c` *b*", r"\&lt\; \`c\` \*b\*"),
        ("a\\", r"a\\"),
        ("https://a.test", "https\\:\u2060\\/\\/a\\.test"),
        ("WWW.a.test", "WWW\u2060\\.a\\.test"),
        ("me@a.test", "me\\@\u2060a\\.test"),
        ("\u202egnp.exe", r"gnp\.exe"),
        ("第5話「海」", "第5話「海」"),
        (None, ""),
    ],
)
def test_a_title_is_escaped_in_markdown(title: str | None, markdown: str) -> None:
    assert plain(title) == markdown


def test_a_long_title_is_cut_before_it_is_escaped() -> None:
    title = plain("|" * 1_000)

    assert title == r"\|" * (MAX_TITLE_CHARS - 1) + "…"


def test_a_screenshot_is_embedded_in_the_event() -> None:
    assert picture(b"\xff\xd8\xffx") == "![screenshot](data:image/jpeg;base64,/9j/eA==)"
    assert picture(b"\x89PNG") == "![screenshot](data:image/png;base64,iVBORw==)"


@pytest.mark.parametrize("body", [b"\xff\xd8\xff" + bytes(MAX_PICTURE_BYTES), b"<svg onload=x>", b""])
def test_a_body_that_is_too_large_or_no_image_is_not_embedded(body: bytes) -> None:
    assert picture(body) is None
