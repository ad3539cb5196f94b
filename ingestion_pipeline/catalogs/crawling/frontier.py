"""The frontier, the waiting pages of catalogues: which sources have some, and the work for claimed tasks."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, exists, or_, select, update

from ingestion_pipeline.catalogs.recipes.next_pages import Step, StepKind, steps_of
from ingestion_pipeline.catalogs.recipes.page_source import ListMemory
from ingestion_pipeline.catalogs.recipes.recipe import PageType, is_all_rendered, recipe_of
from ingestion_pipeline.catalogs.states import (
    CRAWLING_STATES,
    EXPLORED,
    FETCH_PAGE,
    OPEN_PAGES,
    ExtractionStatus,
    PageStatus,
)
from ingestion_pipeline.engine.outcomes import Skipped
from ingestion_pipeline.pages.content.snapshots import SnapshotArchive
from ingestion_pipeline.pages.visits.page import KnownPage, PageVisit
from ingestion_pipeline.sources import Source, SourceStatus
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store.tables import CRAWLING, FRONTIER, crawl_steps, extractions, pages, tasks
from ingestion_pipeline.tasks.task import Task, TaskStatus
from ingestion_pipeline.urls import host_of

CHANGED_AT = "changed_at"  # in a task's payload: when the site says that its page was changed last
LIST_MEMORY = "list_memory"  # in a task's payload: what the pages of its list have shown so far


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlFilter:
    """Which pages a run crawls: those of a shard, or of the requested sources."""

    shard: int | None = None
    shards: int = 1
    source_ids: Collection[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageWork:
    """A claimed page to fetch, and its place in its extraction: its step, position and list memory."""

    task: Task
    source: Source
    visit: PageVisit
    page_id: int
    extraction_id: int
    step: Step
    position: int | None
    memory: ListMemory | None

    @property
    def host(self) -> str:
        """The host of the page."""
        return host_of(self.visit.url)


class KnownPageCache:
    """Keys of pages that are in the database already, by crawl: most links lead to such pages.

    A hint in front of the database query, bounded in size: when full it drops everything.
    """

    def __init__(self, most: int = 4_000) -> None:
        self._most = most
        self._count = 0
        self._keys: dict[int, set[str]] = {}

    def of(self, walk_id: int) -> Collection[str]:
        """Return the cached page keys of the crawl."""
        return self._keys.get(walk_id, ())

    def add(self, walk_id: int, keys: Collection[str]) -> None:
        """Add keys that existed before the current transaction, which may still be rolled back."""
        if self._count + len(keys) > self._most:
            self._keys.clear()
            self._count = 0
        if len(keys) <= self._most:
            stored_keys = self._keys.setdefault(walk_id, set())
            before = len(stored_keys)
            stored_keys.update(keys)
            self._count += len(stored_keys) - before


def waiting_sources(
    connection: Connection,
    crawl_filter: CrawlFilter,
    *,
    now: datetime,
    limit: int,
    kinds: Sequence[str] = (FETCH_PAGE,),
) -> list[Source]:
    """Return enabled sources with a claimable task of these kinds, least recently updated first."""
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
    if crawl_filter.source_ids is not None:
        query = query.where(extractions.c.source_id.in_(list(crawl_filter.source_ids)))
    ids = list(connection.execute(query.order_by(extractions.c.updated_at)).scalars())
    by_id = sources_by_id(connection, ids)
    shard, shards = crawl_filter.shard, crawl_filter.shards
    matching = [
        source
        for source in (by_id[id_] for id_ in ids if id_ in by_id)
        if (shard is None or source.shard % shards == shard) and source.status is not SourceStatus.DISABLED
    ]
    return matching[:limit]


def open_pages(
    connection: Connection, claimed: Sequence[Task], *, archive: SnapshotArchive
) -> list[PageWork | Skipped[PageWork]]:
    """Return the work for each claimed task, and mark these pages as in progress."""
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
            pages.c.id.in_([task.payload["page"] for task in claimed if task.payload.get("page") is not None]),
            pages.c.status.in_(OPEN_PAGES),
            extractions.c.status.in_(CRAWLING_STATES),
        )
    )
    rows = {row["id"]: row for row in connection.execute(query).mappings()}
    sources = sources_by_id(connection, {task.source_id or "" for task in claimed})
    stored_pages = archive.known_pages(connection, {row["url"] for row in rows.values()})
    opened = [_page_work(task, rows, sources, stored_pages) for task in claimed]
    _mark_in_progress(connection, [work for work in opened if isinstance(work, PageWork)])
    return opened


def _page_work(
    task: Task,
    rows: Mapping[int, RowMapping],
    sources: Mapping[str, Source],
    stored_pages: Mapping[str, KnownPage],
) -> PageWork | Skipped[PageWork]:
    row, source = rows.get(task.payload.get("page", 0)), sources.get(task.source_id or "")
    if row is None or source is None:
        return Skipped(task=task, reason="its extraction has ended, or its source is gone", code="page_gone")
    step = extraction_step(row["recipe"], row["step"])
    url: str = row["url"]
    changed_at, memory = task.payload.get(CHANGED_AT), task.payload.get(LIST_MEMORY)
    return PageWork(
        task=task,
        source=source,
        visit=PageVisit(
            url=url,
            known_page=stored_pages.get(url),
            render=step.recipe.render or is_all_rendered(source.config),
            is_data=step.recipe.api is not None or step.recipe.page_type is PageType.SITEMAP,
            rendering=step.recipe.rendering,
            changed_at=None if changed_at is None else datetime.fromisoformat(changed_at),
        ),
        page_id=row["id"],
        extraction_id=row["extraction_id"],
        step=step,
        position=row["position"],
        memory=None if memory is None else ListMemory.from_payload(memory),
    )


def extraction_step(recipe: Mapping[str, Any], key: str) -> Step:
    """Return a step of the stored recipe, or one that exploring made: it holds records like those it started from."""
    if (step := _extraction_steps(json.dumps(recipe, sort_keys=True)).get(key)) is not None:
        return step
    parent = key.removesuffix(EXPLORED)
    explored = replace(extraction_step(recipe, parent).recipe, page_type=PageType.DETAIL, pagination=None)
    return Step(key=key, kind=StepKind.FETCH_LINKS, parent=parent, recipe=explored)


@lru_cache(maxsize=500)
def _extraction_steps(recipe: str) -> dict[str, Step]:
    """Return the steps of a recipe stored in the extraction's row, by key."""
    return {step.key: step for step in steps_of(recipe_of({"recipe": json.loads(recipe)}))}


