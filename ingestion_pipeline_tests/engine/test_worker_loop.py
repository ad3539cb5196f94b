"""The guarantees of the work loop, with a handler made for these tests: they hold for every kind of work."""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.exc import DataError

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.worker_loop import WorkerLoop
from ingestion_pipeline.pages.politeness.host_leases import HostLease, paced_request
from ingestion_pipeline.store import FixedClock
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.tables import dead_letters, hosts, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline.tasks.errors import Fatal, Permanent, Resource, Transient, WorkError
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline_tests.engine.example_handler import (
    KIND,
    ExampleHandler,
    ExampleItem,
    add_tasks,
    add_tasks_of_kind,
    effects,
    failing,
    run,
    statuses,
    succeed,
)
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import a_fetcher, rows

pytestmark = pytest.mark.both_databases


def test_every_task_is_executed_and_persisted_once(ctx: RunContext, web: FakeWeb) -> None:
    add_tasks(ctx, *"abcdefghijklmno", b="b.test", c="c.test")

    counts = run(ctx, ExampleHandler(), web)

    assert counts == {"completed": 15}
    assert effects(ctx) == [f"did {key}" for key in "abcdefghijklmno"]
    assert set(statuses(ctx).values()) == {"SUCCESS"}


def test_tasks_without_a_host_run_side_by_side_and_no_more_than_allowed(ctx: RunContext, web: FakeWeb) -> None:
    add_tasks(ctx, *"abcdef", **dict.fromkeys("abcdef"))
    running, most = 0, 0

    async def action(task: Task) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return await succeed(task)

    counts = run(ctx, ExampleHandler(action=action, concurrency=3), web)

    assert (counts, most) == ({"completed": 6}, 3)
    assert rows(ctx.store, hosts) == []


def test_no_more_tasks_are_held_than_the_handler_has_capacity_for(ctx: RunContext, web: FakeWeb) -> None:
    add_tasks(ctx, *"abcdefgh", **dict.fromkeys("abcdefgh"))
    held: list[int] = []

    async def action(task: Task) -> str:
        held.append(Counter(statuses(ctx).values())["PROCESSING"])
        return await succeed(task)

    counts = run(ctx, ExampleHandler(action=action, capacity=3), web)

    assert counts == {"completed": 8}
    assert max(held) <= 3


def test_nothing_is_claimed_when_the_time_is_over(ctx: RunContext) -> None:
    add_tasks(ctx, "a")
    worker, clock = Worker(ctx.store, lease_seconds=60), SteadyClock(ctx.store.now())

    counts = asyncio.run(WorkerLoop(ctx, worker, None, ExampleHandler(), clock=clock, seconds=0).run())

    assert counts == {}
    assert [(row.status, row.fence) for row in rows(ctx.store, tasks) if row.kind == KIND] == [("PENDING", 0)]


@pytest.mark.parametrize("days", [1, -1])
def test_a_clock_step_during_a_run_loses_no_task_and_repeats_none(
    ctx: RunContext, web: FakeWeb, clock: FixedClock, days: int
) -> None:
    add_tasks(ctx, *"abcdef", b="b.test", c=None, d=None)

    async def action(task: Task) -> str:
        if task.dedupe_key == "a":
            clock.advance(days=days)
        return await succeed(task)

    handler = ExampleHandler(action=action, concurrency=1)

    assert run(ctx, handler, web) == {"completed": 6}
    assert sorted(handler.executed) == list("abcdef")
    assert effects(ctx) == [f"did {key}" for key in "abcdef"]


def test_a_slow_task_does_not_keep_others_from_being_claimed(ctx: RunContext, web: FakeWeb) -> None:
    add_tasks(ctx, *"abcdefgh", **dict.fromkeys("abcdefgh"))
    others_done = asyncio.Event()

    async def action(task: Task) -> str:
        if task.dedupe_key == "a":
            await asyncio.wait_for(others_done.wait(), 20)
        elif task.dedupe_key == "h":
            others_done.set()
        return await succeed(task)

    counts = run(ctx, ExampleHandler(action=action, capacity=2), web)

    assert counts == {"completed": 8}


