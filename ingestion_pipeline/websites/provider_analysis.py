"""Phase 3: send every prompt to every provider, and compute how visible the business is.

Only prompts that a provider has not answered before are sent: a retry does not pay twice. Each
answer is stored in the transaction that settles its cost, whatever happens to the rest; its
sentiment is determined afterwards.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from ingestion_pipeline.websites.mentions import Mentions, find_mentions
from ingestion_pipeline.websites.name_forms import Names, folded_name
from ingestion_pipeline.websites.provider_pool import NoReply, ProviderPool, Replied, Reply, add_costs, providers_for
from ingestion_pipeline.websites.states import AnswerStatus, AskedPrompt, Pair, ProviderAnswer
from ingestion_pipeline.websites.visibility import Ranking, mentions_in, ranking_of, sentiment_of

T = TypeVar("T")
BUDGET = "model_budget"
NO_PROVIDER = "no_provider"  # waits until one is configured


@dataclass(frozen=True, slots=True, kw_only=True)
class WebsiteAnalysed:
    """A complete analysis; `failures` are the providers that did not answer, with reasons."""

    ranking: Ranking
    answers: tuple[ProviderAnswer, ...]
    mentions: Mapping[Pair, Mapping[str, Mentions]]
    failures: Mapping[str, str]


# Stores an answer in this transaction; raises if the claim was lost.
StoreAnswer = Callable[[Connection, ProviderAnswer], None]
ReportProgress = Callable[[int, int], Awaitable[None]]  # number of providers that are done, and of all


@dataclass(slots=True, kw_only=True)
class Analysis:
    """An analysis: its requests are all concurrent, as far as each provider allows.

    `previous_answers` are those of an earlier attempt; `model` judges sentiment, None where none is configured.
    """

    business: Business
    prompts: Sequence[AskedPrompt]
    previous_answers: Sequence[ProviderAnswer] = ()
    source_id: str | None = None
    store: Store
    pool: ProviderPool
    settings: Settings
    model: ModelClient | None = None
    store_answer: StoreAnswer
    check_claim: CheckClaim | None = None
    report_progress: ReportProgress | None = None
    _providers: tuple[Provider, ...] = field(init=False)
    _names: Names = field(init=False)
    _left: Counter[str] = field(init=False)  # requests by provider

    def __post_init__(self) -> None:
        """Choose the providers that are asked about this website."""
        self._providers = providers_for(self.pool.providers, self.business.url)
        self._names = self.business.names

    async def run(self, *, now: datetime) -> WebsiteAnalysed:
        """Return the ranking if any provider answered anything.

        Nothing is sent once `check_claim` raises. What `store_answer`, `check_claim` and `report_progress` raise
        is raised when no request is running.

        Raises:
            WorkError: no provider answered, and why; `no_provider`: it waits until one is configured.
        """
        if not self._providers:
            message = "no provider configured: set website.providers, or OPENAI_API_KEY"
            raise Resource(message, until=now + UNCONFIGURED_WAIT, code=NO_PROVIDER)
        done = {answer.pair: answer for answer in self.previous_answers if answer.status is AnswerStatus.ANSWERED}
        results = await self._ask_all(done)
        # the worker may have died before it determined the sentiment of earlier answers
        earlier = await _gather(self._with_sentiment(answer) for answer in done.values())
        answers = [*earlier, *(answer for answer, _ in results)]
        if not any(answer.status is AnswerStatus.ANSWERED for answer in answers):
            raise _none_answered([reply for _, reply in results], now)
        return await asyncio.to_thread(_analysed, self.business, answers, self.settings.website)

    async def _ask_all(self, done: Container[Pair]) -> list[tuple[ProviderAnswer, Reply]]:
        """Send every provider the prompts it has not answered yet; providers are independent."""
        # The cost of failures in earlier attempts is included in the answer that succeeds.
        paid = {answer.pair: answer.cost_usd for answer in self.previous_answers}
        missing = [
            ProviderAnswer(
                prompt_index=number,
                prompt=prompt.text,
                provider=provider.name,
                model=provider.model,
                status=AnswerStatus.FAILED,
                is_direct=prompt.is_direct,
                cost_usd=paid.get((number, provider.name)),
            )
            for number, prompt in enumerate(self.prompts)
            for provider in self._providers
            if (number, provider.name) not in done
        ]
        self._left = Counter(answer.provider for answer in missing)
        return await _gather(self._ask(answer) for answer in missing)

    async def _ask(self, failed: ProviderAnswer) -> tuple[ProviderAnswer, Reply]:
        """Request the answer that is missing; `failed` is what is stored if none comes."""

        def store_reply(connection: Connection, reply: Replied) -> None:
            self.store_answer(connection, _answered(failed, reply))

        reply = await self.pool.ask(
            failed.provider,
            failed.prompt,
            source_id=self.source_id,
            store_reply=store_reply,
            check_claim=self.check_claim,
        )
        match reply:
            case Replied():
                answer = await self._with_sentiment(_answered(failed, reply))
            case NoReply():
                answer = _unanswered(failed, reply)
                await asyncio.to_thread(self._store_failure, answer)
        self._left[failed.provider] -= 1
        if self.report_progress is not None and not self._left[failed.provider]:
            everybody = len(self._providers)
            waiting = sum(number > 0 for number in self._left.values())
            await self.report_progress(everybody - waiting, everybody)
        return answer, reply

    def _store_failure(self, answer: ProviderAnswer) -> None:
        with self.store.begin() as connection:
            self.store_answer(connection, answer)

    async def _with_sentiment(self, answer: ProviderAnswer) -> ProviderAnswer:
        """Return the answer with its sentiment about the business, if there is a model."""
        text, language = answer.answer or "", self.business.language
        model = self.model
        if model is None or answer.sentiment or not find_mentions(text, self._names, language=language):
            return answer
        sentiment = await sentiment_of(text, self._names, model, source_id=self.source_id, language=language)
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
    costs = [answer.cost_usd for answer in rows if answer.cost_usd is not None]  # also of refused and empty replies
    own = business.names
    mentions = mentions_in(
        answered, own, _competitors(business), language=business.language, threshold=settings.fuzzy_threshold
    )
    return WebsiteAnalysed(
        ranking=ranking_of(answered, mentions, own.name, cost_usd=sum(costs, Decimal(0)) if costs else None),
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


def _failures(answers: Sequence[ProviderAnswer]) -> Mapping[str, str]:
    """Return, by provider, how many prompts it left unanswered and the first reason."""
    failed: dict[str, list[str]] = {}
    for answer in answers:
        if answer.status is AnswerStatus.FAILED:
            failed.setdefault(answer.provider, []).append(answer.error or "")
    return {name: f"{len(reasons)} unanswered: {reasons[0]}" for name, reasons in failed.items()}


def _none_answered(replies: Sequence[Reply], now: datetime) -> WorkError:
    """Return the error: wait if no provider has a budget left, give up if all of them refuse us, else retry."""
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
