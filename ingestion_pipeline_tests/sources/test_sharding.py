"""How many runs share the due polls, and how many polls a run claims."""

import pytest

from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.sources.poll_tasks import (
    claim_size,
    known_pace,
    measured_pace,
    run_size,
    shard_count,
    shards_of,
)

DOZEN = 12
LIMITS = load_settings({}).polling


@pytest.mark.parametrize(
    ("due", "pace", "shards"),
    [
        pytest.param(0, None, 2, id="nothing"),
        pytest.param(2_000, None, 2, id="as many as the settings say"),
        pytest.param(12_000, 40.0, 5, id="a minute each"),
        pytest.param(80_000, 100.0, 14, id="many"),
        pytest.param(100_000, 1.0, 16, id="never more than the maximum"),
        pytest.param(500, 0.01, 10, id="no run is too small"),
    ],
)
def test_a_run_gets_about_a_minute_of_work(due: int, pace: float | None, shards: int) -> None:
    assert shard_count(due, pace=pace, limits=LIMITS) == shards


@pytest.mark.parametrize("pace", [None, 0.1, 10.0, 40.0, 200.0])
def test_a_hundred_thousand_due_sources_need_at_most_48_runs_at_any_pace(pace: float | None) -> None:
    by_tier = (10_000, 60_000, 30_000)

    assert sum(shard_count(due, pace=pace, limits=LIMITS) for due in by_tier) <= 4 * DOZEN


def test_a_slow_run_claims_no_more_than_it_can_process() -> None:
    assert [claim_size(pace, LIMITS) for pace in (0.1, 2.0, 500.0)] == [50, 120, 500]
    assert run_size(500.0, LIMITS) == 30_000


def test_a_tier_uses_its_own_pace_and_before_it_has_one_the_best() -> None:
    measurements = {"pace:hot": 40.0, "pace:cold": 2.0, "request_cost:series": 900.0}

    assert known_pace(measurements, "cold") == 2.0
    assert known_pace(measurements, "warm") == known_pace(measurements, None) == 40.0
    assert known_pace({"request_cost:series": 900.0}, "hot") is None


def test_the_pace_follows_recent_runs_and_ignores_tiny_ones() -> None:
    assert measured_pace(None, polls=600, seconds=60) == 10
    assert measured_pace(10.0, polls=1_200, seconds=60) == pytest.approx(13)
    assert measured_pace(10.0, polls=3, seconds=60) == 10
    assert measured_pace(None, polls=600, seconds=0) is None


def test_a_host_is_in_one_shard_however_many_there_are() -> None:
    due = {7: 100, 12: 1, 19: 5}

    assert shards_of(due, 1) == [0]
    assert shards_of(due, 4) == [0, 3]
    assert shards_of({}, 4) == []
