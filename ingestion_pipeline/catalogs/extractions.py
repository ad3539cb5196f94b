"""Start extractions: insert the extraction row, its steps, the root page and its first task."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, func, insert, select

from ingestion_pipeline.catalogs.datasets.publishing import published_dataset
from ingestion_pipeline.catalogs.extraction.source_config import entity_name
from ingestion_pipeline.catalogs.recipes.detected_recipes import ready_recipes
from ingestion_pipeline.catalogs.recipes.next_pages import ROOT, Step, root_url, steps_of
from ingestion_pipeline.catalogs.recipes.page_source import identity
from ingestion_pipeline.catalogs.recipes.recipe import recipe_of
from ingestion_pipeline.catalogs.states import UNFINISHED_PAGES, ExtractionKind, ExtractionStatus, PageStatus
from ingestion_pipeline.engine.crawling.protocol import FETCH_PAGE
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import CRAWLING, crawl_steps, extractions, pages, tasks
from ingestion_pipeline.tasks.task import TaskStatus
from ingestion_pipeline.urls import canonical_url, host_of


def start_extractions(connection: Connection, sources: Sequence[Source], *, now: datetime) -> dict[str, str]:
    """Ensure that each source has a running extraction with a root page; return a message for each.

    Raises:
        BadRecipe: a recipe that cannot be followed, which no declared source has.
    """
    active = _active(connection, [source.id for source in sources])
    outcomes = {
        source_id: f"extraction {id_} is already running: {waiting} pages waiting"
        for source_id, (id_, waiting) in active.items()
    }
    ready = ready_recipes(connection, [source for source in sources if source.id not in active], now=now)
    for source in sorted(sources, key=lambda source: source.id):  # one lock order for all callers
        match ready.get(source.id):
            case None:  # it is active
                pass
            case str() as why:
                outcomes[source.id] = why
            case raw:
                id_ = _start(connection, source, raw, now=now)
                outcomes[source.id] = f"extraction {id_} started" if id_ else "an extraction is already running"
    return outcomes


def _active(connection: Connection, source_ids: Collection[str]) -> dict[str, tuple[int, int]]:
    """Return the id and the number of unfinished pages of each source's running extraction."""
    waiting = (
        select(func.count())
        .where(pages.c.extraction_id == extractions.c.id, pages.c.status.in_(UNFINISHED_PAGES))
        .scalar_subquery()
    )
    query = select(extractions.c.source_id, extractions.c.id, waiting).where(
        CRAWLING, extractions.c.source_id.in_(list(source_ids))
    )
    return {source_id: (id_, count) for source_id, id_, count in connection.execute(query)}


def _start(connection: Connection, source: Source, raw: Mapping[str, Any], *, now: datetime) -> int | None:
    """Insert an extraction with its root page; return its id, None if another process was first."""
    recipe = recipe_of({"recipe": raw})
    tracking_id, entity = str(uuid4()), entity_name(source.config)
    kind = ExtractionKind.CRAWL if recipe.api is None else ExtractionKind.API
    statement = (
        insert_into(connection, extractions)
        .values(
            source_id=source.id,
            status=ExtractionStatus.WAITING.value,
            kind=kind.value,
            entity_type=entity,
            base_dataset_id=published_dataset(source.id, entity),
            recipe=dict(raw),
            tracking_id=tracking_id,
            page_count=1,
            config_version=source.config_version,
            created_at=now,
            updated_at=now,
        )
        .on_conflict_do_nothing(index_elements=["source_id"], index_where=CRAWLING)
        .returning(extractions.c.id)
    )
    extraction_id = connection.execute(statement).scalar_one_or_none()
    if extraction_id is None:
        return None
    step_ids = _insert_steps(connection, extraction_id, steps_of(recipe), now=now)
    url = canonical_url(root_url(recipe, source.url))
    row = {
        "extraction_id": extraction_id,
        "step_id": step_ids[ROOT],
        "url": url,
        "key": identity(url),
        "host": host_of(url),
        "status": PageStatus.WAITING.value,
        "page_type": recipe.page_type.value,
        "created_at": now,
    }
    page_id = connection.execute(insert(pages).values(row).returning(pages.c.id)).scalar_one()
    connection.execute(
        insert(tasks).values(
            kind=FETCH_PAGE,
            dedupe_key=f"{extraction_id}:{row['key']}",
            source_id=source.id,
            url=url,
            payload={"page": page_id, "extraction": extraction_id},
            status=TaskStatus.PENDING.value,
            priority=source.tier.priority,
            shard=source.shard,
            not_before=now,
            tracking_id=tracking_id,
            ancestry=[],
            created_at=now,
            updated_at=now,
        )
    )
    return extraction_id


def _insert_steps(
    connection: Connection, extraction_id: int, steps: Sequence[Step], *, now: datetime
) -> dict[str, int]:
    """Insert the recipe's steps, parents first; return their ids by key."""
    ids: dict[str, int] = {}
    for step in steps:  # a handful: a recipe has five levels at the most
        statement = insert(crawl_steps).values(
            extraction_id=extraction_id,
            parent_id=None if step.parent is None else ids[step.parent],
            kind=step.kind.value,
            key=step.key,
            page_type=step.recipe.page_type.value,
            created_at=now,
        )
        ids[step.key] = connection.execute(statement.returning(crawl_steps.c.id)).scalar_one()
    return ids
