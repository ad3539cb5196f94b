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
from dataclasses import dataclass

from sqlalchemy import Connection

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.host_queue import HostVisits
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
from ingestion_pipeline.tasks.errors import (
    FORBIDDEN,
    Fatal,
    Permanent,
    Resource,
    Transient,
    WorkError,
    classify,
)
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline.websites.analysis import (
    AnalysisOutcome,
    AnalysisTools,
    AnalysisWork,
    ProviderAnswer,
    analyse,
)
from ingestion_pipeline.websites.information import information
from ingestion_pipeline.websites.prompts import prompts_for
from ingestion_pipeline.websites.provider_pool import ProviderPool
from ingestion_pipeline.websites.rows import keep_answers
from ingestion_pipeline.websites.runs.results import PhasesPersisted, set_progress, write_result
from ingestion_pipeline.websites.runs.starting import queue_sizes
from ingestion_pipeline.websites.runs.tasks import (
    ClaimedPhase,
    NoLongerNeeded,
    PhaseDone,
    PhaseNotDone,
    PhaseResult,
    PutOff,
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
    """What a run does phases with; `model` is None where none is configured."""

    shop: RunContext
    visitor: PoliteVisitor
    pool: ProviderPool
    clock: SteadyClock
    model: ModelClient | None = None


class PhaseWork:
    """Whoever claims a phase has it done here; what goes wrong unforeseen is raised."""

    def __init__(self, tools: PhaseTools) -> None:
        self._tools = tools
        self._shop = tools.shop
        self._settings = tools.shop.settings.website

    async def do(self, item: ClaimedPhase, host: HostLease | None = None) -> PhaseResult:
        """The phase of the claim; the first one reads pages while their host is ours."""
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
            given=item.given,
            source_id=item.source.id,
        )

    async def _prompted(self, item: ClaimedPhase) -> PromptsOutcome:
        return await prompts_for(
            item.business,
            settings=self._settings,
            model=self._tools.model,
            own=item.given.prompts,
            source_id=item.source.id,
        )

    def _visit(self, source: Source, host: HostLease | None) -> Visit:
        """Looks at pages of the website at its host's pace; other hosts are borrowed."""

        async def visit(url: str) -> FetchedPage:
            if host is None:
                raise ValueError(f"the host of {url} is not ours")
            try:
                answer = await self._tools.visitor.visit(
                    PageVisit(url=url),
                    host=host,
                    honours_robots=not source.ignores_robots,
                    own=source.host,
                )
            except Resource as error:
                if error.code == FORBIDDEN:  # it will be so tomorrow
                    raise Permanent(error.text, code=FORBIDDEN) from error
                raise
            if not isinstance(answer, NewPage):
                raise Transient(f"{url} was not sent", code="empty_body")
            return await asyncio.to_thread(FetchedPage.of, answer)

        return visit

    async def _analysed(self, item: ClaimedPhase) -> AnalysisOutcome:
        def keep(connection: Connection, answer: ProviderAnswer) -> None:
            self._keep(connection, item, answer)

        def check_claim(connection: Connection) -> None:
            _check_claim(connection, item)

        async def tell(done: int, providers: int) -> None:
            await asyncio.to_thread(self._tell, item, done, providers)

        work = AnalysisWork(
            business=item.business,
            prompts=item.prompts,
            known=item.known,
            source_id=item.source.id,
        )
        tools = AnalysisTools(
            store=self._shop.store,
            pool=self._tools.pool,
            settings=self._shop.settings,
            model=self._tools.model,
        )
        return await analyse(
            work,
            tools,
            now=self._tools.clock.now(),
            keep=keep,
            check_claim=check_claim,
            tell=tell,
        )

    def _keep(self, connection: Connection, item: ClaimedPhase, answer: ProviderAnswer) -> None:
        _check_claim(connection, item)
        now, run_id = self._shop.store.clock.now(connection), self._shop.run_id
        keep_answers(connection, item.analysis_id, [answer], now=now, run_id=run_id)

    def _tell(self, item: ClaimedPhase, done: int, providers: int) -> None:
        with self._shop.store.begin() as connection:
            now = self._shop.store.clock.now(connection)
            message = f"{done} of {providers} providers are done"
            set_progress(connection, item, asking_percent(done, providers), message, now=now)


def _check_claim(connection: Connection, item: ClaimedPhase) -> None:
    """Raise unless the phase is still this worker's, and keep others from it until the end."""
    if not claims.held(connection, [(item.task.id, item.task.fence)]):
        raise LostClaim(f"task {item.task.id} is another worker's now; nothing is asked or kept")


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
