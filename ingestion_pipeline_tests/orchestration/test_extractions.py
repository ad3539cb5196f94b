"""Completion and control through Dagster: the sensor asks, the job ends and tells, or refuses."""

from __future__ import annotations

import dagster as dg
import pytest

from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.store.tables import pages
from ingestion_pipeline_tests.extracting import Extracting
from ingestion_pipeline_tests.orchestration.house import SALT, House, checked, run_job, tick_sensor, told, why_it_failed

SHOP = "catalog:shop"


def an_extraction(house: House, items: int, *, status: str = "SUCCESS") -> int:
    """An extraction of so many items that has only to be ended; its id."""
    with house.open() as ctx:
        some = Extracting(ctx=ctx, clock=FixedClock(ctx.store.now()))
        some.source()
        id_ = some.begin({"/c/1": status})
        if items:
            some.read(id_, {"/c/1": [f"c{n}" for n in range(items)]})
        return id_


def steered(instance: dg.DagsterInstance, **config: object) -> dg.ExecuteInProcessResult:
    given = {"ops": {"steer": {"config": {"actor": "ann", **config}}}}
    return run_job("control_extraction", instance, config=given)


def test_nothing_is_looked_at_where_nothing_goes_on(house: House, instance: dg.DagsterInstance) -> None:
    tick = tick_sensor("extraction_completion", instance)

    assert (tick.run_requests, tick.skip_message) == ([], "no extraction is running")


def test_the_sensor_asks_for_the_job_that_ends_an_extraction_and_tells_of_its_dataset(
    house: House, instance: dg.DagsterInstance
) -> None:
    an_extraction(house, 8)
    [request] = tick_sensor("extraction_completion", instance).run_requests
    first = run_job("complete_extractions", instance)
    an_extraction(house, 1)
    second = run_job("complete_extractions", instance)

    assert request.job_name in {None, "complete_extractions"}
    shown = told(first)[SHOP]
    assert (shown["items"], shown["version"], shown["status"]) == (8, 1, "published")
    assert shown["extraction"] == "1, COMPLETE"
    numbers = {"cost_usd", "saved_by_rules", "saved_by_unchanged", "pages_success"}
    assert {*numbers, "preview", "change_confidence", "checked_when"} <= set(shown)
    assert shown["export"] == f"ingest export course --source {SHOP} --version 1 --to csv"
    held = told(second)[SHOP]
    assert (held["status"], held["findings"]) == ("quarantined", "1 items, previously 8")
    assert checked(first)["not_quarantined"] is True
    assert checked(second)["not_quarantined"] is False
    assert tick_sensor("extraction_completion", instance).run_requests == []


def test_records_of_pages_that_state_none_any_more_turn_their_check_orange(
    house: House, instance: dg.DagsterInstance
) -> None:
    an_extraction(house, 8)
    first = run_job("complete_extractions", instance)
    second_id = an_extraction(house, 0, status="ERROR")
    with house.open() as ctx:
        some = Extracting(ctx=ctx, clock=FixedClock(ctx.store.now()))
        some.fail(second_id, "/c/1", "records_missing")
        some.set(pages, some.page_of(second_id, "/").id, status="SUCCESS")
    second = run_job("complete_extractions", instance)

    assert checked(first)["no_records_missing"] is True
    [found] = [one for one in second.get_asset_check_evaluations() if one.check_name == "no_records_missing"]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)


def test_an_extraction_is_cancelled_resumed_and_read_again_from_the_launchpad(
    house: House, instance: dg.DagsterInstance
) -> None:
    id_ = an_extraction(house, 0, status="DOWNLOADED")

    assert steered(instance, action="cancel", extraction=id_).success
    assert steered(instance, action="resume", extraction=id_).success
    [row] = house.rows("extractions")
    assert row["status"] == "IN_PROGRESS"
    assert steered(instance, action="rerun", extraction=id_, dry_run=True).success
    actions = [(row["action"], row["actor"]) for row in house.rows("audit_log")]
    assert ("extraction.cancelled", "ann") in actions
    assert ("extraction.resume", "ann") in actions


def test_an_extraction_is_begun_from_the_launchpad(house: House, instance: dg.DagsterInstance) -> None:
    id_ = an_extraction(house, 8)
    run_job("complete_extractions", instance)

    assert steered(instance, action="start", source=SHOP).success

    assert [(row["id"], row["status"]) for row in house.rows("extractions")] == [
        (id_, "COMPLETE"),
        (id_ + 1, "WAITING"),
    ]
    [task] = [row for row in house.rows("tasks") if row["kind"] == "fetch_page"]
    assert task["payload"]["extraction"] == id_ + 1


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
def test_what_cannot_be_done_is_refused_with_the_cure(
    house: House, instance: dg.DagsterInstance, config: dict[str, object], cure: str
) -> None:
    house.add_demo(SALT)

    assert cure in why_it_failed(steered(instance, **config))