def _mark_in_progress(connection: Connection, opened: Sequence[PageWork]) -> None:
    """Mark extractions, then pages, as in progress: the lock order of `store.locking`."""
    if not opened:
        return
    waiting = (
        select(extractions.c.id)
        .where(
            extractions.c.id.in_({work.extraction_id for work in opened}),
            extractions.c.status == ExtractionStatus.WAITING.value,
        )
        .order_by(extractions.c.id)
        .with_for_update(key_share=True)
        .cte("waiting")
    )
    started = update(extractions).where(extractions.c.id.in_(select(waiting.c.id)))
    connection.execute(started.values(status=ExtractionStatus.IN_PROGRESS.value))
    connection.execute(
        update(pages)
        .where(pages.c.id.in_([work.page_id for work in opened]), pages.c.status == PageStatus.WAITING.value)
        .values(status=PageStatus.IN_PROGRESS.value)
    )


def without_progress(connection: Connection, works: Sequence[PageWork], *, since: datetime) -> set[int]:
    """Return the tasks of these whose extraction has fetched no page of their host since then."""
    places = {work.task.id: (work.extraction_id, work.host) for work in works}
    query = select(pages.c.extraction_id, pages.c.host).where(
        pages.c.extraction_id.in_({id_ for id_, _ in places.values()}),
        pages.c.host.in_({host for _, host in places.values()}),
        pages.c.status.not_in([*OPEN_PAGES, PageStatus.ERROR.value]),
        pages.c.visited_at >= since,
    )
    alive = {(id_, host) for id_, host in connection.execute(query.distinct())}
    return {task_id for task_id, place in places.items() if place not in alive}
