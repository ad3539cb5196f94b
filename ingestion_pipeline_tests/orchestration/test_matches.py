"""Listings through Dagster: evaluated by the requested job or manually, and materialized."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from ingestion_pipeline.companies.reports import MatchReport, histogram
from ingestion_pipeline_tests.companies.matching.listings import BOARD, PROFILE, Listings
from ingestion_pipeline_tests.orchestration.installation import (
    PARTITION,
    Installation,
    check_results,
    failure_message,
    materialized,
    run_job,
    tick_sensor,
)
from ingestion_pipeline_tests.orchestration.test_single_sources import materialize


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


@pytest.mark.slow
def test_the_sensor_requests_the_job_that_evaluates_waiting_listings(
    installation: Installation, profile: Path, instance: dg.DagsterInstance
) -> None:
    before = requested_jobs(tick_sensor("pending_work", instance))
    add_listings(installation, profile)
    waiting = requested_jobs(tick_sensor("pending_work", instance))

    result = run_job("process_listings", instance)

    assert (before, waiting) == ([], ["process_listings"])
    assert result.success
    metadata = materialized(result)[BOARD]
    counts = {name: metadata[name] for name in ("listings", "waiting", "filtered", "matched")}
    assert counts == {"listings": 2, "waiting": 0, "filtered": 1, "matched": 1}
    assert metadata["filtered_by_seniority"] == 1
    assert metadata["scores"].startswith("![scores](data:image/png;base64,")
    assert requested_jobs(tick_sensor("pending_work", instance)) == []


@pytest.mark.slow
def test_a_changed_profile_is_work_for_the_sensor(
    installation: Installation, profile: Path, instance: dg.DagsterInstance
) -> None:
    add_listings(installation, profile)
    run_job("process_listings", instance)

    profile.write_text(PROFILE.replace("Python: 10", "Painting: 10"))

    assert requested_jobs(tick_sensor("pending_work", instance)) == ["process_listings"]


@pytest.mark.slow
def test_text_of_listings_is_a_plain_table_cell_with_the_reason(
    installation: Installation, profile: Path, instance: dg.DagsterInstance
) -> None:
    title = "Senior Python Engineer <img src=x onerror=alert(1)> ![](http://evil.test)"
    add_listings(installation, profile, title=title)

    metadata = materialized(run_job("process_listings", instance))[BOARD]

    [record] = metadata["best_matches"].records
    assert record.data["title"] == title
    assert "names Python" in record.data["reason"]
    assert "evil" not in str(metadata["scores"])


@pytest.mark.slow
def test_a_single_board_is_evaluated_manually_although_it_waits(
    installation: Installation, profile: Path, instance: dg.DagsterInstance
) -> None:
    add_listings(installation, profile)

    result = materialize("job_matches", instance, tags={PARTITION: BOARD})

    assert result.success
    assert materialized(result)[BOARD]["matched"] == 1


def test_without_a_partition_the_asset_refuses(
    installation: Installation, profile: Path, instance: dg.DagsterInstance
) -> None:
    add_listings(installation, profile)

    result = materialize("job_matches", instance, tags={})

    assert "works on one source" in failure_message(result)


@pytest.mark.slow
def test_without_a_profile_the_run_succeeds_and_listings_wait(
    installation: Installation, profile: Path, instance: dg.DagsterInstance
) -> None:
    add_listings(installation, profile)
    profile.unlink()

    result = run_job("process_listings", instance)

    assert result.success
    assert materialized(result) == {}
    assert requested_jobs(tick_sensor("pending_work", instance)) == []


@pytest.mark.slow
def test_a_bad_profile_fails_its_check_and_requests_no_run(
    installation: Installation, profile: Path, instance: dg.DagsterInstance
) -> None:
    add_listings(installation, profile)
    profile.write_text("skills: {Python: 99}")

    assert requested_jobs(tick_sensor("pending_work", instance)) == []
    assert check_results(run_job("maintain", instance))["profile_readable"] is False


@pytest.mark.slow
def test_a_board_with_every_listing_filtered_fails_its_check(
    installation: Installation, profile: Path, instance: dg.DagsterInstance
) -> None:
    with listings(installation, profile) as harness:
        harness.add_board()
        for number in range(5):
            harness.add(url=f"http://jobs.test/{number}", title=f"Junior Engineer {number}")

    result = run_job("process_listings", instance)

    assert check_results(result)["not_all_filtered"] is False


@pytest.mark.slow
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