def test_a_transient_error_is_retried_in_the_same_run_and_dead_lettered_after_the_last_attempt(
    ctx: RunContext, web: FakeWeb, clock: FixedClock
) -> None:
    add_tasks(ctx, "a", "b")
    handler = ExampleHandler(action=failing(Transient("busy", code="busy"), "a"))

    for _ in range(3):
        run(ctx, handler, web)
        clock.advance(hours=1)

    assert Counter(handler.executed) == {"a": 3, "b": 1}
    assert statuses(ctx) == {"a": "FAILED", "b": "SUCCESS"}
    [dead_letter] = rows(ctx.store, dead_letters)
    assert (dead_letter.error_code, dead_letter.attempts) == ("busy", 3)
    assert "in action" in dead_letter.stack


def test_a_permanent_error_is_dead_lettered_at_once(ctx: RunContext, web: FakeWeb) -> None:
    add_tasks(ctx, "a")

    counts = run(ctx, ExampleHandler(action=failing(Permanent("gone", code="gone"))), web)

    assert counts == {"failed": 1}
    assert [(row.error_code, row.attempts) for row in rows(ctx.store, dead_letters)] == [("gone", 1)]


def test_a_missing_resource_releases_the_task_and_counts_no_attempt(
    ctx: RunContext, web: FakeWeb, now: datetime
) -> None:
    add_tasks(ctx, "a")
    later = now + timedelta(hours=2)

    counts = run(ctx, ExampleHandler(action=failing(Resource("no budget", until=later, code="budget"))), web)

    [task] = [row for row in rows(ctx.store, tasks) if row.kind == KIND]
    assert counts == {"given_back": 1}
    assert (task.status, task.attempts, task.not_before, task.error_code) == ("PENDING", 0, later, "budget")


def test_a_fatal_error_ends_the_run_after_the_rest_is_recorded(ctx: RunContext, web: FakeWeb) -> None:
    add_tasks(ctx, "a", "b", "c", a="a.test", b="b.test", c="c.test")

    async def action(task: Task) -> str:
        if task.dedupe_key == "b":
            await asyncio.sleep(0.05)  # the others have ended
            raise Fatal("disk full", code="disk_full")
        return await succeed(task)

    with pytest.raises(Fatal, match="disk full"):
        run(ctx, ExampleHandler(action=action), web)

    assert effects(ctx) == ["did a", "did c"]
    assert statuses(ctx) == {"a": "SUCCESS", "b": "PENDING", "c": "SUCCESS"}
    assert rows(ctx.store, dead_letters) == []


def test_a_stopped_run_releases_what_it_has_not_finished_without_costing_an_attempt(
    ctx: RunContext, web: FakeWeb
) -> None:
    add_tasks(ctx, "a", "b", "c")

    async def work() -> None:
        started = asyncio.Event()

        async def action(_: Task) -> str:
            started.set()
            await asyncio.sleep(60)
            return ""

        worker = Worker(ctx.store, lease_seconds=60)
        async with a_fetcher(ctx.settings, web.port) as fetcher:
            clock = SteadyClock(ctx.store.now())
            handler = ExampleHandler(action=action)
            loop: WorkerLoop[ExampleItem, str] = WorkerLoop(ctx, worker, fetcher, handler, clock=clock)
            running = asyncio.create_task(loop.run())
            await started.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(work())

    states = {
        (row.status, row.attempts, row.error_code, row.error) for row in rows(ctx.store, tasks) if row.kind == KIND
    }
    assert states == {("PENDING", 0, "stopped", "the run was stopped")}
    assert [row.lease_owner for row in rows(ctx.store, hosts)] == [None]


def test_a_task_that_cannot_be_loaded_fails_alone(ctx: RunContext, web: FakeWeb) -> None:
    add_tasks(ctx, "a", "b", "c")

    counts = run(ctx, ExampleHandler(not_loaded=["b"]), web)

    assert counts == {"completed": 2, "failed": 1}
    assert statuses(ctx) == {"a": "SUCCESS", "b": "FAILED", "c": "SUCCESS"}
    assert [row.error_code for row in rows(ctx.store, dead_letters)] == ["bad_task"]


def test_a_task_with_a_host_needs_a_loop_with_a_fetcher(ctx: RunContext) -> None:
    add_tasks(ctx, "a")
    worker, clock = Worker(ctx.store, lease_seconds=60), SteadyClock(ctx.store.now())

    with pytest.raises(ValueError, match=r"requests a\.test, but this loop was given no fetcher"):
        asyncio.run(WorkerLoop(ctx, worker, None, ExampleHandler(), clock=clock).run())

    assert statuses(ctx) == {"a": "PENDING"}


