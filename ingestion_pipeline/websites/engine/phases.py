"""Does one phase of one analysis, with everything it needs; what it writes, it writes fenced."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sqlalchemy import Connection

from ingestion_pipeline.pages.leased_hosts import HostLease
from ingestion_pipeline.pages.page import NewPage, PageVisit
from ingestion_pipeline.pages.polite_visits import PoliteVisitor
from ingestion_pipeline.pages.workshop import RunContext
from ingestion_pipeline.reading.models import ModelClient
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.websites.analysis import (
    AnalysisOutcome,
    AnalysisTools,
    AnalysisWork,
    ProviderAnswer,
    analyse,
)
from ingestion_pipeline.websites.engine.claimed import (
    ClaimedPhase,
    PhaseDone,
    PhaseNotDone,
    PhaseResult,
)
from ingestion_pipeline.websites.engine.results import set_progress
from ingestion_pipeline.websites.information import information
from ingestion_pipeline.websites.outcomes import (
    FetchedPage,
    InformationOutcome,
    PhaseFailed,
    PromptsOutcome,
    Visit,
)
from ingestion_pipeline.websites.prompts import prompts_for
from ingestion_pipeline.websites.provider_pool import ProviderPool
from ingestion_pipeline.websites.rows import keep_answers
from ingestion_pipeline.websites.states import (
    WEBSITE_INFO,
    WEBSITE_PROMPTS,
    asking_percent,
)
from ingestion_pipeline.work import claims
from ingestion_pipeline.work.claims import LostClaim
from ingestion_pipeline.work.errors import FORBIDDEN, Permanent, Resource, Transient


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
