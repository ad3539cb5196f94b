"""What a rerun would ask of models and cost, told before: rules are tried on what is stored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, exists, select

from ingestion_pipeline.catalogs.entities.declared import EntityConfig, declared
from ingestion_pipeline.catalogs.entities.ladder import has_rules
from ingestion_pipeline.catalogs.entities.predicting import Prediction, cost_with_models
from ingestion_pipeline.catalogs.entities.record import MODEL_RUNGS
from ingestion_pipeline.catalogs.entities.rule_reading import rule_reading
from ingestion_pipeline.catalogs.operating.control import UnknownExtraction
from ingestion_pipeline.catalogs.operating.rerunning import count_stored, is_stored, nothing_stored
from ingestion_pipeline.catalogs.readings.expected_cost import (
    NO_MODEL,
    DetailPage,
    could_tell,
    text_sizes,
)
from ingestion_pipeline.catalogs.readings.work import FORMS, forms_of, stored_content
from ingestion_pipeline.pages.content import ContentStore
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.tables import (
    extractions,
    model_answers,
    model_calls,
    pages,
    snapshots,
    sources,
)
from ingestion_pipeline.work.errors import WorkError

TRIED = 100  # pages that rules are tried on; of more, by their share


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunCost:
    """What a rerun would take: rather too much than too little; `cost_usd` None: no price."""

    pages: int
    calls: int
    cost_usd: Decimal | None
    note: str = ""


def predict_rerun(
    connection: Connection, extraction_id: int, *, settings: Settings, content: ContentStore
) -> RerunCost:
    """What a rerun would read, ask and cost under the present schema; it changes nothing.

    Raises:
        UnknownExtraction, Unfit: there is no such extraction, or nothing is stored of it.
        UnknownEntityType, BadEntityType, BadSelectors: its pages could not be read at all.
    """
    query = select(extractions.c.entity_type, sources.c.config).join(sources)
    row = connection.execute(query.where(extractions.c.id == extraction_id)).one_or_none()
    if row is None:
        raise UnknownExtraction(extraction_id)
    total = count_stored(connection, extraction_id)
    if not total:
        raise nothing_stored(extraction_id)
    wanted = declared(row.config, settings, entity=row.entity_type)
    if not settings.has_model and could_tell(wanted):
        return RerunCost(pages=total, calls=0, cost_usd=Decimal(0))
    unanswered = connection.execute(_unanswered(extraction_id, wanted.read_as(settings))).all()
    tried = unanswered[:: max(1, len(unanswered) // TRIED)]
    asked = [one for one in tried if _asks(one, wanted, settings, content)]
    sizes = text_sizes([DetailPage(one.size_bytes, one.text_hash) for one in asked], content)
    found = cost_with_models(wanted.kind, sizes, settings)
    share = len(unanswered) / len(tried) if tried else 1
    return RerunCost(
        pages=total,
        calls=math.ceil(found.calls * share),
        cost_usd=None if found.usd is None else found.usd * Decimal(share),
        note="; ".join(_notes(found, settings)),
    )


def _notes(found: Prediction, settings: Settings) -> Iterator[str]:
    if found.usd is None:
        yield "a model has no price; set models.prices"
    if found.calls and not settings.has_model:
        yield f"{NO_MODEL}: what needs one waits until it is there"


def _unanswered(extraction_id: int, read_as: str) -> Select[Any]:
    """The stored pages, but for those whose questions were the same and have their answers kept."""
    is_answered = exists().where(
        model_calls.c.extraction_id == pages.c.extraction_id,
        model_calls.c.page_id == pages.c.id,
        model_answers.c.cache_key == model_calls.c.cache_key,
    )
    return (
        select(pages.c.url, pages.c.rung, *(snapshots.c[name] for name in ("size_bytes", *FORMS)))
        .join(snapshots, snapshots.c.id == pages.c.snapshot_id)
        .where(
            pages.c.extraction_id == extraction_id,
            is_stored(),
            ~and_(pages.c.read_as.is_not_distinct_from(read_as), is_answered),
        )
        .order_by(pages.c.id)
    )


def _asks(page: Row[Any], wanted: EntityConfig, settings: Settings, content: ContentStore) -> bool:
    """Whether rules leave something of the page open; of what is lost, as the last reading did."""
    if not has_rules(wanted.kind, wanted.selectors):
        return True
    try:
        stored = stored_content(content, url=page.url, **forms_of(page))
        return bool(rule_reading(wanted.kind, stored, wanted.selectors, settings).reason)
    except WorkError:
        return page.rung in MODEL_RUNGS
