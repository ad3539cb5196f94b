"""FILTER and ANALYZE: the pure rules, the model's opinion where one is asked, and what waits."""

from __future__ import annotations

import traceback
from dataclasses import replace
from datetime import datetime, timedelta

from ingestion_pipeline.companies.matching.asking import ModelScorer
from ingestion_pipeline.companies.matching.company_rows import company_id_of, website_of
from ingestion_pipeline.companies.matching.judging import ListingStage, Rules, next_stage
from ingestion_pipeline.companies.matching.profile import NoProfile
from ingestion_pipeline.companies.matching.results import WAITS_FOR_COMPANY
from ingestion_pipeline.companies.matching.scoring import BaseScore, match_result, rule_score
from ingestion_pipeline.companies.matching.work import Evaluated, ListingWork, NotEvaluated
from ingestion_pipeline.companies.states import CompanyStatus
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.work.errors import Resource, classify

NO_PROFILE = "no_profile"
NO_PROFILE_WAIT = timedelta(hours=1)  # it is due at once when there is one: see `waiting`
UNANALYSED = frozenset({CompanyStatus.PENDING, CompanyStatus.ANALYZING})


class Analyst:
    """Judges listings by one set of rules; with a scorer the strong model is asked."""

    def __init__(
        self,
        rules: Rules,
        *,
        clock: SteadyClock,
        scorer: ModelScorer | None = None,
        lacking: NoProfile | None = None,
    ) -> None:
        self._rules = rules
        self._clock = clock
        self._scorer = scorer
        self._lacking = lacking

    @property
    def is_pure(self) -> bool:
        """Whether nobody has to be asked."""
        return self._scorer is None

    def judged(self, work: ListingWork) -> Evaluated | NotEvaluated:
        """The listing with its verdict by rules, or what it waits for."""
        try:
            work = self._filtered(work)
            if next_stage(work.state) is ListingStage.SAVE:
                return Evaluated(work=work)
            if (why := self._reason_to_wait(work)) is not None:
                return NotEvaluated(work=work, error=why)
            return self._matched(work, rule_score(work.listing, self._rules.profile))
        except Exception as error:
            return _failed(work, error)

    async def analysed(self, work: ListingWork) -> Evaluated | NotEvaluated:
        """The same with the model's opinion; rules where it has none."""
        if self._scorer is None:
            return self.judged(work)
        try:
            work = self._filtered(work)
            if next_stage(work.state) is ListingStage.SAVE:
                return Evaluated(work=work)
            if (why := self._reason_to_wait(work)) is not None:
                return NotEvaluated(work=work, error=why)
            base = await self._scorer.score(work.listing, source_id=work.source_id)
            return self._matched(work, base or self._without_answer(work))
        except Exception as error:
            return _failed(work, error)

    def _filtered(self, work: ListingWork) -> ListingWork:
        if next_stage(work.state) is not ListingStage.FILTER:
            return work
        return replace(work, state=self._rules.filtered(work.state, work.listing, at=work.at))

    def _without_answer(self, work: ListingWork) -> BaseScore:
        base = rule_score(work.listing, self._rules.profile)
        return replace(base, notes="the model gave no usable answer")

    def _matched(self, work: ListingWork, base: BaseScore) -> Evaluated:
        found = match_result(
            work.listing, self._rules.profile, base, self._rules.settings.match, at=work.at
        )
        return Evaluated(work=replace(work, state=replace(work.state, match=found)))

    def _reason_to_wait(self, work: ListingWork) -> Resource | None:
        if self._lacking is not None:
            until = self._clock.now() + NO_PROFILE_WAIT
            return Resource(str(self._lacking), until=until, code=NO_PROFILE)
        return self._company_wait(work, self._clock.now())

    def _company_wait(self, work: ListingWork, now: datetime) -> Resource | None:
        """A listing waits for its company's data a few times, if somebody is to bring them."""
        settings = self._rules.settings.match
        is_new = work.company_status is None and work.company_id is None and company_id_of(work)
        is_coming = work.company_status in UNANALYSED or is_new
        if (
            not is_coming
            or website_of(work) is None
            or work.company_waits >= settings.company_waits
        ):
            return None
        said = f"its company is not analysed yet; it waits, {work.company_waits + 1} times by now"
        until = now + timedelta(seconds=settings.company_wait_seconds)
        return Resource(said, until=until, code=WAITS_FOR_COMPANY)


def _failed(work: ListingWork, error: Exception) -> NotEvaluated:
    return NotEvaluated(work=work, error=classify(error), stack=traceback.format_exc(limit=-20))
