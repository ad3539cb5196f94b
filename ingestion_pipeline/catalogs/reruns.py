"""Extract an extraction's stored pages again into a new dataset, without a single request; estimate what models cost.

For a changed schema, a better reader, or a model that was not configured the first time; the cost
is predicted before (`predict_rerun`), as for the pages of any source (`cost_facts`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import uuid4

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    case,
    exists,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    update,
)

from ingestion_pipeline.catalogs.datasets.publishing import RERUN, newer_version
from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.model_methods import (
    LONG_TOKENS,
    PART_TOKENS,
    answer_schema,
    reading_question,
)
from ingestion_pipeline.catalogs.extraction.pipeline import has_rules, rule_reading
from ingestion_pipeline.catalogs.extraction.record import MODEL_METHODS
from ingestion_pipeline.catalogs.extraction.source_selectors import EntityConfig, learned_facts, load_entity_config
from ingestion_pipeline.catalogs.extraction.tasks import SNAPSHOT_COLUMNS, stored_content
from ingestion_pipeline.catalogs.extraction_control import (
    InvalidState,
    UnknownExtraction,
    enabled_source,
    lock_extraction,
    refuse_running,
    requeue,
)
from ingestion_pipeline.catalogs.extraction_reports import crawl_facts
from ingestion_pipeline.catalogs.recipes.detected_recipes import recipe_facts
from ingestion_pipeline.catalogs.recipes.recipe import PageType
from ingestion_pipeline.catalogs.states import OPEN_PAGES, READ_PAGES, ExtractionKind, ExtractionStatus, PageStatus
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.reading.llm import PageText, Usage
from ingestion_pipeline.reading.llm.ledger import cost_usd, estimated_usage, known_price
from ingestion_pipeline.reading.llm.question import MAX_OUTPUT_TOKENS, conversation
from ingestion_pipeline.settings import Settings, price_table
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.statements import audit
from ingestion_pipeline.store.tables import (
    crawl_steps,
    extractions,
    model_answers,
    model_calls,
    pages,
    snapshots,
    sources,
)
from ingestion_pipeline.store.types import Id, Json, UtcDateTime
from ingestion_pipeline.tasks.errors import WorkError
from ingestion_pipeline.terminal import counted

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


def predicted_cost(
    kind: EntityType, sizes: Iterable[int], settings: Settings, *, needs_key: bool = True
) -> CostEstimate:
    """Return the highest cost of pages of these sizes (bytes of cleaned text), if rules read none.

    Each part is counted for the cheap and for the strong model; the cost is zero where no model is
    configured, if it `needs_key`. Savings by cached answers are not included.
    """
    if needs_key and not settings.has_model:
        return CostEstimate(calls=0, tokens=0, usd=Decimal(0))
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
        input_bytes=overhead_bytes + -(-size // count), output_tokens=min(output_tokens, MAX_OUTPUT_TOKENS)
    )
    return [usage] * count


NO_MODEL = "no model configured (OPENAI_API_KEY or OPENAI_BASE_URL)"
SAMPLED = 25  # texts to measure; the size of the others is estimated from the body


class DetailPage(NamedTuple):
    """Size of a record page's body, and the hash of its stored text."""

    size_bytes: int
    text_hash: str | None


def catalog_facts(connection: Connection, source: Source, settings: Settings) -> dict[str, object]:
    """Return the recipe, the last extraction's progress, learned selectors and the next one's highest cost."""
    facts = recipe_facts(connection, source) | crawl_facts(connection, source.id)
    return facts | learned_facts(connection, source.id) | cost_facts(connection, source, settings)


