"""The work loop of a run: claim, load, execute by host, persist; the same for every kind of work.

```
claim ──> load ──> execute, host by host ──> persist, fenced
  └─ again, as soon as half of the room is free; when nothing is claimable, wait for what is due soon
```
A handler brings the work of one kind. The loop owns claims and heartbeat, leases and pauses of hosts, the time budget,
retries, releases and dead letters, lost workers, and the fatal error that ends a run after everything else is recorded.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

from sqlalchemy import Connection

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.host_queue import HostQueues
from ingestion_pipeline.engine.outcomes import Completed, EndedTask, Failed, Outcome, Skipped, end_tasks
from ingestion_pipeline.engine.time_budget import TimeBudget
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.politeness.host_leases import HostLease, LeasedHosts, requested_pause
from ingestion_pipeline.pages.politeness.hosts import LONGEST_WAIT
from ingestion_pipeline.settings import Work
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, LostClaim
from ingestion_pipeline.tasks.errors import Fatal, Permanent, WorkError, classify
from ingestion_pipeline.tasks.retry import after_failure
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.tasks.worker import Worker

log = logging.getLogger(__name__)


class LoadedItem(Protocol):
    """A claimed task with what its work needs; without a host it needs no lease, and no source either."""

    @property
    def task(self) -> Task:
        """The claimed task."""
        ...

    @property
    def host(self) -> str | None:
        """The host of the first request; None if it needs no lease."""
        ...

    @property
    def source(self) -> Source | None:
        """The source whose pace applies to the host."""
        ...


Item = TypeVar("Item", bound=LoadedItem)
Value = TypeVar("Value")
Part = TypeVar("Part")


class TaskHandler(Protocol[Item, Value]):
    """What one kind of work brings to the loop: no loops, leases, retries or heartbeats in here."""

    @property
    def concurrency(self) -> int:
        """How many hosts, or items without a host, are worked on side by side."""
        ...

    @property
    def capacity(self) -> int:
        """How many tasks are claimed at a time."""
        ...

    @property
    def policy(self) -> Work:
        """Attempts and backoff."""
        ...

    @property
    def transaction_size(self) -> int:
        """How many tasks are loaded or persisted in one transaction; 1 where they lock rows of one another."""
        ...

    def claim_requests(self, room: int) -> Sequence[tuple[ClaimFilter, int]]:
        """Return which tasks to claim next, and how many of each."""
        ...

    def next_due(self) -> datetime | None:
        """Return when other tasks are due that the run should wait for; its own retries need not be named."""
        ...

    def load(
        self, connection: Connection, tasks: Sequence[Task], *, now: datetime
    ) -> Sequence[Item | Skipped[Item] | Failed[Item]]:
        """Return what each task needs, or why it is not executed; one that raises affects no other."""
        ...

    async def execute(self, item: Item, host: HostLease | None) -> Value:
        """Do the work, under the lease of its host if it has one; raise an error if it fails."""
        ...

    def persist(
        self, connection: Connection, outcomes: Sequence[Outcome[Item, Value]], *, now: datetime
    ) -> Sequence[EndedTask]:
        """Write what the outcomes change, and return what becomes of each task; all their claims are held."""
        ...


class WorkerLoop(Generic[Item, Value]):
    """The loop of one run over the tasks of one handler, under one worker identity."""

    def __init__(
        self,
        ctx: RunContext,
        worker: Worker,
        fetcher: HttpFetcher | None,
        handler: TaskHandler[Item, Value],
        *,
        clock: SteadyClock,
        longest_wait: timedelta = LONGEST_WAIT,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._ctx = ctx
        self._worker = worker
        self._handler = handler
        self._clock = clock
        self._longest_wait = longest_wait
        self._hosts = None if fetcher is None else LeasedHosts(ctx, worker, fetcher, clock)
        network = None if self._hosts is None else self._hosts.network
        self._time = TimeBudget(worker, clock, seconds=ctx.settings.polling.slice_seconds, network=network)
        self._outcomes: list[Outcome[Item, Value]] = []
        self._open: dict[int, Item] = {}
        self._ended = asyncio.Event()
        self._room = asyncio.Semaphore(handler.concurrency)
        self._running: set[asyncio.Task[None]] = set()
        self._queues: HostQueues[Item] | None = self._hosts and HostQueues(
            self._hosts,
            concurrency=handler.concurrency,
            execute=self._execute,
            release=self._release,
            reason_to_stop=self._time.reason_to_stop,
        )

    async def run(self) -> Counter[str]:
        """Work while there are tasks and time; return the counts. A fatal error is raised at the end."""
        beats = [] if self._hosts is None else [self._hosts.renew]
        alive = asyncio.create_task(self._worker.keep_alive(*beats))
        try:
            await self._drain()
        finally:
            alive.cancel()
            await self._stop()
        if self._time.fatal is not None:
            raise self._time.fatal
        return self.counts

    async def _drain(self) -> None:
        while True:
            self._ended.clear()
            await self._flush()  # before the claim: what ended may have made new tasks claimable
            claimed = await self._claim_more() if self._may_claim() else 0
            if claimed or self._ended.is_set():
                continue
            if self._open or self._queues:
                await self._wait()
            elif not await self._rest():
                return

    def _may_claim(self) -> bool:
        return self._time.is_left() and len(self._open) <= self._handler.capacity // 2

    async def _claim_more(self) -> int:
        """Claim, load and start some tasks; return how many were claimed."""
        tasks = await asyncio.to_thread(self._claim, self._handler.capacity - len(self._open))
        by_host: dict[str, list[Item]] = {}
        for loaded in await asyncio.to_thread(self._load, tasks):
            if isinstance(loaded, Skipped | Failed):
                self._outcomes.append(loaded)
                continue
            self._open[loaded.task.id] = loaded
            if loaded.task.attempts > self._handler.policy.max_attempts:
                self._release(loaded, _worker_lost(loaded.task))
            elif loaded.host is None:
                self._start(loaded)
            else:
                by_host.setdefault(loaded.host, []).append(loaded)
        if self._queues is not None:
            await self._queues.assign(by_host, _source_of)
        return len(tasks)

    def _claim(self, room: int) -> list[Task]:
        requests = self._handler.claim_requests(room)
        return self._worker.claim_all(requests) if requests else []

    def _start(self, item: Item) -> None:
        running = asyncio.create_task(self._execute_without_host(item))
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def _execute_without_host(self, item: Item) -> None:
        async with self._room:
            reason = self._time.reason_to_stop()
            if reason is None:
                await self._execute(item, None)
            else:
                self._release(item, reason)

    async def _wait(self) -> None:
        """Return when a task or the queue of a host has ended, at the latest after a second."""
        if self._queues:
            await self._queues.wait(timeout_seconds=1.0)
        else:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), 1.0)

    async def _rest(self) -> bool:
        wait = await asyncio.to_thread(self._wait_for_others)
        if wait is not None:
            self._time.expect([self._clock.now() + wait])
        return await self._time.rest(self._longest_wait)

    def _wait_for_others(self) -> timedelta | None:
        due = self._handler.next_due()
        return None if due is None else max(due - self._ctx.store.now(), timedelta(0))

    async def _stop(self) -> None:
        """Cancel what is running, release what is not finished, and persist."""
        if self._queues is not None:
            await self._queues.stop()
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for item in list(self._open.values()):
            self._release(item, self._time.stopped())
        await self._flush()

    def _load(self, tasks: Sequence[Task]) -> list[Item | Skipped[Item] | Failed[Item]]:
        def load(part: Sequence[Task]) -> Sequence[Item | Skipped[Item] | Failed[Item]]:
            with self._ctx.store.begin() as connection:
                return self._handler.load(connection, part, now=self._ctx.store.clock.now(connection))

        def failure(task: Task, error: WorkError) -> Failed[Item]:
            return Failed(task=task, error=error)

        return [entry for part in self._parts(tasks) for entry in _one_by_one_on_failure(part, load, failure)]

    async def _execute(self, item: Item, host: HostLease | None) -> None:
        try:
            value = await self._handler.execute(item, host)
        except LostClaim:
            # Another worker has claimed it and records its outcome.
            self.counts["lost"] += 1
            self._end(item, None)
        except Exception as error:
            failure = classify(error)
            pause = requested_pause(failure, self._clock.now())
            if host is not None and pause is not None:
                host.rate_limiter.pause(pause.total_seconds())
            self._release(item, failure, stack=traceback.format_exc(limit=-20))
        else:
            self._end(item, Completed(task=item.task, item=item, value=value))

    def _release(self, item: Item, error: WorkError, *, stack: str | None = None) -> None:
        if isinstance(error, Fatal):
            self._time.fatal = error
        self._end(item, Failed(task=item.task, item=item, error=error, stack=stack))

    def _end(self, item: Item, outcome: Outcome[Item, Value] | None) -> None:
        self._open.pop(item.task.id, None)
        if outcome is not None:
            self._outcomes.append(outcome)
        self._ended.set()
        if self._queues is not None:
            self._queues.nudge()

    async def _flush(self) -> None:
        """Persist the outcomes so far, and release the hosts that nothing is left to do on."""
        outcomes, self._outcomes = self._outcomes, []
        if self._hosts is None:
            if outcomes:
                await asyncio.to_thread(self._persist_all, outcomes)
            return
        async with self._hosts.releasing() as left:
            if outcomes:
                await asyncio.to_thread(self._persist_all, outcomes)
            if left:
                await asyncio.to_thread(self._hosts.release_in_own_transaction, left)

    def _persist_all(self, outcomes: Sequence[Outcome[Item, Value]]) -> None:
        for part in self._parts(outcomes):
            _one_by_one_on_failure(part, self._persist, self._persist_failure)

    def _persist(self, outcomes: Sequence[Outcome[Item, Value]]) -> Sequence[None]:
        def write(connection: Connection) -> tuple[Sequence[EndedTask], int]:
            now = self._ctx.store.clock.now(connection)
            held = claims.held(connection, [(outcome.task.id, outcome.task.fence) for outcome in outcomes])
            owned = [self._decided(outcome, now) for outcome in outcomes if outcome.task.id in held]
            ended = self._handler.persist(connection, owned, now=now) if owned else ()
            end_tasks(connection, ended, now=now)
            return ended, len(outcomes) - len(owned)

        ended, lost = self._ctx.store.write(write)
        for end in ended:
            self.counts.update({end.count: 1, **end.amounts})
        if lost:
            self.counts["lost"] += lost
        self._time.expect([end.again_at for end in ended if end.again_at is not None])
        return ()

    def _decided(self, outcome: Outcome[Item, Value], now: datetime) -> Outcome[Item, Value]:
        if not isinstance(outcome, Failed):
            return outcome
        decision = after_failure(
            outcome.task, outcome.error, now=now, policy=self._handler.policy, random=self._ctx.random
        )
        return replace(outcome, decision=decision)

    def _persist_failure(self, outcome: Outcome[Item, Value], error: WorkError) -> None:
        """Fail a task whose outcome cannot be persisted; if that fails too, its lease expires."""
        log.warning("outcome not persisted task=%d code=%s", outcome.task.id, error.code, exc_info=True)
        if not isinstance(outcome, Failed):
            _one_by_one_on_failure(
                [Failed(task=outcome.task, item=outcome.item, error=error)], self._persist, self._persist_failure
            )

    def _parts(self, entries: Sequence[Part]) -> Iterator[Sequence[Part]]:
        size = self._handler.transaction_size
        return (entries[start : start + size] for start in range(0, len(entries), size))


Entry = TypeVar("Entry")
Done = TypeVar("Done")


def _one_by_one_on_failure(
    entries: Sequence[Entry],
    act: Callable[[Sequence[Entry]], Sequence[Done]],
    failed: Callable[[Entry, WorkError], Done],
) -> list[Done]:
    """Do all entries in one transaction, or each in its own if that fails; a fatal error is raised."""
    try:
        return list(act(entries))
    except Exception as error:
        failure = classify(error)
        if isinstance(failure, Fatal):
            raise
        if len(entries) == 1:
            return [failed(entries[0], failure)]
    return [done for entry in entries for done in _one_by_one_on_failure([entry], act, failed)]


def _source_of(item: LoadedItem) -> Source:
    if item.source is None:
        raise ValueError(f"task {item.task.id} has a host and no source, whose pace applies")
    return item.source


def _worker_lost(task: Task) -> Permanent:
    return Permanent(f"worker lost {task.attempts - 1} times on {task.url or task.dedupe_key}", code="worker_lost")
