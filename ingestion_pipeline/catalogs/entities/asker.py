"""Asks models about one page, on account of whoever wants it read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar, cast

from ingestion_pipeline.catalogs.entities.page_reading import ExtractionOverBudget
from ingestion_pipeline.catalogs.entities.record import ExtractionMethod
from ingestion_pipeline.reading.models import (
    Answer,
    Answered,
    Billing,
    ModelClient,
    OverBudget,
    Question,
    Unanswered,
)
from ingestion_pipeline.reading.models import ModelTier as ModelRung
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.work.errors import WorkError

_T = TypeVar("_T")
AT_A_TIME = 4  # questions about one page; pages are read at the same time, too
_RUNGS = {
    ExtractionMethod.CHEAP_MODEL: ModelRung.CHEAP,
    ExtractionMethod.STRONG_MODEL: ModelRung.STRONG,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """One page's questions, few at a time, each in the ledger under its own call site."""

    client: ModelClient
    billing: Billing
    settings: Settings
    now: datetime
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_A_TIME))
    _stopped: list[WorkError] = field(default_factory=list[WorkError])

    @property
    def rungs(self) -> tuple[ExtractionMethod, ...]:
        """The models there are, the cheap one first."""
        if self.settings.model_cheap == self.settings.model_strong:
            return (ExtractionMethod.CHEAP_MODEL,)
        return (ExtractionMethod.CHEAP_MODEL, ExtractionMethod.STRONG_MODEL)

    async def ask(
        self, question: Question, rung: ExtractionMethod, *, call_site: str = ""
    ) -> Answered | Unanswered:
        """What the model of that rung says; after a failure nothing more is asked about the page.

        Raises:
            ExtractionOverBudget: the extraction's budget holds no further call.
            Resource, Transient: as `ModelClient.ask`.
        """
        site = ".".join(filter(None, (self.billing.call_site, call_site)))
        billing = replace(self.billing, call_site=site)
        async with self._turns:
            if self._stopped:
                raise self._stopped[0]
            try:
                return self._paid(await self.client.ask(question, billing, rungs=(_RUNGS[rung],)))
            except WorkError as error:
                self._stopped.append(error)
                raise

    def _paid(self, outcome: Answer) -> Answered | Unanswered:
        if isinstance(outcome, OverBudget):
            raise self._over(outcome)
        return outcome

    def _over(self, over: OverBudget) -> ExtractionOverBudget:
        pause = timedelta(seconds=self.settings.models.unconfigured_wait_seconds)
        error = ExtractionOverBudget(str(over), until=self.now + pause, code="over_budget")
        error.over = over
        return error


async def all_of(asked: Iterable[Awaitable[_T]]) -> list[_T]:
    """Every result, in order; a failure is raised when all have ended: none goes on alone."""
    found = await asyncio.gather(*asked, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return cast("list[_T]", found)
