"""Job boards in Dagster: polled by the tier jobs and manually, materialized with their funnel."""

import json
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from ingestion_pipeline.companies.reports import listing_table, reason_table
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.sources.source import Tier
from ingestion_pipeline_tests.companies.boards.job_boards import ACME, GREENHOUSE, a_board, a_job, jobs
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.orchestration.installation import (
    LIGHTHOUSE,
    PARTITION,
    Installation,
    check_results,
    failure_message,
    materialized,
    run_job,
    tick_sensor,
)


@pytest.fixture
def web(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWeb]:
    """A web that serves the API of Acme's board."""
    with FakeWeb() as running:
        monkeypatch.setenv("INGESTION_ALLOW_HOSTS", running.host_port)
        config = {"api_base": running.url("").rstrip("/")}
        installation.add(a_board(config=config, tier=Tier.HOT))
        serve_jobs(running, jobs(1, 2))
        yield running


def serve_jobs(web: FakeWeb, jobs: list[dict[str, Any]]) -> None:
    body = json.dumps({"jobs": jobs, "meta": {"total": len(jobs)}}).encode()
    web.routes[GREENHOUSE.format("acme")] = Reply(body)


@pytest.mark.slow
def test_a_poll_run_materializes_series_and_boards(
    installation: Installation, web: FakeWeb, site: DemoSite, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(LIGHTHOUSE)

    result = run_job("poll_hot", instance)

    assert result.success
    assert materialized(result, "chapters").keys() == {LIGHTHOUSE}
    (board,) = materialized(result, "job_listings").values()
    assert (board["found"], board["new"], board["matched"]) == (2, 2, 0)
    assert board["not_judged_yet"] == 2
    assert "Engineer 1" in board["newest"]
    assert instance.get_dynamic_partitions("job_boards") == [ACME]


@pytest.mark.slow
def test_a_single_board_is_polled_although_it_is_not_due(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    run_job("ingest_job_board", instance, tags={PARTITION: ACME})
    serve_jobs(web, jobs(1, 2, 3))

    again = run_job("ingest_job_board", instance, tags={PARTITION: ACME})

    assert materialized(again)[ACME]["outcome"] == "3 found, 1 new"
    assert set(instance.get_dynamic_partitions("sources")) == {ACME}


@pytest.mark.slow
def test_a_board_that_cannot_be_reached_fails_its_own_run_with_the_reason(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    web.routes[GREENHOUSE.format("acme")] = 404

    result = run_job("ingest_job_board", instance, tags={PARTITION: ACME})

    assert "answered 404" in failure_message(result)


@pytest.mark.slow
def test_a_lost_field_turns_its_check_red_and_a_good_poll_green_again(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    run_job("poll_hot", instance)

    serve_jobs(web, jobs(1, 2, content=None))
    installation.make_due(ACME)
    assert check_results(run_job("poll_hot", instance))["no_lost_fields"] is False

    serve_jobs(web, jobs(1, 2))
    installation.make_due(ACME)
    assert check_results(run_job("poll_hot", instance))["no_lost_fields"] is True


def test_a_new_board_gets_its_partitions_and_its_first_run(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    tick = tick_sensor("new_sources", instance)

    assert instance.get_dynamic_partitions("job_boards") == [ACME]
    assert [request.job_name for request in tick.run_requests] == ["poll_hot"]


@pytest.mark.slow
def test_text_of_a_page_is_escaped_in_a_table(
    installation: Installation, web: FakeWeb, instance: dg.DagsterInstance
) -> None:
    serve_jobs(web, [a_job(1, title="<b>x</b> | [y](javascript:z)")])

    (board,) = materialized(run_job("poll_hot", instance)).values()

    assert r"\<b\>x\<\/b\> \| \[y\]\(javascript\:z\)" in board["newest"]


def test_an_empty_board_and_missing_reasons_have_a_text() -> None:
    assert (listing_table([]), reason_table({})) == ("no jobs", "nothing was filtered")
    assert reason_table({"age": 1, "a|b": 2}).splitlines()[2:] == [r"| a\|b | 2 |", "| age | 1 |"]
