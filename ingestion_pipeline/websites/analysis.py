"""Phase 3: send every prompt to every provider, and compute how visible the business is.

Only prompts that a provider has not answered before are sent: a retry does not pay twice. Each
answer is stored in the transaction that settles its cost, whatever happens to the rest; its
sentiment is determined afterwards.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

from sqlalchemy import Connection

from ingestion_pipeline.reading.llm import ModelClient
from ingestion_pipeline.reading.llm.client import UNCONFIGURED_WAIT
from ingestion_pipeline.reading.llm.ledger import CheckClaim
from ingestion_pipeline.settings import Provider, Settings, Website
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks.errors import Permanent, Resource, Transient, WorkError
from ingestion_pipeline.websites.business import Business
from ingestion_pipeline.websites.naming import Mentions, Names, find_mentions
from ingestion_pipeline.websites.naming.folding import folded_name
from ingestion_pipeline.websites.provider_pool import NoReply, ProviderPool, Replied, Reply, add_costs, providers_for
from ingestion_pipeline.websites.states import AnswerStatus, AskedPrompt, PhaseFailed
from ingestion_pipeline.websites.visibility import AnswerText, Ranking, mentions_in, ranking_of, sentiment_of

T = TypeVar("T")
BUDGET = "model_budget"
Pair = tuple[int, str]  # the prompt's number, and the provider


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderAnswer:
    """A row of `website_answers`: one provider's answer to one prompt, or why there is none."""

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
        """Return the key of the answer: prompt number and provider."""
        return self.prompt_index, self.provider


@dataclass(frozen=True, slots=True, kw_only=True)
class WebsiteAnalysed:
    """A complete analysis; `failures` are the providers that did not answer, with reasons."""

    ranking: Ranking
    answers: tuple[ProviderAnswer, ...]
    mentions: Mapping[Pair, Mapping[str, Mentions]]
    failures: Mapping[str, str]


AnalysisOutcome = WebsiteAnalysed | PhaseFailed

# Stores an answer in this transaction; raises if the claim was lost.
StoreAnswer = Callable[[Connection, ProviderAnswer], None]
ReportProgress = Callable[[int, int], Awaitable[None]]  # number of providers that are done, and of all


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisWork:
    """Input of an analysis; `previous_answers` are those of an earlier attempt."""

    business: Business
    prompts: Sequence[AskedPrompt]
    previous_answers: Sequence[ProviderAnswer] = ()
    source_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisTools:
    """The services of an analysis; `model` judges sentiment, None where none is configured."""

    store: Store
    pool: ProviderPool
    settings: Settings
    model: ModelClient | None = None


async def analyse(
    work: AnalysisWork,
    tools: AnalysisTools,
    *,
    now: datetime,
    store_answer: StoreAnswer,
    check_claim: CheckClaim | None = None,
    report_progress: ReportProgress | None = None,
) -> AnalysisOutcome:
    """Return the ranking if any provider answered anything; else why the phase failed.

    Without a provider it waits for one. Nothing is sent once `check_claim` raises. What
    `store_answer`, `check_claim` and `report_progress` raise is raised when no request is running.
    """
    providers = providers_for(tools.pool.providers, work.business.url)
    if not providers:
        message = "no provider configured: set website.providers, or OPENAI_API_KEY"
        return PhaseFailed(error=Resource(message, until=now + UNCONFIGURED_WAIT, code="no_provider"))
    done = {answer.pair: answer for answer in work.previous_answers if answer.status is AnswerStatus.ANSWERED}
    prompt_run = _PromptRun(work, tools, providers, store_answer, check_claim, report_progress)
    results = await prompt_run.ask_all(done)
    answers = [*await prompt_run.add_sentiments(done.values()), *(answer for answer, _ in results)]
    if not any(answer.status is AnswerStatus.ANSWERED for answer in answers):
        return PhaseFailed(error=_none_answered([reply for _, reply in results], now))
    return await asyncio.to_thread(_analysed, work.business, answers, tools.settings.website)


