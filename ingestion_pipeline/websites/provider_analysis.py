"""Phase 3: send every prompt to every provider, and compute how visible the business is in the answers.

Only prompts that a provider has not answered before are sent: a retry does not pay twice. Each
answer is stored in the transaction that settles its cost, whatever happens to the rest; its
sentiment is determined afterwards. A missing answer counts neither for nor against anybody.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

from sqlalchemy import Connection

from ingestion_pipeline.reading import llm
from ingestion_pipeline.reading.evidence.grounding import ground
from ingestion_pipeline.reading.llm.client import UNCONFIGURED_WAIT
from ingestion_pipeline.reading.llm.ledger import Precondition
from ingestion_pipeline.settings import Provider, Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks.errors import Fatal, Permanent, Resource, Transient, WorkError
from ingestion_pipeline.websites.business import AskedPrompt, Business
from ingestion_pipeline.websites.mentions import Mentions, Names, find_mentions, folded_name, mentions_of_all
from ingestion_pipeline.websites.provider_pool import NoReply, ProviderPool, Replied, Reply, add_costs, providers_for
from ingestion_pipeline.websites.states import AnswerStatus, Pair, ProviderAnswer

MAX_SCORE = 100
# A name that is first and repeated in all of seven answers has 105 points, so the cap.
_RANK_POINTS = {1: 12, 2: 10, 3: 8, 4: 6, 5: 4}
_MOST_REPETITIONS = 3
_Z = 1.959964  # of the normal distribution, for 95 %


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """How visible one name is in a number of answers.

    `visibility` is the share of answers with a mention, and from `low` to `high` what it would be among any number of
    such answers, in 95 of 100 cases; `unprompted` is the share of those whose question did not name the business, None
    if there are none; `score` 0 to 100; ranks 1 to 5, of the answers with a mention.
    """

    answers: int
    mentioned: int
    mentions: int
    visibility: float
    low: float
    high: float
    unprompted: float | None
    score: int
    best_rank: int | None
    mean_rank: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The numbers of one analysis: in total, by provider, and of each competitor; `rivals`: these by provider."""

    overall: Visibility
    by_provider: Mapping[str, Visibility]
    competitors: Mapping[str, Visibility]
    cost_usd: Decimal | None
    sentiments: Mapping[str, int] = field(default_factory=dict[str, int])
    rivals: Mapping[str, Mapping[str, Visibility]] = field(default_factory=dict[str, Mapping[str, Visibility]])

    def as_json(self) -> dict[str, Any]:
        """Return the JSON for rankings and analyses: by provider, `competitors` are those of the same answers."""
        return {
            "overall": asdict(self.overall),
            "by_provider": {
                name: {**asdict(visibility), "competitors": _as_json(self.rivals.get(name, {}))}
                for name, visibility in self.by_provider.items()
            },
            "competitors": _as_json(self.competitors),
        }


def _as_json(by_name: Mapping[str, Visibility]) -> dict[str, Any]:
    return {name: asdict(visibility) for name, visibility in by_name.items()}


def relevance(mentions: Mentions) -> int:
    """Return the points of one answer: by rank, and one for each repetition up to three."""
    if mentions.rank is None:
        return 0
    return _RANK_POINTS[mentions.rank] + min(mentions.count - 1, _MOST_REPETITIONS)


def visibility_of(pairs: Sequence[tuple[ProviderAnswer, Mentions]]) -> Visibility:
    """Return how visible a name is in these answers."""
    unprompted = [bool(mentions) for answer, mentions in pairs if not answer.is_direct]
    mentioned = sum(bool(mentions) for _, mentions in pairs)
    ranks = [mentions.rank for _, mentions in pairs if mentions.rank is not None]
    low, high = wilson_interval(mentioned, len(pairs))
    return Visibility(
        answers=len(pairs),
        mentioned=mentioned,
        mentions=sum(mentions.count for _, mentions in pairs),
        visibility=_share(mentioned, len(pairs)),
        low=low,
        high=high,
        unprompted=_share(sum(unprompted), len(unprompted)) if unprompted else None,
        score=_score(pairs),
        best_rank=min(ranks, default=None),
        mean_rank=round(sum(ranks) / len(ranks), 1) if ranks else None,
    )


def wilson_interval(part: int, whole: int) -> tuple[float, float]:
    """Return the 95 % interval of Wilson's score for a share; all of 0 to 1 without any answer."""
    if not whole:
        return 0.0, 1.0
    share, spread = part / whole, _Z**2 / whole
    middle = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(share * (1 - share) / whole + spread / (4 * whole))
    return round(max(middle - half, 0.0), 4), round(min(middle + half, 1.0), 4)


