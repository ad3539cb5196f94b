"""Workers that hold claims, and runs whose heartbeat stops."""

import asyncio
from datetime import datetime, timedelta

import pytest
from sqlalchemy import event, select
from sqlalchemy.exc import OperationalError

from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, LostRun, Worker, beat_run, begin_run, end_run, lost_runs
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import released
from ingestion_pipeline_tests.builders import a_new_task

pytestmark = pytest.mark.both_databases

POLLS = ClaimFilter(kind="poll")


class ManualMonotonic:
    """A monotonic clock that the test advances."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def add_tasks(store: Store, count: int, now: datetime) -> None:
    with store.begin() as connection:
        new = [a_new_task(dedupe_key=f"{number}") for number in range(count)]
        insert_tasks(connection, new, now=now)


def leases(store: Store) -> set[datetime | None]:
    with store.read() as connection:
        query = select(tasks.c.lease_until).where(tasks.c.status == "PROCESSING")
        return set(connection.execute(query).scalars())


def test_no_two_workers_have_the_same_owner_id(store: Store) -> None:
    assert Worker(store, lease_seconds=1).owner != Worker(store, lease_seconds=1).owner


def test_no_work_may_start_after_two_thirds_of_a_lease(store: Store, now: datetime) -> None:
    ticks = ManualMonotonic()
    add_tasks(store, 1, now)
    worker = Worker(store, lease_seconds=90, monotonic=ticks)
    worker.claim(POLLS, limit=1)

    ticks.seconds += 59
    assert worker.may_start()
    ticks.seconds += 1
    assert not worker.may_start()


def test_the_wall_clock_does_not_decide_whether_work_may_start(store: Store, clock: FixedClock, now: datetime) -> None:
    add_tasks(store, 1, now)
    worker = Worker(store, lease_seconds=90, monotonic=ManualMonotonic())
    worker.claim(POLLS, limit=1)

    clock.advance(days=1)

    assert worker.may_start()


@pytest.mark.slow
def test_work_may_start_again_after_a_heartbeat(store: Store, clock: FixedClock, now: datetime) -> None:
    ticks = ManualMonotonic()
    add_tasks(store, 2, now)
    worker = Worker(store, lease_seconds=90, monotonic=ticks)
    worker.claim(POLLS, limit=2)
    ticks.seconds += 80
    clock.advance(seconds=80)

    assert worker.renew() == 2

    assert worker.may_start()
    assert leases(store) == {now + timedelta(seconds=170)}


def test_a_worker_renews_the_claims_of_its_owner(store: Store, clock: FixedClock, now: datetime) -> None:
    """Each step of a run has its own worker, with the claims of the step before."""
    add_tasks(store, 3, now)
    first = Worker(store, lease_seconds=90)
    first.claim(POLLS, limit=2)
    Worker(store, lease_seconds=90).claim(POLLS, limit=1)
    clock.advance(seconds=80)

    second = Worker(store, lease_seconds=90, owner=first.owner)

    assert [second.renew(), second.renew()] == [2, 2]


def test_a_task_that_was_released_and_claimed_again_is_renewed(store: Store, now: datetime) -> None:
    add_tasks(store, 2, now)
    worker = Worker(store, lease_seconds=90)
    released_task, other = worker.claim(POLLS, limit=2)
    with store.begin() as connection:
        claims.apply(connection, [released(released_task, None, not_before=now)], now=now)

    assert worker.renew() == 1
    assert [task.id for task in worker.claim(POLLS, limit=2)] == [released_task.id]
    assert worker.renew() == 2
    assert other.id != released_task.id


def test_a_claim_renews_earlier_claims(store: Store, clock: FixedClock, now: datetime) -> None:
    """Otherwise `may_start` would hold for the new claims only, and the old ones would expire."""
    ticks = ManualMonotonic()
    add_tasks(store, 2, now)
    worker = Worker(store, lease_seconds=90, monotonic=ticks)
    worker.claim(POLLS, limit=1)
    ticks.seconds += 80
    clock.advance(seconds=80)

    worker.claim(POLLS, limit=1)

    assert worker.may_start()
    assert leases(store) == {now + timedelta(seconds=170)}


def test_a_worker_stopped_inside_its_claim_may_not_start_work(store: Store, now: datetime) -> None:
    ticks = ManualMonotonic()
    add_tasks(store, 1, now)
    worker = Worker(store, lease_seconds=90, monotonic=ticks)

    @event.listens_for(store.engine, "commit")
    def stall(_: object) -> None:
        ticks.seconds += 80

    worker.claim(POLLS, limit=1)

    assert not worker.may_start()


def test_the_heartbeat_continues_after_a_database_error(
    store: Store, clock: FixedClock, now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    add_tasks(store, 1, now)
    worker = Worker(store, lease_seconds=0.03)
    worker.claim(POLLS, limit=1)
    clock.advance(seconds=5)
    beats = 0

    def fail_first_beat() -> None:
        nonlocal beats
        beats += 1
        if beats == 1:
            raise OperationalError("UPDATE", None, Exception("connection lost"))
        if beats == 3:
            loop.call_soon_threadsafe(enough.set)

    async def run_heartbeat() -> None:
        alive = asyncio.create_task(worker.keep_alive(fail_first_beat))
        await asyncio.wait_for(enough.wait(), timeout=30)
        alive.cancel()
        with pytest.raises(asyncio.CancelledError):
            await alive

    with asyncio.Runner() as runner:
        loop, enough = runner.get_loop(), asyncio.Event()
        runner.run(run_heartbeat())

    assert beats >= 3
    assert "heartbeat failed" in caplog.text
    assert leases(store) == {now + timedelta(seconds=5.03)}


LEASE = timedelta(seconds=90)


def start_run(store: Store, now: datetime, run_id: str = "run", owner: str = "first") -> None:
    with store.begin() as connection:
        begin_run(connection, run_id=run_id, owner=owner, job="poll_hot", now=now, lease=LEASE)


def lost_at(store: Store, now: datetime) -> list[LostRun]:
    with store.read() as connection:
        return lost_runs(connection, now=now)


def test_a_run_is_lost_only_after_its_lease(store: Store, now: datetime) -> None:
    start_run(store, now)

    assert lost_at(store, now + LEASE) == []
    assert lost_at(store, now + LEASE + timedelta(seconds=1)) == [
        LostRun(run_id="run", owner="first", job="poll_hot", lease_until=now + LEASE)
    ]


def test_a_heartbeat_renews_its_own_run_only(store: Store, now: datetime) -> None:
    start_run(store, now, run_id="alive")
    start_run(store, now, run_id="dead")

    with store.begin() as connection:
        beat_run(connection, run_id="alive", now=now + LEASE, lease=LEASE)

    assert [run.run_id for run in lost_at(store, now + LEASE * 2)] == ["dead"]


def test_an_ended_run_is_never_lost(store: Store, now: datetime) -> None:
    start_run(store, now)

    with store.begin() as connection:
        assert end_run(connection, run_id="run", now=now) == "first"

    assert lost_at(store, now + LEASE * 100) == []


def test_a_run_ends_once_and_an_unknown_run_never(store: Store, now: datetime) -> None:
    start_run(store, now)
    with store.begin() as connection:
        end_run(connection, run_id="run", now=now)

        assert end_run(connection, run_id="run", now=now) is None
        assert end_run(connection, run_id="unknown", now=now) is None


def test_a_restarted_run_is_alive_under_its_new_owner(store: Store, now: datetime) -> None:
    start_run(store, now)
    with store.begin() as connection:
        end_run(connection, run_id="run", now=now)

    start_run(store, now + LEASE * 2, owner="second")

    assert lost_at(store, now + LEASE * 3) == []
    assert [run.owner for run in lost_at(store, now + LEASE * 4)] == ["second"]


def test_lost_runs_are_listed_longest_lost_first(store: Store, now: datetime) -> None:
    start_run(store, now + timedelta(seconds=5), run_id="later")
    start_run(store, now, run_id="earlier")

    assert [run.run_id for run in lost_at(store, now + LEASE * 2)] == ["earlier", "later"]
