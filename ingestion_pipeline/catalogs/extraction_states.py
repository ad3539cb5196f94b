"""Extractions, with the states of their pages and datasets: start one with its steps and first task, lock them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, ScalarSelect, func, insert, select, update

from ingestion_pipeline.catalogs.extraction.source_selectors import EntityConfig, entity_name
from ingestion_pipeline.catalogs.recipes.detected_recipes import ready_recipes
from ingestion_pipeline.catalogs.recipes.next_pages import ROOT, Step, identity, root_url, steps_of
from ingestion_pipeline.catalogs.recipes.recipe import content_selectors, recipe_of
from ingestion_pipeline.catalogs.states import (
    CRAWLING_STATES,
    EXTRACTION_TASKS,
    FETCH_PAGE,
    UNFINISHED_PAGES,
    DatasetStatus,
    ExtractionKind,
    ExtractionStatus,
    PageStatus,
)
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.statements import insert_into
from ingestion_pipeline.store.tables import (
    CRAWLING,
    FRONTIER,
    crawl_steps,
    datasets,
    extractions,
    pages,
    sources,
    tasks,
)
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask
from ingestion_pipeline.urls import canonical_url, host_of


def start_extractions(connection: Connection, sources: Sequence[Source], *, now: datetime) -> dict[str, str]:
    """Ensure that each source has a running extraction with a root page; return a message for each."""
    outcomes = _already_running(connection, [source.id for source in sources])
    ready = ready_recipes(connection, [source for source in sources if source.id not in outcomes], now=now)
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


def _already_running(connection: Connection, source_ids: Collection[str]) -> dict[str, str]:
    """Return a message for each source with a running extraction."""
    waiting = (
        select(func.count())
        .where(pages.c.extraction_id == extractions.c.id, pages.c.status.in_(UNFINISHED_PAGES))
        .scalar_subquery()
    )
    query = select(extractions.c.source_id, extractions.c.id, waiting).where(
        CRAWLING, extractions.c.source_id.in_(list(source_ids))
    )
    return {
        source_id: f"extraction {id_} is already running: {count} pages waiting"
        for source_id, id_, count in connection.execute(query)
    }


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
    root = NewTask(
        kind=FETCH_PAGE,
        dedupe_key=f"{extraction_id}:{row['key']}",
        not_before=now,
        priority=source.tier.priority,
        shard=source.shard,
        source_id=source.id,
        url=url,
        payload={"page": page_id, "extraction": extraction_id},
        tracking_id=tracking_id,
    )
    insert_tasks(connection, [root], now=now)
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


def published_dataset(source_id: str, entity: str, *, before_version: int | None = None) -> ScalarSelect[int]:
    """Select the source's newest published dataset, from which unchanged pages are taken."""
    query = select(datasets.c.id).where(
        datasets.c.source_id == source_id,
        datasets.c.entity_type == entity,
        datasets.c.status == DatasetStatus.PUBLISHED.value,
    )
    if before_version is not None:
        query = query.where(datasets.c.version < before_version)
    return query.order_by(datasets.c.version.desc()).limit(1).scalar_subquery()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveExtraction:
    """An extraction that is locked and running."""

    id: int
    source_id: str
    kind: ExtractionKind
    entity_type: str
    base_dataset_id: int | None
    config: Mapping[str, Any]
    recipe: Mapping[str, Any]

    def reader_hash(self, entity_config: EntityConfig, settings: Settings) -> str:
        """Return the reader hash: of the entity configuration and the content selectors."""
        name = entity_config.reader_hash(settings)
        parts = "\0".join(content_selectors(self.recipe)).strip("\0")
        return sha256(f"{name}\0{parts}".encode()).hexdigest() if parts else name


def lock_extractions(connection: Connection, ids: Collection[int], *, now: datetime) -> dict[int, ActiveExtraction]:
    """Lock these extractions for this transaction; return those that are active."""
    if not ids:
        return {}
    taken = ("id", "source_id", "entity_type", "base_dataset_id", "recipe", "config")
    columns = (*(extractions.c[name] for name in taken[:-1]), extractions.c.kind, extractions.c.status)
    query = select(*columns, sources.c.config).join(sources)
    locked = query.where(extractions.c.id.in_(list(ids))).order_by(extractions.c.id)
    rows = connection.execute(locked.with_for_update(of=extractions)).mappings().all()
    connection.execute(update(extractions).where(extractions.c.id.in_(list(ids))).values(updated_at=now))
    return {
        row["id"]: ActiveExtraction(kind=ExtractionKind(row["kind"]), **{name: row[name] for name in taken})
        for row in rows
        if row["status"] in CRAWLING_STATES
    }


def update_extraction_tasks(
    connection: Connection, *conditions: ColumnElement[bool], values: Mapping[str, Any], skip_locked: bool = False
) -> int:
    """Update the tasks of running extractions that match; return how many.

    They are locked in the order that every statement has: no deadlock.
    """
    matching = (
        select(tasks.c.id)
        .where(FRONTIER, tasks.c.kind.in_(EXTRACTION_TASKS), *conditions)
        .order_by(tasks.c.id)
        .with_for_update(skip_locked=skip_locked)
        .cte("matching")
    )
    return connection.execute(update(tasks).where(tasks.c.id.in_(select(matching.c.id))).values(**values)).rowcount
