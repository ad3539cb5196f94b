"""The loop of one run over analyses: claim where a slot is free, execute the phase, write.

```
 cycle: website-analysis ─ prompt-forming ─ model-analysis     a limited number of each at a time
            claim only into a free slot ─> execute ─> write ─> slot free, next phase claimable
```

Waiting costs nothing: a task without a free slot is not claimed, so no lease can expire. A task
that has lost all its workers but the last is executed alone: if it kills that one, too, no other
task loses an attempt.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Connection

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.host_queue import HostQueues
from ingestion_pipeline.engine.time_budget import TimeBudget
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.politeness.host_leases import HostLease, LeasedHosts
from ingestion_pipeline.pages.visits.page import NewPage, PageVisit
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.reading.llm import ModelClient
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, LostClaim
from ingestion_pipeline.tasks.errors import FORBIDDEN, Fatal, Permanent, Resource, Transient, WorkError, classify
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline.websites.analysis import AnalysisOutcome, AnalysisTools, AnalysisWork, ProviderAnswer, analyse
from ingestion_pipeline.websites.information import information
from ingestion_pipeline.websites.prompts import prompts_for
from ingestion_pipeline.websites.provider_pool import ProviderPool
from ingestion_pipeline.websites.rows import store_answers
from ingestion_pipeline.websites.runs.results import PhasesPersisted, set_progress, write_result
from ingestion_pipeline.websites.runs.starting import queue_sizes
from ingestion_pipeline.websites.runs.tasks import (
    ClaimedPhase,
    NoLongerNeeded,
    PhaseDone,
    PhaseNotDone,
    PhaseResult,
    PostponedPhase,
    open_phases,
)
from ingestion_pipeline.websites.states import (
    BY_STATUS,
    PHASES,
    WEBSITE_INFO,
    WEBSITE_PROMPTS,
    FetchedPage,
    InformationOutcome,
    PhaseFailed,
    PromptsOutcome,
    Visit,
    asking_percent,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTools:
    """The services of a run; `model` is None where none is configured."""

    ctx: RunContext
    visitor: PoliteVisitor
    pool: ProviderPool
    clock: SteadyClock
    model: ModelClient | None = None


class PhaseWork:
    """Executes the phases; unexpected errors are raised."""

    def __init__(self, tools: PhaseTools) -> None:
        self._tools = tools
        self._ctx = tools.ctx
        self._settings = tools.ctx.settings.website

    async def do(self, item: ClaimedPhase, host: HostLease | None = None) -> PhaseResult:
        """Execute the claimed phase; the first one fetches pages under its host's lease."""
        outcome: InformationOutcome | PromptsOutcome | AnalysisOutcome
        if item.task.kind == WEBSITE_INFO:
            outcome = await self._informed(item, host)
        elif item.task.kind == WEBSITE_PROMPTS:
            outcome = await self._prompted(item)
        else:
            outcome = await self._analysed(item)
        if isinstance(outcome, PhaseFailed):
            return PhaseNotDone(item=item, error=outcome.error)
        return PhaseDone(item=item, outcome=outcome)

    async def _informed(self, item: ClaimedPhase, host: HostLease | None) -> InformationOutcome:
        return await information(
            item.url,
            visit=self._visit(item.source, host),
            settings=self._settings,
            model=self._tools.model,
            config=item.config,
            source_id=item.source.id,
        )

    async def _prompted(self, item: ClaimedPhase) -> PromptsOutcome:
        return await prompts_for(
            item.business,
            settings=self._settings,
            model=self._tools.model,
            own=item.config.prompts,
            source_id=item.source.id,
        )

    def _visit(self, source: Source, host: HostLease | None) -> Visit:
        """Return a function that fetches pages of the website under its host's lease."""

        async def visit(url: str) -> FetchedPage:
            if host is None:
                raise ValueError(f"no lease on the host of {url}")
            try:
                answer = await self._tools.visitor.visit(
                    PageVisit(url=url), host=host, honours_robots=not source.ignores_robots, own=source.host
                )
            except Resource as error:
                if error.code == FORBIDDEN:  # a retry would not change it
                    raise Permanent(error.text, code=FORBIDDEN) from error
                raise
            if not isinstance(answer, NewPage):
                raise Transient(f"{url} has no content", code="empty_body")
            return await asyncio.to_thread(FetchedPage.of, answer)

        return visit

    async def _analysed(self, item: ClaimedPhase) -> AnalysisOutcome:
        def store_answer(connection: Connection, answer: ProviderAnswer) -> None:
            self._store_answer(connection, item, answer)

        def check_claim(connection: Connection) -> None:
            _check_claim(connection, item)

        async def report_progress(done: int, providers: int) -> None:
            await asyncio.to_thread(self._report_progress, item, done, providers)

        work = AnalysisWork(
            business=item.business,
            prompts=item.prompts,
            previous_answers=item.previous_answers,
            source_id=item.source.id,
        )
        tools = AnalysisTools(
            store=self._ctx.store, pool=self._tools.pool, settings=self._ctx.settings, model=self._tools.model
        )
        return await analyse(
            work,
            tools,
            now=self._tools.clock.now(),
            store_answer=store_answer,
            check_claim=check_claim,
            report_progress=report_progress,
        )

    def _store_answer(self, connection: Connection, item: ClaimedPhase, answer: ProviderAnswer) -> None:
        _check_claim(connection, item)
        now, run_id = self._ctx.store.clock.now(connection), self._ctx.run_id
        store_answers(connection, item.analysis_id, [answer], now=now, run_id=run_id)

    def _report_progress(self, item: ClaimedPhase, done: int, providers: int) -> None:
        with self._ctx.store.begin() as connection:
            now = self._ctx.store.clock.now(connection)
            message = f"{done} of {providers} providers are done"
            set_progress(connection, item, asking_percent(done, providers), message, now=now)


