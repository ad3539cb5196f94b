"""A tick finds the shards with due sources and requests a run per shard, not per source."""

from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
from dagster._core.definitions.schedule_definition import ScheduleExecutionData
from sqlalchemy import delete

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.definitions import defs
from ingestion_pipeline.sources import Kind, Tier
from ingestion_pipeline.sources.scheduling.tiers import save_measurements
from ingestion_pipeline.sources.source import shard_of
from ingestion_pipeline.store.tables import batch_items
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.orchestration.installation import Installation, run_job

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
def test_a_run_stores_its_pace_for_the_next_tick_and_a_tiny_one_does_not(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
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
        run_job("poll_cold", instance)

    companies(*range(5))
    assert installation.rows("measurements") == []

    companies(*range(5, 30))
    [pace] = installation.rows("measurements")
    assert (pace["name"], pace["value"] > 0) == ("pace:cold", True)
