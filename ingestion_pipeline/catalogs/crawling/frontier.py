"""The pages that wait: which sources have some, and what is to be done with those claimed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, and_, exists, or_, select, update

from ingestion_pipeline.catalogs.recipes.next_pages import Step, StepKind, steps_of
from ingestion_pipeline.catalogs.recipes.page_source import ListMemory
from ingestion_pipeline.catalogs.recipes.recipe import PageType, is_all_rendered, recipe_of
from ingestion_pipeline.catalogs.states import (
    CRAWLING_STATES,
    EXPLORED,
    OPEN_PAGES,
    ExtractionStatus,
    PageStatus,
)
from ingestion_pipeline.engine.crawling.protocol import (
    FETCH_PAGE,
    CrawlFilter,
    PageArchive,
    PageGone,
    PageWork,
)
from ingestion_pipeline.pages.visits.page import KnownPage, PageVisit
from ingestion_pipeline.sources import Source, SourceStatus
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store.tables import (
    CRAWLING,
    FRONTIER,
    crawl_steps,
    extractions,
    pages,
    tasks,
)
from ingestion_pipeline.tasks.task import Task, TaskStatus
from ingestion_pipeline.urls import host_of

CHANGED_AT = "changed_at"  # in a task's payload: when the site says that its page was changed last
LIST_MEMORY = "list_memory"  # in a task's payload: what the pages of its list have shown so far


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePlan:
    """Where a page stands in its catalogue; `steps` are all steps of its extraction, by key."""

    page_id: int
    extraction_id: int
    step: Step
    position: int | None
    known_as: str
    memory: ListMemory | None = None


def waiting_sources(
    connection: Connection,
    wanted: CrawlFilter,
    *,
    now: datetime,
    limit: int,
    kinds: Sequence[str] = (FETCH_PAGE,),
) -> list[Source]:
    """The sources with a page to be claimed, the longest untouched first; none that is disabled.

    `kinds` of tasks count: to fetch a page, to read one.
    """
    is_claimable = or_(
        tasks.c.status == TaskStatus.PENDING.value,
        and_(tasks.c.status == TaskStatus.PROCESSING.value, tasks.c.lease_until < now),
    )
    has_work = exists().where(
        FRONTIER,
        tasks.c.kind.in_(kinds),
        tasks.c.source_id == extractions.c.source_id,
        tasks.c.not_before <= now,
        is_claimable,
    )
    query = select(extractions.c.source_id).where(CRAWLING, has_work)
    if wanted.source_ids is not None:
        query = query.where(extractions.c.source_id.in_(list(wanted.source_ids)))
    ids = list(connection.execute(query.order_by(extractions.c.updated_at)).scalars())
    known = sources_by_id(connection, ids)
    found = [known[id_] for id_ in ids if id_ in known and _is_wanted(known[id_], wanted)]
    return found[:limit]


def _is_wanted(source: Source, wanted: CrawlFilter) -> bool:
    is_ours = wanted.shard is None or source.shard % wanted.shards == wanted.shard
    return is_ours and source.status is not SourceStatus.DISABLED


def open_pages(
    connection: Connection, claimed: Sequence[Task], *, archive: PageArchive
) -> list[PageWork | PageGone]:
    """What is to be done with each page, which is in progress from now on."""
    rows = _rows(connection, [task.payload.get("page") for task in claimed])
    sources = sources_by_id(connection, {task.source_id or "" for task in claimed})
    known = archive.known(connection, {row["url"] for row in rows.values()})
    opened = [_opened(task, rows, sources, known) for task in claimed]
    _mark_in_progress(connection, [one for one in opened if isinstance(one, PageWork)])
    return opened


def _rows(connection: Connection, ids: Sequence[Any]) -> dict[int, Mapping[str, Any]]:
    query = (
        select(
            pages.c.id,
            pages.c.url,
            pages.c.position,
            pages.c.extraction_id,
            crawl_steps.c.key.label("step"),
            extractions.c.recipe,
        )
        .join(crawl_steps, crawl_steps.c.id == pages.c.step_id)
        .join(extractions, extractions.c.id == pages.c.extraction_id)
        .where(
            pages.c.id.in_([id_ for id_ in ids if id_ is not None]),
            pages.c.status.in_(OPEN_PAGES),
            extractions.c.status.in_(CRAWLING_STATES),
        )
    )
    return {row["id"]: dict(row) for row in connection.execute(query).mappings()}


def _opened(
    task: Task,
    rows: Mapping[int, Mapping[str, Any]],
    sources: Mapping[str, Source],
    known: Mapping[str, KnownPage],
) -> PageWork | PageGone:
    row, source = rows.get(task.payload.get("page", 0)), sources.get(task.source_id or "")
    if row is None or source is None:
        return PageGone(task=task, why="its extraction has ended, or its source is gone")
    step = extraction_step(row["recipe"], row["step"])
    url: str = row["url"]
    return PageWork(
        task=task,
        source=source,
        visit=PageVisit(
            url=url,
            known=known.get(url),
            render=step.recipe.render or is_all_rendered(source.config),
            is_data=step.recipe.api is not None or step.recipe.page_type is PageType.SITEMAP,
            rendering=step.recipe.rendering,
            changed_at=_changed_at(task),
        ),
        plan=PagePlan(
            page_id=row["id"],
            extraction_id=row["extraction_id"],
            step=step,
            position=row["position"],
            known_as=url,
            memory=_list_memory(task),
        ),
    )


def _changed_at(task: Task) -> datetime | None:
    said = task.payload.get(CHANGED_AT)
    return None if said is None else datetime.fromisoformat(said)


def _list_memory(task: Task) -> ListMemory | None:
    kept = task.payload.get(LIST_MEMORY)
    return None if kept is None else ListMemory.from_payload(kept)


def extraction_step(recipe: Mapping[str, Any], key: str) -> Step:
    """A step of the recipe as the extraction's row keeps it, or one that exploring made."""
    steps = extraction_steps(json.dumps(recipe, sort_keys=True))
    return steps.get(key) or explored_step(steps, key)


