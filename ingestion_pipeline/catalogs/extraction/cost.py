"""What reading pages by models may cost, known before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import NamedTuple

from sqlalchemy import Connection, select

from ingestion_pipeline.catalogs.crawling.reporting import crawl_facts
from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.prompts import (
    LONG_TOKENS,
    PART_TOKENS,
    answer_schema,
    reading_question,
)
from ingestion_pipeline.catalogs.extraction.rule_pipeline import COURSE, has_rules
from ingestion_pipeline.catalogs.extraction.source_config import EntityConfig, declared
from ingestion_pipeline.catalogs.learning.learned_selectors import learned_facts
from ingestion_pipeline.catalogs.recipes.recipe import PageType
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.reading.llm import PageText, Usage
from ingestion_pipeline.reading.llm.budgets import cost_usd, estimated_usage, known_price
from ingestion_pipeline.reading.llm.question import conversation
from ingestion_pipeline.settings import Settings, price_table
from ingestion_pipeline.sources import Kind, Source
from ingestion_pipeline.store.tables import extractions, pages, snapshots
from ingestion_pipeline.tasks.errors import WorkError

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


NO_MODEL = "no model configured (OPENAI_API_KEY or OPENAI_BASE_URL)"
SAMPLED = 25  # texts that are measured; of the others only the size of the body is known


class DetailPage(NamedTuple):
    """A page of records: the size of its body, and the object that is its text."""

    size_bytes: int
    text_hash: str | None


def catalog_facts(connection: Connection, source: Source, settings: Settings) -> dict[str, object]:
    """How far the source's last extraction is, what was learned, and what the next may cost."""
    facts = crawl_facts(connection, source.id) | learned_facts(connection, source.id)
    return facts | cost_facts(connection, source, settings)


def cost_facts(connection: Connection, source: Source, settings: Settings) -> dict[str, object]:
    """What reading every page of the last extraction anew would cost at most, for people to read.

    Nothing for what is no catalogue. Unchanged pages and answers that are kept cost nothing; what
    there will be new is not known.
    """
    if source.kind is not Kind.CATALOG:
        return {}
    try:
        wanted = declared(source.config, settings)
    except ValueError as error:
        return {"predicted_cost": f"not known: {error}"}
    content = ContentStore(settings.home / "content")
    sizes = text_sizes(_last_pages(connection, source.id), content)
    if not sizes:
        return {"predicted_cost": "not known before pages were visited"}
    if not settings.has_model and not could_tell(wanted):
        found = cost_with_models(wanted.kind, sizes, settings)
        said = f"once there is a model: {found}, for {len(sizes)} pages; {NO_MODEL}"
        return {"predicted_cost": said}
    found = predicted_cost(wanted.kind, sizes, settings)
    said = f"{found}, for {len(sizes)} pages"
    if found.calls and has_rules(wanted.kind, wanted.selectors):
        said += "; a page that rules read, or that is unchanged, costs nothing"
    return {"predicted_cost": said}


def could_tell(wanted: EntityConfig) -> bool:
    """Whether rules may have the last word where no model is: else its pages wait for one."""
    return wanted.kind.name == COURSE or wanted.selectors is not None


def text_sizes(rows: Sequence[DetailPage], content: ContentStore) -> list[int]:
    """Bytes of each page's cleaned text: of some measured, of the others by their share."""
    step = max(1, len(rows) // SAMPLED)
    measured = [
        (row.size_bytes, size)
        for row in rows[::step]
        if row.size_bytes and (size := _text_size(row.text_hash, content)) is not None
    ]
    bodies = sum(body for body, _ in measured)
    share = sum(size for _, size in measured) / bodies if bodies else 1.0
    return [round(row.size_bytes * share) for row in rows]


_BY_MODELS = (PageType.DETAIL, PageType.EXPLORATORY)  # an API's answer needs none


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
    except WorkError:  # lost on disk: others tell as much
        return None
