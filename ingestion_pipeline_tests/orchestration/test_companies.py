"""Companies through Dagster: polled, analysed by the job or by hand, told, and approved."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest

from ingestion_pipeline.definitions import defs
from ingestion_pipeline_tests.companies.sites import API, a_board, a_site
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.orchestration.house import (
    PARTITION,
    House,
    a_file,
    checked,
    run_job,
    tick_sensor,
    told,
    why_it_failed,
)

ACME = "company:acme"
BOARD = "job_board:greenhouse-acme"


@pytest.fixture
def web(house: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWeb]:
    """A company with a board, declared in a file."""
    with FakeWeb(dict(a_site())) as web:
        web.routes[API] = a_board("Sorter")
        monkeypatch.setenv("INGESTION_ALLOW_HOSTS", web.host_port)
        entry = {
            "id": ACME,
            "kind": "company",
            "name": "Acme Robotics",
            "url": web.url("/"),
            "config": {"boards": {"greenhouse": {"api_base": web.url("")}}},
        }
        (house.sources / "mine.yaml").write_text(a_file([entry]))
        yield web


def test_a_company_in_a_file_is_polled_then_analysed_by_the_job_that_the_sensor_asks_for(
    house: House, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    tick_sensor("new_sources", instance)
    polled = run_job("poll_warm", instance)
    asked = tick_sensor("pending_work", instance)
    [request] = [one for one in asked.run_requests if one.job_name == "process_companies"]
    done = run_job("process_companies", instance, tags=request.tags)

    assert polled.success
    assert done.success
    assert instance.get_dynamic_partitions("companies") == [ACME]
    seen = told(done, "companies")[ACME]
    assert (seen["outcome"], seen["pages"], seen["boards_found"]) == ("good", 3, 1)
    assert (seen["points_remote"], seen["points_machine_learning"]) == (15, 10)
    assert seen["technologies"]["languages"] == ["python", "go"]
    assert "high" in seen["boards"]
    assert seen["facts_by_text"] >= 3
    assert (seen["tier"], seen["cost_usd"]) == ("D", 0)
    assert seen["checked_when"].endswith(", as every source of its kind")
    assert checked(done) == {"enough_data": True, "companies_fresh": True, "contract": True}
    assert house.source(BOARD).company_id == "acme"
    again = tick_sensor("pending_work", instance).run_requests
    assert "process_companies" not in [one.job_name for one in again]


def test_one_company_is_analysed_by_hand(house: House, web: FakeWeb, instance: dg.DagsterInstance) -> None:
    tick_sensor("new_sources", instance)

    first = run_job("ingest_company", instance, tags={PARTITION: ACME})
    second = run_job("ingest_company", instance, tags={PARTITION: ACME})

    assert set(told(first, "companies")) == set(told(second, "companies")) == {ACME}
    assert [row["id"] for row in house.rows("companies")] == ["acme"]
    assert house.source(ACME).last_checked_at is not None  # they count as polls


def test_a_company_that_cannot_be_reached_fails_the_run_of_one(
    house: House, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    web.routes["/"] = 404
    tick_sensor("new_sources", instance)

    failed = run_job("ingest_company", instance, tags={PARTITION: ACME})

    assert "http_404" in why_it_failed(failed)


def test_a_job_without_a_partition_says_what_it_needs(instance: dg.DagsterInstance) -> None:
    assert "dagster/partition" in why_it_failed(run_job("ingest_company", instance))


def test_thin_data_turn_a_check_red(house: House, web: FakeWeb, instance: dg.DagsterInstance) -> None:
    web.routes.clear()
    web.routes["/"] = "<html><body><p>" + "Parcels. " * 40 + "</p></body></html>"
    tick_sensor("new_sources", instance)

    done = run_job("ingest_company", instance, tags={PARTITION: ACME})

    assert checked(done)["enough_data"] is False


def test_a_board_that_is_not_sure_is_approved_from_the_launchpad(
    house: House, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    web.routes[API] = 404
    tick_sensor("new_sources", instance)
    run_job("ingest_company", instance, tags={PARTITION: ACME})
    before = house.source(BOARD).status
    tick_sensor("new_sources", instance)
    approve = {"ops": {"sources": {"config": {"approve": True}}}}

    job = defs.get_repository_def().get_implicit_job_def_for_assets([dg.AssetKey("sources")])
    assert job is not None
    job.get_subset(asset_selection={dg.AssetKey("sources")}).execute_in_process(
        instance=instance, tags={PARTITION: BOARD}, run_config=approve, raise_on_error=False
    )

    assert before == "pending_validation"
    assert house.source(BOARD).status == "active"


def test_a_board_is_no_company_and_one_that_waits_for_approval_says_so(
    house: House, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    web.routes[API] = 404
    tick_sensor("new_sources", instance)
    run_job("ingest_company", instance, tags={PARTITION: ACME})

    unapproved = run_job("ingest_job_board", instance, tags={PARTITION: BOARD})
    mistaken = run_job("ingest_company", instance, tags={PARTITION: BOARD})

    assert f"ingest sources enable {BOARD}" in why_it_failed(unapproved)
    assert "no company" in why_it_failed(mistaken)
    assert [row["id"] for row in house.rows("companies")] == ["acme"]
