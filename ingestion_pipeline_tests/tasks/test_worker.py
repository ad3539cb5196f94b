from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest
from sqlalchemy import event, select
from sqlalchemy.exc import OperationalError

from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import released
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline_tests.builders import a_new_task

POLLS = ClaimFilter(kind="poll")


class Ticks:
    """A monotonic clock that goes when it is told to."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def given_tasks(store: Store, count: int, now: datetime) -> None:
    with store.begin() as connection:
        new = [a_new_task(dedupe_key=f"{number}") for number in range(count)]
        insert_tasks(connection, new, now=now)


def leases(store: Store) -> set[datetime | None]:
    with store.read() as connection:
        query = select(tasks.c.lease_until).where(tasks.c.status == "PROCESSING")
        return set(connection.execute(query).scalars())


def test_no_two_workers_have_the_same_name(store: Store) -> None:
    assert Worker(store, lease_seconds=1).owner != Worker(store, lease_seconds=1).owner


def test_nothing_new_begins_after_two_thirds_of_a_lease(store: Store, now: datetime) -> None:
    ticks = Ticks()
    given_tasks(store, 1, now)
    worker = Worker(store, lease_seconds=90, monotonic=ticks)
    worker.claim(POLLS, limit=1)

    ticks.seconds += 59
    assert worker.may_start()
    ticks.seconds += 1
    assert not worker.may_start()


def test_the_wall_clock_does_not_decide_what_may_begin(store: Store, clock: FixedClock, now: datetime) -> None:
    given_tasks(store, 1, now)
    worker = Worker(store, lease_seconds=90, monotonic=Ticks())
    worker.claim(POLLS, limit=1)

    clock.advance(days=1)

    assert worker.may_start()


def test_a_heartbeat_lets_work_begin_again(store: Store, clock: FixedClock, now: datetime) -> None:
    ticks = Ticks()
    given_tasks(store, 2, now)
    worker = Worker(store, lease_seconds=90, monotonic=ticks)
    worker.claim(POLLS, limit=2)
    ticks.seconds += 80
    clock.advance(seconds=80)

    assert worker.renew() == 2

    assert worker.may_start()
    assert leases(store) == {now + timedelta(seconds=170)}


def test_a_worker_goes_on_with_what_its_owner_holds(store: Store, clock: FixedClock, now: datetime) -> None:
    """Each step of a run has a worker of its own, and the claims of the one before."""
    given_tasks(store, 3, now)
    first = Worker(store, lease_seconds=90)
    first.claim(POLLS, limit=2)
    Worker(store, lease_seconds=90).claim(POLLS, limit=1)
    clock.advance(seconds=80)

    second = Worker(store, lease_seconds=90, owner=first.owner)

    assert [second.renew(), second.renew()] == [2, 2]


def test_what_was_given_back_and_claimed_again_is_renewed(store: Store, now: datetime) -> None:
    given_tasks(store, 2, now)
    worker = Worker(store, lease_seconds=90)
    released_task, other = worker.claim(POLLS, limit=2)
    with store.begin() as connection:
        claims.apply(connection, [released(released_task, None, not_before=now)], now=now)

    assert worker.renew() == 1
    assert [task.id for task in worker.claim(POLLS, limit=2)] == [released_task.id]
    assert worker.renew() == 2
    assert other.id != released_task.id


def test_a_claim_renews_what_was_claimed_before(store: Store, clock: FixedClock, now: datetime) -> None:
    """Else `may_start` would speak of the new claims, and the old ones expire meanwhile."""
    ticks = Ticks()
    given_tasks(store, 2, now)
    worker = Worker(store, lease_seconds=90, monotonic=ticks)
    worker.claim(POLLS, limit=1)
    ticks.seconds += 80
    clock.advance(seconds=80)

    worker.claim(POLLS, limit=1)

    assert worker.may_start()
    assert leases(store) == {now + timedelta(seconds=170)}


def test_a_worker_stopped_inside_its_claim_does_not_take_it_for_fresh(store: Store, now: datetime) -> None:
    ticks = Ticks()
    given_tasks(store, 1, now)
    worker = Worker(store, lease_seconds=90, monotonic=ticks)

    @event.listens_for(store.engine, "commit")
    def stop_for_a_while(_: object) -> None:
        ticks.seconds += 80

    worker.claim(POLLS, limit=1)

    assert not worker.may_start()


def test_the_heartbeat_goes_on_by_itself_and_survives_a_bad_moment(
    store: Store, clock: FixedClock, now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    given_tasks(store, 1, now)
    worker = Worker(store, lease_seconds=0.03)
    worker.claim(POLLS, limit=1)
    clock.advance(seconds=5)
    beats = 0

    def beat_with_trouble() -> None:
        nonlocal beats
        beats += 1
        if beats == 1:
            raise OperationalError("UPDATE", None, Exception("connection lost"))
        if beats == 3:
            loop.call_soon_threadsafe(enough.set)

    async def live() -> None:
        alive = asyncio.create_task(worker.keep_alive(beat_with_trouble))
        await asyncio.wait_for(enough.wait(), timeout=30)
        alive.cancel()
        with pytest.raises(asyncio.CancelledError):
            await alive

    with asyncio.Runner() as runner:
        loop, enough = runner.get_loop(), asyncio.Event()
        runner.run(live())

    assert beats >= 3
    assert "heartbeat failed" in caplog.text
    assert leases(store) == {now + timedelta(seconds=5.03)}
