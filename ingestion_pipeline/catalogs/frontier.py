"""The frontier, the waiting pages of catalogues: which sources have some, and what fetched pages add, each page once.

Most links of a crawl are duplicates: they are dropped before anything is sent to the database, and
then by one anti-join for each extraction.
"""

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

from sqlalchemy import (
    Connection,
    Integer,
    RowMapping,
    Select,
    Text,
    and_,
    bindparam,
    exists,
    func,
    literal,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningInsert

from ingestion_pipeline.catalogs.extraction.record import PageContent
from ingestion_pipeline.catalogs.recipes.next_pages import (
    Followed,
    FollowedLink,
    ListMemory,
    Step,
    StepKind,
    identity,
    steps_of,
)
from ingestion_pipeline.catalogs.recipes.recipe import PageType, is_all_rendered, recipe_of
from ingestion_pipeline.catalogs.states import (
    CRAWLING_STATES,
    EXPLORED,
    FETCH_PAGE,
    OPEN_PAGES,
    ExtractionStatus,
    PageStatus,
)
from ingestion_pipeline.engine.handler import Skipped
from ingestion_pipeline.pages.content.snapshots import SnapshotArchive
from ingestion_pipeline.pages.visits.page import KnownPage, PageVisit
from ingestion_pipeline.reading.html.links import canonical_or_none, linked_page
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source, SourceStatus
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store.statements import audit, insert_for, insert_into, row_document, row_source, row_table
from ingestion_pipeline.store.tables import CRAWLING, FRONTIER, crawl_steps, datasets, extractions, pages, tasks
from ingestion_pipeline.store.types import Id, UtcDateTime
from ingestion_pipeline.tasks.claims import is_free
from ingestion_pipeline.tasks.queue import SpawnRequest, spawn_all
from ingestion_pipeline.tasks.task import NewTask, Task
from ingestion_pipeline.urls import host_of

log = logging.getLogger(__name__)

CHANGED_AT = "changed_at"  # in a task's payload: when the site says that its page was changed last
EXPLORE_DEPTH = 8  # steps from the root that an exploratory crawl goes
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
    has_work = exists().where(
        FRONTIER,
        tasks.c.kind.in_(kinds),
        tasks.c.source_id == extractions.c.source_id,
        tasks.c.not_before <= now,
        is_free(now),
    )
    query = select(extractions.c.source_id).where(CRAWLING, has_work)
    if crawl_filter.source_ids is not None:
        query = query.where(extractions.c.source_id.in_(list(crawl_filter.source_ids)))
    ids = list(connection.execute(query.order_by(extractions.c.updated_at)).scalars())
    by_id = sources_by_id(connection, ids)
    enabled = [by_id[id_] for id_ in ids if id_ in by_id and by_id[id_].status is not SourceStatus.DISABLED]
    shard, shards = crawl_filter.shard, crawl_filter.shards
    return [source for source in enabled if shard is None or source.shard % shards == shard][:limit]


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
    task: Task, rows: Mapping[int, RowMapping], sources: Mapping[str, Source], stored_pages: Mapping[str, KnownPage]
) -> PageWork | Skipped[PageWork]:
    row, source = rows.get(task.payload.get("page", 0)), sources.get(task.source_id or "")
    if row is None or source is None:
        return Skipped(task=task, reason="its extraction has ended, or its source is gone", code="page_gone")
    step, url = extraction_step(row["recipe"], row["step"]), row["url"]
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
    changes = {"page_type": PageType.DETAIL, "pagination": None}
    explored = extraction_step(recipe, parent).recipe.model_copy(update=changes)
    return Step(key=key, kind=StepKind.FETCH_LINKS, parent=parent, recipe=explored)


@lru_cache(maxsize=500)
def _extraction_steps(recipe: str) -> dict[str, Step]:
    """Return the steps of a recipe stored in the extraction's row, by key."""
    return {step.key: step for step in steps_of(recipe_of({"recipe": json.loads(recipe)}))}


