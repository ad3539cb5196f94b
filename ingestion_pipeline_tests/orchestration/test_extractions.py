"""Completion and control of extractions through Dagster: sensor, job, and refusals."""

import dagster as dg
import pytest

from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.store.tables import pages, tasks
from ingestion_pipeline_tests.catalog_extractions import CatalogHarness
from ingestion_pipeline_tests.orchestration.installation import (
    SALT,
    Installation,
    check_results,
    failure_message,
    materialized,
    run_job,
    tick_sensor,
)

SHOP = "catalog:shop"


def an_extraction(installation: Installation, items: int, *, status: str = "SUCCESS") -> int:
    """An extraction of so many items that has only to be ended; its id."""
    with installation.open() as ctx:
        catalog = CatalogHarness(ctx=ctx, clock=FixedClock(ctx.store.now()))
        catalog.add_source()
        id_ = catalog.start_extraction({"/c/1": status})
        if items:
            catalog.add_items(id_, {"/c/1": [f"c{n}" for n in range(items)]})
        return id_


def steer(instance: dg.DagsterInstance, **config: object) -> dg.ExecuteInProcessResult:
    run_config = {"ops": {"steer": {"config": {"actor": "ann", **config}}}}
    return run_job("control_extraction", instance, config=run_config)


def test_without_active_extractions_nothing_is_requested(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    tick = tick_sensor("extraction_completion", instance)

    assert (tick.run_requests, tick.skip_message) == ([], "no extraction is running")


@pytest.mark.slow
def test_a_check_is_requested_when_no_page_waits_and_seldom_while_some_do(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    with installation.open() as ctx:
        catalog = CatalogHarness(ctx=ctx, clock=FixedClock(ctx.store.now()))
        catalog.add_source()
        id_ = catalog.start_extraction({"/c/1": "WAITING"})
        catalog.add_task(id_, "/c/1", "fetch_page")
        first = tick_sensor("extraction_completion", instance)
        run_job("complete_extractions", instance)
        waiting = tick_sensor("extraction_completion", instance)
        [task] = catalog.rows(tasks, kind="fetch_page")
        catalog.update_row(tasks, task.id, status="SUCCESS")

        finishable = tick_sensor("extraction_completion", instance)

    assert len(first.run_requests) == 1
    assert (waiting.run_requests, waiting.skip_message) == ([], "pages of 1 running extractions still wait")
    assert len(finishable.run_requests) == 1


@pytest.mark.slow
def test_the_requested_job_finishes_an_extraction_and_materializes_its_dataset(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    an_extraction(installation, 8)
    [request] = tick_sensor("extraction_completion", instance).run_requests
    first = run_job("complete_extractions", instance)
    an_extraction(installation, 1)
    second = run_job("complete_extractions", instance)

    assert request.job_name in {None, "complete_extractions"}
    published = materialized(first)[SHOP]
    assert (published["items"], published["version"], published["status"]) == (8, 1, "published")
    assert published["extraction"] == "1, COMPLETE"
    numbers = {"cost_usd", "saved_by_rules", "saved_by_unchanged", "pages_success"}
    assert {*numbers, "preview", "change_confidence", "checked_when"} <= set(published)
    assert published["export"] == f"ingest export course --source {SHOP} --version 1 --to csv"
    quarantined = materialized(second)[SHOP]
    assert (quarantined["status"], quarantined["findings"]) == ("quarantined", "1 items, previously 8")
    assert check_results(first)["not_quarantined"] is True
    assert check_results(second)["not_quarantined"] is False
    assert tick_sensor("extraction_completion", instance).run_requests == []


@pytest.mark.slow
def test_records_missing_from_their_pages_are_a_warning_of_their_check(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    an_extraction(installation, 8)
    first = run_job("complete_extractions", instance)
    second_id = an_extraction(installation, 0, status="ERROR")
    with installation.open() as ctx:
        catalog = CatalogHarness(ctx=ctx, clock=FixedClock(ctx.store.now()))
        catalog.fail_page(second_id, "/c/1", "records_missing")
        catalog.update_row(pages, catalog.page_row(second_id, "/").id, status="SUCCESS")
    second = run_job("complete_extractions", instance)

    assert check_results(first)["no_records_missing"] is True
    [check] = [
        evaluation
        for evaluation in second.get_asset_check_evaluations()
        if evaluation.check_name == "no_records_missing"
    ]
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)


@pytest.mark.slow
def test_an_extraction_is_cancelled_resumed_and_rerun_from_the_launchpad(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    id_ = an_extraction(installation, 0, status="DOWNLOADED")

    assert steer(instance, action="cancel", extraction=id_).success
    assert steer(instance, action="resume", extraction=id_).success
    [row] = installation.rows("extractions")
    assert row["status"] == "IN_PROGRESS"
    assert steer(instance, action="rerun", extraction=id_, dry_run=True).success
    actions = [(row["action"], row["actor"]) for row in installation.rows("audit_log")]
    assert ("extraction.cancelled", "ann") in actions
    assert ("extraction.resume", "ann") in actions


@pytest.mark.slow
def test_an_extraction_is_started_from_the_launchpad(installation: Installation, instance: dg.DagsterInstance) -> None:
    id_ = an_extraction(installation, 8)
    run_job("complete_extractions", instance)

    assert steer(instance, action="start", source=SHOP).success

    assert [(row["id"], row["status"]) for row in installation.rows("extractions")] == [
        (id_, "COMPLETE"),
        (id_ + 1, "WAITING"),
    ]
    [task] = [row for row in installation.rows("tasks") if row["kind"] == "fetch_page"]
    assert task["payload"]["extraction"] == id_ + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "cure"),
    [
        ({"action": "cancel", "extraction": 99}, "`ingest extractions list` shows all"),
        ({"action": "resume"}, "needs `extraction`"),
        ({"action": "start", "source": "catalog:nobody"}, "catalog:nobody"),
        ({"action": "start", "source": SALT}, "only catalogues are extracted"),
        ({"action": "burn", "extraction": 1}, "there are: start, cancel"),
    ],
)
def test_an_impossible_action_is_refused_with_the_cure(
    installation: Installation, instance: dg.DagsterInstance, config: dict[str, object], cure: str
) -> None:
    installation.add_demo(SALT)

    assert cure in failure_message(steer(instance, **config))
