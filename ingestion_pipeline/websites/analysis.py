"""Phase 3: every prompt to every provider, what came of it, and how visible the business is.

Asked is only what no provider has answered before: what a retry finds done it does not pay again.
Each answer is stored in the transaction that settles its cost, whatever becomes of the rest; how it
speaks of the business is found out afterwards.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

from sqlalchemy import Connection

from ingestion_pipeline.reading.llm import ModelClient
from ingestion_pipeline.reading.llm.ledger import CheckClaim
from ingestion_pipeline.settings import Provider, Settings, Website
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks.errors import Permanent, Resource, Transient, WorkError
from ingestion_pipeline.websites.business import Business
from ingestion_pipeline.websites.naming import Mentions, Names, find_mentions
from ingestion_pipeline.websites.naming.folding import folded_name
from ingestion_pipeline.websites.provider_pool import (
    NoReply,
    ProviderPool,
    Replied,
    Reply,
    added,
    asked_about,
)
from ingestion_pipeline.websites.states import AnswerStatus, AskedPrompt, PhaseFailed
from ingestion_pipeline.websites.visibility import (
    GivenAnswer,
    Ranking,
    mentions_in,
    ranking_of,
    sentiment_of,
)

T = TypeVar("T")
BUDGET = "model_budget"
Pair = tuple[int, str]  # the prompt's number, and the provider


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderAnswer:
    """A row of `website_answers`: what one provider answered to one prompt, or why not."""

    prompt_index: int
    prompt: str
    provider: str
    model: str
    status: AnswerStatus
    is_direct: bool = False
    model_version: str | None = None
    answer: str | None = None
    error: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: Decimal | None = None
    sentiment: str | None = None

    @property
    def pair(self) -> Pair:
        """What there is one answer for."""
        return self.prompt_index, self.provider


@dataclass(frozen=True, slots=True, kw_only=True)
class WebsiteAnalysed:
    """The analysis is complete; `failures` are the providers that did not answer, with reasons."""

    ranking: Ranking
    answers: tuple[ProviderAnswer, ...]
    mentions: Mapping[Pair, Mapping[str, Mentions]]
    failures: Mapping[str, str]


AnalysisOutcome = WebsiteAnalysed | PhaseFailed

# Stores an answer in this transaction; raises if the work is no longer ours.
Keep = Callable[[Connection, ProviderAnswer], None]
Tell = Callable[[int, int], Awaitable[None]]  # providers that are done, of how many


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisWork:
    """What is asked, about whom; `known` are the answers of an attempt before this one."""

    business: Business
    prompts: Sequence[AskedPrompt]
    known: Sequence[ProviderAnswer] = ()
    source_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisTools:
    """Who is asked, and by which settings; `model` judges sentiment, None where there is none."""

    store: Store
    pool: ProviderPool
    settings: Settings
    model: ModelClient | None = None


async def analyse(
    work: AnalysisWork,
    tools: AnalysisTools,
    *,
    now: datetime,
    keep: Keep,
    check_claim: CheckClaim | None = None,
    tell: Tell | None = None,
) -> AnalysisOutcome:
    """The ranking, if any provider answered anything; else why the phase failed.

    Without a provider it waits for one. No question is sent once `check_claim` raises. What `keep`,
    `check_claim` and `tell` raise is raised, when no question is under way any more.
    """
    asked_of = asked_about(tools.pool.providers, work.business.url)
    if not asked_of:
        wait = timedelta(seconds=tools.settings.models.unconfigured_wait_seconds)
        message = "no provider configured: set website.providers, or OPENAI_API_KEY"
        return PhaseFailed(error=Resource(message, until=now + wait, code="no_provider"))
    done = {one.pair: one for one in work.known if one.status is AnswerStatus.ANSWERED}
    asking = _Asking(work, tools, asked_of, keep, check_claim, tell)
    asked = await asking.ask_all(done)
    answers = [*await asking.judge_all(done.values()), *(answer for answer, _ in asked)]
    if not any(one.status is AnswerStatus.ANSWERED for one in answers):
        return PhaseFailed(error=_none_answered([reply for _, reply in asked], now))
    return await asyncio.to_thread(_analysed, work.business, answers, tools.settings.website)


class _Asking:
    """One analysis' questions, all at a time as far as each provider takes them."""

    def __init__(
        self,
        work: AnalysisWork,
        tools: AnalysisTools,
        providers: Sequence[Provider],
        keep: Keep,
        check_claim: CheckClaim | None,
        tell: Tell | None,
    ) -> None:
        self._work = work
        self._tools = tools
        self._providers = providers
        self._keep = keep
        self._check_claim = check_claim
        self._tell = tell
        self._names = work.business.names
        self._left: Counter[str] = Counter()
        # What failures of an attempt before have cost: an answer that comes at last includes it.
        self._paid = {
            answer.pair: answer.cost_usd
            for answer in work.known
            if answer.status is AnswerStatus.FAILED
        }

    async def ask_all(
        self, done: Mapping[Pair, ProviderAnswer]
    ) -> list[tuple[ProviderAnswer, Reply]]:
        """What every provider says to what it has not answered yet; one waits for no other."""
        missing = [
            (provider, number, prompt)
            for number, prompt in enumerate(self._work.prompts)
            for provider in self._providers
            if (number, provider.name) not in done
        ]
        self._left = Counter(provider.name for provider, _, _ in missing)
        return await _all(self._ask(*question) for question in missing)

    async def judge_all(self, answers: Iterable[ProviderAnswer]) -> list[ProviderAnswer]:
        """The answers with their sentiment: of those whose worker died before it was known."""
        return await _all(self._felt(answer) for answer in answers)

    async def _ask(
        self, provider: Provider, number: int, prompt: AskedPrompt
    ) -> tuple[ProviderAnswer, Reply]:
        failed = ProviderAnswer(
            prompt_index=number,
            prompt=prompt.text,
            provider=provider.name,
            model=provider.model,
            status=AnswerStatus.FAILED,
            is_direct=prompt.is_direct,
            cost_usd=self._paid.get((number, provider.name)),
        )

        def store_reply(connection: Connection, reply: Replied) -> None:
            self._keep(connection, _answered(failed, reply))

        reply = await self._tools.pool.ask(
            provider.name,
            prompt.text,
            source_id=self._work.source_id,
            store_reply=store_reply,
            check_claim=self._check_claim,
        )
        match reply:
            case Replied():
                answer = await self._felt(_answered(failed, reply))
            case NoReply():
                answer = _unanswered(failed, reply)
                await asyncio.to_thread(self._keep_failure, answer)
        await self._count(provider.name)
        return answer, reply

    def _keep_failure(self, answer: ProviderAnswer) -> None:
        with self._tools.store.begin() as connection:
            self._keep(connection, answer)

    async def _count(self, provider: str) -> None:
        self._left[provider] -= 1
        if self._tell is not None and not self._left[provider]:
            everybody = len(self._providers)
            waiting = sum(number > 0 for number in self._left.values())
            await self._tell(everybody - waiting, everybody)

    async def _felt(self, answer: ProviderAnswer) -> ProviderAnswer:
        """The answer with how it speaks of the business, where a model can tell."""
        text, language = answer.answer or "", self._work.business.language
        model = self._tools.model
        if (
            model is None
            or answer.sentiment
            or not find_mentions(text, self._names, language=language)
        ):
            return answer
        felt = await sentiment_of(
            text, self._names, model, source_id=self._work.source_id, language=language
        )
        return replace(answer, sentiment=felt)


