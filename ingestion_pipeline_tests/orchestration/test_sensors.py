"""The sensors that look after work: what waits, who has fallen silent, what a failed run held."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
import time_machine

from ingestion_pipeline.definitions import defs
from ingestion_pipeline.orchestration import heartbeat
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.orchestration.sensors import run_failures
from ingestion_pipeline.pages.politeness import hosts
from ingestion_pipeline.tasks import heartbeats
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.orchestration.house import LIGHTHOUSE, SALT, House, run_job, tick_sensor, why_it_failed

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PAST, FUTURE = NOON - timedelta(minutes=1), NOON + timedelta(minutes=1)
HOST = "feeds.demo.test"


@pytest.fixture
def at_noon() -> Iterator[time_machine.Traveller]:
    with time_machine.travel(NOON, tick=False) as clock:
        yield clock


def pending(instance: dg.DagsterInstance) -> list[tuple[str, str]]:
    """The jobs that `pending_work` requests, each with its key."""
    data = tick_sensor("pending_work", instance)
    return [(one.job_name, one.run_key) for one in data.run_requests or []]


@pytest.mark.parametrize(
    "left",
    [
        {"attempts": 1, "not_before": PAST},
        {"error_class": "resource", "error_code": "host_busy", "not_before": PAST},
        {"stage": "asked", "not_before": PAST},
        {"status": "PROCESSING", "attempts": 1, "lease_owner": "dead", "lease_until": PAST, "not_before": PAST},
    ],
    ids=["a retry that is due", "a host that was busy", "asked for", "an expired lease"],
)
def test_work_that_no_schedule_remembers_is_requested(
    house: House, instance: dg.DagsterInstance, at_noon: object, left: dict[str, Any]
) -> None:
    house.add_demo(LIGHTHOUSE)
    shard = house.source(LIGHTHOUSE).shard % 2
    house.set_poll_task(LIGHTHOUSE, **left)

    assert pending(instance) == [("poll_hot", f"hot:{shard}:pending:20260301T1200")]


@pytest.mark.parametrize(
    "left",
    [
        {"attempts": 0, "not_before": PAST},
        {"attempts": 1, "not_before": FUTURE},
        {"status": "PROCESSING", "attempts": 1, "lease_owner": "alive", "lease_until": FUTURE, "not_before": PAST},
        {"status": "SKIPPED", "attempts": 1, "not_before": PAST},
    ],
    ids=["a poll of the schedule", "a retry that waits", "a live claim", "a disabled source"],
)
def test_nothing_else_is_requested(
    house: House, instance: dg.DagsterInstance, at_noon: object, left: dict[str, Any]
) -> None:
    house.add_demo(LIGHTHOUSE)
    house.set_poll_task(LIGHTHOUSE, **left)

    data = tick_sensor("pending_work", instance)

    assert not data.run_requests
    assert data.skip_message == "no retry is due and no claim has expired"


def test_a_run_that_is_queued_for_the_shard_is_enough(
    house: House, instance: dg.DagsterInstance, at_noon: object
) -> None:
    house.add_demo(LIGHTHOUSE)
    house.set_poll_task(LIGHTHOUSE, attempts=1, not_before=PAST, shard=0)
    job = defs.resolve_job_def("poll_hot")
    waiting = instance.create_run_for_job(job, tags={"ingestion/shard": "hot:0"})

    assert pending(instance) == []

    instance.report_run_failed(waiting)
    assert pending(instance) == [("poll_hot", "hot:0:pending:20260301T1200")]


def test_no_retry_is_polled_while_ingestion_lags_and_the_sensor_says_so(
    house: House, instance: dg.DagsterInstance, at_noon: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.add_demo(LIGHTHOUSE)
    house.set_poll_task(LIGHTHOUSE, attempts=1, not_before=PAST)
    monkeypatch.setenv("INGESTION_POLLING__BACKLOG_LIMIT", "1")
    house.lag(2)

    data = tick_sensor("pending_work", instance)

    assert not data.run_requests
    assert "polling is paused: 2 or more readings" in data.skip_message


def test_pending_work_is_requested_once_a_minute_for_each_tier_and_shard(
    house: House, instance: dg.DagsterInstance, at_noon: time_machine.Traveller
) -> None:
    """The same key is the same run to Dagster."""
    house.add_demo(LIGHTHOUSE, "series:lighthouse-mangadex", SALT)
    for source_id in (LIGHTHOUSE, "series:lighthouse-mangadex", SALT):
        house.set_poll_task(source_id, attempts=1, not_before=PAST, shard=0)

    first = pending(instance)
    at_noon.shift(5)
    second = pending(instance)
    at_noon.shift(60)
    third = pending(instance)

    assert (
        first == second == [("poll_hot", "hot:0:pending:20260301T1200"), ("poll_warm", "warm:0:pending:20260301T1200")]
    )
    assert not set(first) & set(third)


def begin_run(house: House, run_id: str, *, silent: bool) -> None:
    """A run that has claimed a source and leased its host, in our books."""
    with house.open() as ctx:
        worker = Worker(ctx.store, lease_seconds=300)
        [_] = worker.claim(ClaimFilter(kind="poll", source_ids=[LIGHTHOUSE]), limit=1)
        with ctx.store.begin() as connection:
            now = ctx.store.clock.now(connection)
            hour = timedelta(hours=1)
            hosts.lease_hosts(connection, [HOST], owner=worker.owner, now=now, lease=hour)
            lease = -timedelta(seconds=1) if silent else timedelta(seconds=90)
            heartbeats.begin_run(connection, run_id=run_id, owner=worker.owner, job="poll_hot", now=now, lease=lease)


def a_started_run(instance: dg.DagsterInstance) -> dg.DagsterRun:
    job = defs.resolve_job_def("poll_hot")
    return instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)


def is_free(house: House) -> bool:
    """Whether another worker can have the source and its host at once."""
    with house.open() as ctx:
        claimed = Worker(ctx.store, lease_seconds=60).claim(ClaimFilter(kind="poll"), limit=1)
        with ctx.store.begin() as connection:
            now = ctx.store.clock.now(connection)
            lease = hosts.lease_hosts(connection, [HOST], owner="another", now=now, lease=timedelta(seconds=1))[HOST]
    assert bool(claimed) == isinstance(lease, hosts.Leased)
    return bool(claimed)


def test_a_run_without_heartbeat_is_reported_failed_and_holds_nothing(
    house: House, instance: dg.DagsterInstance
) -> None:
    house.add_demo(LIGHTHOUSE)
    run = a_started_run(instance)
    begin_run(house, run.run_id, silent=True)

    data = tick_sensor("stale_runs", instance)

    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    assert found.status is dg.DagsterRunStatus.FAILURE
    assert data.skip_message == "1 lost runs ended"
    assert is_free(house)
    assert tick_sensor("stale_runs", instance).skip_message == "every run is alive"


def test_a_silent_run_of_another_instance_is_just_ended(house: House, instance: dg.DagsterInstance) -> None:
    house.add_demo(LIGHTHOUSE)
    begin_run(house, "run-of-a-terminal", silent=True)

    tick_sensor("stale_runs", instance)

    assert instance.get_runs() == []
    assert house.rows("runs")[0]["ended_at"] is not None
    assert is_free(house)


def test_a_run_that_has_ended_otherwise_is_not_reported_again(house: House, instance: dg.DagsterInstance) -> None:
    house.add_demo(LIGHTHOUSE)
    job = defs.resolve_job_def("poll_hot")
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.SUCCESS)
    begin_run(house, run.run_id, silent=True)

    tick_sensor("stale_runs", instance)

    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    assert found.status is dg.DagsterRunStatus.SUCCESS
    assert is_free(house)


def test_a_live_run_is_left_alone(house: House, instance: dg.DagsterInstance) -> None:
    house.add_demo(LIGHTHOUSE)
    run = a_started_run(instance)
    begin_run(house, run.run_id, silent=False)

    data = tick_sensor("stale_runs", instance)

    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    assert found.status is dg.DagsterRunStatus.STARTED
    assert data.skip_message == "every run is alive"
    assert not is_free(house)


def test_a_failed_run_gives_its_claims_back_and_is_in_the_audit_log(house: House, instance: dg.DagsterInstance) -> None:
    house.add_demo(LIGHTHOUSE)
    failed = run_job("ingest_series", instance)
    assert why_it_failed(failed)
    begin_run(house, failed.run_id, silent=False)
    [event] = [one for one in failed.all_events if one.event_type == dg.DagsterEventType.RUN_FAILURE]
    context = dg.build_run_status_sensor_context(
        sensor_name="run_failures", dagster_instance=instance, dagster_run=failed.dagster_run, dagster_event=event
    ).for_run_failure()

    run_failures(context, run_context=RunContextResource())

    [line] = house.rows("audit_log")
    assert (line["actor"], line["action"]) == ("system", "run.failed")
    assert line["subject"] == f"run:{failed.run_id}"
    assert line["detail"] == {"job": "ingest_series", "freed": 1}
    assert is_free(house)


def test_what_a_run_gave_back_once_is_not_given_back_again(house: House) -> None:
    """A late report of the failure must not take the claims of whoever has them now."""
    house.add_demo(LIGHTHOUSE)
    begin_run(house, "run-1", silent=False)
    with house.open() as ctx:
        assert heartbeat.release_run(ctx.store, run_id="run-1") == 1
        [_] = Worker(ctx.store, lease_seconds=60).claim(ClaimFilter(kind="poll"), limit=1)

        assert heartbeat.release_run(ctx.store, run_id="run-1") == 0
        assert Worker(ctx.store, lease_seconds=60).claim(ClaimFilter(kind="poll"), limit=1) == []


def test_a_tick_with_five_thousand_sources_takes_less_than_a_second(house: House, instance: dg.DagsterInstance) -> None:
    """A sensor that is slow may run twice at once, and one over a minute never answers."""
    house.add(*(a_definition(id=f"series:s{n}", url=f"https://h{n % 500}.test/{n}") for n in range(5_000)))

    def seconds(name: str, cursor: str | None = None) -> float:
        def once() -> float:
            began = time.perf_counter()
            repository.get_sensor_def(name).evaluate_tick(
                dg.build_sensor_context(
                    instance=instance,
                    cursor=cursor,
                    repository_def=repository,
                    resources={"run_context": RunContextResource()},
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
