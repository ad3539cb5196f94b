"""Schedules and the sensors `pending_work`, `stale_runs` and `run_failures`."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
import time_machine
from dagster._core.definitions.schedule_definition import ScheduleExecutionData
from dagster._record import copy
from sqlalchemy import delete

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.definitions import defs
from ingestion_pipeline.orchestration import runs
from ingestion_pipeline.orchestration.automation import RUSH, _calm_key, run_failures
from ingestion_pipeline.pages.politeness import hosts
from ingestion_pipeline.sources import Kind, Tier
from ingestion_pipeline.sources.scheduling.tiers import save_measurements
from ingestion_pipeline.sources.source import shard_of
from ingestion_pipeline.store.tables import batch_items
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.orchestration.installation import (
    LIGHTHOUSE,
    PARTITION,
    SALT,
    Installation,
    failure_message,
    tick_sensor,
)
from ingestion_pipeline_tests.orchestration.test_single_sources import materialize

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def tick(name: str, at: datetime = NOON) -> ScheduleExecutionData:
    schedule = defs.get_repository_def().get_schedule_def(name)
    with dg.DagsterInstance.ephemeral() as instance, open_run_context() as ctx:
        context = dg.build_schedule_context(
            instance=instance,
            scheduled_execution_time=at,
            repository_def=defs.get_repository_def(),
            resources={"run_context": ctx},
        )
        return schedule.evaluate_tick(context)


def host_in_shard(shard: int) -> str:
    """Return a host whose sources belong to this one of two shards."""
    names = (f"h{number}.test" for number in range(100))
    return next(name for name in names if shard_of(name) % 2 == shard)


def add(installation: Installation, tier: Tier, *, shard: int, count: int = 1) -> None:
    host = host_in_shard(shard)
    installation.add(
        *(
            a_definition(id=f"series:{tier}{shard}-{number}", url=f"https://{host}/{number}", tier=tier)
            for number in range(count)
        )
    )


@pytest.mark.parametrize("tier", list(Tier))
def test_a_tick_with_nothing_due_skips_and_says_why(installation: Installation, tier: Tier) -> None:
    data = tick(f"{tier}_polling")

    assert data.run_requests == []
    assert data.skip_message == f"no {tier.upper()} source is due"


def test_many_due_sources_are_one_run_per_shard(installation: Installation) -> None:
    add(installation, Tier.HOT, shard=0, count=3)
    add(installation, Tier.HOT, shard=1, count=2)

    data = tick("hot_polling")

    assert data.skip_message is None
    assert [request.run_key for request in data.run_requests or []] == ["hot:0:20260301T1200", "hot:1:20260301T1200"]


def test_a_shard_without_due_sources_gets_no_run(installation: Installation) -> None:
    add(installation, Tier.HOT, shard=1)

    assert [request.run_key for request in tick("hot_polling").run_requests or []] == ["hot:1:20260301T1200"]


@pytest.mark.slow
def test_a_tick_requests_only_its_own_tier(installation: Installation) -> None:
    add(installation, Tier.WARM, shard=0)

    assert not tick("hot_polling").run_requests
    assert not tick("cold_polling").run_requests
    assert len(tick("warm_polling").run_requests or []) == 1


def test_a_source_that_is_not_due_yet_gets_no_run(installation: Installation) -> None:
    add(installation, Tier.HOT, shard=0)
    with installation.open() as ctx:
        later = ctx.store.now() + timedelta(minutes=10)
    installation.set_poll_task("series:hot0-0", not_before=later)

    assert tick("hot_polling").skip_message == "no HOT source is due"


@pytest.mark.slow
def test_a_source_that_is_being_polled_gets_no_second_run(installation: Installation) -> None:
    add(installation, Tier.HOT, shard=0)
    with installation.open() as ctx:
        later = ctx.store.now() + timedelta(minutes=1)
    installation.set_poll_task("series:hot0-0", status="PROCESSING", lease_owner="x", lease_until=later)

    assert tick("hot_polling").skip_message == "no HOT source is due"


@pytest.mark.slow
@pytest.mark.parametrize(("tier", "priority"), [(Tier.HOT, "-1"), (Tier.WARM, "-2"), (Tier.COLD, "-3")])
def test_a_run_is_tagged_with_tier_shard_and_priority(installation: Installation, tier: Tier, priority: str) -> None:
    add(installation, tier, shard=1)

    [request] = tick(f"{tier}_polling").run_requests or []

    own_tags = {name: value for name, value in request.tags.items() if not name.startswith("dagster/s")}
    assert own_tags == {
        "ingestion/tier": tier.value,
        "ingestion/shard": f"{tier.value}:1",
        "dagster/priority": priority,
    }


@pytest.mark.slow
def test_another_tick_gives_other_keys(installation: Installation) -> None:
    """Dagster never forgets a run key, not even a failed run's."""
    add(installation, Tier.HOT, shard=0)

    first = tick("hot_polling").run_requests or []
    second = tick("hot_polling", NOON + timedelta(minutes=5)).run_requests or []

    assert [request.run_key for request in first] == ["hot:0:20260301T1200"]
    assert [request.run_key for request in second] == ["hot:0:20260301T1205"]


