"""Estimate what reading pages with models may cost, before any of them is read."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import NamedTuple

from sqlalchemy import Connection, select

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.prompts import LONG_TOKENS, PART_TOKENS, answer_schema, reading_question
from ingestion_pipeline.catalogs.extraction.rule_pipeline import has_rules
from ingestion_pipeline.catalogs.extraction.source_config import load_entity_config
from ingestion_pipeline.catalogs.extraction_reports import crawl_facts
from ingestion_pipeline.catalogs.learning.learned_selectors import learned_facts
from ingestion_pipeline.catalogs.recipes.recipe import PageType
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.reading.llm import PageText, Usage
from ingestion_pipeline.reading.llm.budgets import cost_usd, estimated_usage, known_price
from ingestion_pipeline.reading.llm.question import MAX_OUTPUT_TOKENS, conversation
from ingestion_pipeline.settings import Settings, price_table
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.tables import extractions, pages, snapshots
from ingestion_pipeline.tasks.errors import WorkError

OUTPUT_SHARE = 1.2  # of the text, which an answer repeats between field names
LEAST_OUTPUT_TOKENS = 200


class CostEstimate(NamedTuple):
    """Upper bound of calls, tokens and cost of reading pages, repeated questions excluded.

    `usd` is None where a model has no price in the settings.
    """

    calls: int
    tokens: int
    usd: Decimal | None

    def __str__(self) -> str:
        if not self.calls:
            return "no model is asked: 0 calls, 0 USD"
        money = "price unknown" if self.usd is None else f"{self.usd:.4f} USD"
        return f"at most {self.calls} calls, {self.tokens} tokens, {money}"


def predicted_cost(kind: EntityType, sizes: Iterable[int], settings: Settings) -> CostEstimate:
    """Return the highest cost of pages of these sizes (bytes of cleaned text), if rules read none.

    Each part is counted for the cheap and for the strong model; the cost is zero where no model is
    configured. Savings by cached answers are not included.
    """
    if not settings.has_model:
        return CostEstimate(calls=0, tokens=0, usd=Decimal(0))
    return cost_with_models(kind, sizes, settings)


def cost_with_models(kind: EntityType, sizes: Iterable[int], settings: Settings) -> CostEstimate:
    """Return the same estimate as if the models named in the settings were configured."""
    usages = [usage for size in sizes for usage in _usages(kind, size)]
    models = list(dict.fromkeys((settings.model_cheap, settings.model_strong)))
    prices = price_table(settings.models.prices)
    model_prices = [known_price(model, prices) for model in models]
    paid = [cost_usd(usage, price) for usage in usages for price in model_prices if price is not None]
    tokens = sum(usage.input_tokens + usage.output_tokens for usage in usages) * len(models)
    return CostEstimate(
        calls=len(usages) * len(models), tokens=tokens, usd=None if None in model_prices else sum(paid, Decimal(0))
    )


def _usages(kind: EntityType, size: int) -> Sequence[Usage]:
    """Return the usage of each question about a page of that size."""
    question = conversation(reading_question(kind, PageText(text="")))
    overhead_bytes = question.size_bytes + len(answer_schema(kind).as_text().encode())
    tokens = estimated_usage(input_bytes=size, output_tokens=0).input_tokens
    count = 1 if tokens <= LONG_TOKENS else -(-tokens // PART_TOKENS)
    count += kind.presence_check
    output_tokens = max(LEAST_OUTPUT_TOKENS, round(tokens * OUTPUT_SHARE / count))
    usage = estimated_usage(
        input_bytes=overhead_bytes + -(-size // count),
        output_tokens=min(output_tokens, MAX_OUTPUT_TOKENS),
    )
    return [usage] * count


NO_MODEL = "no model configured (OPENAI_API_KEY or OPENAI_BASE_URL)"
SAMPLED = 25  # texts to measure; the size of the others is estimated from the body


class DetailPage(NamedTuple):
    """Size of a record page's body, and the hash of its stored text."""

    size_bytes: int
    text_hash: str | None


def catalog_facts(connection: Connection, source: Source, settings: Settings) -> dict[str, object]:
    """Return the last extraction's progress, learned selectors and the next one's highest cost."""
    facts = crawl_facts(connection, source.id) | learned_facts(connection, source.id)
    return facts | cost_facts(connection, source, settings)


def cost_facts(connection: Connection, source: Source, settings: Settings) -> dict[str, object]:
    """Return the highest cost of reading every page of the last extraction again, as text.

    Unchanged pages and cached answers cost nothing; the
    number of new pages is not known.
    """
    try:
        entity_config = load_entity_config(source.config, settings)
    except ValueError as error:
        return {"predicted_cost": f"not known: {error}"}
    content = ContentStore(settings.home / "content")
    sizes = text_sizes(_last_pages(connection, source.id), content)
    if not sizes:
        return {"predicted_cost": "not known before pages were visited"}
    if not settings.has_model and not entity_config.can_finish_by_rules:
        cost = cost_with_models(entity_config.kind, sizes, settings)
        message = f"once there is a model: {cost}, for {len(sizes)} pages; {NO_MODEL}"
        return {"predicted_cost": message}
    cost = predicted_cost(entity_config.kind, sizes, settings)
    message = f"{cost}, for {len(sizes)} pages"
    if cost.calls and has_rules(entity_config.kind, entity_config.selectors):
        message += "; a page that rules read, or that is unchanged, costs nothing"
    return {"predicted_cost": message}


def text_sizes(rows: Sequence[DetailPage], content: ContentStore) -> list[int]:
    """Return the bytes of each page's cleaned text: a sample is measured, the others are scaled."""
    step = max(1, len(rows) // SAMPLED)
    measured = [
        (row.size_bytes, size)
        for row in rows[::step]
        if row.size_bytes and (size := _text_size(row.text_hash, content)) is not None
    ]
    bodies = sum(body for body, _ in measured)
    share = sum(size for _, size in measured) / bodies if bodies else 1.0
    return [round(row.size_bytes * share) for row in rows]


_BY_MODELS = (PageType.DETAIL, PageType.EXPLORATORY)  # API answers need no model


def _last_pages(connection: Connection, source_id: str) -> list[DetailPage]:
    last = (
        select(extractions.c.id)
        .where(extractions.c.source_id == source_id)
        .order_by(extractions.c.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = (
        select(snapshots.c.size_bytes, snapshots.c.text_hash)
        .join(pages, pages.c.snapshot_id == snapshots.c.id)
        .where(pages.c.extraction_id == last, pages.c.page_type.in_(_BY_MODELS))
        .order_by(pages.c.id)
    )
    return [DetailPage(*row) for row in connection.execute(query)]


def _text_size(text_hash: str | None, content: ContentStore) -> int | None:
    if text_hash is None:
        return None
    try:
        return len(content.get(text_hash))
    except WorkError:  # lost on disk: the other samples suffice
        return None