def test_a_task_that_is_not_needed_is_skipped(ctx: RunContext, web: FakeWeb) -> None:
    add_tasks(ctx, "a", "b")
    handler = ExampleHandler(not_needed=["b"])

    counts = run(ctx, handler, web)

    assert (counts, handler.executed) == ({"completed": 1, "skipped": 1}, ["a"])
    assert statuses(ctx) == {"a": "SUCCESS", "b": "SKIPPED"}


@pytest.mark.parametrize(
    ("error", "code"),
    [(Permanent("it is wrong", code="bad_row"), "bad_row"), (DataError("INSERT", {}, ValueError("?")), "not_written")],
)
def test_a_batch_that_cannot_be_persisted_is_persisted_one_by_one(
    ctx: RunContext, web: FakeWeb, error: Exception, code: str
) -> None:
    add_tasks(ctx, *"abcde", **{key: f"{key}.test" for key in "abcde"})
    handler = ExampleHandler(not_persisted={"c": error}, concurrency=5)

    counts = run(ctx, handler, web)

    assert counts == {"completed": 4, "failed": 1}
    assert effects(ctx) == ["did a", "did b", "did d", "did e"]
    assert statuses(ctx)["c"] == "FAILED"
    assert [row.error_code for row in rows(ctx.store, dead_letters)] == [code]


def test_a_pause_that_a_host_asks_for_is_stored_for_every_process(ctx: RunContext, web: FakeWeb, now: datetime) -> None:
    add_tasks(ctx, "a", "b", "c", c="other.test")
    limited = Resource("429", until=now + timedelta(minutes=7), code="rate_limited")

    handler = ExampleHandler(action=failing(limited, "a"))
    run(ctx, handler, web)

    next_allowed = {row.host: row.next_allowed_at for row in rows(ctx.store, hosts)}
    assert next_allowed["a.test"] >= now + timedelta(minutes=6, seconds=59)
    assert next_allowed["other.test"] < now + timedelta(minutes=1)
    assert sorted(handler.executed) == ["a", "c"]  # nothing else is sent to the host that asked
    assert statuses(ctx) == {"a": "PENDING", "b": "PENDING", "c": "SUCCESS"}


@dataclass(kw_only=True)
class LenientHandler(ExampleHandler):
    """Makes ten requests for each task, and succeeds whatever becomes of them; `executed` are those that were sent."""

    error: WorkError

    async def execute(self, item: ExampleItem, host: HostLease | None) -> str:
        assert host is not None
        for _ in range(10):
            with suppress(WorkError):
                async with paced_request(host, item.task.url or "", clock=SteadyClock(item.task.created_at)):
                    self.executed.append(item.task.dedupe_key)
                    raise self.error
        return await succeed(item.task)


def test_a_pause_whose_error_was_handled_applies_to_the_next_request_and_to_other_kinds_of_work(
    ctx: RunContext, web: FakeWeb, now: datetime
) -> None:
    add_tasks(ctx, "a")
    add_tasks_of_kind(ctx, "another", "b", "c", c="other.test")
    limited = Resource("429", until=now + timedelta(minutes=7), code="rate_limited")
    handler, other_handler = LenientHandler(error=limited), ExampleHandler(kind="another")

    assert run(ctx, handler, web) == {"completed": 1}
    run(ctx, other_handler, web)

    assert (handler.executed, other_handler.executed) == (["a"], ["c"])


def test_a_503_that_asks_for_a_pause_pauses_the_host_though_its_error_was_handled(
    ctx: RunContext, web: FakeWeb, now: datetime
) -> None:
    add_tasks(ctx, "a")
    handler = LenientHandler(error=Transient("503", code="http_503", retry_after=timedelta(minutes=7)))

    run(ctx, handler, web)

    assert handler.executed == ["a"]
    assert [row.next_allowed_at >= now + timedelta(minutes=6, seconds=59) for row in rows(ctx.store, hosts)] == [True]


def test_each_failed_request_of_a_task_counts_against_its_host(ctx: RunContext, web: FakeWeb) -> None:
    add_tasks(ctx, *"abcde")
    handler = LenientHandler(error=Transient("server error", code="http_500"))

    run(ctx, handler, web)

    assert len(handler.executed) == 28  # those that the error budget of a host allows