def test_maintenance_requests_its_job_at_every_tick(installation: Installation) -> None:
    schedule = defs.get_repository_def().get_schedule_def("maintenance")

    assert schedule.job_name == "maintain"
    assert len(tick("maintenance").run_requests or []) == 1


def test_more_due_sources_are_shared_by_more_runs_of_about_a_minute(installation: Installation) -> None:
    installation.add(*(a_definition(id=f"series:{n}", url=f"https://h{n}.test/", tier=Tier.HOT) for n in range(300)))
    with installation.open() as ctx, ctx.store.begin() as connection:
        save_measurements(connection, {"pace:hot": 1.0}, now=NOON)

    requests = tick("hot_polling").run_requests or []

    assert [request.tags["ingestion/shards"] for request in requests] == ["5"] * 5  # 300 at 60 a minute
    assert sorted(request.tags["ingestion/shard"] for request in requests) == [f"hot:{n}" for n in range(5)]


@pytest.mark.slow
def test_polling_pauses_while_ingestion_lags_and_says_so(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(installation, Tier.HOT, shard=0)
    monkeypatch.setenv("INGESTION_POLLING__BACKLOG_LIMIT", "1")
    installation.add_waiting_batches(2)

    assert "polling is paused: 2 or more readings" in (tick("hot_polling").skip_message or "")

    with installation.open() as ctx, ctx.store.begin() as connection:
        connection.execute(delete(batch_items).where(batch_items.c.task_id == 1))
    assert len(tick("hot_polling").run_requests or []) == 1


@pytest.mark.slow
def test_a_shard_whose_run_still_waits_gets_no_second_one(installation: Installation) -> None:
    """It will claim what has become due since; this does not apply to a started run."""
    add(installation, Tier.HOT, shard=0)
    add(installation, Tier.HOT, shard=1)
    repository = defs.get_repository_def()
    with dg.instance_for_test() as instance:

        def asked() -> ScheduleExecutionData:
            with open_run_context() as ctx:
                context = dg.build_schedule_context(
                    instance=instance,
                    scheduled_execution_time=NOON,
                    repository_def=repository,
                    resources={"run_context": ctx},
                )
                return repository.get_schedule_def("hot_polling").evaluate_tick(context)

        def wait_for(shard: int) -> dg.DagsterRun:
            tags = {"ingestion/tier": "hot", "ingestion/shard": f"hot:{shard}"}
            return instance.create_run_for_job(defs.resolve_job_def("poll_hot"), tags=tags)

        first = wait_for(0)
        assert [request.run_key for request in asked().run_requests or []] == ["hot:1:20260301T1200"]

        wait_for(1)
        assert not asked().run_requests
        assert asked().skip_message == "2 sources are due, and their runs are queued already"

        instance.report_run_failed(first)
        assert [request.run_key for request in asked().run_requests or []] == ["hot:0:20260301T1200"]


@pytest.mark.slow
def test_a_run_stores_its_pace_for_the_next_tick_and_a_tiny_one_does_not(installation: Installation) -> None:
    def companies(*numbers: int) -> None:
        installation.add(
            *(
                a_definition(
                    id=f"company:{n}",
                    kind=Kind.COMPANY,
                    platform=None,
                    url=f"https://c{n}.test/",
                    series=None,
                    tier=Tier.COLD,
                )
                for n in numbers
            )
        )
        installation.run_job("poll_cold")

    companies(*range(5))
    assert installation.rows("measurements") == []

    companies(*range(5, 30))
    [pace] = installation.rows("measurements")
    assert (pace["name"], pace["value"] > 0) == ("pace:cold", True)


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
    installation: Installation, at_noon: object, task_values: dict[str, Any]
) -> None:
    installation.add_demo(LIGHTHOUSE)
    shard = installation.source(LIGHTHOUSE).shard % 2
    installation.set_poll_task(LIGHTHOUSE, **task_values)

    assert requested_runs(installation.instance) == [("poll_hot", f"hot:{shard}:pending:20260301T1200")]


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
def test_nothing_else_is_requested(installation: Installation, at_noon: object, task_values: dict[str, Any]) -> None:
    installation.add_demo(LIGHTHOUSE)
    installation.set_poll_task(LIGHTHOUSE, **task_values)

    data = installation.tick_sensor("pending_work")

    assert not data.run_requests
    assert data.skip_message == "no retry is due and no claim has expired"


