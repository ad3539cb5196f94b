"""Killed production processes: their tasks are finished by others, automatically and once."""

import random
import time
from pathlib import Path
from typing import Any

import pytest

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import hosts, tasks
from ingestion_pipeline_tests.deployment.stack import (
    Stack,
    add_follower,
    add_polled_sources,
    assert_one_effect_each,
    delivered_messages,
    feed_requests,
    polled_count,
    running_stack,
    sent_notices,
    shortest_request_gap,
)
from ingestion_pipeline_tests.polling_runs import rows

pytestmark = [pytest.mark.soak, pytest.mark.postgres]

WORKERS = [f"worker-{number}" for number in range(4)]
SPACING_SECONDS = 1.0
# No grouping of messages, so that the history can be compared at the end.
UNGROUPED = {
    "INGESTION_NOTICES__GROUPING_SECONDS": "0",
    "INGESTION_NOTICES__PER_HOUR": "100000",
    "INGESTION_NOTICES__PER_DAY": "100000",
    "INGESTION_HOSTS__DELAY_SECONDS": str(SPACING_SECONDS),
}
KILL_LOOP = UNGROUPED | {
    "INGESTION_POLLING__PARTITION_LIMIT": "10",  # to add 1,600 of them takes Dagster minutes
    "INGESTION_POLLING__CONCURRENCY": "8",
    "INGESTION_POLLING__SLICE_SECONDS": "8",
    "INGESTION_POLLING__BATCH_SIZE": "40",
    "INGESTION_WORK__LEASE_SECONDS": "10",
    "INGESTION_HOSTS__LEASE_SECONDS": "10",
    "INGESTION_RUNS__LEASE_SECONDS": "10",
    "INGESTION_WORK__MAX_ATTEMPTS": "100",  # here every death is ours, not the source's
}


def start_stack(stack: Stack, *names: str, seconds: float) -> None:
    """Start the site, code server, webserver and these workers, but not the daemon."""
    stack.start_site(seconds=seconds)
    stack.start("code", "webserver", *names)
    stack.wait(stack.is_up)


WAVE = 120  # sources that are added whenever fewer wait: however fast the machine, there is work


def kill_workers_repeatedly(stack: Stack, store: Store) -> int:
    """Kill a worker every 10 seconds for two minutes and the daemon once; return the number of sources."""
    choose, count = random.Random(5), WAVE
    for turn in range(12):
        if count - polled_count(store) < WAVE:
            add_polled_sources(store, WAVE, hosts=40, per_series=2, first=count, is_followed=True)
            count += WAVE
        time.sleep(10)
        victim = choose.choice(WORKERS)
        stack.kill(victim)
        stack.start(victim)
        if turn == 5:
            stack.kill("daemon")
            stack.start("daemon")
    return count


def test_killing_a_worker_every_ten_seconds_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    with running_stack(tmp_path, **KILL_LOOP) as stack, stack.store() as store:
        start_stack(stack, *WORKERS, seconds=1.0)
        add_follower(store)
        add_polled_sources(store, WAVE, hosts=40, per_series=2, is_followed=True)
        stack.start("daemon")
        stack.wait(lambda: len(feed_requests(stack)) > 40)

        count = kill_workers_repeatedly(stack, store)
        print(f"after the last kill: {polled_count(store)} of {count}")
        rest = stack.wait(lambda: polled_count(store) == count, 600)
        stack.wait(lambda: sent_notices(store) == count // 2)
        repeated = sum(times - 1 for times in feed_requests(stack).values())
        print(f"{rest:.0f} s for the rest; {repeated} feeds asked again, closest {shortest_request_gap(stack):.2f} s")

        assert repeated > 0  # some were killed after a fetch
        assert_one_effect_each(store, count, per_series=2, followers=1)
        assert shortest_request_gap(stack) > SPACING_SECONDS - 0.05
        assert 0 < len(delivered_messages(stack)) <= count // 2
        stack.wait(lambda: not stack.runs("STARTED", "STARTING", "QUEUED", "CANCELING"))


def test_after_every_process_is_killed_work_resumes_within_two_minutes(tmp_path: Path) -> None:
    count, services = 48, ["code", "webserver", "daemon", "worker-0", "worker-1"]
    limits = UNGROUPED | {"DAGSTER_MAX_CONCURRENT_RUNS": "2", "INGESTION_POLLING__SHARDS": "2"}
    with running_stack(tmp_path, **limits) as stack, stack.store() as store:
        start_stack(stack, "worker-0", "worker-1", seconds=4.0)
        add_polled_sources(store, count, hosts=12)
        stack.start("daemon")
        stack.wait(lambda: len(feed_requests(stack)) >= 20)
        runs_before = {run["runId"] for run in stack.runs("STARTED")}

        stack.kill(*services)
        stored, requests_before = polled_count(store), sum(feed_requests(stack).values())
        stack.start(*services)
        began = time.monotonic()
        stack.wait(lambda: sum(feed_requests(stack).values()) > requests_before, 180)
        seconds = time.monotonic() - began
        print(f"{stored} of {count} were stored; the next was asked for after {seconds:.0f} s")
        stack.wait(lambda: polled_count(store) == count, 300)

        assert runs_before
        assert stored < count
        assert seconds <= 120
        assert_one_effect_each(store, count)
        assert runs_before <= {run["runId"] for run in stack.runs("FAILURE")}


CANCEL = 'mutation { terminateRun(runId: "%s") { __typename } }'


def holds_nothing(store: Store) -> bool:
    """Return whether no task and no host is leased."""
    return not any(row.status == "PROCESSING" for row in rows(store, tasks)) and not any(
        row.lease_owner for row in rows(store, hosts)
    )


def poll_run_ids(runs: list[dict[str, Any]]) -> list[str]:
    return [run["runId"] for run in runs if run["jobName"].startswith("poll_")]


def test_a_run_cancelled_in_the_ui_releases_its_slot_and_its_tasks(tmp_path: Path) -> None:
    limits = UNGROUPED | {"DAGSTER_MAX_CONCURRENT_RUNS": "1", "INGESTION_POLLING__SHARDS": "1"}
    with running_stack(tmp_path, **limits) as stack, stack.store() as store:
        start_stack(stack, "worker-0", seconds=10.0)
        add_polled_sources(store, 8, hosts=8)
        stack.start("daemon")
        stack.wait(lambda: len(feed_requests(stack)) >= 4)
        [run_id] = poll_run_ids(stack.runs("STARTED"))

        began = time.monotonic()
        assert stack.graphql(CANCEL % run_id)["terminateRun"]["__typename"] == "TerminateRunSuccess"
        # FAILURE: this launcher does not report to Dagster that termination was requested.
        stack.wait(lambda: run_id in poll_run_ids(stack.runs("CANCELED", "FAILURE")), 60)
        freed = time.monotonic() - began
        stack.wait(lambda: bool(poll_run_ids(stack.runs("STARTED"))), 60 - freed)
        next_began = time.monotonic() - began
        stack.wait(lambda: polled_count(store) == 8, 120)
        print(f"slot free after {freed:.1f} s, the next run began after {next_began:.1f} s")

        assert next_began <= 60
        stack.wait(lambda: holds_nothing(store))
        assert_one_effect_each(store, 8)
