"""The phases of analyses in the work loop: which to claim, how to execute them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.handler import TaskHandler
from ingestion_pipeline.engine.outcomes import EndedTask
from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.pages.visits.page import NewPage, PageVisit
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.reading.llm import ModelClient
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.poll_tasks import lock_polls
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, LostClaim
from ingestion_pipeline.tasks.errors import FORBIDDEN, Permanent, Resource, Transient
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.websites.analysis import AnalysisOutcome, AnalysisTools, AnalysisWork, ProviderAnswer, analyse
from ingestion_pipeline.websites.information import information
from ingestion_pipeline.websites.prompts import prompts_for
from ingestion_pipeline.websites.provider_pool import ProviderPool
from ingestion_pipeline.websites.rows import store_answers
from ingestion_pipeline.websites.runs.results import phase_policy, set_progress, write_outcome
from ingestion_pipeline.websites.runs.starting import queue_sizes
from ingestion_pipeline.websites.runs.tasks import ClaimedPhase, LoadedPhase, PhaseOutcome, PhaseResult, open_phases
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


class PhaseHandler(TaskHandler[ClaimedPhase, PhaseResult]):
    """Executes phases of analyses; each phase has `slots` of its own.

    A task without a free slot is not claimed, so waiting costs no attempt and no lease can expire.
    """

    refill_share = 1.0  # a slot that becomes free is filled at once

    def __init__(self, tools: PhaseTools, *, source_ids: Collection[str] | None = None) -> None:
        self._tools = tools
        self._ctx = tools.ctx
        self._settings = tools.ctx.settings.website
        self._source_ids = source_ids
        self.host_concurrency = self._settings.slots
        self.concurrency = self.capacity = len(PHASES) * self._settings.slots
        self.policy = phase_policy(tools.ctx.settings)

    def claim_requests(self, room: int, held: Sequence[ClaimedPhase]) -> Sequence[tuple[ClaimFilter, int]]:  # noqa: ARG002
        """Claim in the order of the phases; nothing from a phase whose next queue is full."""
        with self._ctx.store.read() as connection:
            sizes = queue_sizes(connection)
        busy = Counter(item.task.kind for item in held)
        requests: list[tuple[ClaimFilter, int]] = []
        for phase in PHASES:
            after = BY_STATUS.get(phase.after)
            limit = self._settings.queue_limit
            room_after = limit if after is None else limit - sizes.get(after.kind, 0)
            most = min(self._settings.slots - busy[phase.kind], self._settings.claimed_at_once, room_after)
            if most > 0 and sizes.get(phase.kind):
                requests.append((ClaimFilter(kind=phase.kind, due_of=self._source_ids), most))
        return requests

    def load(self, connection: Connection, tasks: Sequence[Task], *, now: datetime) -> Sequence[LoadedPhase]:
        """Return the phase of each task with what the phases before it stored; mark its analysis as started."""
        return open_phases(connection, tasks, now=now)

    def persist(
        self, connection: Connection, outcomes: Sequence[PhaseOutcome], *, now: datetime
    ) -> Sequence[EndedTask]:
        """Write the end of the phases, and the tasks of the next ones."""
        # Before the analyses, as polls do.
        lock_polls(connection, {outcome.task.source_id for outcome in outcomes if outcome.task.source_id})
        return [write_outcome(connection, outcome, self._ctx, now=now) for outcome in outcomes]

    async def execute(self, item: ClaimedPhase, host: HostLease | None) -> PhaseResult:
        """Execute the phase; the first one fetches pages under its host's lease."""
        outcome: InformationOutcome | PromptsOutcome | AnalysisOutcome
        if item.task.kind == WEBSITE_INFO:
            outcome = await self._informed(item, host)
        elif item.task.kind == WEBSITE_PROMPTS:
            outcome = await self._prompted(item)
        else:
            outcome = await self._analysed(item)
        if isinstance(outcome, PhaseFailed):
            raise outcome.error
        return outcome

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
