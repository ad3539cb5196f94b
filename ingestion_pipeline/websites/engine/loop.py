"""The loop of one run over analyses: claim where a slot is free, do the phase, write, go on.

```
 cycle: website-analysis ─ prompt-forming ─ model-analysis     at most so many of each at a time
            claim only into a free slot ─> do ─> write ─> slot free, the next phase claimable
```

Waiting costs nothing: what no slot is free for is not claimed, so it has no lease that could end.
What has lost all its workers but the last is served alone: if it kills that one, too, nobody else
loses an attempt by it.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from sqlalchemy import Connection

from ingestion_pipeline.pages.host_visits import HostVisits
from ingestion_pipeline.pages.http_fetcher import HttpFetcher
from ingestion_pipeline.pages.leased_hosts import HostLease, LeasedHosts
from ingestion_pipeline.pages.slice_time import TimeBudget
from ingestion_pipeline.pages.workshop import RunContext
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.websites.engine.beginning import queue_sizes
from ingestion_pipeline.websites.engine.claimed import (
    ClaimedPhase,
    NoLongerNeeded,
    PhaseDone,
    PhaseNotDone,
    PhaseResult,
    PutOff,
    open_phases,
)
from ingestion_pipeline.websites.engine.phases import PhaseWork
from ingestion_pipeline.websites.engine.results import PhasesPersisted, write_result
from ingestion_pipeline.websites.states import BY_STATUS, PHASES
from ingestion_pipeline.work.claims import ClaimFilter, LostClaim
from ingestion_pipeline.work.errors import Fatal, Permanent, WorkError, classify
from ingestion_pipeline.work.worker import Worker

log = logging.getLogger(__name__)

WAIT_SECONDS = 1.0  # after that, what became claimable elsewhere is looked for


class AnalysisSlice:
    """One run's part of the analyses, under one worker identity."""

    def __init__(
        self,
        shop: RunContext,
        worker: Worker,
        fetcher: HttpFetcher,
        work: PhaseWork,
        *,
        clock: SteadyClock,
        source_ids: Collection[str] | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._shop = shop
        self._worker = worker
        self._work = work
        self._clock = clock
        self._source_ids = source_ids
        self._hosts = LeasedHosts(shop, worker, fetcher, clock)
        self._time = TimeBudget(
            worker, clock, seconds=shop.settings.polling.slice_seconds, network=self._hosts.network
        )
        self._open: dict[int, ClaimedPhase] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._is_alone = False  # until nothing is at work
        self._visits: HostVisits[ClaimedPhase] = HostVisits(
            self._hosts,
            concurrency=shop.settings.website.slots,
            serve=self._serve,
            leave=self._leave,
            reason_to_stop=self._time.reason_to_stop,
        )

    async def run(self) -> Counter[str]:
        """Work as long as there is work and time; a fatal error is raised at the end."""
        alive = asyncio.create_task(self._worker.keep_alive(self._hosts.renew))
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
            claimed = await self._claim_more() if self._may_claim() else 0
            if claimed or self._ended.is_set():
                continue  # another cycle: slots are free, or what ended meanwhile has a next phase
            if self._open or self._running or self._visits:
                await self._wait()
            elif not await self._time.rest():
                return

    async def _wait(self) -> None:
        """Return when a phase has ended, or after a while."""
        if self._visits:
            await self._visits.wait(timeout_seconds=WAIT_SECONDS)
        else:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), WAIT_SECONDS)
        await self._release_hosts()

    async def _stop(self) -> None:
        """Nothing is asked any more; what was not finished is given back, the hosts are left."""
        await self._visits.stop()
        for one in self._running:
            one.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        stopped = self._time.stopped()
        for item in list(self._open.values()):
            await self._end(PhaseNotDone(item=item, error=stopped))
        await self._release_hosts()

    # --- claiming

    async def _claim_more(self) -> int:
        """A few more of each phase that has a free slot, each begun; how many that were."""
        opened = await asyncio.to_thread(self._claim, self._free_slots())
        served, put_off = self._chosen(opened)
        by_host: dict[str, list[ClaimedPhase]] = {}
        for one in put_off:
            await self._end(PutOff(task=one.task))
        for one in served:
            if isinstance(one, NoLongerNeeded):
                await self._end(one)
                continue
            self._open[one.task.id] = one
            if one.task.attempts > self._shop.settings.work.max_attempts:
                await self._end(PhaseNotDone(item=one, error=_worker_lost(one)))
            elif one.host is not None:
                by_host.setdefault(one.host, []).append(one)
            else:
                self._start(one)
        if by_host:
            await self._visits.assign(by_host, lambda item: item.source)
        return len(opened)

    def _chosen(
        self, opened: Sequence[ClaimedPhase | NoLongerNeeded]
    ) -> tuple[Sequence[ClaimedPhase | NoLongerNeeded], Sequence[ClaimedPhase | NoLongerNeeded]]:
        """What is served now, and what is put off because something is to be served alone."""
        last = self._shop.settings.work.max_attempts
        suspects = [
            one
            for one in opened
            if isinstance(one, ClaimedPhase) and one.has_killed and one.task.attempts == last
        ]
        if not suspects:
            return opened, ()
        self._is_alone = True
        if self._open:
            return [one for one in opened if one not in suspects], suspects
        return suspects[:1], [one for one in opened if one is not suspects[0]]

    def _may_claim(self) -> bool:
        self._is_alone = self._is_alone and bool(self._open)
        return self._time.is_left() and not self._is_alone

    def _free_slots(self) -> dict[str, int]:
        limits = self._shop.settings.website
        busy = Counter(item.task.kind for item in self._open.values())
        return {
            phase.kind: min(limits.slots - busy[phase.kind], limits.claimed_at_once)
            for phase in PHASES
        }

    def _claim(self, free: Mapping[str, int]) -> Sequence[ClaimedPhase | NoLongerNeeded]:
        """In the order of phases; of one whose next queue is full nothing, so that none is lost."""
        with self._shop.store.read() as connection:
            sizes = queue_sizes(connection)
        limit = self._shop.settings.website.queue_limit
        wishes: list[tuple[ClaimFilter, int]] = []
        for phase in PHASES:
            after = BY_STATUS.get(phase.after)
            room = limit if after is None else limit - sizes.get(after.kind, 0)
            most = min(free[phase.kind], room)
            if most > 0 and sizes.get(phase.kind):
                wishes.append((ClaimFilter(kind=phase.kind, due_of=self._source_ids), most))
        tasks = self._worker.claim_all(wishes) if wishes else []
        if not tasks:
            return []
        with self._shop.store.begin() as connection:
            return open_phases(connection, tasks, now=self._shop.store.clock.now(connection))

    def _start(self, item: ClaimedPhase) -> None:
        task = asyncio.create_task(self._serve(item))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    # --- doing and writing

    async def _serve(self, item: ClaimedPhase, host: HostLease | None = None) -> None:
        try:
            result = await self._work.do(item, host)
        except LostClaim:
            self._lose(item)
            return
        except Exception as error:
            stack = traceback.format_exc(limit=-20)
            result = PhaseNotDone(item=item, error=classify(error), stack=stack)
        await self._end(result)

    def _leave(self, item: ClaimedPhase, why: WorkError) -> None:
        """It was not begun; written at once, in a task of its own."""
        task = asyncio.create_task(self._end(PhaseNotDone(item=item, error=why)))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _lose(self, item: ClaimedPhase) -> None:
        """It is another worker's, and so is its end."""
        self.counts["lost"] += 1
        self._free(item.task.id)

    async def _end(self, result: PhaseResult) -> None:
        """Written, and its slot is free."""
        if isinstance(result, PhaseNotDone) and isinstance(result.error, Fatal):
            self._time.fatal = result.error
        try:
            written = await asyncio.to_thread(self._write, result)
        except LostClaim:
            self.counts["lost"] += 1
        except Exception as error:
            await self._unwritten(result, classify(error))
        else:
            self._count(written)
        self._free(result.task.id)

    async def _unwritten(self, result: PhaseResult, error: WorkError) -> None:
        """What cannot be written has failed; if that cannot be written either, its lease ends."""
        log.warning("what a phase came to could not be written", exc_info=True)
        if isinstance(error, Fatal):
            self._time.fatal = error
            return
        if not isinstance(result, PhaseDone):
            return
        with suppress(LostClaim):
            failed = PhaseNotDone(item=result.item, error=error)
            self._count(await asyncio.to_thread(self._write, failed))

    def _write(self, result: PhaseResult) -> PhasesPersisted:
        def write(connection: Connection) -> PhasesPersisted:
            now = self._shop.store.clock.now(connection)
            return write_result(
                connection, result, now=now, settings=self._shop.settings, random=self._shop.random
            )

        return self._shop.store.write(write)

    def _count(self, written: PhasesPersisted) -> None:
        self.counts[written.word] += 1
        if written.again_at is not None:
            self._time.expect([written.again_at])

    def _free(self, task_id: int) -> None:
        self._open.pop(task_id, None)
        self._ended.set()
        self._visits.nudge()

    async def _release_hosts(self) -> None:
        async with self._hosts.letting_go() as left:
            if left:
                await asyncio.to_thread(self._hosts.let_go, left)


def _worker_lost(item: ClaimedPhase) -> Permanent:
    said = f"the worker died {item.task.attempts - 1} times over this phase"
    return Permanent(said, code="worker_lost")
