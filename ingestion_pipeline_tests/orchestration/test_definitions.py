"""Everything loads, and bears the names that others rely on."""

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._daemon.sensor import MIN_INTERVAL_LOOP_TIME

import ingestion_pipeline
from ingestion_pipeline.definitions import defs
from ingestion_pipeline.exports.contracts import CONTRACTS
from ingestion_pipeline.orchestration import runs
from ingestion_pipeline.orchestration.automation import TICKS
from ingestion_pipeline.orchestration.checks import CHECKS, reported_checks
from ingestion_pipeline.sources import Tier
from ingestion_pipeline.sources.declarations import definition_of
from ingestion_pipeline.store.tables import metadata

ROOT = Path(__file__).parents[2]
REPOSITORY = defs.get_repository_def()
WEBSITES = ["website_info", "website_prompts", "website_analysis"]
TABLES = dict(zip(WEBSITES, ("businesses", "website_analyses", "website_rankings"), strict=True))
ASSETS = [
    *("sources", "pages", "datasets", "companies", "job_listings", "job_matches"),
    *WEBSITES,
    *("chapters", "notices"),
]


def spec(name: str) -> dg.AssetSpec:
    return REPOSITORY.asset_graph.get(dg.AssetKey(name)).assets_def.get_asset_spec(dg.AssetKey(name))


def test_everything_loads() -> None:
    dg.Definitions.validate_loadable(defs)

    assert {key.to_user_string() for key in REPOSITORY.asset_graph.get_all_asset_keys()} == {
        "sources",
        "pages",
        "datasets",
        "companies",
        "job_listings",
        *WEBSITES,
        "chapters",
        "job_matches",
        "notices",
        "source_health",
    }


def test_the_jobs_have_their_names() -> None:
    names = {job.name for job in REPOSITORY.get_all_jobs() if not job.name.startswith("__")}

    polls = {"poll_hot", "poll_warm", "poll_cold"}
    crawls = {"detect_recipes", "crawl_catalogs", "ingest_catalog"}
    others = {"maintain", "add_source", "ingest_series", "deliver_notices", "export_datasets"}
    ends = {"complete_extractions", "control_extraction", "replay_dead_letters"}
    companies = {"process_companies", "ingest_company", "process_listings", "ingest_job_board"}
    websites = {"analyze_websites", "ingest_website"}
    assert names == polls | crawls | companies | websites | ends | others


def test_the_assets_and_their_partition_sets_have_their_names() -> None:
    partition_sets = {
        key.to_user_string(): getattr(REPOSITORY.asset_graph.get(key).partitions_def, "name", "not partitioned")
        for key in REPOSITORY.asset_graph.get_all_asset_keys()
    }

    assert partition_sets == {
        "sources": "sources",
        "pages": "catalogs",
        "datasets": "catalogs",
        "companies": "companies",
        **dict.fromkeys(WEBSITES, "websites"),
        "chapters": "series_sources",
        "job_matches": "job_boards",
        "job_listings": "job_boards",
        "notices": "not partitioned",
        "source_health": "not partitioned",
    }


def test_chapters_come_from_sources_partition_by_partition() -> None:
    chapters = REPOSITORY.asset_graph.get(dg.AssetKey("chapters"))

    mapping = chapters.partition_mappings[dg.AssetKey("sources")]
    assert chapters.parent_keys == {dg.AssetKey("sources")}
    assert isinstance(mapping, dg.IdentityPartitionMapping)


def test_the_schedules_run_by_default_in_utc() -> None:
    schedules = {
        schedule.name: (schedule.default_status, schedule.execution_timezone) for schedule in REPOSITORY.schedule_defs
    }

    running = (dg.DefaultScheduleStatus.RUNNING, "UTC")
    names = ("hot_polling", "warm_polling", "cold_polling", "maintenance")
    assert schedules == dict.fromkeys(names, running)


def test_the_hot_schedule_ticks_every_five_minutes_and_the_cold_one_every_hour() -> None:
    minutes = {schedule.name: schedule.cron_schedule for schedule in REPOSITORY.schedule_defs}

    assert minutes["hot_polling"] == "*/5 * * * *"
    assert minutes["maintenance"] == "*/5 * * * *"
    assert minutes["cold_polling"] == TICKS[Tier.COLD] == "7 * * * *"


def test_the_sensors_run_by_default() -> None:
    sensors = {sensor.name: sensor.default_status for sensor in REPOSITORY.sensor_defs}

    own_sensors = ("new_sources", "pending_work", "extraction_completion")
    names = (*own_sensors, "stale_runs", "run_failures")
    assert sensors == dict.fromkeys(names, dg.DefaultSensorStatus.RUNNING)


