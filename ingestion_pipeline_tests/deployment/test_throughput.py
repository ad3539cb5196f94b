"""Throughput of real production processes: more workers do more work, each task once."""

import time
from pathlib import Path

import pytest

from ingestion_pipeline_tests.deployment.stack import (
    Stack,
    add_polled_sources,
    assert_one_effect_each,
    feed_requests,
    polled_count,
    running_stack,
    shortest_request_gap,
)

pytestmark = [pytest.mark.soak, pytest.mark.postgres]

COUNT, HOSTS, LATENCY_SECONDS, SPACING_SECONDS = 320, 160, 4.0, 0.5
# A run mostly waits: eight hosts at a time, four seconds per response.
LATENCY_BOUND = {"INGESTION_POLLING__CONCURRENCY": "8", "INGESTION_HOSTS__DELAY_SECONDS": str(SPACING_SECONDS)}


def seconds_for_all(stack: Stack) -> float:
    """Return the seconds from the first request to the last stored source."""
    with stack.store() as store:
        stack.wait(lambda: polled_count(store) == COUNT, 900)
    return time.monotonic() - min(
        request["at"] for request in stack.site_requests() if request["path"].startswith("/feed/")
    )


def seconds_with_workers(workers: int, folder: Path) -> float:
    """Return the seconds that so many workers take, after checking the history."""
    names = [f"worker-{number}" for number in range(workers)]
    limit = {"DAGSTER_MAX_CONCURRENT_RUNS": str(workers)}
    folder.mkdir()
    with running_stack(folder, **LATENCY_BOUND, **limit) as stack:
        stack.start_site(seconds=LATENCY_SECONDS)
        stack.start("code", "webserver", *names)
        stack.wait(stack.is_up)
        with stack.store() as store:
            add_polled_sources(store, COUNT, hosts=HOSTS)
            stack.start("daemon")
            seconds = seconds_for_all(stack)
            assert_one_effect_each(store, COUNT)
        assert set(feed_requests(stack).values()) == {1}
        assert shortest_request_gap(stack) > SPACING_SECONDS - 0.05
        assert stack.runs("FAILURE", "CANCELED") == []
    return seconds


def test_four_workers_do_three_times_the_work_of_one(tmp_path: Path) -> None:
    seconds = {workers: seconds_with_workers(workers, tmp_path / str(workers)) for workers in (1, 2, 4)}
    for workers, taken in seconds.items():
        rate = COUNT / taken
        print(f"{workers} workers: {taken:.1f} s, {rate:.1f} polls/s, x{seconds[1] / taken:.2f}")

    assert seconds[1] / seconds[2] > 1.6
    assert seconds[1] / seconds[4] >= 3