def cost_facts(connection: Connection, source: Source, settings: Settings) -> dict[str, object]:
    """Return the highest cost of reading every page of the last extraction again, as text.

    Unchanged pages and cached answers cost nothing; the number of new pages is not known.
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
        cost = predicted_cost(entity_config.kind, sizes, settings, needs_key=False)
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
    last = select(func.max(extractions.c.id)).where(extractions.c.source_id == source_id).scalar_subquery()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """The new extraction, how many stored pages it extracts, and the `newer` version that stays published."""

    extraction_id: int
    pages: int
    newer: int | None = None

    @property
    def outlook(self) -> str:
        """What will happen to its dataset, for people."""
        if self.newer is None:
            return "published if it passes the quality gates"
        return (
            f"held back, since version {self.newer} is of a later crawl;"
            f" `ingest extractions publish {self.extraction_id}` publishes it anyway"
        )


def rerun(connection: Connection, extraction_id: int, *, actor: str, now: datetime, publish: bool = False) -> Rerun:
    """Start a new extraction over the pages that this one stored, into a new dataset.

    If a later crawl's dataset is published, the new one replaces it only with `publish`; else it is
    held back, and can be published by name.
    """
    old = lock_extraction(connection, extraction_id)
    refuse_running(connection, old.source_id)
    source = enabled_source(connection, old)
    _count_stored(connection, old.id)
    tracking_id = str(uuid4())
    new_id = _copy_extraction(connection, old, tracking_id, now=now)
    _copy_steps(connection, old.id, new_id, now=now)
    _copy_pages(connection, old.id, new_id, now=now)
    queued = requeue(connection, new_id, tracking_id, source, now=now)
    audit(
        connection,
        actor=actor,
        action=RERUN,
        subject=f"extraction:{new_id}",
        now=now,
        detail={"source": old.source_id, "of": old.id, "pages": queued.read, "publish": publish},
    )
    newer = None if publish else newer_version(connection, new_id, old.source_id, old.entity_type)
    return Rerun(extraction_id=new_id, pages=queued.read, newer=newer)


def is_stored() -> ColumnElement[bool]:
    """Match pages of records whose content is stored, whatever their extraction resulted in."""
    was_read = or_(
        pages.c.status.in_([PageStatus.DOWNLOADED.value, PageStatus.EXTRACTED_NO_DATA.value]),
        pages.c.reader_hash.is_not(None),
        and_(pages.c.status == PageStatus.ERROR.value, pages.c.page_type.in_(READ_PAGES)),
    )
    return and_(pages.c.snapshot_id.is_not(None), was_read)


def _count_stored(connection: Connection, extraction_id: int) -> int:
    """Return how many pages a rerun of this extraction extracts; raise if there is none."""
    query = select(func.count()).where(pages.c.extraction_id == extraction_id, is_stored())
    if not (count := connection.execute(query).scalar_one()):
        raise InvalidState(
            f"extraction {extraction_id} has stored no page with records, so there is nothing to read"
            f" again; `ingest extractions start SOURCE` fetches them"
        )
    return count


def _copy_extraction(connection: Connection, old: Row[Any], tracking_id: str, *, now: datetime) -> int:
    copied = ("source_id", "recipe", "page_count", "entity_type", "config_version")
    values: dict[str, Any] = {
        **{name: getattr(old, name) for name in copied},
        "status": ExtractionStatus.IN_PROGRESS.value,
        "tracking_id": tracking_id,
        "kind": ExtractionKind.RERUN.value,
        "rerun_of": old.id,
        "created_at": now,
        "updated_at": now,
    }
    statement = insert(extractions).values(values).returning(extractions.c.id)
    return connection.execute(statement).scalar_one()


def _copy_steps(connection: Connection, old_id: int, new_id: int, *, now: datetime) -> None:
    values = {
        "extraction_id": literal(new_id, Id),
        **{name: crawl_steps.c[name] for name in ("kind", "key", "page_type")},
        "created_at": literal(now, UtcDateTime()),
    }
    same = (
        select(*(value.label(name) for name, value in values.items()))
        .where(crawl_steps.c.extraction_id == old_id)
        .order_by(crawl_steps.c.id)
    )
    connection.execute(insert(crawl_steps).from_select(list(values), same))
    old, parent, new = (crawl_steps.alias(name) for name in ("old", "parent", "new"))
    parent_id = (
        select(new.c.id)
        .select_from(old)
        .join(parent, parent.c.id == old.c.parent_id)
        .join(new, and_(new.c.extraction_id == new_id, new.c.key == parent.c.key))
        .where(old.c.extraction_id == old_id, old.c.key == crawl_steps.c.key)
        .scalar_subquery()
    )
    of_new = crawl_steps.c.extraction_id == new_id
    connection.execute(update(crawl_steps).where(of_new).values(parent_id=parent_id))


def _copy_pages(connection: Connection, old_id: int, new_id: int, *, now: datetime) -> None:
    """Copy the pages: records are extracted again, lists stay, and unfetched pages fail."""
    new_step = crawl_steps.alias("new_step")
    is_open = pages.c.status.in_(OPEN_PAGES)
    unfetched = {
        "class": "permanent",
        "code": "not_fetched",
        "message": f"extraction {old_id} had not fetched it, and a rerun sends no requests",
    }
    status = case((is_stored(), PageStatus.DOWNLOADED.value), (is_open, PageStatus.ERROR.value), else_=pages.c.status)
    failure = case((is_stored(), null()), (is_open, literal(unfetched, Json)), else_=pages.c.failure)
    copied = ("url", "key", "host", "page_type", "position", "snapshot_id", "size_bytes")
    values: dict[str, ColumnElement[Any]] = {
        "extraction_id": literal(new_id, Id),
        "step_id": new_step.c.id,
        "status": status,
        "failure": failure,
        **{name: pages.c[name] for name in copied},
        "created_at": literal(now, UtcDateTime()),
    }
    same = (
        select(*(value.label(name) for name, value in values.items()))
        .select_from(pages)
        .join(crawl_steps, crawl_steps.c.id == pages.c.step_id)
        .join(new_step, new_step.c.key == crawl_steps.c.key)
        .where(pages.c.extraction_id == old_id, new_step.c.extraction_id == new_id)
        .order_by(pages.c.id)
    )
    connection.execute(insert(pages).from_select(list(values), same))


TRIED = 100  # pages that rules are tried on; larger extractions are extrapolated


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunCost:
    """The predicted cost of a rerun, rather too high than too low; `cost_usd` None: no price."""

    pages: int
    calls: int
    cost_usd: Decimal | None
    note: str = ""

    def __str__(self) -> str:
        """Return the prediction in words."""
        cost = "no price is known" if self.cost_usd is None else f"{self.cost_usd:f} dollars"
        calls = f"{counted(self.calls, 'model call')} at most"
        return f"{counted(self.pages, 'stored page')}, {calls}, {cost}{f' ({self.note})' if self.note else ''}"


def predict_rerun(
    connection: Connection, extraction_id: int, *, settings: Settings, content: ContentStore
) -> RerunCost:
    """Predict what a rerun would extract, ask and cost under the present schema; change nothing.

    Raises:
        UnknownExtraction, InvalidState: there is no such extraction, or nothing is stored of it.
        UnknownEntityType, BadEntityType, BadSelectors: its pages could not be read at all.
    """
    query = select(extractions.c.entity_type, sources.c.config).join(sources)
    row = connection.execute(query.where(extractions.c.id == extraction_id)).one_or_none()
    if row is None:
        raise UnknownExtraction(extraction_id)
    total = _count_stored(connection, extraction_id)
    entity_config = load_entity_config(row.config, settings, entity=row.entity_type)
    if not settings.has_model and entity_config.can_finish_by_rules:
        return RerunCost(pages=total, calls=0, cost_usd=Decimal(0))
    unanswered = connection.execute(_unanswered(extraction_id, entity_config.reader_hash(settings))).all()
    tried = unanswered[:: max(1, len(unanswered) // TRIED)]
    model_pages = [page for page in tried if _needs_model(page, entity_config, content)]
    sizes = text_sizes([DetailPage(page.size_bytes, page.text_hash) for page in model_pages], content)
    prediction = predicted_cost(entity_config.kind, sizes, settings, needs_key=False)
    share = len(unanswered) / len(tried) if tried else 1
    notes: list[str] = []
    if prediction.usd is None:
        notes.append("a model has no price; set models.prices")
    if prediction.calls and not settings.has_model:
        notes.append(f"{NO_MODEL}: pages that need one wait until it is configured")
    return RerunCost(
        pages=total,
        calls=math.ceil(prediction.calls * share),
        cost_usd=None if prediction.usd is None else prediction.usd * Decimal(share),
        note="; ".join(notes),
    )


def _unanswered(extraction_id: int, reader_hash: str) -> Select[Any]:
    """Select the stored pages, except those whose questions are unchanged and answered."""
    is_answered = exists().where(
        model_calls.c.extraction_id == pages.c.extraction_id,
        model_calls.c.page_id == pages.c.id,
        model_answers.c.cache_key == model_calls.c.cache_key,
    )
    return (
        select(
            pages.c.url, pages.c.extraction_method, *(snapshots.c[name] for name in ("size_bytes", *SNAPSHOT_COLUMNS))
        )
        .join(snapshots, snapshots.c.id == pages.c.snapshot_id)
        .where(
            pages.c.extraction_id == extraction_id,
            is_stored(),
            ~and_(pages.c.reader_hash.is_not_distinct_from(reader_hash), is_answered),
        )
        .order_by(pages.c.id)
    )


def _needs_model(page: Row[Any], entity_config: EntityConfig, content: ContentStore) -> bool:
    """Whether rules leave a part of the page open; if its content is lost, as the last time."""
    if not has_rules(entity_config.kind, entity_config.selectors):
        return True
    try:
        return bool(rule_reading(entity_config, stored_content(content, page)).reason)
    except WorkError:
        return page.extraction_method in MODEL_METHODS