def _check_claim(connection: Connection, item: ClaimedPhase) -> None:
    """Raise unless this worker still has the claim; lock it until the transaction ends."""
    if not claims.held(connection, [(item.task.id, item.task.fence)]):
        raise LostClaim(f"task {item.task.id} is another worker's now; nothing was sent or stored")


log = logging.getLogger(__name__)

WAIT_SECONDS = 1.0  # then claim again: other runs may have made tasks claimable


class AnalysisRun:
    """One run's part of the analyses, under one worker identity."""

    def __init__(
        self,
        ctx: RunContext,
        worker: Worker,
        fetcher: HttpFetcher,
        work: PhaseWork,
        *,
        clock: SteadyClock,
        source_ids: Collection[str] | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._ctx = ctx
        self._worker = worker
        self._work = work
        self._clock = clock
        self._source_ids = source_ids
        self._hosts = LeasedHosts(ctx, worker, fetcher, clock)
        self._time = TimeBudget(worker, clock, seconds=ctx.settings.polling.slice_seconds, network=self._hosts.network)
        self._open: dict[int, ClaimedPhase] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._is_alone = False  # until nothing is running
        self._visits: HostQueues[ClaimedPhase] = HostQueues(
            self._hosts,
            concurrency=ctx.settings.website.slots,
            execute=self._serve,
            release=self._release,
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
                continue  # slots are free, or a phase that ended has a next one
            if self._open or self._running or self._visits:
                await self._wait()
            elif not await self._time.rest():
                return

    async def _wait(self) -> None:
        """Return when a phase has ended, or after `WAIT_SECONDS`."""
        if self._visits:
            await self._visits.wait(timeout_seconds=WAIT_SECONDS)
        else:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), WAIT_SECONDS)
        await self._release_hosts()

    async def _stop(self) -> None:
        """Cancel what is running, release unfinished claims, and release the hosts."""
        await self._visits.stop()
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        stopped = self._time.stopped()
        for item in list(self._open.values()):
            await self._end(PhaseNotDone(item=item, error=stopped))
        await self._release_hosts()

    # --- claiming

    async def _claim_more(self) -> int:
        """Claim and start more phases where slots are free; return how many."""
        opened = await asyncio.to_thread(self._claim, self._free_slots())
        served, put_off = self._chosen(opened)
        by_host: dict[str, list[ClaimedPhase]] = {}
        for phase in put_off:
            await self._end(PostponedPhase(task=phase.task))
        for phase in served:
            if isinstance(phase, NoLongerNeeded):
                await self._end(phase)
                continue
            self._open[phase.task.id] = phase
            if phase.task.attempts > self._ctx.settings.work.max_attempts:
                await self._end(PhaseNotDone(item=phase, error=_worker_lost(phase)))
            elif phase.host is not None:
                by_host.setdefault(phase.host, []).append(phase)
            else:
                self._start(phase)
        if by_host:
            await self._visits.assign(by_host, lambda item: item.source)
        return len(opened)

    def _chosen(
        self, opened: Sequence[ClaimedPhase | NoLongerNeeded]
    ) -> tuple[Sequence[ClaimedPhase | NoLongerNeeded], Sequence[ClaimedPhase | NoLongerNeeded]]:
        """Return what to execute now, and what to postpone because one task must run alone."""
        last = self._ctx.settings.work.max_attempts
        suspects = [
            item
            for item in opened
            if isinstance(item, ClaimedPhase) and item.lost_its_worker and item.task.attempts == last
        ]
        if not suspects:
            return opened, ()
        self._is_alone = True
        if self._open:
            return [item for item in opened if item not in suspects], suspects
        return suspects[:1], [item for item in opened if item is not suspects[0]]

    def _may_claim(self) -> bool:
        self._is_alone = self._is_alone and bool(self._open)
        return self._time.is_left() and not self._is_alone

    def _free_slots(self) -> dict[str, int]:
        limits = self._ctx.settings.website
        busy = Counter(item.task.kind for item in self._open.values())
        return {phase.kind: min(limits.slots - busy[phase.kind], limits.claimed_at_once) for phase in PHASES}

    def _claim(self, free: Mapping[str, int]) -> Sequence[ClaimedPhase | NoLongerNeeded]:
        """Claim in the order of the phases; nothing from a phase whose next queue is full."""
        with self._ctx.store.read() as connection:
            sizes = queue_sizes(connection)
        limit = self._ctx.settings.website.queue_limit
        claim_requests: list[tuple[ClaimFilter, int]] = []
        for phase in PHASES:
            after = BY_STATUS.get(phase.after)
            room = limit if after is None else limit - sizes.get(after.kind, 0)
            most = min(free[phase.kind], room)
            if most > 0 and sizes.get(phase.kind):
                claim_requests.append((ClaimFilter(kind=phase.kind, due_of=self._source_ids), most))
        tasks = self._worker.claim_all(claim_requests) if claim_requests else []
        if not tasks:
            return []
        with self._ctx.store.begin() as connection:
            return open_phases(connection, tasks, now=self._ctx.store.clock.now(connection))

    def _start(self, item: ClaimedPhase) -> None:
        task = asyncio.create_task(self._serve(item))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    # --- executing and writing

    async def _serve(self, item: ClaimedPhase, host: HostLease | None = None) -> None:
        try:
            result = await self._work.do(item, host)
        except LostClaim:
            self._count_lost(item)
            return
        except Exception as error:
            stack = traceback.format_exc(limit=-20)
            result = PhaseNotDone(item=item, error=classify(error), stack=stack)
        await self._end(result)

    def _release(self, item: ClaimedPhase, why: WorkError) -> None:
        """Release a phase that was not started, in a task of its own."""
        task = asyncio.create_task(self._end(PhaseNotDone(item=item, error=why)))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _count_lost(self, item: ClaimedPhase) -> None:
        """Count a phase that another worker has now, and free its slot."""
        self.counts["lost"] += 1
        self._free(item.task.id)

    async def _end(self, result: PhaseResult) -> None:
        """Write the result and free the slot."""
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
        """Fail a phase whose result cannot be written; else its lease expires."""
        log.warning("phase result not written", exc_info=True)
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
            now = self._ctx.store.clock.now(connection)
            return write_result(connection, result, now=now, settings=self._ctx.settings, random=self._ctx.random)

        return self._ctx.store.write(write)

    def _count(self, written: PhasesPersisted) -> None:
        self.counts[written.word] += 1
        if written.again_at is not None:
            self._time.expect([written.again_at])

    def _free(self, task_id: int) -> None:
        self._open.pop(task_id, None)
        self._ended.set()
        self._visits.nudge()

    async def _release_hosts(self) -> None:
        async with self._hosts.releasing() as left:
            if left:
                await asyncio.to_thread(self._hosts.release_in_own_transaction, left)


def _worker_lost(item: ClaimedPhase) -> Permanent:
    message = f"worker lost {item.task.attempts - 1} times in this phase"
    return Permanent(message, code="worker_lost")