def _mark_in_progress(connection: Connection, opened: Sequence[PageWork]) -> None:
    """Mark extractions, then pages, as in progress: the lock order of `store.statements`."""
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


_FOUND_COLUMNS = {
    "place": Integer(),
    "step": Text(),
    "url": Text(),
    "key": Text(),
    "host": Text(),
    "position": Integer(),
}


@cache
def _insert_statement(dialect: str) -> ReturningInsert[Any, Any]:
    """Return the insert of pages that an extraction lacks; cached, since each flush uses it."""
    candidates = row_table(dialect, _FOUND_COLUMNS, "given")
    extraction = bindparam("extraction", type_=Id)
    is_known = exists().where(pages.c.extraction_id == extraction, pages.c.key == candidates.c.key)
    values = {
        "extraction_id": extraction,
        "step_id": crawl_steps.c.id,
        **{name: candidates.c[name] for name in ("url", "key", "host", "position")},
        "status": literal(PageStatus.WAITING.value),
        "page_type": crawl_steps.c.page_type,
        "created_at": bindparam("moment", type_=UtcDateTime()),
    }
    missing = (
        select(*(value.label(name) for name, value in values.items()))
        .join_from(candidates, crawl_steps, crawl_steps.c.key == candidates.c.step)
        .where(crawl_steps.c.extraction_id == extraction, ~is_known)
        .order_by(candidates.c.place)
        .limit(bindparam("room", type_=Integer()))
    )
    statement = insert_for(dialect, pages).from_select(list(values), missing)
    once = statement.on_conflict_do_nothing(index_elements=["extraction_id", "key"])
    return once.returning(pages.c.key, pages.c.id)


