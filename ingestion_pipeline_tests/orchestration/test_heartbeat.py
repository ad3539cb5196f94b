"""A run that lives keeps what it holds, and a run that fails gives it back at once."""

import threading
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import insert, select, update

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration import runs
from ingestion_pipeline.pages.politeness import hosts
from ingestion_pipeline.pages.politeness.hosts import clock_set_back
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import tasks
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline_tests.orchestration.installation import LIGHTHOUSE, Installation

POLL = ClaimFilter(kind="poll")
HOST = "feeds.demo.test"


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch, installation: Installation) -> None:
    """Set the shortest leases allowed; a heartbeat comes every third of the shorter lease."""
    monkeypatch.setenv("INGESTION_WORK__LEASE_SECONDS", "1")
    monkeypatch.setenv("INGESTION_RUNS__LEASE_SECONDS", "5")
    installation.add_demo(LIGHTHOUSE)


def wait_until(ctx: RunContext, moment: datetime) -> None:
    """Let real time pass: what is tested is a thread's own clock."""
    pause = threading.Event()
    while ctx.store.now() <= moment:
        pause.wait(0.05)


def lease_host(ctx: RunContext, owner: str) -> hosts.Leased | hosts.HostBusy:
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        lease = timedelta(seconds=60)
        return hosts.lease_hosts(connection, [HOST], owner=owner, now=now, lease=lease)[HOST]


@pytest.mark.slow
def test_a_live_run_renews_its_claims_beyond_their_lease(installation: Installation) -> None:
    with open_run_context() as ctx:
        other = Worker(ctx.store, lease_seconds=1)
        with runs.working(ctx, run_id="run-1", job="poll_hot") as worker:
            [task] = worker.claim(POLL, limit=1)
            assert task.lease_until is not None
            first_lease_until = installation.rows("runs")[0]["lease_until"]

            wait_until(ctx, task.lease_until)

            assert other.claim(POLL, limit=1) == []
            assert worker.may_start()
            assert installation.rows("runs")[0]["lease_until"] > first_lease_until


def test_a_successful_step_leaves_the_run_alive_for_the_next(installation: Installation) -> None:
    with open_run_context() as ctx:
        with runs.working(ctx, run_id="run-1", job="poll_hot") as worker:
            worker.claim(POLL, limit=1)
        [run] = installation.rows("runs")
        assert run["ended_at"] is None

        with runs.working(ctx, run_id="run-1", job="poll_hot", owner=worker.owner) as again:
            assert again.owner == worker.owner
            assert again.renew() == 1
        runs.end_run(ctx.store, run_id="run-1")

    assert installation.rows("runs")[0]["ended_at"] is not None


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()], ids=type)
def test_a_step_that_raises_releases_everything(installation: Installation, error: BaseException) -> None:
    with open_run_context() as ctx:

        def step() -> None:
            with runs.working(ctx, run_id="run-1", job="poll_hot") as worker:
                worker.claim(POLL, limit=1)
                lease_host(ctx, worker.owner)
                raise error

        with pytest.raises(type(error)):
            step()

        assert installation.rows("runs")[0]["ended_at"] is not None
        assert len(Worker(ctx.store, lease_seconds=1).claim(POLL, limit=1)) == 1
        assert isinstance(lease_host(ctx, "another"), hosts.Leased)


def hold_the_lock(ctx: RunContext, is_locked: threading.Event) -> None:
    """Keep every writer waiting for longer than there is between two heartbeats."""
    with ctx.store.begin():
        is_locked.set()
        threading.Event().wait(ctx.settings.work.lease_seconds * 0.6)


@pytest.mark.slow
def test_no_heartbeat_follows_the_release(installation: Installation) -> None:
    """A heartbeat that waited for the database came after the claims were released, and took them."""
    is_locked = threading.Event()
    with open_run_context() as ctx:
        writer = threading.Thread(target=hold_the_lock, args=(ctx, is_locked))

        def step() -> None:
            with runs.working(ctx, run_id="run-1", job="poll_hot") as worker:
                worker.claim(POLL, limit=1)
                writer.start()
                assert is_locked.wait(10)
                raise RuntimeError("broken")

        with pytest.raises(RuntimeError):
            step()
        writer.join()

        assert installation.poll_task(LIGHTHOUSE)["lease_until"] <= ctx.store.now()