def test_a_run_that_is_queued_for_the_shard_is_enough(installation: Installation, at_noon: object) -> None:
    installation.add_demo(LIGHTHOUSE)
    installation.set_poll_task(LIGHTHOUSE, attempts=1, not_before=PAST, shard=0)
    job = defs.resolve_job_def("poll_hot")
    waiting = installation.instance.create_run_for_job(job, tags={"ingestion/shard": "hot:0"})

    assert requested_runs(installation.instance) == []

    installation.instance.report_run_failed(waiting)
    assert requested_runs(installation.instance) == [("poll_hot", "hot:0:pending:20260301T1200")]


def test_no_retry_is_requested_while_ingestion_lags_and_the_sensor_says_so(
    installation: Installation, at_noon: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation.add_demo(LIGHTHOUSE)
    installation.set_poll_task(LIGHTHOUSE, attempts=1, not_before=PAST)
    monkeypatch.setenv("INGESTION_POLLING__BACKLOG_LIMIT", "1")
    installation.add_waiting_batches(2)

    data = installation.tick_sensor("pending_work")

    assert not data.run_requests
    assert "polling is paused: 2 or more readings" in data.skip_message


def test_pending_work_is_requested_once_a_minute_for_each_tier_and_shard(
    installation: Installation, at_noon: time_machine.Traveller
) -> None:
    """The same key is the same run to Dagster."""
    installation.add_demo(LIGHTHOUSE, "series:lighthouse-mangadex", SALT)
    for source_id in (LIGHTHOUSE, "series:lighthouse-mangadex", SALT):
        installation.set_poll_task(source_id, attempts=1, not_before=PAST, shard=0)

    first = requested_runs(installation.instance)
    at_noon.shift(5)
    second = requested_runs(installation.instance)
    at_noon.shift(60)
    third = requested_runs(installation.instance)

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
def test_a_run_without_heartbeat_is_reported_failed_and_holds_nothing(installation: Installation) -> None:
    installation.add_demo(LIGHTHOUSE)
    run = a_started_run(installation.instance)
    begin_run(installation, run.run_id, silent=True)

    data = installation.tick_sensor("stale_runs")

    stored_run = installation.instance.get_run_by_id(run.run_id)
    assert stored_run is not None
    assert stored_run.status is dg.DagsterRunStatus.FAILURE
    assert data.skip_message == "1 lost runs ended"
    assert is_free(installation)
    assert installation.tick_sensor("stale_runs").skip_message == "every run is alive"


def test_a_silent_run_of_another_instance_is_only_ended(installation: Installation) -> None:
    installation.add_demo(LIGHTHOUSE)
    begin_run(installation, "run-of-a-terminal", silent=True)

    installation.tick_sensor("stale_runs")

    assert installation.instance.get_runs() == []
    assert installation.rows("runs")[0]["ended_at"] is not None
    assert is_free(installation)


def test_a_run_that_has_ended_otherwise_is_not_reported_again(installation: Installation) -> None:
    installation.add_demo(LIGHTHOUSE)
    job = defs.resolve_job_def("poll_hot")
    run = installation.instance.create_run_for_job(job, status=dg.DagsterRunStatus.SUCCESS)
    begin_run(installation, run.run_id, silent=True)

    installation.tick_sensor("stale_runs")

    stored_run = installation.instance.get_run_by_id(run.run_id)
    assert stored_run is not None
    assert stored_run.status is dg.DagsterRunStatus.SUCCESS
    assert is_free(installation)


def test_a_live_run_is_left_alone(installation: Installation) -> None:
    installation.add_demo(LIGHTHOUSE)
    run = a_started_run(installation.instance)
    begin_run(installation, run.run_id, silent=False)

    data = installation.tick_sensor("stale_runs")

    stored_run = installation.instance.get_run_by_id(run.run_id)
    assert stored_run is not None
    assert stored_run.status is dg.DagsterRunStatus.STARTED
    assert data.skip_message == "every run is alive"
    assert not is_free(installation)


@pytest.mark.slow
def test_a_failed_run_releases_its_claims_and_is_audited(installation: Installation) -> None:
    installation.add_demo(LIGHTHOUSE)
    failed = installation.run_job("ingest_series")
    assert failure_message(failed)
    begin_run(installation, failed.run_id, silent=False)
    [event] = [event for event in failed.all_events if event.event_type == dg.DagsterEventType.RUN_FAILURE]
    context = dg.build_run_status_sensor_context(
        sensor_name="run_failures",
        dagster_instance=installation.instance,
        dagster_run=failed.dagster_run,
        dagster_event=event,
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
def test_a_tick_with_five_thousand_sources_takes_less_than_a_second(installation: Installation) -> None:
    """A sensor that is slow may run twice at once, and one over a minute never answers."""
    installation.add(*(a_definition(id=f"series:s{n}", url=f"https://h{n % 500}.test/{n}") for n in range(5_000)))

    def seconds(name: str, cursor: str | None = None) -> float:
        def once() -> float:
            began = time.perf_counter()
            with open_run_context() as ctx:
                repository.get_sensor_def(name).evaluate_tick(
                    dg.build_sensor_context(
                        instance=installation.instance,
                        cursor=cursor,
                        repository_def=repository,
                        resources={"run_context": ctx},
                    )
                )
            return time.perf_counter() - began

        return min(once() for _ in range(3))  # the machine may be busy, the sensor is what counts

    repository = defs.get_repository_def()
    arrival = seconds("new_sources")
    installation.instance.add_dynamic_partitions("sources", [f"series:s{n}" for n in range(5_000)])
    quiet = seconds("new_sources")

    assert max(arrival, quiet) < 1
    assert seconds("pending_work") < 1
    assert seconds("stale_runs") < 1


@pytest.mark.slow
def test_the_failure_of_a_materialization_names_a_job_of_ours(installation: Installation) -> None:
    failed = materialize("chapters", installation.instance, tags={PARTITION: "series:nobody"})
    [event] = [event for event in failed.all_events if event.event_type == dg.DagsterEventType.RUN_FAILURE]
    context = dg.build_run_status_sensor_context(
        sensor_name="run_failures",
        dagster_instance=installation.instance,
        dagster_run=copy(failed.dagster_run, asset_selection={dg.AssetKey("chapters")}),  # as the UI launches it
        dagster_event=event,
    ).for_run_failure()

    with installation.open() as ctx:
        run_failures(context, run_context=ctx)

    assert failed.dagster_run.job_name == "__ASSET_JOB"
    [line] = installation.rows("audit_log")
    assert line["detail"]["job"] == "ingest_series"


def test_work_that_stays_after_several_runs_is_requested_once_a_minute(installation: Installation) -> None:
    tags = {runs.SHARD: "process_listings"}
    now = datetime.now(UTC).replace(second=30)
    keys = [_calm_key(installation.instance, "process_listings", now)]
    for _ in range(RUSH):
        installation.instance.create_run_for_job(
            defs.resolve_job_def("process_listings"), tags=tags, status=dg.DagsterRunStatus.SUCCESS
        )
    keys.append(_calm_key(installation.instance, "process_listings", now))

    assert keys == [f"process_listings:{now:%Y%m%dT%H%M%S}", f"process_listings:{now:%Y%m%dT%H%M}"]
