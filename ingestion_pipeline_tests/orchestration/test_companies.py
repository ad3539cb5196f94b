"""Companies, job boards and matches through Dagster."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from ingestion_pipeline.companies.reports import MatchReport, histogram, listing_table
from ingestion_pipeline.definitions import defs
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.sources.source import Tier
from ingestion_pipeline_tests.companies.boards.job_boards import ACME, GREENHOUSE, a_board, a_job, jobs
from ingestion_pipeline_tests.companies.company_sites import API, a_site, board_answer
from ingestion_pipeline_tests.companies.matching.listings import BOARD, PROFILE, Listings
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.orchestration.installation import (
    LIGHTHOUSE,
    PARTITION,
    Installation,
    check_results,
    details,
    failure_message,
    materialized,
    source_file,
)
from ingestion_pipeline_tests.orchestration.test_single_sources import materialize

pytestmark = pytest.mark.slow  # a Dagster run takes 0.2 seconds and more

ACME_COMPANY = "company:acme"
ACME_BOARD = "job_board:greenhouse-acme"


@pytest.fixture
def company_site(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWeb]:
    """A company with a board, declared in a file."""
    with FakeWeb(dict(a_site())) as company_site:
        company_site.routes[API] = board_answer("Sorter")
        monkeypatch.setenv("INGESTION_ALLOW_HOSTS", company_site.host_port)
        entry = {
            "id": ACME_COMPANY,
            "kind": "company",
            "name": "Acme Robotics",
            "url": company_site.url("/"),
            "config": {"boards": {"greenhouse": {"api_base": company_site.url("")}}},
        }
        (installation.sources / "mine.yaml").write_text(source_file([entry]))
        yield company_site


def test_a_company_in_a_file_is_polled_then_analysed_by_the_requested_job(
    installation: Installation, company_site: FakeWeb
) -> None:
    installation.tick_sensor("new_sources")
    poll_result = installation.run_job("poll_warm")
    tick = installation.tick_sensor("pending_work")
    [request] = [request for request in tick.run_requests if request.job_name == "process_companies"]
    result = installation.run_job("process_companies", tags=request.tags)

    assert poll_result.success
    assert result.success
    assert installation.instance.get_dynamic_partitions("companies") == [ACME_COMPANY]
    company = materialized(result, "companies")[ACME_COMPANY]
    assert (company["outcome"], company["pages"], company["boards_found"]) == ("good", 3, 1)
    shown = details(company)
    assert (shown["points for remote"], shown["points for machine learning"]) == (15, 10)
    assert company["technologies"]["languages"] == ["python", "go"]
    assert "high" in company["boards"]
    assert shown["facts by text"] >= 3
    assert (company["tier"], company["cost_usd"]) == ("D", 0)
    assert company["checked_when"].endswith(", as every source of its kind")
    assert check_results(result) == {"enough_data": True, "companies_fresh": True, "contract": True}
    assert installation.source(ACME_BOARD).company_id == "acme"
    again = installation.tick_sensor("pending_work").run_requests
    assert "process_companies" not in [request.job_name for request in again]


def test_a_single_company_is_analysed_manually(installation: Installation, company_site: FakeWeb) -> None:
    installation.tick_sensor("new_sources")

    first = installation.run_job("ingest_company", tags={PARTITION: ACME_COMPANY})
    second = installation.run_job("ingest_company", tags={PARTITION: ACME_COMPANY})

    assert set(materialized(first, "companies")) == set(materialized(second, "companies")) == {ACME_COMPANY}
    assert [row["id"] for row in installation.rows("companies")] == ["acme"]
    assert installation.source(ACME_COMPANY).last_checked_at is not None  # they count as polls


def test_an_unreachable_company_fails_its_single_run(installation: Installation, company_site: FakeWeb) -> None:
    company_site.routes["/"] = 404
    installation.tick_sensor("new_sources")

    failed = installation.run_job("ingest_company", tags={PARTITION: ACME_COMPANY})

    assert "http_404" in failure_message(failed)
    assert materialized(failed, "companies") == {}


def test_thin_data_fail_a_check(installation: Installation, company_site: FakeWeb) -> None:
    company_site.routes.clear()
    company_site.routes["/"] = "<html><body><p>" + "Parcels. " * 40 + "</p></body></html>"
    installation.tick_sensor("new_sources")

    result = installation.run_job("ingest_company", tags={PARTITION: ACME_COMPANY})

    assert check_results(result)["enough_data"] is False
    assert materialized(result, "companies") == {}  # there is no fact to show


def test_an_uncertain_board_is_approved_from_the_launchpad(installation: Installation, company_site: FakeWeb) -> None:
    company_site.routes[API] = 404
    installation.tick_sensor("new_sources")
    installation.run_job("ingest_company", tags={PARTITION: ACME_COMPANY})
    before = installation.source(ACME_BOARD).status
    installation.tick_sensor("new_sources")
    approve = {"ops": {"sources": {"config": {"approve": True}}}}

    job = defs.get_repository_def().get_implicit_job_def_for_assets([dg.AssetKey("sources")])
    assert job is not None
    job.get_subset(asset_selection={dg.AssetKey("sources")}).execute_in_process(
        instance=installation.instance, tags={PARTITION: ACME_BOARD}, run_config=approve, raise_on_error=False
    )

    assert before == "pending_validation"
    assert installation.source(ACME_BOARD).status == "active"


def test_a_board_is_not_a_company_and_an_unapproved_board_says_so(
    installation: Installation, company_site: FakeWeb
) -> None:
    company_site.routes[API] = 404
    installation.tick_sensor("new_sources")
    installation.run_job("ingest_company", tags={PARTITION: ACME_COMPANY})

    unapproved = installation.run_job("ingest_job_board", tags={PARTITION: ACME_BOARD})
    mistaken = installation.run_job("ingest_company", tags={PARTITION: ACME_BOARD})

    assert f"ingest sources enable {ACME_BOARD}" in failure_message(unapproved)
    assert "no company" in failure_message(mistaken)
    assert [row["id"] for row in installation.rows("companies")] == ["acme"]


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


def test_a_poll_run_materializes_series_and_boards(installation: Installation, web: FakeWeb, site: DemoSite) -> None:
    installation.add_demo(LIGHTHOUSE)

    result = installation.run_job("poll_hot")

    assert result.success
    assert materialized(result, "chapters").keys() == {LIGHTHOUSE}
    (board,) = materialized(result, "job_listings").values()
    assert (board["found"], board["new"], details(board)["matched"]) == (2, 2, 0)
    assert board["not_evaluated_yet"] == 2
    assert "Engineer 1" in board["newest"]
    assert installation.instance.get_dynamic_partitions("job_boards") == [ACME]


def test_a_lost_field_turns_its_check_red_and_a_good_poll_green_again(installation: Installation, web: FakeWeb) -> None:
    installation.run_job("poll_hot")

    serve_jobs(web, jobs(1, 2, content=None))
    installation.make_due(ACME)
    assert check_results(installation.run_job("poll_hot"))["no_lost_fields"] is False

    serve_jobs(web, jobs(1, 2))
    installation.make_due(ACME)
    assert check_results(installation.run_job("poll_hot"))["no_lost_fields"] is True


def test_a_new_board_gets_its_partitions_and_its_first_run(installation: Installation, web: FakeWeb) -> None:
    tick = installation.tick_sensor("new_sources")

    assert installation.instance.get_dynamic_partitions("job_boards") == [ACME]
    assert [request.job_name for request in tick.run_requests] == ["poll_hot"]


def test_text_of_a_page_is_escaped_in_a_table(installation: Installation, web: FakeWeb) -> None:
    serve_jobs(web, [a_job(1, title="<b>x</b> | [y](javascript:z)")])

    (board,) = materialized(installation.run_job("poll_hot")).values()

    assert r"\<b\>x\<\/b\> \| \[y\]\(javascript\:z\)" in board["newest"]


def test_an_empty_board_has_a_text() -> None:
    assert listing_table([]) == "no jobs"


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "profile.yaml"
    path.write_text(PROFILE)
    monkeypatch.setenv("INGESTION_MATCH__PROFILE", str(path))
    return path


@contextmanager
def listings(installation: Installation, profile: Path) -> Iterator[Listings]:
    with installation.open() as ctx:
        yield Listings(ctx=ctx, profile=profile)


def add_listings(installation: Installation, profile: Path, **changes: Any) -> None:
    """Add a board with a matching listing and one that does not match."""
    with listings(installation, profile) as harness:
        harness.add_board()
        posted_at = harness.ctx.store.now() - timedelta(hours=1)
        harness.add(url="http://jobs.test/1", posted_at=posted_at, **changes)
        harness.add(url="http://jobs.test/2", posted_at=posted_at, title="Junior Engineer")


def requested_jobs(answer: Any) -> list[str]:
    return [request.job_name for request in answer.run_requests or []]


def test_the_sensor_requests_the_job_that_evaluates_waiting_listings(installation: Installation, profile: Path) -> None:
    before = requested_jobs(installation.tick_sensor("pending_work"))
    add_listings(installation, profile)
    waiting = requested_jobs(installation.tick_sensor("pending_work"))

    result = installation.run_job("process_listings")

    assert (before, waiting) == ([], ["process_listings"])
    assert result.success
    metadata = materialized(result)[BOARD]
    counts = {name: metadata[name] for name in ("listings", "waiting", "filtered", "matched")}
    assert counts == {"listings": 2, "waiting": 0, "filtered": 1, "matched": 1}
    assert details(metadata)["filtered by seniority"] == 1
    assert metadata["scores"].startswith("![scores](data:image/png;base64,")
    assert requested_jobs(installation.tick_sensor("pending_work")) == []


def test_a_changed_profile_is_work_for_the_sensor(installation: Installation, profile: Path) -> None:
    add_listings(installation, profile)
    installation.run_job("process_listings")

    profile.write_text(PROFILE.replace("Python: 10", "Painting: 10"))

    assert requested_jobs(installation.tick_sensor("pending_work")) == ["process_listings"]


def test_text_of_listings_is_a_plain_table_cell_with_the_reason(installation: Installation, profile: Path) -> None:
    title = "Senior Python Engineer <img src=x onerror=alert(1)> ![](http://evil.test)"
    add_listings(installation, profile, title=title)

    metadata = materialized(installation.run_job("process_listings"))[BOARD]

    [record] = metadata["best_matches"].records
    assert record.data["title"] == title
    assert "names Python" in record.data["reason"]
    assert "evil" not in str(metadata["scores"])


def test_a_single_board_is_evaluated_manually_although_it_waits(installation: Installation, profile: Path) -> None:
    add_listings(installation, profile)

    result = materialize("job_matches", installation.instance, tags={PARTITION: BOARD})

    assert result.success
    assert materialized(result)[BOARD]["matched"] == 1


def test_without_a_partition_the_asset_refuses(installation: Installation, profile: Path) -> None:
    add_listings(installation, profile)

    result = materialize("job_matches", installation.instance, tags={})

    assert "works on one source" in failure_message(result)


def test_a_bad_profile_fails_its_check_and_requests_no_run(installation: Installation, profile: Path) -> None:
    add_listings(installation, profile)
    profile.write_text("skills: {Python: 99}")

    assert requested_jobs(installation.tick_sensor("pending_work")) == []
    assert check_results(installation.run_job("maintain"))["profile_readable"] is False


def test_a_board_with_every_listing_filtered_fails_its_check(installation: Installation, profile: Path) -> None:
    with listings(installation, profile) as harness:
        harness.add_board()
        for number in range(5):
            harness.add(url=f"http://jobs.test/{number}", title=f"Junior Engineer {number}")

    result = installation.run_job("process_listings")

    assert check_results(result)["not_all_filtered"] is False


def test_a_histogram_is_a_small_picture() -> None:
    report = MatchReport(
        source_id=BOARD,
        listings=9,
        waiting=0,
        filtered=0,
        skipped=9,
        matched=0,
        filtered_by={},
        scores={0: 3, 50: 4, 90: 2},
        best=(),
    )

    assert histogram(report).startswith(b"\x89PNG")
    assert len(histogram(report)) < 50_000