@lru_cache(maxsize=500)
def extraction_steps(recipe: str) -> dict[str, Step]:
    """The steps of a recipe as the extraction's row keeps it, by key."""
    return {step.key: step for step in steps_of(recipe_of({"recipe": json.loads(recipe)}))}


def explored_step(steps: Mapping[str, Step], key: str) -> Step:
    """A step that no recipe names: its pages hold records as those it was explored from do."""
    parent = key.removesuffix(EXPLORED)
    origin = steps.get(parent) or explored_step(steps, parent)
    recipe = replace(origin.recipe, page_type=PageType.DETAIL, pagination=None)
    return Step(key=key, kind=StepKind.FETCH_LINKS, parent=parent, recipe=recipe)


def _mark_in_progress(connection: Connection, opened: Sequence[PageWork]) -> None:
    """Also the extraction, with its first page; it comes first, as `locking` has it."""
    if not opened:
        return
    waiting = (
        select(extractions.c.id)
        .where(
            extractions.c.id.in_({work.plan.extraction_id for work in opened}),
            extractions.c.status == ExtractionStatus.WAITING.value,
        )
        .order_by(extractions.c.id)
        .with_for_update(key_share=True)
        .cte("waiting")
    )
    begun = update(extractions).where(extractions.c.id.in_(select(waiting.c.id)))
    connection.execute(begun.values(status=ExtractionStatus.IN_PROGRESS.value))
    connection.execute(
        update(pages)
        .where(
            pages.c.id.in_([work.plan.page_id for work in opened]),
            pages.c.status == PageStatus.WAITING.value,
        )
        .values(status=PageStatus.IN_PROGRESS.value)
    )


def without_progress(
    connection: Connection, works: Sequence[PageWork], *, since: datetime
) -> set[int]:
    """The tasks of these whose extraction has got no page of their host since then."""
    plans: Sequence[PagePlan] = [work.plan for work in works]
    places = {
        work.task.id: (plan.extraction_id, host_of(work.visit.url))
        for work, plan in zip(works, plans, strict=True)
    }
    query = select(pages.c.extraction_id, pages.c.host).where(
        pages.c.extraction_id.in_({id_ for id_, _ in places.values()}),
        pages.c.host.in_({host for _, host in places.values()}),
        pages.c.status.not_in([*OPEN_PAGES, PageStatus.ERROR.value]),
        pages.c.visited_at >= since,
    )
    alive = {(id_, host) for id_, host in connection.execute(query.distinct())}
    return {task_id for task_id, place in places.items() if place not in alive}
