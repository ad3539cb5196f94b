"""Reading an extraction's stored pages again into a new dataset, without a single request.

For another schema, a better reader, or a model that was not there the first time. What it would
cost is told before: the pages whose answers are not kept, by the size of what is stored of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
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

from ingestion_pipeline.catalogs.control import (
    Unfit,
    UnknownExtraction,
    find,
    refuse_running,
    source_of,
)
from ingestion_pipeline.catalogs.entities.record import Rung
from ingestion_pipeline.catalogs.requeueing import requeue
from ingestion_pipeline.catalogs.states import (
    OPEN_PAGES,
    ExtractionKind,
    ExtractionStatus,
    PageStatus,
)
from ingestion_pipeline.pages.content import ContentStore
from ingestion_pipeline.reading.models.prices import cost_usd, estimated_usage, known_price
from ingestion_pipeline.settings import Settings, price_table
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.tables import (
    crawl_steps,
    extractions,
    model_answers,
    model_calls,
    pages,
    snapshots,
)
from ingestion_pipeline.store.types import Id, Json, UtcDateTime
from ingestion_pipeline.work.errors import WorkError

RECORD_PAGES = ("DETAIL", "API_REQUEST")
MODEL_RUNGS = (Rung.CHEAP_MODEL.value, Rung.STRONG_MODEL.value)
BY_RULES = frozenset({"course"})  # entities that are read without a model
MEASURED = 100  # pages, for the length of their text
ANSWER_TOKENS = 600  # of a page with one record; as the ledger shows, most are shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a rerun would take: rather too much than too little; `cost_usd` None: no price."""

    pages: int
    calls: int
    cost_usd: Decimal | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """The new extraction, and how many stored pages it reads."""

    extraction_id: int
    pages: int


def rerun(connection: Connection, extraction_id: int, *, actor: str, now: datetime) -> Rerun:
    """A new extraction over the pages that this one stored, read again into a new dataset."""
    old = find(connection, extraction_id)
    refuse_running(connection, old.source_id)
    source = source_of(connection, old)
    if not _count(connection, old.id):
        raise _nothing_stored(old.id)
    tracking_id = str(uuid4())
    new_id = _copy_extraction(connection, old, tracking_id, now=now)
    _copy_steps(connection, old.id, new_id, now=now)
    _copy_pages(connection, old.id, new_id, now=now)
    queued = requeue(connection, new_id, tracking_id, source, now=now)
    audit(
        connection,
        actor=actor,
        action="extraction.rerun",
        subject=f"extraction:{new_id}",
        now=now,
        detail={"source": old.source_id, "of": old.id, "pages": queued.read},
    )
    return Rerun(extraction_id=new_id, pages=queued.read)


def _nothing_stored(extraction_id: int) -> Unfit:
    return Unfit(
        f"extraction {extraction_id} has stored no page with records, so there is nothing to read"
        f" again; `ingest extractions start SOURCE` fetches them"
    )


def _is_stored() -> ColumnElement[bool]:
    """A page of records whose content is kept, whatever its reading came to."""
    was_read = or_(
        pages.c.status.in_([PageStatus.DOWNLOADED.value, PageStatus.EXTRACTED_NO_DATA.value]),
        pages.c.read_as.is_not(None),
        and_(pages.c.status == PageStatus.ERROR.value, pages.c.page_type.in_(RECORD_PAGES)),
    )
    return and_(pages.c.snapshot_id.is_not(None), was_read)


def _count(connection: Connection, extraction_id: int) -> int:
    query = select(func.count()).where(pages.c.extraction_id == extraction_id, _is_stored())
    return connection.execute(query).scalar_one()


def _copy_extraction(
    connection: Connection, old: Row[Any], tracking_id: str, *, now: datetime
) -> int:
    values = {
        "source_id": old.source_id,
        "status": ExtractionStatus.IN_PROGRESS.value,
        "recipe": old.recipe,
        "tracking_id": tracking_id,
        "page_count": old.page_count,
        "kind": ExtractionKind.RERUN.value,
        "entity_type": old.entity_type,
        "rerun_of": old.id,
        "created_at": now,
        "updated_at": now,
    }
    statement = insert(extractions).values(values).returning(extractions.c.id)
    return connection.execute(statement).scalar_one()