def test_the_sensors_tick_whenever_the_daemon_does() -> None:
    seconds = {sensor.name: sensor.minimum_interval_seconds for sensor in REPOSITORY.sensor_defs}

    # Not "at most": a tick that comes a moment early would be skipped, and wait twice as long.
    assert max(seconds["new_sources"] or 0, seconds["pending_work"] or 0) < MIN_INTERVAL_LOOP_TIME
    assert seconds["stale_runs"] == 30


@pytest.mark.parametrize("name", ASSETS)
def test_an_asset_has_a_description_an_owner_and_columns(name: str) -> None:
    asset_spec = spec(name)

    columns = asset_spec.metadata["dagster/column_schema"]
    assert isinstance(columns, dg.TableSchema)
    assert {column.description is None for column in columns.columns} == {False}
    assert len(asset_spec.description or "") > 40
    assert asset_spec.owners == ["team:ingestion"]
    assert asset_spec.kinds
    assert asset_spec.group_name in {*("sources", "catalogs", "companies", "websites", "series", "notices")}


@pytest.mark.parametrize("name", ASSETS)
def test_an_asset_has_checks_with_descriptions(name: str) -> None:
    keys = REPOSITORY.asset_graph.get_check_keys_for_assets({dg.AssetKey(name)})

    own = {key for key in CHECKS if key.asset_key == dg.AssetKey(name)}
    contract = {dg.AssetCheckKey(dg.AssetKey(name), "contract")} if name in CONTRACTS else set()
    assert keys == own | contract
    assert keys
    assert all(len(CHECKS[key].description) > 40 for key in own)


def test_the_columns_an_asset_names_are_columns_of_its_table() -> None:
    for name in ASSETS:
        if name in CONTRACTS:  # compared with the export in test_contracts.py
            continue
        columns = spec(name).metadata["dagster/column_schema"].columns
        table = metadata.tables[TABLES.get(name, name)]
        assert {column.name for column in columns} <= set(table.columns.keys())


def test_the_events_of_polls_do_not_grow_with_the_chapters() -> None:
    """`no_gaps` reads every chapter number: evaluated by each poll, polls grew with history."""
    cheap = {"no_drop", "no_lost_fields", "boards_fresh"}
    assert {key.name for key in reported_checks(None)} == {"not_empty_after_full", "sources_fresh"} | cheap


def test_the_job_of_one_source_plans_no_check_it_would_skip() -> None:
    job = defs.resolve_job_def("ingest_series")

    assert job.asset_layer.selected_asset_keys == {dg.AssetKey("chapters")}
    assert set(job.asset_layer.asset_graph.asset_check_keys) == set()


@pytest.mark.slow
def test_the_packages_load_without_dagster() -> None:
    """Two seconds of import, for each command and each worker that only wants a function."""
    script = "import ingestion_pipeline.series, sys; sys.exit('dagster' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False, cwd=ROOT).returncode == 0


@pytest.mark.parametrize(
    "source_id", ["https://a.test/feed", "series:https://a.test/feed", "series:a,b", "series:", "series:A"]
)
def test_a_partition_key_is_never_a_url(source_id: str) -> None:
    raw: dict[str, Any] = {"id": source_id, "kind": "series", "url": "https://a.test/feed"}

    definition, problems = definition_of(raw | {"platform": "rss"})

    assert definition is None
    assert [problem.field for problem in problems] == ["id"]


def test_the_limits_of_dagster_yaml_use_the_tags_of_runs() -> None:
    limits = yaml.safe_load((ROOT / "dagster.yaml").read_text())

    bounded = {limit["key"]: limit for limit in limits["concurrency"]["runs"]["tag_concurrency_limits"]}
    assert bounded.keys() == {runs.SHARD, runs.TIER}
    assert bounded[runs.SHARD]["value"] == {"applyLimitPerUniqueValue": True}
    assert bounded[runs.TIER]["value"] == Tier.COLD.value


def test_a_hanging_run_is_ended_and_telemetry_is_off() -> None:
    limits = yaml.safe_load((ROOT / "dagster.yaml").read_text())

    assert limits["run_monitoring"]["enabled"] is True
    assert limits["run_monitoring"]["max_runtime_seconds"] == 900
    assert limits["run_monitoring"]["max_resume_run_attempts"] == 0
    assert limits["telemetry"] == {"enabled": False}
    assert "storage" not in limits


def test_loading_the_definitions_restores_the_garbage_collector() -> None:
    assert gc.isenabled()
    assert ingestion_pipeline.defs is defs
    assert gc.isenabled()
