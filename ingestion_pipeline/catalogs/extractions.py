"""Extractions begin with a root page and end when no page waits, or when the root was not got."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, and_, exists, func, insert, null, select, update

from ingestion_pipeline.catalogs.recipe import recipe_of
from ingestion_pipeline.catalogs.recipes import entity_of, ready_recipes
from ingestion_pipeline.catalogs.seen import identity
from ingestion_pipeline.catalogs.states import (
    CRAWLING_STATES,
    OPEN_PAGES,
    ExtractionStatus,
    PageStatus,
)
from ingestion_pipeline.catalogs.steps import ROOT, Step, root_url, steps_of
from ingestion_pipeline.pages.crawled import FETCH_PAGE
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.insert import insert_into
from ingestion_pipeline.store.tables import (
    CRAWLING,
    FRONTIER,
    crawl_steps,
    extractions,
    pages,
    tasks,
)
from ingestion_pipeline.urls import canonical_url, host_of
from ingestion_pipeline.work.task import TaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An extraction that has just ended: complete, or not, and then why."""

    id: int
    source_id: str
    is_complete: bool
    failure: Mapping[str, Any] | None
    page_count: int


def start_extractions(
    connection: Connection, sources: Sequence[Source], *, now: datetime
) -> dict[str, str]:
    """Each source has an extraction under way, with its root page; a word for people on each.

    Raises:
        BadRecipe: a recipe that cannot be followed, which no declared source has.
    """
    active = _active(connection, [source.id for source in sources])
    said = {
        source_id: f"extraction {id_} goes on: {waiting} pages wait"
        for source_id, (id_, waiting) in active.items()
    }
    ready = ready_recipes(connection, [one for one in sources if one.id not in active], now=now)
    for source in sources:
        match ready.get(source.id):
            case None:  # it is active
                pass
            case str() as why:
                said[source.id] = why
            case raw:
                id_ = _start(connection, source, raw, now=now)
                said[source.id] = f"extraction {id_} started" if id_ else "an extraction goes on"
    return said


def _active(connection: Connection, source_ids: Collection[str]) -> dict[str, tuple[int, int]]:
    waiting = (
        select(func.count())
        .where(pages.c.extraction_id == extractions.c.id, pages.c.status.in_(OPEN_PAGES))
        .scalar_subquery()
    )
    query = select(extractions.c.source_id, extractions.c.id, waiting).where(
        CRAWLING, extractions.c.source_id.in_(list(source_ids))
    )
    return {source_id: (id_, count) for source_id, id_, count in connection.execute(query)}


def _start(
    connection: Connection, source: Source, raw: Mapping[str, Any], *, now: datetime
) -> int | None:
    """The new extraction's id; None if another process was first."""
    recipe = recipe_of({"recipe": raw})
    tracking_id = str(uuid4())
    statement = (
        insert_into(connection, extractions)
        .values(
            source_id=source.id,
            status=ExtractionStatus.WAITING.value,
            recipe=dict(raw),
            kind="crawl" if recipe.api is None else "api",
            entity_type=entity_of(source.config),
            tracking_id=tracking_id,
            page_count=1,
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


def end_extractions(
    connection: Connection, extraction_ids: Collection[int], *, now: datetime
) -> list[Ended]:
    """Those of these that no page keeps open have ended: complete, unless the root has failed.

    A failed root is never complete: it is stale, with the root's own failure.
    """
    if not extraction_ids:
        return []
    other = pages.alias("other")
    is_open = exists().where(
        other.c.extraction_id == extractions.c.id, other.c.status.in_(OPEN_PAGES)
    )
    root = (
        select(extractions.c.id, pages.c.failure)
        .join(pages, pages.c.extraction_id == extractions.c.id)
        .join(
            crawl_steps,
            and_(
                crawl_steps.c.id == pages.c.step_id,
                crawl_steps.c.key == ROOT,
            ),
        )
        .where(
            extractions.c.id.in_(list(extraction_ids)),
            extractions.c.status.in_(CRAWLING_STATES),
            ~is_open,
        )
    )
    failures: dict[int, Any] = {row.id: row.failure for row in connection.execute(root)}
    ended: list[Ended] = []
    for id_, failure in sorted(failures.items()):
        status = ExtractionStatus.STALE if failure else ExtractionStatus.COMPLETE
        statement = (
            update(extractions)
            .where(extractions.c.id == id_, CRAWLING)
            .values(status=status.value, failure=failure or null(), finished_at=now, updated_at=now)
            .returning(extractions.c.source_id, extractions.c.page_count)
        )
        row = connection.execute(statement).one_or_none()
        if row is not None:
            is_complete = status is ExtractionStatus.COMPLETE
            ended.append(
                Ended(
                    id=id_,
                    source_id=row.source_id,
                    is_complete=is_complete,
                    failure=failure,
                    page_count=row.page_count,
                )
            )
    return ended


def cancel_extractions(
    connection: Connection, reasons: Mapping[int, Mapping[str, Any]], *, now: datetime
) -> list[Ended]:
    """These have ended where they are, each for its reason; what waits of them is not fetched."""
    ended: list[Ended] = []
    for id_, reason in sorted(reasons.items()):
        cancelled = {"status": ExtractionStatus.CANCELLED.value, "failure": dict(reason)}
        statement = (
            update(extractions)
            .where(extractions.c.id == id_, CRAWLING)
            .values(**cancelled, finished_at=now, updated_at=now)
            .returning(extractions.c.source_id, extractions.c.page_count)
        )
        row = connection.execute(statement).one_or_none()
        if row is not None:
            _cancel_tasks(connection, row.source_id, now=now)
            ended.append(
                Ended(
                    id=id_,
                    source_id=row.source_id,
                    is_complete=False,
                    failure=reason,
                    page_count=row.page_count,
                )
            )
    return ended


def _cancel_tasks(connection: Connection, source_id: str, *, now: datetime) -> None:
    waiting = (
        select(tasks.c.id)
        .where(
            FRONTIER,
            tasks.c.kind == FETCH_PAGE,
            tasks.c.source_id == source_id,
            tasks.c.status == TaskStatus.PENDING.value,
        )
        .order_by(tasks.c.id)  # as every statement locks tasks: no two wait for each other
        .with_for_update()
        .cte("waiting")
    )
    connection.execute(
        update(tasks)
        .where(tasks.c.id.in_(select(waiting.c.id)))
        .values(status=TaskStatus.CANCELLED.value, updated_at=now)
    )