@dataclass(slots=True)
class _NewPages:
    """The pages that the pages of one locked extraction lead to, each once; `beyond` exceed a limit."""

    extraction_id: int
    source_id: str
    shard: int
    links: dict[str, tuple[Task, FollowedLink]] = field(default_factory=dict[str, tuple[Task, FollowedLink]])
    beyond: int = 0

    def write(self, connection: Connection, *, now: datetime, settings: Settings) -> Collection[str]:
        """Insert pages and their tasks, and count what is refused; return the keys that are known to exist already."""
        query = select(extractions.c.page_count).where(extractions.c.id == self.extraction_id, CRAWLING)
        page_count = connection.execute(query).scalar_one_or_none()
        if page_count is None:  # it was cancelled meanwhile
            return ()
        most = settings.work.spawn_depth
        deep = {key for key, (task, link) in self.links.items() if task.spawn_depth + (not link.is_sibling) > most}
        fit = {key: entry for key, entry in self.links.items() if key not in deep}
        room = settings.crawl.max_pages - page_count
        ids = self._insert(connection, fit, room, now) if fit and room > 0 else {}
        over = self._count_unknown(connection, fit.keys() - ids.keys()) if len(ids) >= room else 0
        too_deep = self._count_unknown(connection, deep)
        requests = [self._request(*fit[key], page_id, now) for key, page_id in ids.items()]
        spawn_all(connection, requests, now=now, policy=settings.work)
        counts = {"page_count": len(ids), "too_deep": too_deep, "over_budget": over + self.beyond}
        self._add_counts(connection, counts, now)
        return fit.keys() - ids.keys() if len(ids) < room else ()

    def _insert(
        self, connection: Connection, fit: Mapping[str, tuple[Task, FollowedLink]], room: int, now: datetime
    ) -> dict[str, int]:
        """Insert the new pages, at most `room`, in order; return their ids by key."""
        rows = [
            (place, link.step, link.url, key, host_of(link.url), link.position)
            for place, (key, (_, link)) in enumerate(fit.items())
        ]
        dialect = connection.dialect.name
        document = row_document(dialect, _FOUND_COLUMNS, rows)
        parameters = {"given": document, "extraction": self.extraction_id, "moment": now, "room": room}
        return {row.key: row.id for row in connection.execute(_insert_statement(dialect), parameters)}

    def _count_unknown(self, connection: Connection, keys: Collection[str]) -> int:
        if not keys:
            return 0
        candidates = row_source(connection, {"key": Text()}, [(key,) for key in keys], "given")
        is_known = exists().where(pages.c.extraction_id == self.extraction_id, pages.c.key == candidates.c.key)
        query = select(func.count()).select_from(candidates).where(~is_known)
        return connection.execute(query).scalar_one()

    def _request(self, task: Task, link: FollowedLink, page_id: int, now: datetime) -> SpawnRequest:
        """Return the task that fetches the page, with what is known of it before."""
        payload: dict[str, Any] = {"page": page_id, "extraction": self.extraction_id}
        if link.changed_at is not None:
            payload[CHANGED_AT] = link.changed_at.isoformat()
        if link.memory is not None:
            payload[LIST_MEMORY] = link.memory.to_payload()
        child = NewTask(
            kind=FETCH_PAGE,
            dedupe_key=f"{self.extraction_id}:{link.key}",
            not_before=now,
            priority=task.priority,
            shard=self.shard,
            source_id=self.source_id,
            url=link.url,
            payload=payload,
        )
        return SpawnRequest(parent=task, child=child, is_sibling=link.is_sibling)

    def _add_counts(self, connection: Connection, counts: Mapping[str, int], now: datetime) -> None:
        """Add to the extraction's counters; report the first refusal of each kind."""
        changed = (
            update(extractions)
            .where(extractions.c.id == self.extraction_id)
            .values({name: extractions.c[name] + count for name, count in counts.items()})
            .returning(extractions.c.too_deep, extractions.c.over_budget, extractions.c.tracking_id)
        )
        row = connection.execute(changed).one()
        for reason in ("too_deep", "over_budget"):
            count = counts[reason]
            if not count or getattr(row, reason) != count:
                continue
            message = "pages not followed extraction=%s source=%s count=%d reason=%s"
            log.warning(message, self.extraction_id, self.source_id, count, reason)
            audit(
                connection,
                actor="system",
                action="spawn.refused",
                subject=f"task:{row.tracking_id}",
                now=now,
                detail={
                    "kind": FETCH_PAGE,
                    "extraction": self.extraction_id,
                    "source": self.source_id,
                    "reason": reason,
                    "count_in": f"extractions.{reason}",
                },
            )


def write_followed(
    connection: Connection,
    followed: Iterable[tuple[PageWork, Followed]],
    *,
    known_pages: KnownPageCache,
    now: datetime,
    settings: Settings,
) -> None:
    """Insert the pages that follow, unless their extraction has them already.

    Pages that are too deep or exceed the extraction's budget are counted in its row, and logged once.
    """
    by_extraction: dict[int, _NewPages] = {}
    for work, result in followed:
        id_ = work.extraction_id
        new = by_extraction.setdefault(id_, _NewPages(id_, work.source.id, work.source.shard))
        new.beyond += result.beyond
        has = known_pages.of(id_)
        for link in result.pages:
            if link.key not in has:
                new.links.setdefault(link.key, (work.task, link))
    for id_, new in sorted(by_extraction.items()):
        if new.links or new.beyond:
            known_pages.add(id_, new.write(connection, now=now, settings=settings))


Explored = Mapping[int, Sequence[tuple[Task, str, tuple[str, ...]]]]


def links_on(page: PageContent, addresses: Sequence[str], *, known_as: str) -> tuple[str, ...]:
    """Return those of these addresses that the page links to, on its own host, each once."""
    if not addresses:
        return ()
    own, there = host_of(known_as), set(page.document.links)
    urls = (canonical_or_none(linked_page(page.url, address) or "") for address in addresses)
    linked = [url for url in urls if url in there and host_of(url) == own]
    by_identity = {identity(url): url for url in reversed(linked) if identity(url) != identity(known_as)}
    return tuple(reversed(by_identity.values()))


