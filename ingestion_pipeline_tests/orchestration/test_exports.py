"""Exports of `exports.yaml` as assets: written again when rows have changed, and only then."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from ingestion_pipeline.definitions import build_definitions
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.exports.declared_exports import BadExports, read_exports
from ingestion_pipeline.orchestration.exports import made_from
from ingestion_pipeline.orchestration.runs import QUIET
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline_tests.exports.datasets import a_course, a_dataset
from ingestion_pipeline_tests.orchestration.installation import LIGHTHOUSE, PARTITION, SALT, Installation

DECLARED = """
exports:
  - {id: all_chapters, export: chapter_sources, format: csv}
  - {id: chapters_of_source, export: chapter_sources, format: jsonl, by_source: true}
  - {id: courses, export: course}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "exports.yaml"
    path.write_text(DECLARED)
    monkeypatch.setenv("INGESTION_EXPORTS", str(path))
    return path


@pytest.fixture
def project(file: Path) -> dg.Definitions:
    return build_definitions()


def materialize(project: dg.Definitions, asset: str, instance: dg.DagsterInstance, **options: Any) -> dict[str, Any]:
    """Materialize the asset alone, as the UI does; return its metadata, none if nothing was written."""
    key = dg.AssetKey(asset)
    job = project.get_repository_def().get_implicit_job_def_for_assets([key])
    assert job is not None
    result = job.get_subset(asset_selection={key}).execute_in_process(instance=instance, run_config=QUIET, **options)
    events = result.asset_materializations_for_node(asset)
    return {name: value.value for name, value in events[0].metadata.items()} if events else {}


@pytest.mark.slow
def test_an_export_is_written_whole_or_by_source_with_its_place_and_rows(
    project: dg.Definitions, installation: Installation, site: DemoSite
) -> None:
    installation.add_demo(LIGHTHOUSE, SALT)
    for key in (LIGHTHOUSE, SALT):
        assert installation.run_job("ingest_series", tags={PARTITION: key}).success

    whole = materialize(project, "all_chapters", installation.instance)
    own = materialize(project, "chapters_of_source", installation.instance, partition_key=SALT)

    folder = installation.home.absolute() / "exports"
    assert whole["dagster/uri"] == f"file://{folder}/all_chapters.csv"
    assert own["dagster/uri"] == f"file://{folder}/chapters_of_source.{SALT.replace(':', '~')}.jsonl"
    lines = (folder / "all_chapters.csv").read_text().splitlines()
    assert whole["dagster/row_count"] == len(lines) - 1 > own["dagster/partition_row_count"] > 0


@pytest.mark.slow
def test_a_run_of_several_partitions_writes_the_file_of_each(
    project: dg.Definitions, installation: Installation, site: DemoSite
) -> None:
    installation.add_demo(LIGHTHOUSE, SALT)
    for key in (LIGHTHOUSE, SALT):
        assert installation.run_job("ingest_series", tags={PARTITION: key}).success
    job = project.get_repository_def().get_implicit_job_def_for_assets([dg.AssetKey("chapters_of_source")])
    assert job is not None
    several = {"dagster/asset_partition_range_start": LIGHTHOUSE, "dagster/asset_partition_range_end": SALT}

    result = job.get_subset(asset_selection={dg.AssetKey("chapters_of_source")}).execute_in_process(
        instance=installation.instance, run_config=QUIET, tags=several
    )

    events = result.asset_materializations_for_node("chapters_of_source")
    places = {event.partition: event.metadata["dagster/uri"].value for event in events}
    assert places.keys() == {LIGHTHOUSE, SALT}
    assert all(str(place).endswith(f"{(key or '').replace(':', '~')}.jsonl") for key, place in places.items())
    rows = {event.partition: event.metadata["dagster/partition_row_count"].value for event in events}
    assert rows[LIGHTHOUSE] != rows[SALT]


def test_an_export_of_items_that_nobody_published_writes_nothing_and_does_not_fail(
    project: dg.Definitions, installation: Installation
) -> None:
    assert materialize(project, "courses", installation.instance) == {}

    with installation.open() as ctx:
        a_dataset(ctx.store, [a_course("CS 101"), a_course("CS 102")])
    assert materialize(project, "courses", installation.instance)["dagster/row_count"] == 2