def ranking_of(
    answers: Sequence[ProviderAnswer],
    mentions: Mapping[str, Sequence[Mentions]],
    own: str,
    cost_usd: Decimal | None,
) -> Ranking:
    """Return the ranking from the result of `mentions_in`; all names but `own` are competitors."""
    providers = list(dict.fromkeys(answer.provider for answer in answers))
    others = [name for name in mentions if name != own]

    def visible(name: str, provider: str | None = None) -> Visibility:
        pairs = zip(answers, mentions[name], strict=True)
        return visibility_of([pair for pair in pairs if provider in {None, pair[0].provider}])

    return Ranking(
        overall=visible(own),
        by_provider={provider: visible(own, provider) for provider in providers},
        competitors={name: visible(name) for name in others},
        cost_usd=cost_usd,
        sentiments=Counter(answer.sentiment for answer in answers if answer.sentiment is not None),
        rivals={provider: {name: visible(name, provider) for name in others} for provider in providers},
    )


def mentions_in(
    answers: Sequence[ProviderAnswer], own: Names, competitors: Sequence[Names], *, language: str | None
) -> Mapping[str, Sequence[Mentions]]:
    """Return the mentions of each name by answer but denied ones; no name is found inside a longer one."""
    everybody = (own, *competitors)
    by_answer = [mentions_of_all(answer.answer or "", everybody, language=language) for answer in answers]
    return {
        names.name: [answer_mentions[number].affirmed for answer_mentions in by_answer]
        for number, names in enumerate(everybody)
    }


def _score(pairs: Sequence[tuple[ProviderAnswer, Mentions]]) -> int:
    """Return the sum of each prompt's points, at most 100; with several providers, the mean of theirs."""
    sums: Counter[str] = Counter()
    for answer, mentions in pairs:
        sums[answer.provider] += relevance(mentions)
    capped = [min(points, MAX_SCORE) for points in sums.values()]
    return round(sum(capped) / len(capped)) if capped else 0


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


VERSION = "website sentiment 1"
CALL_SITE = "website_sentiment"
SENTIMENTS = ("positive", "neutral", "negative")
MAX_CHARACTERS = 8_000
_LEAST_QUOTE = 10  # characters; a single word proves no opinion
SCHEMA = llm.AnswerSchema.of(
    "sentiment",
    {
        "sentiment": {"type": ["string", "null"], "enum": [*SENTIMENTS, None]},
        "quote": {"type": ["string", "null"]},
    },
)
_INSTRUCTIONS = """\
The text was written about several businesses. Say how it speaks of the one called {name!r}.
sentiment: positive, neutral or negative; null if it gives no opinion. quote: the words of the text
that show it, copied exactly."""


async def sentiment_of(
    answer: str, names: Names, client: llm.ModelClient, *, source_id: str | None, language: str | None
) -> str | None:
    """Return the sentiment if the model gives one and its quote is in the answer; else None.

    Raises:
        Fatal: the environment fails (database, disk, memory).
    """
    question = llm.Question(
        prompt=llm.Prompt(name="website_sentiment", version=1, instructions=_INSTRUCTIONS.format(name=names.name)),
        schema=SCHEMA,
        page=llm.PageText(text=answer[:MAX_CHARACTERS]),
        extractor_version=f"{VERSION} {names.name}",
        max_output_tokens=500,
    )
    billing = llm.Billing(call_site=CALL_SITE, source_id=source_id)
    try:
        outcome = await client.ask(question, billing, tiers=(llm.ModelTier.CHEAP,))
    except Fatal:
        raise
    except WorkError:
        return None
    if not isinstance(outcome, llm.Answered):
        return None
    return proved_sentiment(outcome.data.get("sentiment"), outcome.data.get("quote"), answer, names, language)


def proved_sentiment(sentiment: object, quote: object, answer: str, names: Names, language: str | None) -> str | None:
    """Return the sentiment if the quote is in the answer, in the paragraph of a mention or the one after it."""
    if sentiment not in SENTIMENTS or not isinstance(quote, str) or len(quote) < _LEAST_QUOTE:
        return None
    proof = ground(quote, answer)
    if not proof.is_proof or proof.start is None:
        return None
    begin = answer.rfind("\n\n", 0, answer.rfind("\n\n", 0, proof.start + 1))
    near = answer[max(begin, 0) : proof.end]
    return str(sentiment) if find_mentions(near, names, language=language) else None


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
    model: llm.ModelClient | None = None
    store_answer: StoreAnswer
    check_claim: Precondition | None = None
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
        return await asyncio.to_thread(_analysed, self.business, answers)

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
        cited_urls=reply.cited_urls,
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


def _analysed(business: Business, answers: Sequence[ProviderAnswer]) -> WebsiteAnalysed:
    rows = sorted(answers, key=lambda answer: answer.pair)
    answered = [answer for answer in rows if answer.status is AnswerStatus.ANSWERED]
    costs = [answer.cost_usd for answer in rows if answer.cost_usd is not None]  # also of refused and empty replies
    own = business.names
    mentions = mentions_in(answered, own, _competitors(business), language=business.language)
    return WebsiteAnalysed(
        ranking=ranking_of(answered, mentions, own.name, sum(costs, Decimal(0)) if costs else None),
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