def _copy_steps(connection: Connection, old_id: int, new_id: int, *, now: datetime) -> None:
    values = {
        "extraction_id": literal(new_id, Id),
        "kind": crawl_steps.c.kind,
        "key": crawl_steps.c.key,
        "page_type": crawl_steps.c.page_type,
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
    """Pages of records are to be read, lists stay as they were; what was not fetched is not now."""
    new_step = crawl_steps.alias("new_step")
    is_open = pages.c.status.in_(OPEN_PAGES)
    unfetched = {
        "class": "permanent",
        "code": "not_fetched",
        "message": f"extraction {old_id} had not fetched it, and a rerun asks nobody",
    }
    status = case(
        (_is_stored(), PageStatus.DOWNLOADED.value),
        (is_open, PageStatus.ERROR.value),
        else_=pages.c.status,
    )
    failure = case(
        (_is_stored(), null()),
        (is_open, literal(unfetched, Json)),
        else_=pages.c.failure,
    )
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


def predict_rerun(
    connection: Connection,
    extraction_id: int,
    *,
    settings: Settings,
    content: ContentStore,
    read_as: str | None = None,
) -> Prediction:
    """What a rerun would read, ask and cost, by what is stored; it changes nothing.

    `read_as` is the reader's present hash: pages read as that have their answers kept. Without it
    every page that a model would be asked about is counted.
    """
    query = select(extractions.c.id, extractions.c.entity_type)
    row = connection.execute(query.where(extractions.c.id == extraction_id)).one_or_none()
    if row is None:
        raise UnknownExtraction(extraction_id)
    total = _count(connection, extraction_id)
    if not total:
        raise _nothing_stored(extraction_id)
    needs = _needs_model(row.entity_type, read_as)
    asked = _to_ask(connection, extraction_id, needs)
    if not settings.has_model:
        note = "" if row.entity_type in BY_RULES else "no model configured: it would be postponed"
        return Prediction(pages=total, calls=0, cost_usd=Decimal(0), note=note)
    price = known_price(settings.model_cheap, price_table(settings.models.prices))
    size = _text_bytes(connection, extraction_id, needs, content)
    usage = estimated_usage(input_bytes=round(asked * size), output_tokens=asked * ANSWER_TOKENS)
    if price is None and asked:
        note = f"no price is known for {settings.model_cheap}; set models.prices"
        return Prediction(pages=total, calls=asked, cost_usd=None, note=note)
    cost = Decimal(0) if price is None else cost_usd(usage, price)
    return Prediction(pages=total, calls=asked, cost_usd=cost)


def _needs_model(entity_type: str, read_as: str | None) -> ColumnElement[bool]:
    """The pages that rules were not enough for, unless the same question has its answer kept."""
    by_model = pages.c.rung.in_(MODEL_RUNGS)
    needs = by_model if entity_type in BY_RULES else pages.c.id.is_not(None)
    if read_as is None:
        return needs
    answered = exists().where(
        model_calls.c.extraction_id == pages.c.extraction_id,
        model_calls.c.page_id == pages.c.id,
        model_answers.c.cache_key == model_calls.c.cache_key,
    )
    return and_(needs, ~and_(pages.c.read_as == read_as, answered))


def _to_ask(connection: Connection, extraction_id: int, needs: ColumnElement[bool]) -> int:
    query = select(func.count()).where(pages.c.extraction_id == extraction_id, _is_stored(), needs)
    return connection.execute(query).scalar_one()


def _text_bytes(
    connection: Connection,
    extraction_id: int,
    needs: ColumnElement[bool],
    content: ContentStore,
) -> float:
    """How long the text of such a page is, by some of them; by its body, if no text is kept."""
    query = (
        select(snapshots.c.text_hash, snapshots.c.size_bytes)
        .select_from(pages)
        .join(snapshots, snapshots.c.id == pages.c.snapshot_id)
        .where(pages.c.extraction_id == extraction_id, _is_stored(), needs)
        .order_by(pages.c.id)
        .limit(MEASURED)
    )
    sizes = [_size(content, row.text_hash) or row.size_bytes for row in connection.execute(query)]
    return sum(sizes) / len(sizes) if sizes else 0.0


def _size(content: ContentStore, text_hash: str | None) -> int:
    try:
        return len(content.get(text_hash)) if text_hash else 0
    except WorkError:  # its object is gone, or damaged: the body's size will do
        return 0