def explore(connection: Connection, explored: Explored, *, now: datetime, settings: Settings) -> int:
    """Insert the pages that these links lead to; return how many addresses were given.

    `explored` has, by extraction, the task of each page with its step and its links. A step that is
    too far from the root is not made; a page that the extraction already has is no error.
    """
    count = 0
    for extraction_id, entries in sorted(explored.items()):
        first = entries[0][0]
        new = _NewPages(extraction_id, first.source_id or "", first.shard)
        for task, step, links in entries:
            if f"{step}{EXPLORED}".count("/") > EXPLORE_DEPTH:
                continue
            for url in links:
                link = FollowedLink(url=url, key=identity(url), step=step + EXPLORED)
                new.links.setdefault(link.key, (task, link))
        if not new.links:
            continue
        for step in sorted({link.step for _, link in new.links.values()}):
            _ensure_step(connection, extraction_id, step, now=now)
        count += len(new.links)
        new.write(connection, now=now, settings=settings)
    return count


def explore_carried(connection: Connection, carried: Mapping[int, Task], *, now: datetime, settings: Settings) -> None:
    """Follow the links of pages that are not read again to where they led before.

    `carried` has the task of each page. By step, since it is not stored which page led to which:
    whatever a step's unchanged pages may have led to is fetched, and what is gone fails there.
    """
    explored: dict[int, list[tuple[Task, str, tuple[str, ...]]]] = {}
    for row in connection.execute(_earlier_explored(list(carried))) if carried else ():
        explored.setdefault(row.extraction_id, []).append((carried[row.page_id], row.step, (row.url,)))
    explore(connection, explored, now=now, settings=settings)


def _earlier_explored(carried: Sequence[int]) -> Select[*tuple[Any, ...]]:
    """Select the pages that exploring found from these pages' steps, one page for each step."""
    old_step, old, own = crawl_steps.alias("old_step"), pages.alias("old"), pages.alias("own")
    led = (
        select(
            func.min(own.c.id).label("page_id"),
            own.c.extraction_id,
            crawl_steps.c.key.label("step"),
            old_step.c.id.label("old_step"),
            old_step.c.extraction_id.label("old_extraction"),
        )
        .select_from(own)
        .join(crawl_steps, crawl_steps.c.id == own.c.step_id)
        .join(extractions, extractions.c.id == own.c.extraction_id)
        .join(datasets, datasets.c.id == extractions.c.base_dataset_id)
        .join(
            old_step,
            and_(old_step.c.extraction_id == datasets.c.extraction_id, old_step.c.key == crawl_steps.c.key + EXPLORED),
        )
        .where(own.c.id.in_(carried), own.c.item_count > 0)
        .group_by(own.c.extraction_id, crawl_steps.c.key, old_step.c.id, old_step.c.extraction_id)
        .subquery("led")
    )
    of_step = and_(old.c.extraction_id == led.c.old_extraction, old.c.step_id == led.c.old_step)
    query = select(led.c.page_id, led.c.extraction_id, led.c.step, old.c.url)
    return query.join(old, of_step).order_by(old.c.id)


def _ensure_step(connection: Connection, extraction_id: int, key: str, *, now: datetime) -> None:
    values = {
        "extraction_id": literal(extraction_id, Id),
        "parent_id": crawl_steps.c.id,
        "kind": literal(StepKind.FETCH_LINKS.value),
        "key": literal(key),
        "page_type": literal(PageType.DETAIL.value),
        "created_at": literal(now, UtcDateTime()),
    }
    parent = select(*values.values()).where(
        crawl_steps.c.extraction_id == extraction_id, crawl_steps.c.key == key.removesuffix(EXPLORED)
    )
    statement = insert_into(connection, crawl_steps).from_select(list(values), parent)
    connection.execute(statement.on_conflict_do_nothing(index_elements=["extraction_id", "key"]))