class _PromptRun:
    """The requests of one analysis, all concurrent as far as each provider allows."""

    def __init__(
        self,
        work: AnalysisWork,
        tools: AnalysisTools,
        providers: Sequence[Provider],
        store_answer: StoreAnswer,
        check_claim: CheckClaim | None,
        report_progress: ReportProgress | None,
    ) -> None:
        self._work = work
        self._tools = tools
        self._providers = providers
        self._store_answer = store_answer
        self._check_claim = check_claim
        self._report_progress = report_progress
        self._names = work.business.names
        self._left: Counter[str] = Counter()
        # The cost of failures in earlier attempts is included in the answer that succeeds.
        self._paid = {
            answer.pair: answer.cost_usd for answer in work.previous_answers if answer.status is AnswerStatus.FAILED
        }

    async def ask_all(self, done: Mapping[Pair, ProviderAnswer]) -> list[tuple[ProviderAnswer, Reply]]:
        """Send every provider the prompts it has not answered yet; providers are independent."""
        missing = [
            (provider, number, prompt)
            for number, prompt in enumerate(self._work.prompts)
            for provider in self._providers
            if (number, provider.name) not in done
        ]
        self._left = Counter(provider.name for provider, _, _ in missing)
        return await _gather(self._ask(*question) for question in missing)

    async def add_sentiments(self, answers: Iterable[ProviderAnswer]) -> list[ProviderAnswer]:
        """Add the sentiment to answers whose worker died before it was determined."""
        return await _gather(self._with_sentiment(answer) for answer in answers)

    async def _ask(self, provider: Provider, number: int, prompt: AskedPrompt) -> tuple[ProviderAnswer, Reply]:
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
            self._store_answer(connection, _answered(failed, reply))

        reply = await self._tools.pool.ask(
            provider.name,
            prompt.text,
            source_id=self._work.source_id,
            store_reply=store_reply,
            check_claim=self._check_claim,
        )
        match reply:
            case Replied():
                answer = await self._with_sentiment(_answered(failed, reply))
            case NoReply():
                answer = _unanswered(failed, reply)
                await asyncio.to_thread(self._store_failure, answer)
        await self._count(provider.name)
        return answer, reply

    def _store_failure(self, answer: ProviderAnswer) -> None:
        with self._tools.store.begin() as connection:
            self._store_answer(connection, answer)

    async def _count(self, provider: str) -> None:
        self._left[provider] -= 1
        if self._report_progress is not None and not self._left[provider]:
            everybody = len(self._providers)
            waiting = sum(number > 0 for number in self._left.values())
            await self._report_progress(everybody - waiting, everybody)

    async def _with_sentiment(self, answer: ProviderAnswer) -> ProviderAnswer:
        """Return the answer with its sentiment about the business, if there is a model."""
        text, language = answer.answer or "", self._work.business.language
        model = self._tools.model
        if model is None or answer.sentiment or not find_mentions(text, self._names, language=language):
            return answer
        sentiment = await sentiment_of(text, self._names, model, source_id=self._work.source_id, language=language)
        return replace(answer, sentiment=sentiment)


async def _gather(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results in order; the first error is raised when the others were cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in work]
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
        cost_usd=add_costs(failed.cost_usd, reply.cost_usd),
    )


def _unanswered(failed: ProviderAnswer, reply: NoReply) -> ProviderAnswer:
    usage = reply.usage
    return replace(
        failed,
        error=f"{reply.code}: {reply.message}",
        input_tokens=None if usage is None else usage.input_tokens,
        output_tokens=None if usage is None else usage.output_tokens,
        cost_usd=add_costs(failed.cost_usd, reply.cost_usd),
    )


def _analysed(business: Business, answers: Sequence[ProviderAnswer], settings: Website) -> WebsiteAnalysed:
    rows = sorted(answers, key=lambda answer: answer.pair)
    answered = [answer for answer in rows if answer.status is AnswerStatus.ANSWERED]
    texts = [
        AnswerText(
            prompt_index=answer.prompt_index,
            provider=answer.provider,
            text=answer.answer or "",
            is_direct=answer.is_direct,
            sentiment=answer.sentiment,
        )
        for answer in answered
    ]
    own = business.names
    mentions = mentions_in(
        texts, own, _competitors(business), language=business.language, threshold=settings.fuzzy_threshold
    )
    return WebsiteAnalysed(
        ranking=ranking_of(texts, mentions, own.name, cost_usd=_cost(rows)),
        answers=tuple(rows),
        mentions={
            answer.pair: {name: places[number] for name, places in mentions.items()}
            for number, answer in enumerate(answered)
        },
        failures=_failures(rows),
    )


def _competitors(business: Business) -> list[Names]:
    """Return each competitor once, and never the business itself."""
    different: dict[str, str] = {folded_name(business.name): ""}
    for name in business.competitors:
        different.setdefault(folded_name(name), name)
    return [Names.of(name) for name in different.values() if name]


def _cost(answers: Sequence[ProviderAnswer]) -> Decimal | None:
    """Return the cost of all replies, refused and empty ones included; None if it is unknown."""
    costs = [answer.cost_usd for answer in answers if answer.cost_usd is not None]
    return sum(costs, Decimal(0)) if costs else None


def _failures(answers: Sequence[ProviderAnswer]) -> Mapping[str, str]:
    """Return, by provider, how many prompts it left unanswered and the first reason."""
    failed: dict[str, list[str]] = {}
    for answer in answers:
        if answer.status is AnswerStatus.FAILED:
            failed.setdefault(answer.provider, []).append(answer.error or "")
    return {name: f"{len(reasons)} unanswered: {reasons[0]}" for name, reasons in failed.items()}


def _none_answered(replies: Sequence[Reply], now: datetime) -> WorkError:
    """Return the error when no provider answered.

    Wait if none has a budget left, give up if all of them refuse us, else retry.
    """
    failed = [reply for reply in replies if isinstance(reply, NoReply)]
    reasons = "; ".join(dict.fromkeys(f"{failure.code}: {failure.message}" for failure in failed))
    message = f"no provider answered: {reasons}"
    budgets = [failure.wait for failure in failed if failure.code == BUDGET and failure.wait]
    if failed and len(budgets) == len(failed):
        return Resource(message, until=now + min(budgets), code=failed[0].code)
    passing = [failure for failure in failed if not failure.is_lasting]
    if not passing:
        return Permanent(message, code="providers_refused")
    waits = [failure.wait for failure in passing if failure.wait is not None]
    return Transient(message, code="providers_failed", retry_after=min(waits) if waits else None)
