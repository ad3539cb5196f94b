"""The work loop of a run: claim, load, execute by host, persist; the same for every kind of work.

```
claim ──> load ──> execute, host by host ──> persist, fenced
  └─ again, as soon as half of the room is free; when nothing is claimable, wait for what is due soon
```
Many hosts are worked on side by side, each at its own pace under its lease. A task whose worker died waits until
nothing else is executed, then it is loaded and executed alone or with few others: if the worker dies again, the cause
is found, and no other task loses an attempt. A handler brings the work of one kind. The loop owns claims and
heartbeat, leases and pauses of hosts, the time budget, retries, releases and dead letters, lost workers, and the fatal
error that ends a run after everything else is recorded.
"""

import asyncio
import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Generic, ParamSpec, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.handler import (
    Completed,
    EndedTask,
    Failed,
    Item,
    LoadedItem,
    NotNeeded,
    Outcome,
    Skipped,
    TaskHandler,
    Value,
    decided,
    end_tasks,
)
from ingestion_pipeline.engine.host_queue import HostQueues
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.politeness.host_leases import HostLease, LeasedHosts, next_allowed_at
from ingestion_pipeline.pages.politeness.hosts import LONGEST_WAIT, Network
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.changes import set_origins
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import LostClaim, Worker
from ingestion_pipeline.tasks.errors import Fatal, Permanent, Resource, Transient, WorkError, classify
from ingestion_pipeline.tasks.task import WORKER_LOST, Suspicion, Task

log = logging.getLogger(__name__)

CLAIM_SECONDS = 1.0  # between two claims while others are executed and the last claim found no more
GROUP_SIZE = 25  # of suspects that are executed together
SINGLES = 5  # so few suspects are executed one by one at once
SLOW_CAPACITY = 3  # times the capacity: as many tasks of hosts that do not answer are held beside the others
FLUSH_SECONDS = 2.0  # outcomes wait no longer: limits what is lost with the run, and frees finished hosts
FLUSH_BYTES = 16_000_000  # of outcomes, since they wait in memory
# A thread that claims or persists and the event loop switch the interpreter at each system call, which costs a
# seventh of a crawled page: meanwhile nothing of a batched handler is started, for at most this long.
PAUSE_SECONDS = 0.5
NOT_WRITTEN = "not_written"  # the code of an outcome that the database refuses


Entry = TypeVar("Entry")
Done = TypeVar("Done")
P = ParamSpec("P")
T = TypeVar("T")


