"""Asks models about one page, on account of whoever wants it read."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from ingestion_pipeline.catalogs.entities.page_reading import ExtractionOverBudget
from ingestion_pipeline.catalogs.entities.record import Rung
from ingestion_pipeline.reading.models import (
    Answered,
    Billing,
    ModelClient,
    OverBudget,
    Question,
    Unanswered,
)
from ingestion_pipeline.reading.models import Rung as ModelRung
from ingestion_pipeline.settings import Settings

AT_A_TIME = 4  # questions about one page; pages are read at the same time, too
_RUNGS = {Rung.CHEAP_MODEL: ModelRung.CHEAP, Rung.STRONG_MODEL: ModelRung.STRONG}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """One page's questions, few at a time, each in the ledger under its own call site."""

    client: ModelClient
    billing: Billing
    settings: Settings
    now: datetime
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_A_TIME))

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """The models there are, the cheap one first."""
        if self.settings.model_cheap == self.settings.model_strong:
            return (Rung.CHEAP_MODEL,)
        return (Rung.CHEAP_MODEL, Rung.STRONG_MODEL)

    async def ask(
        self, question: Question, rung: Rung, *, call_site: str = ""
    ) -> Answered | Unanswered:
        """What the model of that rung says.

        Raises:
            ExtractionOverBudget: the extraction's budget holds no further call.
        """
        site = ".".join(filter(None, (self.billing.call_site, call_site)))
        billing = replace(self.billing, call_site=site)
        async with self._turns:
            outcome = await self.client.ask(question, billing, rungs=(_RUNGS[rung],))
        if isinstance(outcome, OverBudget):
            raise self._over(outcome)
        return outcome

    def _over(self, over: OverBudget) -> ExtractionOverBudget:
        pause = timedelta(seconds=self.settings.models.unconfigured_wait_seconds)
        error = ExtractionOverBudget(str(over), until=self.now + pause, code="over_budget")
        error.over = over
        return error
