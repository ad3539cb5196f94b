"""How an answer speaks of a business: by a model, and only with words of the answer as proof."""

from __future__ import annotations

from ingestion_pipeline.reading.grounding import ground
from ingestion_pipeline.reading.models import (
    Answered,
    AnswerSchema,
    Billing,
    ModelClient,
    ModelTier,
    PageText,
    Prompt,
    Question,
)
from ingestion_pipeline.websites.naming import Names, find_mentions
from ingestion_pipeline.work.errors import Fatal, WorkError

VERSION = "website sentiment 1"
CALL_SITE = "website_sentiment"
SENTIMENTS = ("positive", "neutral", "negative")
MAX_CHARACTERS = 8_000
_LEAST_QUOTE = 10  # characters; a word alone proves no opinion
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
    """The sentiment, if the model gives one and its quote stands in the answer; else None.

    Raises:
        Fatal: the ground gives way.
    """
    question = Question(
        prompt=Prompt(
            name="website_sentiment",
            version=1,
            instructions=_INSTRUCTIONS.format(name=names.name),
        ),
        schema=SCHEMA,
        page=PageText(text=answer[:MAX_CHARACTERS]),
        extractor_version=f"{VERSION} {names.name}",
        max_output_tokens=500,
    )
    billing = Billing(call_site=CALL_SITE, source_id=source_id)
    try:
        said = await client.ask(question, billing, rungs=(ModelTier.CHEAP,))
    except Fatal:
        raise
    except WorkError:
        return None
    if not isinstance(said, Answered):
        return None
    return proved_sentiment(
        said.data.get("sentiment"), said.data.get("quote"), answer, names, language
    )


def proved_sentiment(
    sentiment: object, quote: object, answer: str, names: Names, language: str | None
) -> str | None:
    """The sentiment, if the quote is the answer's own and stands where it speaks of the business.

    That is the paragraph of a mention, or the one after it.
    """
    if sentiment not in SENTIMENTS or not isinstance(quote, str) or len(quote) < _LEAST_QUOTE:
        return None
    proof = ground(quote, answer)
    if not proof.is_proof or proof.start is None:
        return None
    begin = answer.rfind("\n\n", 0, answer.rfind("\n\n", 0, proof.start + 1))
    near = answer[max(begin, 0) : proof.end]
    return str(sentiment) if find_mentions(near, names, language=language) else None
