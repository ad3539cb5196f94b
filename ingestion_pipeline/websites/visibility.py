"""Visibility of a business and its competitors in the providers' answers, and their sentiment.

A missing answer counts neither for nor against anybody.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any

from ingestion_pipeline.reading.evidence.grounding import ground
from ingestion_pipeline.reading.llm import (
    Answered,
    AnswerSchema,
    Billing,
    ModelClient,
    ModelTier,
    PageText,
    Prompt,
    Question,
)
from ingestion_pipeline.tasks.errors import Fatal, WorkError
from ingestion_pipeline.websites.mentions import Mentions, find_mentions, mentions_of_all
from ingestion_pipeline.websites.name_forms import Names
from ingestion_pipeline.websites.states import ProviderAnswer

MAX_SCORE = 100
# A name that is first and repeated in all of seven answers has 105 points, so the cap.
_RANK_POINTS = {1: 12, 2: 10, 3: 8, 4: 6, 5: 4}
_MOST_REPETITIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """How visible one name is in a number of answers.

    `visibility` is the share of answers with a mention; `unprompted` the same of those whose
    question did not name the business, None if there are none; `score` 0 to 100; ranks 1 to 5, of
    the answers with a mention.
    """

    answers: int
    mentioned: int
    mentions: int
    visibility: float
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
    return Visibility(
        answers=len(pairs),
        mentioned=mentioned,
        mentions=sum(mentions.count for _, mentions in pairs),
        visibility=_share(mentioned, len(pairs)),
        unprompted=_share(sum(unprompted), len(unprompted)) if unprompted else None,
        score=_score(pairs),
        best_rank=min(ranks, default=None),
        mean_rank=round(sum(ranks) / len(ranks), 1) if ranks else None,
    )


def ranking_of(
    answers: Sequence[ProviderAnswer],
    mentions: Mapping[str, Sequence[Mentions]],
    own: str,
    *,
    cost_usd: Decimal | None = None,
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
    answers: Sequence[ProviderAnswer],
    own: Names,
    competitors: Sequence[Names],
    *,
    language: str | None = None,
    threshold: float,
) -> Mapping[str, Sequence[Mentions]]:
    """Return the mentions of each name by answer; no name is found inside a longer one."""
    everybody = (own, *competitors)
    by_answer = [
        mentions_of_all(answer.answer or "", everybody, language=language, threshold=threshold) for answer in answers
    ]
    return {
        names.name: [answer_mentions[number] for answer_mentions in by_answer] for number, names in enumerate(everybody)
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
SCHEMA = AnswerSchema(
    name="sentiment",
    schema={
        "type": "object",
        "properties": {
            "sentiment": {"type": ["string", "null"], "enum": [*SENTIMENTS, None]},
            "quote": {"type": ["string", "null"]},
        },
        "required": ["sentiment", "quote"],
        "additionalProperties": False,
    },
)
_INSTRUCTIONS = """\
The text was written about several businesses. Say how it speaks of the one called {name!r}.
sentiment: positive, neutral or negative; null if it gives no opinion. quote: the words of the text
that show it, copied exactly."""


async def sentiment_of(
    answer: str, names: Names, client: ModelClient, *, source_id: str | None, language: str | None
) -> str | None:
    """Return the sentiment if the model gives one and its quote is in the answer; else None.

    Raises:
        Fatal: the environment fails (database, disk, memory).
    """
    question = Question(
        prompt=Prompt(name="website_sentiment", version=1, instructions=_INSTRUCTIONS.format(name=names.name)),
        schema=SCHEMA,
        page=PageText(text=answer[:MAX_CHARACTERS]),
        extractor_version=f"{VERSION} {names.name}",
        max_output_tokens=500,
    )
    billing = Billing(call_site=CALL_SITE, source_id=source_id)
    try:
        outcome = await client.ask(question, billing, tiers=(ModelTier.CHEAP,))
    except Fatal:
        raise
    except WorkError:
        return None
    if not isinstance(outcome, Answered):
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