class TimeBudget:
    """Starts when it is made; a fatal error, a network outage or an old heartbeat ends it early."""

    def __init__(
        self,
        worker: Worker,
        clock: SteadyClock,
        *,
        seconds: float,
        network: Network | None,
        may_start: Callable[[], bool],
    ) -> None:
        self.fatal: Fatal | None = None
        self._worker = worker
        self._clock = clock
        self._network = network
        self._may_start = may_start
        self._ends = time.monotonic() + seconds
        self._again_at: set[datetime] = set()

    def is_left(self) -> bool:
        """Return whether anything new may be started."""
        is_ended = self.fatal is not None or time.monotonic() >= self._ends or self._is_network_down
        return not is_ended and self._worker.may_start() and self._may_start()

    @property
    def _is_network_down(self) -> bool:
        return self._network is not None and self._network.problem is not None

    def reason_to_stop(self) -> Resource | None:
        """Return the error with which work that was not started is released; None if it may be started."""
        if self.is_left():
            return None
        if self._network is not None and self._is_network_down:
            return self._network.released(self._clock.now())
        return Resource("the run's time budget was used up", until=self._clock.now(), code="slice_over")

    def stopped(self) -> Resource:
        """Return the error with which unfinished work is released when the run ends."""
        return Resource("the run was stopped", until=self._clock.now(), code="stopped")

    def expect(self, times: Iterable[datetime]) -> None:
        """Note times at which work of this run is due again."""
        self._again_at.update(times)

    async def rest(self, longest: timedelta) -> bool:
        """Wait until expected work is due, if that is soon; return whether it is."""
        now = self._clock.now()
        ahead = {at for at in self._again_at if at > now}
        is_due = len(ahead) < len(self._again_at)  # since the last claim
        self._again_at = ahead
        if is_due or not ahead or not self.is_left():
            return is_due and self.is_left()
        if min(ahead) - now > longest:
            return False
        await asyncio.sleep((min(ahead) - now).total_seconds() + 0.01)
        return True


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
        seconds: float | None = None,
        longest_wait: timedelta = LONGEST_WAIT,
    ) -> None:
        self._ctx = ctx
        self._worker = worker
        self._handler = handler
        self._clock = clock
        self._longest_wait = longest_wait
        self._hosts = None if fetcher is None else LeasedHosts(ctx, worker, fetcher, clock)
        network = None if self._hosts is None else self._hosts.network
        limit = ctx.settings.polling.slice_seconds if seconds is None else seconds
        self._time = TimeBudget(worker, clock, seconds=limit, network=network, may_start=handler.may_start)
        self._writer = OutcomeWriter(ctx, handler, self._hosts)
        self._outcomes: list[Outcome[Item, Value]] = []
        self._waiting_bytes = 0
        self._is_urgent = False
        self._open: dict[int, Item] = {}
        self._suspects: list[Task] = []
        self._refill_at = 0  # items held
        self._claim_at = self._flush_at = time.monotonic()
        self._wake = asyncio.Event()
        self._is_quiet = asyncio.Event()
        self._is_quiet.set()
        self._room = asyncio.Semaphore(handler.concurrency)
        self._running: set[asyncio.Task[None]] = set()
        self._queues: HostQueues[Item] | None = self._hosts and HostQueues(
            self._hosts,
            concurrency=handler.host_concurrency or handler.concurrency,
            execute=self._execute,
            release=self._release,
            reason_to_stop=self._time.reason_to_stop,
        )

    @property
    def counts(self) -> Counter[str]:
        """How many tasks ended how, and what else was counted."""
        return self._writer.counts

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
            progress = await self._claim_more() if self._may_claim() else 0
            if progress and self._may_claim() and not self._must_flush():
                continue
            await self._wait()
            if self._must_flush():
                progress += await self._flush()  # what ended may have made new tasks claimable
            if self._open or self._queues or self._outcomes:
                continue
            if self._suspects:
                await self._start_suspects()
            elif not progress and not await self._rest():
                return

    async def _stop(self) -> None:
        """Cancel what is running, release what is not finished, and persist."""
        if self._queues is not None:
            await self._queues.stop()
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for item in list(self._open.values()):
            self._release(item, self._time.stopped())
        for task in self._suspects:
            self._add_outcome(Failed(task=task, error=self._time.stopped()))
        await self._flush()

    async def _wait(self) -> None:
        """Return when there is something to persist or to claim, at the latest after a second."""
        if self._queues:
            await self._queues.wait(timeout_seconds=1.0)
        elif self._open:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), 1.0)
        self._wake.clear()

    async def _rest(self) -> bool:
        wait = await asyncio.to_thread(self._wait_for_others)
        if wait is not None:
            self._time.expect([self._clock.now() + wait])
        return await self._time.rest(self._longest_wait)

    def _wait_for_others(self) -> timedelta | None:
        due = self._handler.next_due()
        return None if due is None else max(due - self._ctx.store.now(), timedelta(0))

    # --- claiming

    def _may_claim(self) -> bool:
        """Return whether there is time and room, and half of the items are done or a second has passed."""
        if self._suspects or self._room_left() <= 0 or not self._time.is_left():
            return False
        return self._held_count() <= self._refill_at or time.monotonic() >= self._claim_at or not self._open

    def _held_count(self) -> int:
        """Return how many tasks are held; those of hosts that do not answer take no room from the others."""
        slow = 0 if self._queues is None else self._queues.slow_count()
        return len(self._open) - min(slow, SLOW_CAPACITY * self._handler.capacity)

    def _room_left(self) -> int:
        return self._handler.capacity - self._held_count()

    async def _claim_more(self) -> int:
        """Claim some tasks and start those that are not suspected; return how many were claimed."""
        # A copy, since items end while another thread claims.
        tasks = await self._in_thread(self._claim, list(self._open.values()), self._room_left())
        self._suspects += [task for task in tasks if task.suspicion]
        await self._load_and_start([task for task in tasks if not task.suspicion])
        self._refill_at = int(self._held_count() * self._handler.refill_share) if tasks else -1
        self._claim_at = time.monotonic() + CLAIM_SECONDS
        return len(tasks)

    def _claim(self, held: Sequence[Item], room: int) -> list[Task]:
        requests = self._handler.claim_requests(room, held)
        return self._worker.claim_all(requests) if requests else []

    def _load(self, tasks: Sequence[Task]) -> list[Item | Outcome[Item, Value]]:
        def load(part: Sequence[Task]) -> Sequence[Item | Outcome[Item, Value]]:
            with self._ctx.store.begin() as connection:
                now = self._ctx.store.clock.now(connection)
                set_origins(connection, {}, now=now, default=self._ctx.origin)
                return self._handler.load(connection, part, now=now)

        def failure(task: Task, error: Exception) -> Item | Outcome[Item, Value]:
            return Failed(task=task, error=classify(error))

        size = self._handler.transaction_size
        parts = (tasks[start : start + size] for start in range(0, len(tasks), size))
        return [entry for part in parts for entry in one_by_one_on_failure(part, load, failure)]

    # --- executing

    async def _start_suspects(self) -> None:
        """Load and start a few tasks whose worker died, or one, while nothing else is executed."""
        # In random order: workers that are killed from outside do not die over the same task again and again.
        random = self._ctx.random.random
        self._suspects.sort(
            key=lambda task: (task.suspicion < Suspicion.ALONE, task.suspicion, task.attempts, random())
        )
        if self._suspects[0].suspicion >= Suspicion.ALONE:
            await self._end_lost(self._suspects.pop(0))
            return
        is_group = len(self._suspects) > SINGLES and self._suspects[SINGLES].suspicion < Suspicion.GROUP
        size, suspicion = (GROUP_SIZE, Suspicion.GROUP) if is_group else (1, Suspicion.ALONE)
        started, self._suspects = self._suspects[:size], self._suspects[size:]
        await asyncio.to_thread(self._set_suspicion, started, suspicion)
        await self._load_and_start(started)

    async def _end_lost(self, task: Task) -> None:
        """Fail a task whose worker died over it alone; its item is not loaded if that may be what kills."""
        # The claim that finds this out is no attempt. Loading gets one more than execution, for the dead letter.
        lost = replace(task, attempts=task.attempts - 1)
        error = Transient(f"worker lost {lost.attempts} times on {task.url or task.dedupe_key}", code=WORKER_LOST)
        if lost.attempts > self._handler.policy.max_attempts:
            self._add_outcome(Failed(task=lost, error=error))
            return
        await asyncio.to_thread(self._set_suspicion, [task], Suspicion.ALONE)
        for loaded in await self._in_thread(self._load, [task]):
            is_ended = isinstance(loaded, Completed | Skipped | Failed)
            self._add_outcome(loaded if is_ended else Failed(task=lost, item=loaded, error=error))

    def _set_suspicion(self, tasks: Sequence[Task], suspicion: Suspicion) -> None:
        with self._ctx.store.begin() as connection:
            claims.set_suspicion(connection, [(task.id, task.fence) for task in tasks], suspicion)

    async def _load_and_start(self, tasks: Sequence[Task]) -> None:
        items: list[Item] = []
        for loaded in await self._in_thread(self._load, tasks) if tasks else ():
            if isinstance(loaded, Completed | Skipped | Failed):
                self._add_outcome(loaded)
            else:
                items.append(loaded)
        await self._start(items)

    async def _start(self, items: Sequence[Item]) -> None:
        by_host: dict[str, list[Item]] = {}
        for item in items:
            self._open[item.task.id] = item
            if item.host is None:
                running = asyncio.create_task(self._execute_without_host(item))
                self._running.add(running)
                running.add_done_callback(self._running.discard)
            elif self._queues is None:
                raise ValueError(f"task {item.task.id} requests {item.host}, but this loop was given no fetcher")
            else:
                by_host.setdefault(item.host, []).append(item)
        if self._queues is not None:
            await self._queues.assign(by_host, _source_of)

    async def _execute_without_host(self, item: Item) -> None:
        async with self._room:
            reason = self._time.reason_to_stop()
            if reason is None:
                await self._execute(item, None)
            else:
                self._release(item, reason)

    async def _execute(self, item: Item, host: HostLease | None) -> None:
        if not self._is_quiet.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_SECONDS):
                    await self._is_quiet.wait()
        try:
            value = await self._handler.execute(item, host)
        except LostClaim:
            # Another worker has claimed it and records its outcome.
            self.counts["lost"] += 1
            self._end(item)
        except NotNeeded as error:
            self._end(item, Skipped(task=item.task, item=item, reason=str(error), code=error.code))
        except Exception as error:
            failure = classify(error)
            # For the dead letter alone: formatting it looks at every source file, 6 % of a run beside failing hosts.
            is_last = isinstance(failure, Permanent) or item.task.attempts >= self._handler.policy.max_attempts
            self._release(item, failure, stack=traceback.format_exc(limit=-20) if is_last else None)
        else:
            self._waiting_bytes += self._handler.size_bytes(value)
            self._end(item, Completed(task=item.task, item=item, value=value))

    def _release(self, item: Item, error: WorkError, *, stack: str | None = None) -> None:
        self._end(item, Failed(task=item.task, item=item, error=error, stack=stack))

    def _end(self, item: Item, outcome: Outcome[Item, Value] | None = None) -> None:
        self._open.pop(item.task.id, None)
        if outcome is not None:
            self._add_outcome(outcome)
        if self._must_flush() or self._may_claim():
            self._wake.set()
            if self._queues is not None:
                self._queues.nudge()

    def _add_outcome(self, outcome: Outcome[Item, Value]) -> None:
        if isinstance(outcome, Failed) and isinstance(outcome.error, Fatal):
            self._time.fatal = outcome.error
        self._is_urgent |= self._handler.is_urgent(outcome)
        self._outcomes.append(outcome)

    async def _in_thread(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Act in a thread; nothing of a batched handler is started until it is done."""
        if self._handler.flush_after > 1:
            self._is_quiet.clear()
        try:
            return await asyncio.to_thread(act, *args, **kwargs)
        finally:
            self._is_quiet.set()

    # --- persisting

    def _must_flush(self) -> bool:
        is_idle = not self._open and not self._queues
        if not self._outcomes:
            has_idle_hosts = self._hosts is not None and bool(self._hosts.idle)
            return has_idle_hosts and (is_idle or self._handler.flush_after == 1 or time.monotonic() >= self._flush_at)
        is_much = len(self._outcomes) >= self._handler.flush_after or self._waiting_bytes >= FLUSH_BYTES
        return is_much or is_idle or self._is_urgent or time.monotonic() >= self._flush_at

    async def _flush(self) -> int:
        """Persist the outcomes so far, release the hosts that nothing is left to do on; return how many outcomes."""
        # Taken here and not in the thread, since work goes on while it persists.
        outcomes, self._outcomes, self._waiting_bytes = self._outcomes, [], 0
        self._is_urgent, self._flush_at = False, time.monotonic() + FLUSH_SECONDS
        if self._hosts is None:
            if outcomes:
                await self._in_thread(self._writer.write, outcomes)
        else:
            async with self._hosts.releasing() as idle:
                if outcomes or idle:
                    await self._in_thread(self._writer.write, outcomes, idle)
        self._time.fatal = self._writer.fatal or self._time.fatal
        self._time.expect(self._writer.take_due_times())
        if outcomes and self._handler.flush_after == 1:
            self._refill_at = int(self._handler.capacity * self._handler.refill_share)
        return len(outcomes)


class OutcomeWriter(Generic[Item, Value]):
    """Writes the outcomes of a handler's tasks, decides about failures, and counts.

    An outcome counts only if its claim is still held: the others are lost to another worker.
    """

    def __init__(self, ctx: RunContext, handler: TaskHandler[Item, Value], hosts: LeasedHosts | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.fatal: Fatal | None = None
        self._ctx = ctx
        self._handler = handler
        self._hosts = hosts
        self._due_times: list[datetime] = []

    def take_due_times(self) -> Sequence[datetime]:
        """Return when tasks that were written since the last call are due again."""
        taken, self._due_times = self._due_times, []
        return taken

    def write(self, outcomes: Sequence[Outcome[Item, Value]], idle: dict[str, HostLease] | None = None) -> None:
        """Write the outcomes; the first transaction releases the idle hosts, too."""
        hosts = dict(idle or {})
        prepared, size = self._prepared(outcomes), self._handler.transaction_size
        for start in range(0, len(prepared), size):
            part = prepared[start : start + size]
            one_by_one_on_failure(part, lambda entries: self._persist(entries, hosts), self._persist_failure)
            self._handler.after_persist(part)
        if hosts and self._hosts is not None:
            self._hosts.release_in_own_transaction(hosts)

    def _prepared(self, outcomes: Sequence[Outcome[Item, Value]]) -> Sequence[Outcome[Item, Value]]:
        """Prepare the outcomes; if that is fatal, their tasks are released."""
        try:
            self._handler.prepare(outcomes)
        except Fatal as error:
            self.fatal = error
            return [
                Failed(task=outcome.task, item=outcome.item, error=error) if isinstance(outcome, Completed) else outcome
                for outcome in outcomes
            ]
        return outcomes

    def _persist(self, outcomes: Sequence[Outcome[Item, Value]], hosts: dict[str, HostLease]) -> Sequence[None]:
        def write(connection: Connection) -> tuple[Sequence[EndedTask], int]:
            now = self._ctx.store.clock.now(connection)
            allowed_at = next_allowed_at(hosts, self._ctx.store, connection) if hosts else {}
            self._handler.lock(connection, outcomes)
            held = claims.held(connection, [(outcome.task.id, outcome.task.fence) for outcome in outcomes])
            owned = [
                decided(outcome, now=now, policy=self._handler.policy, random=self._ctx.random)
                for outcome in outcomes
                if outcome.task.id in held
            ]
            set_origins(connection, {}, now=now, default=self._ctx.origin)
            ended = self._handler.persist(connection, owned, now=now) if owned else ()
            end_tasks(connection, ended, now=now)
            self._handler.finish(connection, owned, now=now)
            if self._hosts is not None and hosts:
                self._hosts.release(connection, hosts, allowed_at, now=now)
            return ended, len(outcomes) - len(owned)

        ended, lost = self._ctx.store.write(write)
        hosts.clear()
        for end in ended:
            self.counts[end.count] += 1
            for name, amount in end.amounts.items():
                self.counts[name] += amount
        if lost:
            self.counts["lost"] += lost
        self._due_times += [end.again_at for end in ended if end.again_at is not None]
        return ()

    def _persist_failure(self, outcome: Outcome[Item, Value], error: Exception) -> None:
        """Fail a task whose outcome cannot be persisted; if that fails too, its lease expires."""
        if isinstance(error, LostClaim):
            self.counts["lost"] += 1
            return
        log.warning("outcome not persisted task=%d", outcome.task.id, exc_info=True)
        if isinstance(outcome, Failed):
            return
        reason = classify(error)
        if isinstance(error, DBAPIError):
            reason = Permanent(f"its outcome could not be written: {reason.text}", code=NOT_WRITTEN)
        failure: Outcome[Item, Value] = Failed(task=outcome.task, item=outcome.item, error=reason)
        one_by_one_on_failure([failure], lambda entries: self._persist(entries, {}), self._persist_failure)


def one_by_one_on_failure(
    entries: Sequence[Entry],
    act: Callable[[Sequence[Entry]], Sequence[Done]],
    failed: Callable[[Entry, Exception], Done],
) -> list[Done]:
    """Do all entries in one transaction, or each in its own if that fails; a fatal error is raised."""
    try:
        return list(act(entries))
    except Exception as error:
        if isinstance(classify(error), Fatal):
            raise
        if len(entries) == 1:
            return [failed(entries[0], error)]
        log.warning("batch failed entries=%d; trying one by one", len(entries), exc_info=True)
    return [done for entry in entries for done in one_by_one_on_failure([entry], act, failed)]


def _source_of(item: LoadedItem) -> Source:
    if item.source is None:
        raise ValueError(f"task {item.task.id} has a host and no source, whose pace applies")
    return item.source