@pytest.mark.slow
def test_one_failed_heartbeat_does_not_stop_the_heartbeats(installation: Installation) -> None:
    """The thread died of its first error, and ninety seconds later the live run was called dead."""
    with open_run_context() as ctx, runs.working(ctx, run_id="run-1", job="poll_hot") as worker:
        worker.claim(POLL, limit=1)
        with ctx.store.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE runs RENAME TO runs_away")
            now = ctx.store.clock.now(connection)
        wait_until(ctx, now + worker.lease / 2)  # at least one beat finds no table
        with ctx.store.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE runs_away RENAME TO runs")
            connection.execute(update(tasks).values(lease_until=now))
        back_at = ctx.store.now()
        wait_until(ctx, back_at + worker.lease)

        assert installation.poll_task(LIGHTHOUSE)["lease_until"] > back_at + worker.lease


def test_an_unknown_run_has_nothing_to_release(installation: Installation) -> None:
    with open_run_context() as ctx:
        assert runs.release_run(ctx.store, run_id="run-of-nobody") == 0


def with_clock_ahead(ctx: RunContext, clock: FixedClock) -> RunContext:
    clock.advance(days=1)
    return replace(ctx, store=Store(ctx.store.engine, clock))


def test_a_clock_set_back_leaves_no_lease_of_a_dead_run(installation: Installation) -> None:
    with open_run_context() as ctx:
        wrong = with_clock_ahead(ctx, FixedClock(ctx.store.now()))
        with runs.working(wrong, run_id="dead", job="poll_hot") as dead:
            assert len(dead.claim(POLL, limit=1)) == 1
            lease_host(wrong, "dead")  # and it is killed: nothing is released

        with runs.working(ctx, run_id="next", job="poll_hot") as worker:
            assert [task.source_id for task in worker.claim(POLL, limit=1)] == [LIGHTHOUSE]
            assert lease_host(ctx, "next") == hosts.Leased(next_allowed_at=None)


def test_a_clock_set_back_does_not_postpone_planned_work(installation: Installation) -> None:
    with open_run_context() as ctx:
        wrong = with_clock_ahead(ctx, FixedClock(ctx.store.now()))
        with runs.whole_run(wrong, run_id="before", job="poll_hot"):
            installation.set_poll_task(LIGHTHOUSE, not_before=wrong.store.now(), updated_at=wrong.store.now())

        with runs.working(ctx, run_id="next", job="poll_hot") as worker:
            assert len(worker.claim(POLL, limit=1)) == 1


def test_a_clock_set_back_takes_nothing_from_a_live_run(installation: Installation) -> None:
    with open_run_context() as ctx:
        clock = FixedClock(ctx.store.now())
        wrong = with_clock_ahead(ctx, clock)
        with runs.working(wrong, run_id="alive", job="poll_hot") as alive:
            [task] = alive.claim(POLL, limit=1)
            clock.advance(days=-1)
            alive.renew()

            with runs.working(wrong, run_id="next", job="poll_hot") as worker:
                assert worker.claim(POLL, limit=1) == []

            assert alive.renew() == 1, task


def test_a_clock_set_back_is_no_longer_reported_once_a_run_has_freed_its_leases(installation: Installation) -> None:
    with open_run_context() as ctx:
        now = ctx.store.now()
        wrong = with_clock_ahead(ctx, FixedClock(now))
        with runs.working(wrong, run_id="dead", job="poll_hot") as dead:
            dead.claim(POLL, limit=1)
        with ctx.store.begin() as connection:
            task = dict(connection.execute(select(tasks)).mappings().one())
            del task["ended_at"]  # the database derives it from the status
            finished_task = {"id": task["id"] + 1, "dedupe_key": "another", "status": "SUCCESS"}
            connection.execute(insert(tasks).values(task | finished_task))
            assert clock_set_back(connection, now=now) is not None

        with runs.working(ctx, run_id="next", job="poll_hot"):
            pass

        with ctx.store.read() as connection:
            assert clock_set_back(connection, now=now) is None
