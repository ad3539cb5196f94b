"""The sensors for pending work, silent runs, and the leases of failed runs."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
import time_machine

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.definitions import defs
from ingestion_pipeline.orchestration import runs
from ingestion_pipeline.orchestration.automation import run_failures
from ingestion_pipeline.pages.politeness import hosts
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.orchestration.installation import (
    LIGHTHOUSE,
    SALT,
    Installation,
    failure_message,
    run_job,
    tick_sensor,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PAST, FUTURE = NOON - timedelta(minutes=1), NOON + timedelta(minutes=1)
HOST = "feeds.demo.test"


@pytest.fixture
def at_noon() -> Iterator[time_machine.Traveller]:
    with time_machine.travel(NOON, tick=False) as clock:
        yield clock


def requested_runs(instance: dg.DagsterInstance) -> list[tuple[str, str]]:
    """The jobs that `pending_work` requests, each with its key."""
    data = tick_sensor("pending_work", instance)
    return [(request.job_name, request.run_key) for request in data.run_requests or []]


@pytest.mark.parametrize(
    "task_values",
    [
        {"attempts": 1, "not_before": PAST},
        {"error_class": "resource", "error_code": "host_busy", "not_before": PAST},
        {"stage": "asked", "not_before": PAST},
        {"status": "PROCESSING", "attempts": 1, "lease_owner": "dead", "lease_until": PAST, "not_before": PAST},
    ],
    ids=["a retry that is due", "a host that was busy", "asked for", "an expired lease"],
)
def test_work_that_no_schedule_covers_is_requested(
    installation: Installation, instance: dg.DagsterInstance, at_noon: object, task_values: dict[str, Any]
) -> None:
    installation.add_demo(LIGHTHOUSE)
    shard = installation.source(LIGHTHOUSE).shard % 2
    installation.set_poll_task(LIGHTHOUSE, **task_values)

    assert requested_runs(instance) == [("poll_hot", f"hot:{shard}:pending:20260301T1200")]


@pytest.mark.parametrize(
    "task_values",
    [
        {"attempts": 0, "not_before": PAST},
        {"attempts": 1, "not_before": FUTURE},
        {"status": "PROCESSING", "attempts": 1, "lease_owner": "alive", "lease_until": FUTURE, "not_before": PAST},
        {"status": "SKIPPED", "attempts": 1, "not_before": PAST},
    ],
    ids=["a poll of the schedule", "a retry that waits", "a live claim", "a disabled source"],
)
def test_nothing_else_is_requested(
    installation: Installation, instance: dg.DagsterInstance, at_noon: object, task_values: dict[str, Any]
) -> None:
    installation.add_demo(LIGHTHOUSE)
    installation.set_poll_task(LIGHTHOUSE, **task_values)

    data = tick_sensor("pending_work", instance)

    assert not data.run_requests
    assert data.skip_message == "no retry is due and no claim has expired"


def test_a_run_that_is_queued_for_the_shard_is_enough(
    installation: Installation, instance: dg.DagsterInstance, at_noon: object
) -> None:
    installation.add_demo(LIGHTHOUSE)
    installation.set_poll_task(LIGHTHOUSE, attempts=1, not_before=PAST, shard=0)
    job = defs.resolve_job_def("poll_hot")
    waiting = instance.create_run_for_job(job, tags={"ingestion/shard": "hot:0"})

    assert requested_runs(instance) == []

    instance.report_run_failed(waiting)
    assert requested_runs(instance) == [("poll_hot", "hot:0:pending:20260301T1200")]


def test_no_retry_is_requested_while_ingestion_lags_and_the_sensor_says_so(
    installation: Installation, instance: dg.DagsterInstance, at_noon: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation.add_demo(LIGHTHOUSE)
    installation.set_poll_task(LIGHTHOUSE, attempts=1, not_before=PAST)
    monkeypatch.setenv("INGESTION_POLLING__BACKLOG_LIMIT", "1")
    installation.add_waiting_batches(2)

    data = tick_sensor("pending_work", instance)

    assert not data.run_requests
    assert "polling is paused: 2 or more readings" in data.skip_message


def test_pending_work_is_requested_once_a_minute_for_each_tier_and_shard(
    installation: Installation, instance: dg.DagsterInstance, at_noon: time_machine.Traveller
) -> None:
    """The same key is the same run to Dagster."""
    installation.add_demo(LIGHTHOUSE, "series:lighthouse-mangadex", SALT)
    for source_id in (LIGHTHOUSE, "series:lighthouse-mangadex", SALT):
        installation.set_poll_task(source_id, attempts=1, not_before=PAST, shard=0)

    first = requested_runs(instance)
    at_noon.shift(5)
    second = requested_runs(instance)
    at_noon.shift(60)
    third = requested_runs(instance)

    assert (
        first == second == [("poll_hot", "hot:0:pending:20260301T1200"), ("poll_warm", "warm:0:pending:20260301T1200")]
    )
    assert not set(first) & set(third)


def begin_run(installation: Installation, run_id: str, *, silent: bool) -> None:
    """A run that has claimed a source and leased its host, in our books."""
    with installation.open() as ctx:
        worker = Worker(ctx.store, lease_seconds=300)
        [_] = worker.claim(ClaimFilter(kind="poll", source_ids=[LIGHTHOUSE]), limit=1)
        with ctx.store.begin() as connection:
            now = ctx.store.clock.now(connection)
            hour = timedelta(hours=1)
            hosts.lease_hosts(connection, [HOST], owner=worker.owner, now=now, lease=hour)
            lease = -timedelta(seconds=1) if silent else timedelta(seconds=90)
            claims.begin_run(connection, run_id=run_id, owner=worker.owner, job="poll_hot", now=now, lease=lease)


def a_started_run(instance: dg.DagsterInstance) -> dg.DagsterRun:
    job = defs.resolve_job_def("poll_hot")
    return instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)


def is_free(installation: Installation) -> bool:
    """Whether another worker can have the source and its host at once."""
    with installation.open() as ctx:
        claimed = Worker(ctx.store, lease_seconds=60).claim(ClaimFilter(kind="poll"), limit=1)
        with ctx.store.begin() as connection:
            now = ctx.store.clock.now(connection)
            lease = hosts.lease_hosts(connection, [HOST], owner="another", now=now, lease=timedelta(seconds=1))[HOST]
    assert bool(claimed) == isinstance(lease, hosts.Leased)
    return bool(claimed)


@pytest.mark.slow
def test_a_run_without_heartbeat_is_reported_failed_and_holds_nothing(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(LIGHTHOUSE)
    run = a_started_run(instance)
    begin_run(installation, run.run_id, silent=True)

    data = tick_sensor("stale_runs", instance)

    stored_run = instance.get_run_by_id(run.run_id)
    assert stored_run is not None
    assert stored_run.status is dg.DagsterRunStatus.FAILURE
    assert data.skip_message == "1 lost runs ended"
    assert is_free(installation)
    assert tick_sensor("stale_runs", instance).skip_message == "every run is alive"


def test_a_silent_run_of_another_instance_is_only_ended(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(LIGHTHOUSE)
    begin_run(installation, "run-of-a-terminal", silent=True)

    tick_sensor("stale_runs", instance)

    assert instance.get_runs() == []
    assert installation.rows("runs")[0]["ended_at"] is not None
    assert is_free(installation)


def test_a_run_that_has_ended_otherwise_is_not_reported_again(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(LIGHTHOUSE)
    job = defs.resolve_job_def("poll_hot")
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.SUCCESS)
    begin_run(installation, run.run_id, silent=True)

    tick_sensor("stale_runs", instance)

    stored_run = instance.get_run_by_id(run.run_id)
    assert stored_run is not None
    assert stored_run.status is dg.DagsterRunStatus.SUCCESS
    assert is_free(installation)


def test_a_live_run_is_left_alone(installation: Installation, instance: dg.DagsterInstance) -> None:
    installation.add_demo(LIGHTHOUSE)
    run = a_started_run(instance)
    begin_run(installation, run.run_id, silent=False)

    data = tick_sensor("stale_runs", instance)

    stored_run = instance.get_run_by_id(run.run_id)
    assert stored_run is not None
    assert stored_run.status is dg.DagsterRunStatus.STARTED
    assert data.skip_message == "every run is alive"
    assert not is_free(installation)


@pytest.mark.slow
def test_a_failed_run_releases_its_claims_and_is_audited(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(LIGHTHOUSE)
    failed = run_job("ingest_series", instance)
    assert failure_message(failed)
    begin_run(installation, failed.run_id, silent=False)
    [event] = [event for event in failed.all_events if event.event_type == dg.DagsterEventType.RUN_FAILURE]
    context = dg.build_run_status_sensor_context(
        sensor_name="run_failures", dagster_instance=instance, dagster_run=failed.dagster_run, dagster_event=event
    ).for_run_failure()

    with installation.open() as ctx:
        run_failures(context, run_context=ctx)

    [line] = installation.rows("audit_log")
    assert (line["actor"], line["action"]) == ("system", "run.failed")
    assert line["subject"] == f"run:{failed.run_id}"
    assert line["detail"] == {"job": "ingest_series", "freed": 1}
    assert is_free(installation)


def test_a_run_is_released_only_once(installation: Installation) -> None:
    """A late report of the failure must not release the claims of the current owner."""
    installation.add_demo(LIGHTHOUSE)
    begin_run(installation, "run-1", silent=False)
    with installation.open() as ctx:
        assert runs.release_run(ctx.store, run_id="run-1") == 1
        [_] = Worker(ctx.store, lease_seconds=60).claim(ClaimFilter(kind="poll"), limit=1)

        assert runs.release_run(ctx.store, run_id="run-1") == 0
        assert Worker(ctx.store, lease_seconds=60).claim(ClaimFilter(kind="poll"), limit=1) == []


@pytest.mark.slow
def test_a_tick_with_five_thousand_sources_takes_less_than_a_second(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    """A sensor that is slow may run twice at once, and one over a minute never answers."""
    installation.add(*(a_definition(id=f"series:s{n}", url=f"https://h{n % 500}.test/{n}") for n in range(5_000)))

    def seconds(name: str, cursor: str | None = None) -> float:
        def once() -> float:
            began = time.perf_counter()
            with open_run_context() as ctx:
                repository.get_sensor_def(name).evaluate_tick(
                    dg.build_sensor_context(
                        instance=instance, cursor=cursor, repository_def=repository, resources={"run_context": ctx}
                    )
                )
            return time.perf_counter() - began

        return min(once() for _ in range(3))  # the machine may be busy, the sensor is what counts

    repository = defs.get_repository_def()
    arrival = seconds("new_sources")
    instance.add_dynamic_partitions("sources", [f"series:s{n}" for n in range(5_000)])
    quiet = seconds("new_sources")

    assert max(arrival, quiet) < 1
    assert seconds("pending_work") < 1
    assert seconds("stale_runs") < 1
