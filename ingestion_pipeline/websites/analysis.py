"""Phase 3: every prompt to every provider, what came of it, and how visible the business is.

Asked is only what no provider has answered before: what a retry finds done it does not pay again.
Each answer is handed over as it comes, to be kept whatever becomes of the rest.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from ingestion_pipeline.reading.models import ModelClient
from ingestion_pipeline.settings import Provider, Settings, Website
from ingestion_pipeline.websites.business import Business
from ingestion_pipeline.websites.naming import Mentions, Names, find_mentions
from ingestion_pipeline.websites.naming.folding import folded_name
from ingestion_pipeline.websites.outcomes import AskedPrompt, PhaseFailed
from ingestion_pipeline.websites.provider_pool import NoReply, ProviderPool, Replied, Reply
from ingestion_pipeline.websites.providers import asked_about
from ingestion_pipeline.websites.scoring import GivenAnswer, Ranking, mentions_in, ranking_of
from ingestion_pipeline.websites.sentiment import sentiment_of
from ingestion_pipeline.websites.states import AnswerStatus
from ingestion_pipeline.work.errors import Permanent, Resource, Transient, WorkError

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
class Analysed:
    """The analysis is complete; `failures` are the providers that did not answer, with reasons."""

    ranking: Ranking
    answers: tuple[ProviderAnswer, ...]
    mentions: Mapping[Pair, Mapping[str, Mentions]]
    failures: Mapping[str, str]


AnalysisOutcome = Analysed | PhaseFailed

# Keeps answers; raises if the work is no longer ours.
Keep = Callable[[Sequence[ProviderAnswer]], Awaitable[None]]
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

    pool: ProviderPool
    settings: Settings
    model: ModelClient | None = None


async def analyse(
    work: AnalysisWork,
    tools: AnalysisTools,
    *,
    now: datetime,
    keep: Keep,
    tell: Tell | None = None,
) -> AnalysisOutcome:
    """The ranking, if any provider answered anything; else why the phase failed.

    Without a provider it waits for one. What `keep` and `tell` raise is raised, when no question
    is under way any more.
    """
    asked_of = asked_about(tools.pool.providers, work.business.url)
    if not asked_of:
        wait = timedelta(seconds=tools.settings.models.unconfigured_wait_seconds)
        message = "no provider configured: set website.providers, or OPENAI_API_KEY"
        return PhaseFailed(error=Resource(message, until=now + wait, code="no_provider"))
    done = {one.pair: one for one in work.known if one.status is AnswerStatus.ANSWERED}
    asked = await _Asking(work, tools, asked_of, keep, tell).ask_all(done)
    answers = [*done.values(), *(answer for answer, _ in asked)]
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
        tell: Tell | None,
    ) -> None:
        self._work = work
        self._tools = tools
        self._providers = providers
        self._keep = keep
        self._tell = tell
        self._names = work.business.names
        self._left: Counter[str] = Counter()

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
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._ask(*one)) for one in missing]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None  # the others were cancelled for it
        return [task.result() for task in tasks]

    async def _ask(
        self, provider: Provider, number: int, prompt: AskedPrompt
    ) -> tuple[ProviderAnswer, Reply]:
        reply = await self._tools.pool.ask(
            provider.name, prompt.text, source_id=self._work.source_id
        )
        answer = ProviderAnswer(
            prompt_index=number,
            prompt=prompt.text,
            provider=provider.name,
            model=provider.model,
            status=AnswerStatus.FAILED,
            is_direct=prompt.is_direct,
        )
        match reply:
            case Replied():
                answer = await self._felt(_answered(answer, reply))
            case NoReply():
                answer = replace(answer, error=f"{reply.code}: {reply.message}")
        await self._keep([answer])
        await self._count(provider.name)
        return answer, reply

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
        if model is None or not find_mentions(text, self._names, language=language):
            return answer
        felt = await sentiment_of(
            text, self._names, model, source_id=self._work.source_id, language=language
        )
        return replace(answer, sentiment=felt)


def _answered(answer: ProviderAnswer, reply: Replied) -> ProviderAnswer:
    return replace(
        answer,
        status=AnswerStatus.ANSWERED,
        answer=reply.text,
        model_version=reply.model_version,
        input_tokens=reply.usage.input_tokens,
        output_tokens=reply.usage.output_tokens,
        cost_usd=reply.cost_usd,
    )


def _analysed(business: Business, answers: Sequence[ProviderAnswer], settings: Website) -> Analysed:
    rows = sorted(answers, key=lambda one: one.pair)
    answered = [one for one in rows if one.status is AnswerStatus.ANSWERED]
    given = [
        GivenAnswer(
            prompt_index=one.prompt_index,
            provider=one.provider,
            text=one.answer or "",
            is_direct=one.is_direct,
            cost_usd=one.cost_usd,
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
    return Analysed(
        ranking=ranking_of(given, found, own.name),
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
    budgets = [one.wait for one in failed if one.code == "model_budget" and one.wait]
    if failed and len(budgets) == len(failed):
        return Resource(message, until=now + min(budgets), code="model_budget")
    passing = [one for one in failed if not one.is_lasting]
    if not passing:
        return Permanent(message, code="providers_refused")
    waits = [one.wait for one in passing if one.wait is not None]
    return Transient(message, code="providers_failed", retry_after=min(waits) if waits else None)
