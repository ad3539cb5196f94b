"""The job `export_datasets` writes published data, by default and by its config."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.definitions import defs
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.exports.datasets import a_course, a_dataset
from ingestion_pipeline_tests.orchestration.installation import Installation


@pytest.fixture
def rows(installation: Installation) -> Iterator[Store]:
    with open_run_context(installation.environment) as ctx:
        yield ctx.store


def run(instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    return defs.resolve_job_def("export_datasets").execute_in_process(
        instance=instance,
        run_config={"ops": {"write_datasets": {"config": config}}} if config else None,
        raise_on_error=False,
    )


def metadata(result: dg.ExecuteInProcessResult) -> Any:
    (output,) = [event for event in result.all_events if event.is_successful_output]
    return output.step_output_data.metadata


@pytest.mark.slow
def test_the_export_job_succeeds_without_configuration_and_published_data(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    result = run(instance)

    assert result.success
    assert metadata(result)["files"].value == 0
    assert list((installation.home / "exports").iterdir()) == []


@pytest.mark.slow
def test_every_published_dataset_is_a_file_that_the_metadata_names(
    installation: Installation, rows: Store, instance: dg.DagsterInstance
) -> None:
    a_dataset(rows, [a_course("CS 1"), a_course("CS 2")], source_id="catalog:a")
    a_dataset(rows, [a_course("CS 1")], source_id="catalog:b")

    result = metadata(run(instance, names=["data_items"]))

    assert (result["files"].value, result["rows"].value) == (2, 3)
    paths = [record.data["path"] for record in result["written"].records]
    folder = installation.home / "exports"
    assert paths == [str(folder / f"course.catalog~{name}.parquet") for name in "ab"]
    assert {str(path) for path in folder.iterdir()} == set(paths)


@pytest.mark.slow
def test_format_sources_and_evidence_are_launchpad_options(
    installation: Installation, rows: Store, instance: dg.DagsterInstance
) -> None:
    a_dataset(rows, [a_course()], source_id="catalog:a")
    a_dataset(rows, [a_course()], source_id="catalog:b")

    assert run(instance, format="csv", sources=["catalog:b"], evidence=True).success

    (file,) = (installation.home / "exports").iterdir()
    assert file.name == "course.catalog~b.evidence.csv"
    assert "course_id__evidence" in file.read_text().splitlines()[0]


@pytest.mark.slow
def test_by_default_every_table_with_rows_and_every_dataset_is_a_file(
    installation: Installation, rows: Store, instance: dg.DagsterInstance
) -> None:
    a_dataset(rows, [a_course()], source_id="catalog:a")

    assert run(instance, format="jsonl").success

    files = {path.name for path in (installation.home / "exports").iterdir()}
    tables = {f"{name}.jsonl" for name in ("sources", "extractions", "pages", "datasets")}
    assert files == {*tables, "course.catalog~a.jsonl"}


@pytest.mark.slow
def test_an_incremental_export_writes_only_changes_to_new_files(
    installation: Installation, rows: Store, instance: dg.DagsterInstance
) -> None:
    a_dataset(rows, [a_course()], source_id="catalog:a")
    config = {"names": ["sources", "course"], "since_last": True}
    first = metadata(run(instance, **config))
    quiet = metadata(run(instance, **config))
    a_dataset(rows, [a_course()], source_id="catalog:b")
    third = metadata(run(instance, **config))

    assert [values["rows"].value for values in (first, quiet, third)] == [2, 0, 2]
    assert len(list((installation.home / "exports").iterdir())) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"format": "xlsx"}, "there is no format 'xlsx'; there are: csv, jsonl, parquet"),
        ({"sources": ["catalog:no"]}, "there is no source 'catalog:no'"),
    ],
)
@pytest.mark.usefixtures("installation")
def test_a_mistake_fails_with_its_cure(instance: dg.DagsterInstance, config: dict[str, Any], message: str) -> None:
    result = run(instance, **config)

    assert not result.success
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    assert message in str(failed.step_failure_data)
