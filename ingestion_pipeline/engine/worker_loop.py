"""The work loop of a run: claim, load, execute by host, persist; the same for every kind of work.

```
claim ──> load ──> execute, host by host ──> persist, fenced ──> claim again, or wait for a retry that is due soon
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
from dataclasses import replace
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from sqlalchemy import Connection

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.host_queue import HostQueues
from ingestion_pipeline.engine.outcomes import Completed, EndedTask, Failed, Outcome, Skipped, end_tasks
from ingestion_pipeline.engine.time_budget import TimeBudget
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.politeness.host_leases import HostLease, LeasedHosts, requested_pause
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
    """A claimed task with what its work needs: the host of its first request, and the source whose pace applies."""

    @property
    def task(self) -> Task:
        """The claimed task."""
        ...

    @property
    def host(self) -> str:
        """The host of the first request."""
        ...

    @property
    def source(self) -> Source:
        """The source that it belongs to."""
        ...


Item = TypeVar("Item", bound=LoadedItem)
Value = TypeVar("Value")
Part = TypeVar("Part")


class TaskHandler(Protocol[Item, Value]):
    """What one kind of work brings to the loop: no loops, leases, retries or heartbeats in here."""

    @property
    def concurrency(self) -> int:
        """How many hosts are worked on side by side."""
        ...

    @property
    def policy(self) -> Work:
        """Attempts and backoff."""
        ...

    @property
    def transaction_size(self) -> int:
        """How many tasks are loaded or persisted in one transaction; 1 where they lock rows of one another."""
        ...

    def claim_requests(self) -> Sequence[tuple[ClaimFilter, int]]:
        """Return which tasks to claim next, and how many of each."""
        ...

    def load(
        self, connection: Connection, tasks: Sequence[Task], *, now: datetime
    ) -> Sequence[Item | Skipped[Item] | Failed[Item]]:
        """Return what each task needs, or why it is not executed; one that raises affects no other."""
        ...

    async def execute(self, item: Item, host: HostLease) -> Value:
        """Do the work under the lease of its host; raise an error if it fails."""
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
        fetcher: HttpFetcher,
        handler: TaskHandler[Item, Value],
        *,
        clock: SteadyClock,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._ctx = ctx
        self._worker = worker
        self._handler = handler
        self._clock = clock
        self._hosts = LeasedHosts(ctx, worker, fetcher, clock)
        self._time = TimeBudget(worker, clock, seconds=ctx.settings.polling.slice_seconds, network=self._hosts.network)
        self._outcomes: list[Outcome[Item, Value]] = []
        self._open: dict[int, Item] = {}
        self._queues: HostQueues[Item] = HostQueues(
            self._hosts,
            concurrency=handler.concurrency,
            execute=self._execute,
            release=self._release,
            reason_to_stop=self._time.reason_to_stop,
        )

    async def run(self) -> Counter[str]:
        """Work while there are tasks and time; return the counts. A fatal error is raised at the end."""
        alive = asyncio.create_task(self._worker.keep_alive(self._hosts.renew))
        try:
            while self._time.is_left():
                claimed = await self._round()
                if not claimed and not await self._time.rest():
                    break
        finally:
            alive.cancel()
            await self._queues.stop()
            for item in list(self._open.values()):
                self._release(item, self._time.stopped())
            await self._flush()
        if self._time.fatal is not None:
            raise self._time.fatal
        return self.counts

    async def _round(self) -> int:
        """Claim some tasks, execute them host by host and persist; return how many were claimed."""
        tasks = await asyncio.to_thread(self._worker.claim_all, self._handler.claim_requests())
        by_host: dict[str, list[Item]] = {}
        for loaded in await asyncio.to_thread(self._load, tasks):
            if isinstance(loaded, Skipped | Failed):
                self._outcomes.append(loaded)
            elif loaded.task.attempts > self._handler.policy.max_attempts:
                self._release(loaded, _worker_lost(loaded.task))
            else:
                self._open[loaded.task.id] = loaded
                by_host.setdefault(loaded.host, []).append(loaded)
        await self._queues.assign(by_host, lambda item: item.source)
        while self._queues:
            await self._queues.wait(timeout_seconds=1.0)
            await self._flush()
        await self._flush()
        return len(tasks)

    def _load(self, tasks: Sequence[Task]) -> list[Item | Skipped[Item] | Failed[Item]]:
        def load(part: Sequence[Task]) -> Sequence[Item | Skipped[Item] | Failed[Item]]:
            with self._ctx.store.begin() as connection:
                return self._handler.load(connection, part, now=self._ctx.store.clock.now(connection))

        def failure(task: Task, error: WorkError) -> Failed[Item]:
            return Failed(task=task, error=error)

        return [entry for part in self._parts(tasks) for entry in _one_by_one_on_failure(part, load, failure)]

    async def _execute(self, item: Item, host: HostLease) -> None:
        try:
            value = await self._handler.execute(item, host)
        except LostClaim:
            # Another worker has claimed it and records its outcome.
            self._open.pop(item.task.id, None)
            self.counts["lost"] += 1
        except Exception as error:
            failure = classify(error)
            if (pause := requested_pause(failure, self._clock.now())) is not None:
                host.rate_limiter.pause(pause.total_seconds())
            self._release(item, failure, stack=traceback.format_exc(limit=-20))
        else:
            self._open.pop(item.task.id, None)
            self._outcomes.append(Completed(task=item.task, item=item, value=value))

    def _release(self, item: Item, error: WorkError, *, stack: str | None = None) -> None:
        self._open.pop(item.task.id, None)
        self._outcomes.append(Failed(task=item.task, item=item, error=error, stack=stack))
        if isinstance(error, Fatal):
            self._time.fatal = error

    async def _flush(self) -> None:
        """Persist the outcomes so far, and release the hosts that nothing is left to do on."""
        outcomes, self._outcomes = self._outcomes, []
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
        self.counts.update(end.count for end in ended)
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


def _worker_lost(task: Task) -> Permanent:
    return Permanent(f"worker lost {task.attempts - 1} times on {task.url or task.dedupe_key}", code="worker_lost")
