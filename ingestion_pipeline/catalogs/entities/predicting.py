"""What reading pages by models may cost, known before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import NamedTuple

from ingestion_pipeline.catalogs.entities.entity_type import EntityType
from ingestion_pipeline.catalogs.entities.questions import answer_schema, reading_question
from ingestion_pipeline.catalogs.entities.splitting import LONG_TOKENS, PART_TOKENS
from ingestion_pipeline.reading.models import PageText, Usage
from ingestion_pipeline.reading.models.prices import cost_usd, estimated_usage, known_price
from ingestion_pipeline.reading.models.question import conversation
from ingestion_pipeline.settings import Settings, price_table

OUTPUT_SHARE = 1.2  # of the text: an answer repeats it between the names of fields
LEAST_OUTPUT_TOKENS = 200


class Prediction(NamedTuple):
    """What a reading takes at most, questions that are asked again apart.

    `usd` is None where a model has no price in the settings.
    """

    calls: int
    tokens: int
    usd: Decimal | None

    def __str__(self) -> str:
        if not self.calls:
            return "no model is asked: 0 calls, 0 USD"
        money = "at a price nobody has told" if self.usd is None else f"{self.usd:.4f} USD"
        return f"at most {self.calls} calls, {self.tokens} tokens, {money}"


def predicted_cost(kind: EntityType, sizes: Iterable[int], settings: Settings) -> Prediction:
    """What pages of these sizes (bytes of cleaned text) cost at most, if rules read none of them.

    Each part is counted for the cheap and for the strong model; nothing is asked where none is
    configured. What an answer that was kept saves is not known here.
    """
    if not settings.has_model:
        return Prediction(calls=0, tokens=0, usd=Decimal(0))
    return cost_with_models(kind, sizes, settings)


def cost_with_models(kind: EntityType, sizes: Iterable[int], settings: Settings) -> Prediction:
    """The same, if the models that the settings name were there."""
    usages = [one for size in sizes for one in _usages(kind, size, settings)]
    models = list(dict.fromkeys((settings.model_cheap, settings.model_strong)))
    prices = price_table(settings.models.prices)
    known = [known_price(model, prices) for model in models]
    paid = [cost_usd(one, price) for one in usages for price in known if price is not None]
    tokens = sum(one.input_tokens + one.output_tokens for one in usages) * len(models)
    return Prediction(
        calls=len(usages) * len(models),
        tokens=tokens,
        usd=None if None in known else sum(paid, Decimal(0)),
    )


def _usages(kind: EntityType, size: int, settings: Settings) -> Sequence[Usage]:
    """One for each question about a page of that size."""
    around = _around(kind)
    tokens = estimated_usage(input_bytes=size, output_tokens=0).input_tokens
    count = 1 if tokens <= LONG_TOKENS else -(-tokens // PART_TOKENS)
    count += kind.presence_check
    written = max(LEAST_OUTPUT_TOKENS, round(tokens * OUTPUT_SHARE / count))
    one = estimated_usage(
        input_bytes=around + -(-size // count),
        output_tokens=min(written, settings.models.max_output_tokens),
    )
    return [one] * count


def _around(kind: EntityType) -> int:
    """Bytes of a question without its page."""
    question = reading_question(kind, PageText(text=""))
    return conversation(question).size_bytes + len(answer_schema(kind).as_text().encode())
