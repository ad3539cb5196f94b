"""A hundred thousand due sources are polled by a few dozen runs, as Dagster evaluates the ticks.

Nothing is executed: time is moved minute by minute, the schedules and sensors are asked when their
hour comes, what they request waits in a real instance under the limits of `dagster.yaml`, and each
minute a run that works takes from its shard what its pace allows.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copy

import dagster as dg
import pytest
import time_machine
from dagster._core.definitions.schedule_definition import ScheduleExecutionData
from sqlalchemy import bindparam, text

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.definitions import defs
from ingestion_pipeline.sources.scheduling.tiers import save_measurements
from ingestion_pipeline.store import open_store
from ingestion_pipeline.store.types import UtcDateTime
from ingestion_pipeline_tests.orchestration.installation import Installation, tick_sensor

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DOZEN = 12
SLOTS, COLD_SLOTS, LONGEST_RUN = 4, 1, 5  # `dagster.yaml`; minutes, `polling.slice_seconds`
# Ten of a hundred are HOT, sixty WARM, thirty COLD; five share a host.
MANY_SOURCES = text(
    """
    INSERT INTO sources (id, kind, url, config, origin, host, shard, tier, status, tracking_id,
                         last_checked_at, created_at, updated_at)
    WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < 99999)
    SELECT 'series:' || n, 'series', 'https://a.test/' || n, '{}', 'row', 'h' || (n / 5),
           (n / 5 * 40503) % 32768,
           CASE WHEN n % 100 < 10 THEN 'hot' WHEN n % 100 < 70 THEN 'warm' ELSE 'cold' END,
           'active', 't', :now, :now, :now
    FROM numbers
    """
).bindparams(bindparam("now", type_=UtcDateTime()))
MANY_POLLS = text(
    """
    INSERT INTO tasks (kind, dedupe_key, source_id, payload, status, priority, shard, not_before,
                       tracking_id, ancestry, created_at, updated_at)
    SELECT 'poll', id, id, '{}', 'PENDING',
           CASE tier WHEN 'hot' THEN 1 WHEN 'warm' THEN 2 ELSE 3 END, shard, :now, 't', '[]',
           :now, :now
    FROM sources
    """
).bindparams(bindparam("now", type_=UtcDateTime()))
# What a run gets through in a minute.
POLLED = text(
    """
    UPDATE tasks SET not_before = :later WHERE id IN (
        SELECT id FROM tasks WHERE ended_at IS NULL AND kind = 'poll' AND priority = :priority
        AND not_before <= :now AND shard % :shards = :shard LIMIT :most)
    """
).bindparams(*(bindparam(name, type_=UtcDateTime()) for name in ("now", "later")))


@pytest.fixture(scope="module")
def crowded_database(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of a hundred thousand sources, all of them due."""
    file = tmp_path_factory.mktemp("crowded") / "ingestion.db"
    copy(sqlite_template, file)
    store = open_store(f"sqlite:///{file}")
    with store.begin() as connection:
        for statement in (MANY_SOURCES, MANY_POLLS):
            connection.execute(statement, {"now": NOON - timedelta(minutes=1)})
    store.close()
    return file


@dataclass
class Simulation:
    """Runs that were requested, wait, and work, under the limits of `dagster.yaml`."""

    instance: dg.DagsterInstance
    polls_a_minute: int
    requested: Counter[str] = field(default_factory=Counter[str])
    minutes_of: list[int] = field(default_factory=list[int])
    _working: dict[str, int] = field(default_factory=dict[str, int])

    def request(self, data: ScheduleExecutionData) -> None:
        for request in data.run_requests or []:
            assert request.job_name is not None
            self.requested[request.job_name] += 1
            job = defs.resolve_job_def(request.job_name)
            self.instance.create_run_for_job(job, tags=dict(request.tags))

    def work(self, installation: Installation, now: datetime) -> int:
        """Simulate a minute of every run that has a slot; return how many sources were polled."""
        runs = self._dequeued()
        polled = 0
        with installation.open() as ctx, ctx.store.begin() as connection:
            for run in runs:
                tier, _, shard = run.tags["ingestion/shard"].partition(":")
                parameters = {
                    "priority": {"hot": 1, "warm": 2, "cold": 3}[tier],
                    "shards": int(run.tags.get("ingestion/shards", 2)),
                    "shard": int(shard),
                    "most": self.polls_a_minute,
                    "now": now,
                    "later": now + timedelta(days=1),
                }
                count = connection.execute(POLLED, parameters).rowcount
                polled += count
                self._advance(run, is_done=count < self.polls_a_minute)
        return polled

    def _advance(self, run: dg.DagsterRun, *, is_done: bool) -> None:
        self._working[run.run_id] = self._working.get(run.run_id, 0) + 1
        if is_done or self._working[run.run_id] == LONGEST_RUN:
            self.minutes_of.append(self._working.pop(run.run_id))
            self.instance.report_run_canceled(run)

    def _dequeued(self) -> list[dg.DagsterRun]:
        """Return the started runs, then as many as the limits allow, the hottest first."""
        statuses = [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTED]
        open_runs = sorted(
            self.instance.get_runs(dg.RunsFilter(statuses=statuses)),
            key=lambda run: (run.run_id not in self._working, -int(run.tags["dagster/priority"])),
        )
        chosen: dict[str, dg.DagsterRun] = {}
        for run in open_runs:
            is_cold = run.tags["ingestion/tier"] == "cold"
            cold = sum(other.tags["ingestion/tier"] == "cold" for other in chosen.values())
            if len(chosen) < SLOTS and not (is_cold and cold >= COLD_SLOTS):
                chosen.setdefault(run.tags["ingestion/shard"], run)
        for run in chosen.values():
            if run.status is dg.DagsterRunStatus.NOT_STARTED:
                self.instance.report_dagster_event(
                    dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, run.job_name), run_id=run.run_id
                )
        return list(chosen.values())


