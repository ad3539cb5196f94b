"""Rows of our assets as arguments of assets downstream."""

from functools import cache
from typing import Any

import dagster as dg
import pytest

from ingestion_pipeline.definitions import defs
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.exports import frame
from ingestion_pipeline.orchestration.runs import QUIET
from ingestion_pipeline_tests.exports.datasets import ABSENT, a_course, a_dataset
from ingestion_pipeline_tests.orchestration.installation import LIGHTHOUSE, PARTITION, SALT, Installation

SERIES = dg.DynamicPartitionsDefinition(name="series_sources")


RANGE = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")


@cache
def project() -> dg.RepositoryDefinition:
    """Return our definitions with assets downstream of them."""
    import pandas as pd
    import polars
    import pyarrow as pa

    @dg.asset
    def all_chapters(chapters: pd.DataFrame) -> dg.MaterializeResult:
        return dg.MaterializeResult(metadata={"rows": len(chapters), "sources": sorted(set(chapters["source_id"]))})

    @dg.asset(partitions_def=SERIES)
    def chapters_of_a_source(chapters: pd.DataFrame) -> dg.MaterializeResult:
        return dg.MaterializeResult(metadata={"sources": sorted(set(chapters["source_id"]))})

    @dg.asset
    def arrow_chapters(chapters: pa.Table) -> dg.MaterializeResult:
        return dg.MaterializeResult(metadata={"rows": chapters.num_rows, "type": type(chapters).__name__})

    @dg.asset
    def polars_chapters(chapters: polars.DataFrame) -> dg.MaterializeResult:
        return dg.MaterializeResult(metadata={"rows": chapters.height, "type": type(chapters).__module__})

    @dg.asset
    def courses(datasets) -> dg.MaterializeResult:  # noqa: ANN001 - pandas by default
        described = [text for text in datasets["course_description"] if isinstance(text, str)]
        columns = {"columns": list(datasets.columns), "ids": list(datasets["course_id"])}
        return dg.MaterializeResult(metadata={**columns, "described": described})

    @dg.asset
    def no_rows(notices: Any) -> None: ...

    assets = [all_chapters, chapters_of_a_source, arrow_chapters, polars_chapters, courses, no_rows]
    return dg.Definitions.merge(defs, dg.Definitions(assets=assets)).get_repository_def()


def materialize(asset: str, instance: dg.DagsterInstance, **options: Any) -> dict[str, Any]:
    """Materialize the asset alone, as the UI does; return its metadata."""
    key = dg.AssetKey(asset)
    job = project().get_implicit_job_def_for_assets([key])
    assert job is not None
    result = job.get_subset(asset_selection={key}).execute_in_process(instance=instance, run_config=QUIET, **options)
    [event] = result.asset_materializations_for_node(asset)
    return {name: value.value for name, value in event.metadata.items()}


@pytest.mark.slow
def test_an_asset_takes_the_rows_of_all_partitions_or_of_its_own(installation: Installation, site: DemoSite) -> None:
    installation.add_demo(LIGHTHOUSE, SALT)
    for key in (LIGHTHOUSE, SALT):
        assert installation.run_job("ingest_series", tags={PARTITION: key}).success

    everything = materialize("all_chapters", installation.instance)
    own = materialize("chapters_of_a_source", installation.instance, partition_key=SALT)
    arrow = materialize("arrow_chapters", installation.instance)
    polars = materialize("polars_chapters", installation.instance)

    several = materialize(
        "chapters_of_a_source", installation.instance, tags=dict(zip(RANGE, (SALT, SALT), strict=True))
    )

    assert several == own
    assert everything == {"rows": len(frame("chapter_sources")), "sources": [LIGHTHOUSE, SALT]}
    assert own == {"sources": [SALT]}
    assert arrow == {"rows": everything["rows"], "type": "Table"}
    assert polars["rows"] == everything["rows"]
    assert polars["type"].startswith("polars.")


def test_datasets_are_loaded_as_their_items_with_proved_values_only(installation: Installation) -> None:
    with installation.open() as ctx:
        unproved = a_course("CS 102", course_description="Invented.", grounding={"course_description": ABSENT})
        a_dataset(ctx.store, [a_course("CS 101"), unproved])

    loaded = materialize("courses", installation.instance)

    exported = frame("data_items")
    assert loaded.pop("described") == ["What it is about."]
    assert loaded == {"columns": list(exported.columns), "ids": ["CS 101", "CS 102"]}


def test_an_asset_without_rows_of_its_own_names_the_cure(installation: Installation) -> None:
    with pytest.raises(dg.Failure, match="name it in `deps` instead"):
        materialize("no_rows", installation.instance)