def test_an_outcome_of_a_claim_that_was_lost_is_not_persisted(ctx: RunContext, web: FakeWeb, clock: FixedClock) -> None:
    add_tasks(ctx, "a", "b")

    async def action(task: Task) -> str:
        if task.dedupe_key == "a":
            with ctx.store.begin() as connection:  # another worker claims it meanwhile
                late = ctx.store.clock.now(connection) + timedelta(hours=1)
                lease = timedelta(hours=1)
                claims.claim(connection, ClaimFilter(kind=KIND), owner="other", now=late, lease=lease, limit=1)
        return await succeed(task)

    counts = run(ctx, ExampleHandler(action=action, capacity=1, transaction_size=1), web)

    assert (counts["lost"], counts["completed"]) == (1, 1)
    assert effects(ctx) == ["did b"]


@pytest.mark.slow
def test_a_host_that_does_not_answer_gives_its_slot_to_another(ctx: RunContext, web: FakeWeb) -> None:
    add_tasks(ctx, "a-slow", "b", "c", **{"a-slow": "slow.test", "b": "b.test", "c": "c.test"})
    others = asyncio.Semaphore(0)

    async def action(task: Task) -> str:
        if task.dedupe_key == "a-slow":
            async with asyncio.timeout(60):
                await others.acquire()
                await others.acquire()
        else:
            others.release()
        return await succeed(task)

    assert run(ctx, ExampleHandler(action=action, concurrency=1), web) == {"completed": 3}


@pytest.mark.slow
def test_tasks_of_a_host_that_does_not_answer_take_no_room_from_others(ctx: RunContext, web: FakeWeb) -> None:
    slow = {f"a-slow-{n}": "slow.test" for n in range(4)}
    add_tasks(ctx, *slow, "b", "c", **slow, b="b.test", c="c.test")
    others: set[str] = set()
    are_done = asyncio.Event()

    async def action(task: Task) -> str:
        if task.dedupe_key in slow:
            async with asyncio.timeout(60):
                await are_done.wait()
        else:
            others.add(task.dedupe_key)
            if others == {"b", "c"}:
                are_done.set()
        return await succeed(task)

    assert run(ctx, ExampleHandler(action=action, concurrency=1, capacity=2), web) == {"completed": 6}


def test_a_host_whose_requests_keep_failing_is_paused_for_every_process(ctx: RunContext, web: FakeWeb) -> None:
    keys = [f"t{n:02}" for n in range(40)]
    add_tasks(ctx, *keys)
    error = Transient("server error", code="http_500")

    counts = run(ctx, ExampleHandler(action=failing(error), capacity=50), web)

    assert (counts["retried"], counts["given_back"]) == (28, 12)
    assert {row.error_code for row in rows(ctx.store, tasks) if row.kind == KIND} == {"http_500", "host_failing"}
    [host] = rows(ctx.store, hosts)
    assert host.next_allowed_at >= ctx.store.now() + timedelta(seconds=50)
    handler = ExampleHandler()
    assert run(ctx, handler, web)["completed"] == 0
    assert handler.executed == []


def test_a_success_after_failures_keeps_the_host(ctx: RunContext, web: FakeWeb) -> None:
    keys = [f"t{n:02}" for n in range(60)]
    add_tasks(ctx, *keys)
    error = Transient("server error", code="http_500")

    counts = run(ctx, ExampleHandler(action=failing(error, *keys[::2]), capacity=100), web)

    assert (counts["completed"], counts["given_back"]) == (30, 0)


def test_the_claims_of_a_long_task_are_renewed(ctx: RunContext, web: FakeWeb) -> None:
    add_tasks(ctx, "a")
    leases: list[datetime] = []

    async def action(task: Task) -> str:
        for _ in range(2):
            with ctx.store.read() as connection:
                leases.append(connection.execute(select(tasks.c.lease_until).where(tasks.c.id == task.id)).scalar_one())
            ctx.store.clock.advance(seconds=5)  # pyright: ignore[reportAttributeAccessIssue]  a fixed clock
            await asyncio.sleep(0.3)
        return await succeed(task)

    worker = Worker(ctx.store, lease_seconds=0.6)
    counts = run(ctx, ExampleHandler(action=action), web, worker=worker)

    assert counts == {"completed": 1}
    assert leases[1] > leases[0]