async def _all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order; the first error is raised when the others have been cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def _answered(failed: ProviderAnswer, reply: Replied) -> ProviderAnswer:
    return replace(
        failed,
        status=AnswerStatus.ANSWERED,
        answer=reply.text,
        model_version=reply.model_version,
        input_tokens=reply.usage.input_tokens,
        output_tokens=reply.usage.output_tokens,
        cost_usd=added(failed.cost_usd, reply.cost_usd),
    )


def _unanswered(failed: ProviderAnswer, reply: NoReply) -> ProviderAnswer:
    usage = reply.usage
    return replace(
        failed,
        error=f"{reply.code}: {reply.message}",
        input_tokens=None if usage is None else usage.input_tokens,
        output_tokens=None if usage is None else usage.output_tokens,
        cost_usd=added(failed.cost_usd, reply.cost_usd),
    )


def _analysed(
    business: Business, answers: Sequence[ProviderAnswer], settings: Website
) -> WebsiteAnalysed:
    rows = sorted(answers, key=lambda one: one.pair)
    answered = [one for one in rows if one.status is AnswerStatus.ANSWERED]
    given = [
        GivenAnswer(
            prompt_index=one.prompt_index,
            provider=one.provider,
            text=one.answer or "",
            is_direct=one.is_direct,
            sentiment=one.sentiment,
        )
        for one in answered
    ]
    own = business.names
    found = mentions_in(
        given,
        own,
        _competitors(business),
        language=business.language,
        threshold=settings.fuzzy_threshold,
    )
    return WebsiteAnalysed(
        ranking=ranking_of(given, found, own.name, cost_usd=_cost(rows)),
        answers=tuple(rows),
        mentions={
            one.pair: {name: places[number] for name, places in found.items()}
            for number, one in enumerate(answered)
        },
        failures=_failures(rows),
    )


def _competitors(business: Business) -> list[Names]:
    """Each once, and never the business itself."""
    different: dict[str, str] = {folded_name(business.name): ""}
    for name in business.competitors:
        different.setdefault(folded_name(name), name)
    return [Names.of(name) for name in different.values() if name]


def _cost(answers: Sequence[ProviderAnswer]) -> Decimal | None:
    """What all replies took, refused and empty ones included; None if no price is known."""
    costs = [answer.cost_usd for answer in answers if answer.cost_usd is not None]
    return sum(costs, Decimal(0)) if costs else None


def _failures(answers: Sequence[ProviderAnswer]) -> Mapping[str, str]:
    """By provider, how many prompts it left unanswered and the first reason."""
    failed: dict[str, list[str]] = {}
    for one in answers:
        if one.status is AnswerStatus.FAILED:
            failed.setdefault(one.provider, []).append(one.error or "")
    return {name: f"{len(why)} unanswered: {why[0]}" for name, why in failed.items()}


def _none_answered(replies: Sequence[Reply], now: datetime) -> WorkError:
    """No provider answered: wait if none has a budget left, give up if all of them refuse us."""
    failed = [reply for reply in replies if isinstance(reply, NoReply)]
    reasons = "; ".join(dict.fromkeys(f"{one.code}: {one.message}" for one in failed))
    message = f"no provider answered: {reasons}"
    budgets = [one.wait for one in failed if one.code == BUDGET and one.wait]
    if failed and len(budgets) == len(failed):
        return Resource(message, until=now + min(budgets), code=failed[0].code)
    passing = [one for one in failed if not one.is_lasting]
    if not passing:
        return Permanent(message, code="providers_refused")
    waits = [one.wait for one in passing if one.wait is not None]
    return Transient(message, code="providers_failed", retry_after=min(waits) if waits else None)
