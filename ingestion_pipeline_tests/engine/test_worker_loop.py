"""The guarantees of the work loop, with a handler made for these tests: they hold for every kind of work."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import Connection, insert, select, update

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.handler import (
    Completed,
    EndedTask,
    Failed,
    Outcome,
    Skipped,
    TaskHandler,
    completed,
    not_done,
    skipped,
)
from ingestion_pipeline.engine.worker_loop import WorkerLoop
from ingestion_pipeline.pages.politeness.host_leases import HostLease, paced_request
from ingestion_pipeline.settings import Work
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store import FixedClock, Store, open_store
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.tables import audit_log, dead_letters, hosts, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline.tasks.errors import Fatal, Permanent, Resource, Transient, WorkError
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask, Suspicion, Task
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import a_fetcher, a_run_context, add_sources, fast_settings, rows
from ingestion_pipeline_tests.processes import Child, stop_here

pytestmark = pytest.mark.both_databases
KIND, SOURCE = "example", "series:solo"
Action = Callable[[Task], Awaitable[str]]


async def succeed(task: Task) -> str:
    return f"did {task.dedupe_key}"


@dataclass(frozen=True, kw_only=True)
class ExampleItem:
    task: Task
    source: Source
    host: str | None


@dataclass(kw_only=True)
class ExampleHandler(TaskHandler[ExampleItem, str]):
    """Executes an action for each task, as a request if it has a host; persists an entry of the audit log for each."""

    kind: str = KIND
    action: Action = succeed
    concurrency: int = 4
    policy: Work = field(default_factory=lambda: Work(backoff_base_seconds=0.01))
    transaction_size: int = 10
    capacity: int = 10
    flush_after: int = 1
    not_loaded: Sequence[str] = ()
    kills_while_loaded: Sequence[str] = ()
    not_needed: Sequence[str] = ()
    not_persisted: Sequence[str] = ()
    executed: list[str] = field(default_factory=list[str])
    batches: list[int] = field(default_factory=list[int])

    def claim_requests(self, room: int, held: Sequence[ExampleItem]) -> Sequence[tuple[ClaimFilter, int]]:
        return [(ClaimFilter(kind=self.kind), room)]

    def load(
        self, connection: Connection, tasks: Sequence[Task], *, now: datetime
    ) -> Sequence[ExampleItem | Skipped[ExampleItem] | Failed[ExampleItem]]:
        source = sources_by_id(connection, [SOURCE])[SOURCE]
        if any(task.dedupe_key in self.kills_while_loaded for task in tasks):
            os.kill(os.getpid(), signal.SIGKILL)
        if any(task.dedupe_key in self.not_loaded for task in tasks):
            raise Permanent("it cannot be loaded", code="bad_task")
        return [
            Skipped(task=task, reason="not needed")
            if task.dedupe_key in self.not_needed
            else ExampleItem(task=task, source=source, host=task.payload["host"])
            for task in tasks
        ]

    async def execute(self, item: ExampleItem, host: HostLease | None) -> str:
        assert (host is None) == (item.host is None)
        url, clock = item.task.url or "", SteadyClock(item.task.created_at)
        async with nullcontext() if host is None else paced_request(host, url, clock=clock):
            self.executed.append(item.task.dedupe_key)
            return await self.action(item.task)

    def persist(
        self, connection: Connection, outcomes: Sequence[Outcome[ExampleItem, str]], *, now: datetime
    ) -> Sequence[EndedTask]:
        self.batches.append(len(outcomes))
        ended: list[EndedTask] = []
        for outcome in outcomes:
            match outcome:
                case Completed(value=value):
                    entry = {"at": now, "actor": "test", "action": "example", "subject": value, "detail": {}}
                    connection.execute(insert(audit_log).values(entry))
                    if outcome.task.dedupe_key in self.not_persisted:
                        raise Permanent("the database refuses it", code="bad_row")
                    ended.append(completed(outcome.task))
                case Skipped():
                    ended.append(skipped(outcome))
                case Failed():
                    ended.append(not_done(outcome))
        return ended


def add_tasks(ctx: RunContext, *keys: str, **hosts_by_key: str | None) -> None:
    add_tasks_of_kind(ctx, KIND, *keys, **hosts_by_key)


def add_tasks_of_kind(ctx: RunContext, kind: str, *keys: str, **hosts_by_key: str | None) -> None:
    add_sources(ctx.store, a_definition(id=SOURCE, url="http://a.test/solo"))
    now = ctx.store.now()
    new = [
        NewTask(
            kind=kind,
            dedupe_key=key,
            not_before=now,
            source_id=SOURCE,
            url=f"http://a.test/{key}",
            payload={"host": hosts_by_key.get(key, "a.test")},
        )
        for key in keys
    ]
    with ctx.store.begin() as connection:
        insert_tasks(connection, new, now=now)


def run(ctx: RunContext, handler: ExampleHandler, web: FakeWeb, *, worker: Worker | None = None) -> Counter[str]:
    async def work() -> Counter[str]:
        worker_ = worker or Worker(ctx.store, lease_seconds=60)
        async with a_fetcher(ctx.settings, web.port) as fetcher:
            clock = SteadyClock(ctx.store.now())
            loop: WorkerLoop[ExampleItem, str] = WorkerLoop(ctx, worker_, fetcher, handler, clock=clock)
            return await loop.run()

    return asyncio.run(work())


def statuses(ctx: RunContext) -> dict[str, str]:
    return {row.dedupe_key: row.status for row in rows(ctx.store, tasks) if row.kind == KIND}


def effects(ctx: RunContext) -> list[str]:
    return sorted(row.subject for row in rows(ctx.store, audit_log) if row.action == "example")


def failing(error: Exception, *keys: str) -> Action:
    async def action(task: Task) -> str:
        if not keys or task.dedupe_key in keys:
            raise error
        return await succeed(task)

    return action


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

    states = {(row.status, row.attempts, row.error_code) for row in rows(ctx.store, tasks) if row.kind == KIND}
    assert states == {("PENDING", 0, "stopped")}
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


def test_a_batch_that_cannot_be_persisted_is_persisted_one_by_one(ctx: RunContext, web: FakeWeb) -> None:
    add_tasks(ctx, *"abcde", **{key: f"{key}.test" for key in "abcde"})
    handler = ExampleHandler(not_persisted=["c"], concurrency=5)

    counts = run(ctx, handler, web)

    assert counts == {"completed": 4, "failed": 1}
    assert effects(ctx) == ["did a", "did b", "did d", "did e"]
    assert statuses(ctx)["c"] == "FAILED"
    assert [row.error_code for row in rows(ctx.store, dead_letters)] == ["bad_row"]


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


def test_a_task_that_lost_all_its_workers_is_dead_lettered_without_being_executed(
    ctx: RunContext, web: FakeWeb, clock: FixedClock
) -> None:
    add_tasks(ctx, "a")
    for _ in range(3):
        [task] = Worker(ctx.store, lease_seconds=60).claim(ClaimFilter(kind=KIND), limit=1)
        with ctx.store.begin() as connection:
            claims.set_suspicion(connection, [(task.id, task.fence)], Suspicion.ALONE)
        clock.advance(minutes=2)
    handler = ExampleHandler()

    counts = run(ctx, handler, web)

    assert (counts, handler.executed) == ({"failed": 1}, [])
    assert [row.error_code for row in rows(ctx.store, dead_letters)] == ["worker_lost"]


def test_a_task_whose_worker_died_is_executed_while_nothing_else_is(
    ctx: RunContext, web: FakeWeb, clock: FixedClock
) -> None:
    add_tasks(ctx, "a", "b")
    Worker(ctx.store, lease_seconds=60).claim(ClaimFilter(kind=KIND), limit=2)
    clock.advance(minutes=2)
    add_tasks(ctx, "c", "d")
    running: set[str] = set()
    beside: dict[str, set[str]] = {}

    async def action(task: Task) -> str:
        running.add(task.dedupe_key)
        await asyncio.sleep(0.05)
        beside[task.dedupe_key] = set(running)
        running.discard(task.dedupe_key)
        return await succeed(task)

    counts = run(ctx, ExampleHandler(action=action), web)

    assert counts == {"completed": 4}
    assert (beside["a"], beside["b"]) == ({"a"}, {"b"})
    assert {row.dedupe_key: row.attempts for row in rows(ctx.store, tasks) if row.kind == KIND} == {
        "a": 1,
        "b": 1,
        "c": 1,
        "d": 1,
    }


def test_suspects_that_a_stopped_run_has_not_started_are_released(
    ctx: RunContext, web: FakeWeb, clock: FixedClock
) -> None:
    add_tasks(ctx, "a", "b")
    Worker(ctx.store, lease_seconds=60).claim(ClaimFilter(kind=KIND), limit=2)
    clock.advance(minutes=2)

    with pytest.raises(Fatal, match="disk"):
        run(ctx, ExampleHandler(action=failing(Fatal("disk"))), web)

    ended = [(row.status, row.attempts, row.suspicion) for row in rows(ctx.store, tasks) if row.kind == KIND]
    assert ended == [("PENDING", 0, Suspicion.CROWD)] * 2


def work_until_done(
    url: str, home: str, *, seconds: float, poison: str | None = None, loading_kills: Sequence[str] = ()
) -> dict[str, int]:
    """Execute tasks without a host in this process; a poison task kills it."""

    async def action(task: Task) -> str:
        await asyncio.sleep(seconds)
        if task.dedupe_key == poison:
            os.kill(os.getpid(), signal.SIGKILL)
        return await succeed(task)

    async def work(ctx: RunContext) -> dict[str, int]:
        handler = ExampleHandler(
            action=action, capacity=50, concurrency=20, flush_after=5, kills_while_loaded=loading_kills
        )
        worker = Worker(ctx.store, lease_seconds=60)
        return dict(await WorkerLoop(ctx, worker, None, handler, clock=SteadyClock(ctx.store.now())).run())

    with closing(open_store(url)) as store:
        return asyncio.run(work(a_run_context(store, fast_settings(Path(home), url))))


def work_with_a_stop(url: str, home: str) -> dict[str, int]:
    """Execute tasks without a host in this process, which stops within the first of them until it is resumed."""

    async def action(task: Task) -> str:
        if task.dedupe_key == "a":
            stop_here()
        return await succeed(task)

    with closing(open_store(url)) as store:
        ctx, worker = a_run_context(store, fast_settings(Path(home), url)), Worker(store, lease_seconds=60)
        handler = ExampleHandler(action=action, concurrency=1)
        return dict(asyncio.run(WorkerLoop(ctx, worker, None, handler, clock=SteadyClock(store.now())).run()))


def expire_leases(store: Store) -> None:
    with store.begin() as connection:
        is_claimed = update(tasks).where(tasks.c.status == "PROCESSING")
        connection.execute(is_claimed.values(lease_until=store.clock.now(connection) - timedelta(seconds=1)))


@pytest.fixture
def real_time_ctx(store: Store, database_url: str, tmp_path: Path) -> Iterator[RunContext]:
    """A context on the database of `store`, with the real clock that child processes have."""
    with closing(open_store(database_url)) as real_store:
        yield a_run_context(real_store, fast_settings(tmp_path / "home", database_url))


def work_despite_deaths(ctx: RunContext, work: Callable[[str, str], object], url: str, home: Path) -> int:
    """Start workers until nothing is left to do; return how many were killed."""
    deaths = 0
    while {"PENDING", "PROCESSING"} & set(statuses(ctx).values()):
        deaths += Child(work, url, str(home)).wait() == -signal.SIGKILL
        expire_leases(ctx.store)
    return deaths


@pytest.mark.slow
def test_a_task_that_kills_its_worker_is_dead_lettered_and_no_other_task_loses_an_attempt(
    real_time_ctx: RunContext, database_url: str, tmp_path: Path
) -> None:
    ctx, keys = real_time_ctx, [f"t{n:02}" for n in range(45)]
    add_tasks(ctx, *keys, **dict.fromkeys(keys))

    deaths = work_despite_deaths(ctx, partial(work_until_done, poison="t07", seconds=0.01), database_url, tmp_path)

    assert deaths == 5  # among all, in a group, and three times alone
    assert [(row.payload["url"], row.error_code) for row in rows(ctx.store, dead_letters)] == [
        ("http://a.test/t07", "worker_lost")
    ]
    assert {key for key, status in statuses(ctx).items() if status != "SUCCESS"} == {"t07"}
    assert effects(ctx) == [f"did {key}" for key in keys if key != "t07"]
    assert {row.attempts for row in rows(ctx.store, tasks) if row.status == "SUCCESS"} == {1}


@pytest.mark.slow
def test_a_task_whose_loading_kills_its_worker_is_dead_lettered_alone(
    real_time_ctx: RunContext, database_url: str, tmp_path: Path
) -> None:
    ctx, keys = real_time_ctx, [f"t{n:02}" for n in range(30)]
    add_tasks(ctx, *keys, **dict.fromkeys(keys))
    work = partial(work_until_done, loading_kills=["t07"], seconds=0.01)

    deaths = work_despite_deaths(ctx, work, database_url, tmp_path)

    assert deaths == 6  # among all, in a group, three times alone, and once more for the dead letter
    assert [(row.payload["url"], row.error_code) for row in rows(ctx.store, dead_letters)] == [
        ("http://a.test/t07", "worker_lost")
    ]
    assert effects(ctx) == [f"did {key}" for key in keys if key != "t07"]
    assert {row.attempts for row in rows(ctx.store, tasks) if row.status == "SUCCESS"} == {1}


@pytest.mark.slow
def test_a_worker_that_was_stopped_beyond_its_lease_records_nothing_that_another_has_done(
    real_time_ctx: RunContext, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    ctx = real_time_ctx
    add_tasks(ctx, *"abc", **dict.fromkeys("abc"))
    stopped = Child(work_with_a_stop, database_url, str(tmp_path))
    stopped.wait_until_stopped()
    expire_leases(ctx.store)

    counts = run(ctx, ExampleHandler(), web)
    stopped.resume()

    assert counts == {"completed": 3}
    assert "completed" not in stopped.result()
    assert effects(ctx) == ["did a", "did b", "did c"]
    assert {row.attempts for row in rows(ctx.store, tasks) if row.kind == KIND} == {1}


@pytest.mark.slow
def test_twenty_kills_lose_no_task_and_dead_letter_none(
    real_time_ctx: RunContext, database_url: str, tmp_path: Path
) -> None:
    ctx, keys, random = real_time_ctx, [f"t{n:03}" for n in range(300)], Random(7)
    add_tasks(ctx, *keys, **dict.fromkeys(keys))
    work = partial(work_until_done, seconds=0.02)
    for _ in range(20):
        child = Child(work, database_url, str(tmp_path))
        time.sleep(0.2 + random.random() / 3)
        child.kill()
        expire_leases(ctx.store)
    Child(work, database_url, str(tmp_path)).result()

    assert set(statuses(ctx).values()) == {"SUCCESS"}
    assert rows(ctx.store, dead_letters) == []
    assert effects(ctx) == [f"did {key}" for key in keys]


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