@pytest.fixture
def persistent_instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as dagster_instance:
        yield dagster_instance


SCHEDULES = ("hot_polling", "warm_polling", "cold_polling")
PACE = 40  # sources a second, as a small machine polls them


def set_pace(installation: Installation, pace: float | None) -> None:
    """Set the pace that the last runs of every tier stored; None before the first run."""
    if pace is None:
        return
    with installation.open() as ctx, ctx.store.begin() as connection:
        save_measurements(connection, {f"pace:{tier}": pace for tier in ("hot", "warm", "cold")}, now=NOON)


def ticks_at(minute: int) -> list[str]:
    """Return the schedules that tick in this minute, by their cron lines."""
    return [
        name
        for name, is_due in {
            "hot_polling": minute % 5 == 0,
            "warm_polling": minute % 15 == 3,
            "cold_polling": minute % 60 == 7,
        }.items()
        if is_due
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pace", "hot", "warm", "cold"),
    [
        # 10,000 HOT, 60,000 WARM and 30,000 COLD ones at 2,400 a minute, never more than 16
        pytest.param(PACE, 5, 16, 13, id="the pace is known"),
        pytest.param(None, 9, 16, 16, id="nothing was polled yet"),
    ],
)
def test_the_ticks_of_a_hundred_thousand_due_sources_request_a_few_dozen_runs(
    installation: Installation, crowded_database: Path, pace: float | None, hot: int, warm: int, cold: int
) -> None:
    copy(crowded_database, installation.home / "ingestion.db")
    set_pace(installation, pace)

    with time_machine.travel(NOON, tick=False):
        ticks = {name: tick(name, installation.instance, NOON).run_requests or [] for name in SCHEDULES}
        pending = installation.tick_sensor("pending_work")

    assert [len(requests) for requests in ticks.values()] == [hot, warm, cold]
    assert not pending.run_requests
    shares = Counter(n // 5 * 40503 % 32768 % warm for n in range(100_000) if 10 <= n % 100 < 70)
    assert len(shares) == warm
    assert all(60 < share / PACE < 120 for share in shares.values()), shares  # seconds of a run


@pytest.mark.soak
@pytest.mark.parametrize("pace", [PACE, None], ids=["known", "unknown"])
def test_a_hundred_thousand_due_sources_are_polled_by_a_few_dozen_runs(
    installation: Installation, crowded_database: Path, persistent_instance: dg.DagsterInstance, pace: float | None
) -> None:
    copy(crowded_database, installation.home / "ingestion.db")
    set_pace(installation, pace)
    simulation = Simulation(persistent_instance, polls_a_minute=PACE * 60)

    polled, minute = 0, 0
    while polled < 100_000 and minute < 60:
        now = NOON + timedelta(minutes=minute)
        with time_machine.travel(now, tick=False):
            for name in ticks_at(minute):
                simulation.request(tick(name, persistent_instance, now))
            if minute % 5 == 0:
                simulation.request(tick_sensor("pending_work", persistent_instance))
            polled += simulation.work(installation, now)
        minute += 1

    assert polled == 100_000
    assert sum(simulation.requested.values()) <= 4 * DOZEN, simulation.requested
    middle = sorted(simulation.minutes_of)[len(simulation.minutes_of) // 2]
    assert middle <= 2, simulation.minutes_of  # of a run: about a minute


def tick(name: str, instance: dg.DagsterInstance, at: datetime) -> ScheduleExecutionData:
    repository = defs.get_repository_def()
    with open_run_context() as ctx:
        context = dg.build_schedule_context(
            instance=instance, scheduled_execution_time=at, repository_def=repository, resources={"run_context": ctx}
        )
        return repository.get_schedule_def(name).evaluate_tick(context)