def test_the_assets_name_what_they_are_made_from_and_run_when_it_has_changed(project: dg.Definitions) -> None:
    graph = project.get_repository_def().asset_graph

    parents = {name: {key.to_user_string() for key in graph.get(dg.AssetKey(name)).parent_keys} for name in NAMES}
    assert parents == {"all_chapters": {"chapters"}, "chapters_of_source": {"chapters"}, "courses": {"datasets"}}
    conditions = {name: graph.get(dg.AssetKey(name)).automation_condition for name in NAMES}
    assert None not in conditions.values()
    [sensor] = [sensor for sensor in project.get_repository_def().sensor_defs if sensor.name == "exports"]
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING


NAMES = ("all_chapters", "chapters_of_source", "courses")


@pytest.mark.slow
def test_an_export_follows_changed_rows_though_another_source_was_never_read(
    project: dg.Definitions, installation: Installation, site: DemoSite
) -> None:
    installation.add_demo(LIGHTHOUSE, SALT)
    installation.instance.add_dynamic_partitions("series_sources", [LIGHTHOUSE, SALT])
    selection = dg.AssetSelection.assets("all_chapters", "chapters_of_source")

    def requested(cursor: Any = None) -> tuple[set[str | None], Any]:
        ticked = dg.evaluate_automation_conditions(
            project, installation.instance, asset_selection=selection, cursor=cursor
        )
        keys: set[str | None] = set()
        if ticked.get_num_requested(dg.AssetKey("all_chapters")):
            keys.add(None)
        return keys | set(ticked.get_requested_partitions(dg.AssetKey("chapters_of_source"))), ticked.cursor

    assert installation.run_job("ingest_series", tags={PARTITION: LIGHTHOUSE}).success
    first, cursor = requested()
    assert first == {None, LIGHTHOUSE}, "what is there when the export is declared"
    materialize(project, "chapters_of_source", installation.instance, partition_key=LIGHTHOUSE)
    materialize(project, "all_chapters", installation.instance)
    _, cursor = requested(cursor)

    assert installation.run_job("ingest_series", tags={PARTITION: SALT}).success
    after, cursor = requested(cursor)
    assert after == {None, SALT}

    materialize(project, "all_chapters", installation.instance)
    materialize(project, "chapters_of_source", installation.instance, partition_key=SALT)
    installation.make_due(SALT)
    assert installation.run_job("ingest_series", tags={PARTITION: SALT}).success
    unchanged, _ = requested(cursor)
    assert unchanged == set()


@pytest.mark.parametrize(
    ("table", "assets"),
    [
        ("chapter_sources", ["chapters"]),
        ("series", ["chapters"]),
        ("job_listings", ["job_listings"]),
        ("course", ["datasets"]),
        ("data_items", ["datasets"]),
        ("website_rankings", ["website_analysis"]),
        ("sources", ["sources"]),
    ],
)
def test_an_export_follows_the_assets_that_write_its_rows(table: str, assets: list[str]) -> None:
    assert made_from(table) == assets


@pytest.mark.parametrize(
    ("text", "line", "field"),
    [
        ("exports:\n- {id: a, export: nothing}\n", 2, "exports[0].export"),
        ("exports:\n- {id: A-b, export: course}\n", 2, "exports[0].id"),
        ("exports:\n- {id: a, export: course, format: xls}\n", 2, "exports[0].format"),
        ("exports:\n- {id: a, export: series, by_source: true}\n", 2, "exports[0].by_source"),
        ("exports:\n- {id: a, export: course}\n- {id: a, export: course}\n", 3, "exports[1].id"),
        ("exports:\n- {id: a, export: course, colour: red}\n", 2, "exports[0].colour"),
        ("export: []\n", 1, "export"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_line_and_field(tmp_path: Path, text: str, line: int, field: str) -> None:
    path = tmp_path / "exports.yaml"
    path.write_text(text)

    with pytest.raises(BadExports) as refused:
        read_exports(load_settings({"INGESTION_EXPORTS": str(path)}))

    assert f"{path}:{line}: {field}: " in str(refused.value)


def test_the_example_of_the_guide_is_a_file_of_exports(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "operating" / "exports.md").read_text()
    path = tmp_path / "exports.yaml"
    path.write_text(guide.partition("```yaml\n")[2].partition("```")[0])

    declared = read_exports(load_settings({"INGESTION_EXPORTS": str(path)}))

    assert [export.id for export in declared] == ["jobs", "jobs_by_board", "courses"]


def test_the_definitions_are_refused_while_the_file_has_mistakes(file: Path) -> None:
    file.write_text("exports:\n- {id: a, export: listing_sources, by_source: true}\n")

    with pytest.raises(BadExports, match="several kinds of sources"):
        build_definitions()
