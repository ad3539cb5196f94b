"""Data versions, code versions and freshness: what Dagster knows of the rows behind an event."""

from collections.abc import Sequence
from datetime import timedelta

import dagster as dg
import pytest
from sqlalchemy import insert, update

from ingestion_pipeline.definitions import defs
from ingestion_pipeline.engine.system_spec import AssetEvent
from ingestion_pipeline.orchestration.rows import on_changed_rows
from ingestion_pipeline.orchestration.runs import CODE_VERSIONS, with_current_expectations
from ingestion_pipeline.sources import Definition, Kind
from ingestion_pipeline.store.tables import job_listings
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.orchestration.installation import Installation

BOARDS = dg.DynamicPartitionsDefinition(name="job_boards")
IDS = [f"job_board:b{number}" for number in range(100)]


@dg.asset(
    partitions_def=BOARDS,
    automation_condition=on_changed_rows(),
    deps=[dg.AssetDep("job_listings", partition_mapping=dg.IdentityPartitionMapping())],
)
def scores() -> None: ...


@pytest.fixture
def boards(installation: Installation) -> Installation:
    """A hundred boards with a listing each, and an instance that knows their partitions."""
    installation.add(
        *(
            Definition(id=id_, kind=Kind.JOB_BOARD, url=f"https://{n}.test/", platform="greenhouse")
            for n, id_ in enumerate(IDS)
        )
    )
    texts = {"title": "Engineer", "status": "open", "content_hash": "c", "tracking_id": "t"}
    values = {**texts, "quality": {}, "first_seen_at": NOON, "first_listed_at": NOON, "changed_at": NOON}
    with installation.open() as ctx, ctx.store.begin() as connection:
        rows = [
            values | {"source_id": id_, "url": f"https://a.test/{n}", "fingerprint": id_} for n, id_ in enumerate(IDS)
        ]
        connection.execute(insert(job_listings), rows)
    installation.instance.add_dynamic_partitions("job_boards", IDS)
    return installation


def report(installation: Installation, ids: Sequence[str] = IDS) -> dict[str, dg.AssetMaterialization]:
    """Report an event of each board, as a run that has written its listings does."""
    with installation.open() as ctx:
        events = with_current_expectations(
            ctx, [AssetEvent(asset="job_listings", partition=id_, metadata={}) for id_ in ids]
        )
    for event in events:
        installation.instance.report_runless_asset_event(event)
    return {event.partition or "": event for event in events if isinstance(event, dg.AssetMaterialization)}


def change(installation: Installation, ids: Sequence[str], **values: object) -> None:
    with installation.open() as ctx, ctx.store.begin() as connection:
        connection.execute(update(job_listings).where(job_listings.c.source_id.in_(ids)).values(**values))


@pytest.mark.slow
def test_an_eager_asset_downstream_runs_only_for_the_partitions_whose_rows_have_changed(boards: Installation) -> None:
    project = dg.Definitions.merge(defs, dg.Definitions(assets=[scores]))
    report(boards)
    for id_ in IDS:
        boards.instance.report_runless_asset_event(dg.AssetMaterialization("scores", partition=id_))
    selection = dg.AssetSelection.assets("scores")
    before = dg.evaluate_automation_conditions(project, boards.instance, asset_selection=selection)
    before = dg.evaluate_automation_conditions(
        project, boards.instance, asset_selection=selection, cursor=before.cursor
    )
    assert before.total_requested == 0

    change(boards, IDS[10:13], title="Senior engineer")
    report(boards)
    after = dg.evaluate_automation_conditions(project, boards.instance, asset_selection=selection, cursor=before.cursor)

    assert after.get_requested_partitions(scores.key) == set(IDS[10:13])


def test_the_data_version_is_that_of_the_rows_and_not_of_the_poll(boards: Installation) -> None:
    [first] = report(boards, IDS[:1]).values()
    change(boards, IDS[:1], evaluated_at=NOON + timedelta(days=1))
    [same] = report(boards, IDS[:1]).values()
    change(boards, IDS[:1], location="Oslo")
    [other] = report(boards, IDS[:1]).values()

    versions = [(event.tags or {})["dagster/data_version"] for event in (first, same, other)]
    assert versions[0] == versions[1] != versions[2]


def test_an_event_has_the_number_of_rows_of_its_partition_and_their_place(boards: Installation) -> None:
    [event] = report(boards, IDS[:1]).values()

    assert event.metadata["dagster/partition_row_count"].value == 1
    assert event.metadata["dagster/uri"].value == f"sqlite:///{boards.home}/ingestion.db#job_listings"


@pytest.mark.slow
def test_events_of_assets_without_partitions_and_of_declarations_have_rows_and_place(boards: Installation) -> None:
    events = {
        event.asset_key.path[-1]: event.step_materialization_data.materialization.metadata
        for job in ("deliver_notices", "maintain")
        for event in boards.run_job(job).all_events
        if event.event_type == dg.DagsterEventType.ASSET_MATERIALIZATION and event.asset_key
    }
    added = boards.run_job("add_source", config={"ops": {"register": {"config": FEED}}})
    [declared] = added.asset_materializations_for_node("register")

    assert {name: metadata["dagster/row_count"].value for name, metadata in events.items()} == {
        "notices": 0,
        "source_health": len(IDS),
    }
    assert {"dagster/uri"} <= set.intersection(*(set(metadata) for metadata in events.values()))
    assert declared.metadata["dagster/uri"].value == f"sqlite:///{boards.home}/ingestion.db#sources"
    assert declared.metadata["dagster/partition_row_count"].value == 1


FEED = {"id": "series:solo", "kind": "series", "url": "https://a.test/feed.xml", "platform": "rss"}


def test_an_asset_has_its_table_and_the_place_of_its_code() -> None:
    for key in defs.get_repository_def().asset_graph.get_all_asset_keys():
        metadata = defs.get_repository_def().asset_graph.get(key).metadata
        assert metadata["dagster/table_name"]
        assert isinstance(metadata["dagster/code_references"], dg.CodeReferencesMetadataValue)


def test_a_check_names_its_cure() -> None:
    graph = defs.get_repository_def().asset_graph

    assert all("Otherwise: " in (graph.get(key).description or "") for key in graph.asset_check_keys)


def test_every_asset_has_a_code_version_and_those_that_are_refreshed_a_freshness_policy() -> None:
    specs = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}

    assert {name: spec.code_version for name, spec in specs.items()} == CODE_VERSIONS
    assert {name for name, spec in specs.items() if spec.freshness_policy is None} == {"sources", "notices"}


def test_the_code_version_names_reader_prompts_and_markdown() -> None:
    assert CODE_VERSIONS["datasets"].startswith("reader ")
    assert {"prompts", "html-to-markdown", "cleaning"} <= set(CODE_VERSIONS["datasets"].replace(",", "").split())
