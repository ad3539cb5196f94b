"""Extract an extraction's stored pages again into a new dataset, without a single request.

For a changed schema, a better reader, or a model that was not configured the first time; its cost
is predicted before (`predict_rerun`).
"""

import math
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
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
from ingestion_pipeline.catalogs.extraction.cost import NO_MODEL, DetailPage, cost_with_models, text_sizes
from ingestion_pipeline.catalogs.extraction.record import MODEL_METHODS
from ingestion_pipeline.catalogs.extraction.rule_pipeline import has_rules, rule_reading
from ingestion_pipeline.catalogs.extraction.source_config import EntityConfig, load_entity_config
from ingestion_pipeline.catalogs.extraction.tasks import SNAPSHOT_COLUMNS, snapshot_columns_of, stored_content
from ingestion_pipeline.catalogs.operations.control import (
    InvalidState,
    UnknownExtraction,
    enabled_source,
    lock_extraction,
    refuse_running,
    requeue,
)
from ingestion_pipeline.catalogs.states import OPEN_PAGES, READ_PAGES, ExtractionKind, ExtractionStatus, PageStatus
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.audit import audit
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
    values = {
        "source_id": old.source_id,
        "status": ExtractionStatus.IN_PROGRESS.value,
        "recipe": old.recipe,
        "tracking_id": tracking_id,
        "page_count": old.page_count,
        "kind": ExtractionKind.RERUN.value,
        "entity_type": old.entity_type,
        "rerun_of": old.id,
        "config_version": old.config_version,
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
    model_pages = [page for page in tried if _needs_model(page, entity_config, settings, content)]
    sizes = text_sizes([DetailPage(page.size_bytes, page.text_hash) for page in model_pages], content)
    prediction = cost_with_models(entity_config.kind, sizes, settings)
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


def _needs_model(page: Row[Any], entity_config: EntityConfig, settings: Settings, content: ContentStore) -> bool:
    """Whether rules leave a part of the page open; if its content is lost, as the last time."""
    if not has_rules(entity_config.kind, entity_config.selectors):
        return True
    try:
        stored = stored_content(content, url=page.url, **snapshot_columns_of(page))
        return bool(rule_reading(entity_config, stored, settings).reason)
    except WorkError:
        return page.extraction_method in MODEL_METHODS
