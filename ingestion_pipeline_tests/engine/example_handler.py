"""A handler made for the tests of the work loop, its tasks, and what has become of them."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection, insert

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
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.tables import audit_log, tasks
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask, Task
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import a_fetcher, add_sources, rows

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
    not_persisted: Mapping[str, Exception] = field(default_factory=dict[str, Exception])
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
                        raise self.not_persisted[outcome.task.dedupe_key]
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
