"""Companies through Dagster: polled, analysed by the job or manually, materialized, and approved."""

from collections.abc import Iterator

import dagster as dg
import pytest

from ingestion_pipeline.definitions import defs
from ingestion_pipeline_tests.companies.company_sites import API, a_site, board_answer
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.orchestration.installation import (
    PARTITION,
    Installation,
    check_results,
    failure_message,
    materialized,
    run_job,
    source_file,
    tick_sensor,
)

ACME = "company:acme"
BOARD = "job_board:greenhouse-acme"


@pytest.fixture
def web(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWeb]:
    """A company with a board, declared in a file."""
    with FakeWeb(dict(a_site())) as web:
        web.routes[API] = board_answer("Sorter")
        monkeypatch.setenv("INGESTION_ALLOW_HOSTS", web.host_port)
        entry = {
            "id": ACME,
            "kind": "company",
            "name": "Acme Robotics",
            "url": web.url("/"),
            "config": {"boards": {"greenhouse": {"api_base": web.url("")}}},
        }
        (installation.sources / "mine.yaml").write_text(source_file([entry]))
        yield web


@pytest.mark.slow
def test_a_company_in_a_file_is_polled_then_analysed_by_the_requested_job(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    tick_sensor("new_sources", instance)
    poll_result = run_job("poll_warm", instance)
    tick = tick_sensor("pending_work", instance)
    [request] = [request for request in tick.run_requests if request.job_name == "process_companies"]
    result = run_job("process_companies", instance, tags=request.tags)

    assert poll_result.success
    assert result.success
    assert instance.get_dynamic_partitions("companies") == [ACME]
    company = materialized(result, "companies")[ACME]
    assert (company["outcome"], company["pages"], company["boards_found"]) == ("good", 3, 1)
    assert (company["points_remote"], company["points_machine_learning"]) == (15, 10)
    assert company["technologies"]["languages"] == ["python", "go"]
    assert "high" in company["boards"]
    assert company["facts_by_text"] >= 3
    assert (company["tier"], company["cost_usd"]) == ("D", 0)
    assert company["checked_when"].endswith(", as every source of its kind")
    assert check_results(result) == {"enough_data": True, "companies_fresh": True, "contract": True}
    assert installation.source(BOARD).company_id == "acme"
    again = tick_sensor("pending_work", instance).run_requests
    assert "process_companies" not in [request.job_name for request in again]


@pytest.mark.slow
def test_a_single_company_is_analysed_manually(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    tick_sensor("new_sources", instance)

    first = run_job("ingest_company", instance, tags={PARTITION: ACME})
    second = run_job("ingest_company", instance, tags={PARTITION: ACME})

    assert set(materialized(first, "companies")) == set(materialized(second, "companies")) == {ACME}
    assert [row["id"] for row in installation.rows("companies")] == ["acme"]
    assert installation.source(ACME).last_checked_at is not None  # they count as polls


@pytest.mark.slow
def test_an_unreachable_company_fails_its_single_run(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    web.routes["/"] = 404
    tick_sensor("new_sources", instance)

    failed = run_job("ingest_company", instance, tags={PARTITION: ACME})

    assert "http_404" in failure_message(failed)


def test_a_job_without_a_partition_says_what_it_needs(instance: dg.DagsterInstance) -> None:
    assert "dagster/partition" in failure_message(run_job("ingest_company", instance))


@pytest.mark.slow
def test_thin_data_fail_a_check(installation: Installation, web: FakeWeb, instance: dg.DagsterInstance) -> None:
    web.routes.clear()
    web.routes["/"] = "<html><body><p>" + "Parcels. " * 40 + "</p></body></html>"
    tick_sensor("new_sources", instance)

    result = run_job("ingest_company", instance, tags={PARTITION: ACME})

    assert check_results(result)["enough_data"] is False


@pytest.mark.slow
def test_an_uncertain_board_is_approved_from_the_launchpad(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    web.routes[API] = 404
    tick_sensor("new_sources", instance)
    run_job("ingest_company", instance, tags={PARTITION: ACME})
    before = installation.source(BOARD).status
    tick_sensor("new_sources", instance)
    approve = {"ops": {"sources": {"config": {"approve": True}}}}

    job = defs.get_repository_def().get_implicit_job_def_for_assets([dg.AssetKey("sources")])
    assert job is not None
    job.get_subset(asset_selection={dg.AssetKey("sources")}).execute_in_process(
        instance=instance, tags={PARTITION: BOARD}, run_config=approve, raise_on_error=False
    )

    assert before == "pending_validation"
    assert installation.source(BOARD).status == "active"


@pytest.mark.slow
def test_a_board_is_not_a_company_and_an_unapproved_board_says_so(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    web.routes[API] = 404
    tick_sensor("new_sources", instance)
    run_job("ingest_company", instance, tags={PARTITION: ACME})

    unapproved = run_job("ingest_job_board", instance, tags={PARTITION: BOARD})
    mistaken = run_job("ingest_company", instance, tags={PARTITION: BOARD})

    assert f"ingest sources enable {BOARD}" in failure_message(unapproved)
    assert "no company" in failure_message(mistaken)
    assert [row["id"] for row in installation.rows("companies")] == ["acme"]
