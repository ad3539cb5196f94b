"""Add the pages that fetched pages lead to, with their tasks, to the extraction, each once.

Most links of a crawl are duplicates: they are dropped before anything is sent to the database, and
then by one anti-join for each extraction.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, Integer, Select, Text, and_, bindparam, exists, func, literal, select, update
from sqlalchemy.sql.dml import ReturningInsert

from ingestion_pipeline.catalogs.crawling.frontier import CHANGED_AT, EXPLORED, LIST_MEMORY, PagePlan
from ingestion_pipeline.catalogs.extraction.record import PageContent
from ingestion_pipeline.catalogs.recipes.next_pages import Followed, FollowedLink, StepKind
from ingestion_pipeline.catalogs.recipes.page_source import identity
from ingestion_pipeline.catalogs.recipes.recipe import PageType
from ingestion_pipeline.catalogs.states import PageStatus
from ingestion_pipeline.engine.crawling.protocol import FETCH_PAGE, KnownPageCache, PageDone
from ingestion_pipeline.reading.html.links import canonical_or_none, linked_page, page_links
from ingestion_pipeline.reading.html.parsing import parse_html
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.bulk import row_document, row_source, row_table
from ingestion_pipeline.store.inserts import insert_for, insert_into
from ingestion_pipeline.store.tables import CRAWLING, crawl_steps, datasets, extractions, pages
from ingestion_pipeline.store.types import Id, UtcDateTime
from ingestion_pipeline.tasks.queue import SpawnRequest, spawn_all
from ingestion_pipeline.tasks.task import NewTask, Task
from ingestion_pipeline.urls import host_of

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Frontier:
    """The pages that one extraction's pages lead to, each once; `beyond` exceed a limit."""

    source_id: str
    shard: int
    links: dict[str, tuple[Task, FollowedLink]] = field(default_factory=dict[str, tuple[Task, FollowedLink]])
    beyond: int = 0


def write_followed(
    connection: Connection, done: Iterable[PageDone], *, known_pages: KnownPageCache, now: datetime, settings: Settings
) -> None:
    """Insert the pages that follow, unless their extraction has them already.

    Pages that are too deep or exceed the extraction's budget are counted in its row, and logged
    once.
    """
    frontiers: dict[int, Frontier] = {}
    for result in done:
        plan: PagePlan = result.work.plan
        followed: Followed = result.followed
        frontier = frontiers.setdefault(plan.extraction_id, Frontier(result.work.source.id, result.work.source.shard))
        frontier.beyond += followed.beyond
        has = known_pages.of(plan.extraction_id)
        for link in followed.pages:
            if link.key not in has:
                frontier.links.setdefault(link.key, (result.work.task, link))
    for extraction_id, frontier in sorted(frontiers.items()):
        if frontier.links or frontier.beyond:
            spawner = Spawner(connection, extraction_id, frontier, now=now, settings=settings)
            known_pages.add(extraction_id, spawner.spawn())


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
        "url": candidates.c.url,
        "key": candidates.c.key,
        "host": candidates.c.host,
        "status": literal(PageStatus.WAITING.value),
        "page_type": crawl_steps.c.page_type,
        "position": candidates.c.position,
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


class Spawner:
    """Adds pages to one extraction, whose row is locked."""

    def __init__(
        self, connection: Connection, extraction_id: int, frontier: Frontier, *, now: datetime, settings: Settings
    ) -> None:
        self._connection = connection
        self._id = extraction_id
        self._frontier = frontier
        self._now = now
        self._settings = settings

    def spawn(self) -> Collection[str]:
        """Insert pages and their tasks, one statement each, and count what is refused.

        Return the keys that are known to have been there already.
        """
        page_count = self._page_count()
        if page_count is None:
            return ()
        links = self._frontier.links
        most = self._settings.work.spawn_depth
        deep = {key for key, (task, link) in links.items() if _depth(task, link) > most}
        fit = {key: entry for key, entry in links.items() if key not in deep}
        room = self._settings.crawl.max_pages - page_count
        ids = self._insert(fit, room) if fit and room > 0 else {}
        over = self._count_unknown(fit.keys() - ids.keys()) if len(ids) >= room else 0
        too_deep = self._count_unknown(deep)
        spawnings = [self._spawning(*links[key], page_id) for key, page_id in ids.items()]
        spawn_all(self._connection, spawnings, now=self._now, policy=self._settings.work)
        self._count(page_count=len(ids), too_deep=too_deep, over_budget=over + self._frontier.beyond)
        return fit.keys() - ids.keys() if len(ids) < room else ()

    def _page_count(self) -> int | None:
        """Return how many pages the extraction has; None if it was cancelled meanwhile."""
        query = select(extractions.c.page_count).where(extractions.c.id == self._id, CRAWLING)
        return self._connection.execute(query).scalar_one_or_none()

    def _insert(self, fit: Mapping[str, tuple[Task, FollowedLink]], room: int) -> dict[str, int]:
        """Insert the new pages, at most `room`, in order; return their ids by key."""
        rows = [
            (place, link.step, link.url, key, host_of(link.url), link.position)
            for place, (key, (_, link)) in enumerate(fit.items())
        ]
        dialect = self._connection.dialect.name
        parameters = {
            "given": row_document(dialect, _FOUND_COLUMNS, rows),
            "extraction": self._id,
            "moment": self._now,
            "room": room,
        }
        new = self._connection.execute(_insert_statement(dialect), parameters)
        return {row.key: row.id for row in new}

    def _count_unknown(self, keys: Collection[str]) -> int:
        if not keys:
            return 0
        candidates = row_source(self._connection, {"key": Text()}, [(key,) for key in keys], "given")
        is_known = exists().where(pages.c.extraction_id == self._id, pages.c.key == candidates.c.key)
        query = select(func.count()).select_from(candidates).where(~is_known)
        return self._connection.execute(query).scalar_one()

    def _spawning(self, task: Task, link: FollowedLink, page_id: int) -> SpawnRequest:
        child = NewTask(
            kind=FETCH_PAGE,
            dedupe_key=f"{self._id}:{link.key}",
            not_before=self._now,
            priority=task.priority,
            shard=self._frontier.shard,
            source_id=self._frontier.source_id,
            url=link.url,
            payload={"page": page_id, "extraction": self._id} | _payload_hints(link),
        )
        return SpawnRequest(parent=task, child=child, is_sibling=link.is_sibling)

    def _count(self, **counts: int) -> None:
        """Add to the extraction's counters; report the first refusal of each kind."""
        names = {name: extractions.c[name] + count for name, count in counts.items()}
        statement = update(extractions).where(extractions.c.id == self._id)
        changed = statement.values(**names).returning(
            extractions.c.too_deep, extractions.c.over_budget, extractions.c.tracking_id
        )
        row = self._connection.execute(changed).one()
        for reason in ("too_deep", "over_budget"):
            count = counts[reason]
            if count and getattr(row, reason) == count:
                self._report_refusal(reason, count, row.tracking_id)

    def _report_refusal(self, reason: str, count: int, tracking_id: str) -> None:
        source_id = self._frontier.source_id
        message = "pages not followed extraction=%s source=%s count=%d reason=%s"
        log.warning(message, self._id, source_id, count, reason)
        audit(
            self._connection,
            actor="system",
            action="spawn.refused",
            subject=f"task:{tracking_id}",
            now=self._now,
            detail={
                "kind": FETCH_PAGE,
                "extraction": self._id,
                "source": source_id,
                "reason": reason,
                "count_in": f"extractions.{reason}",
            },
        )


def _payload_hints(link: FollowedLink) -> dict[str, Any]:
    """Return what is known of the page before it is fetched, for its task's payload."""
    facts: dict[str, Any] = {}
    if link.changed_at is not None:
        facts[CHANGED_AT] = link.changed_at.isoformat()
    if link.memory is not None:
        facts[LIST_MEMORY] = link.memory.to_payload()
    return facts


def _depth(task: Task, link: FollowedLink) -> int:
    return task.spawn_depth + (0 if link.is_sibling else 1)


Explored = Mapping[int, Sequence[tuple[Task, str, tuple[str, ...]]]]


def links_on(page: PageContent, addresses: Sequence[str], *, known_as: str) -> tuple[str, ...]:
    """Return those of these addresses that the page links to, on its own host, each once."""
    if not addresses:
        return ()
    tree = parse_html(page.body)
    own, there = host_of(known_as), set(page_links(tree, page.url))
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
        source_id, shard = entries[0][0].source_id or "", entries[0][0].shard
        frontier = Frontier(source_id, shard)
        for task, step, links in entries:
            if f"{step}{EXPLORED}".count("/") > settings.extraction.explore_depth:
                continue
            for url in links:
                link = FollowedLink(url=url, key=identity(url), step=step + EXPLORED)
                frontier.links.setdefault(link.key, (task, link))
        if not frontier.links:
            continue
        for step in sorted({link.step for _, link in frontier.links.values()}):
            _ensure_step(connection, extraction_id, step, now=now)
        count += len(frontier.links)
        Spawner(connection, extraction_id, frontier, now=now, settings=settings).spawn()
    return count


def explore_carried(
    connection: Connection, done: Iterable[PageDone], carried: Collection[int], *, now: datetime, settings: Settings
) -> int:
    """Follow the links of pages that are not read again to where they led before; return the count.

    By step, since it is not stored which page led to which: whatever a step's unchanged pages may
    have led to is fetched, and what is gone fails there.
    """
    tasks = {result.work.plan.page_id: result.task for result in done if result.work.plan.page_id in carried}
    explored: dict[int, list[tuple[Task, str, tuple[str, ...]]]] = {}
    for row in connection.execute(_earlier_explored(list(tasks))) if tasks else ():
        entries = explored.setdefault(row.extraction_id, [])
        entries.append((tasks[row.page_id], row.step, (row.url,)))
    return explore(connection, explored, now=now, settings=settings)


def _earlier_explored(carried: Sequence[int]) -> Select[*tuple[Any, ...]]:
    """Select the pages that exploring found from these pages' steps, one page for each step."""
    old_step, old = crawl_steps.alias("old_step"), pages.alias("old")
    own = pages.alias("own")
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
        and_(crawl_steps.c.extraction_id == extraction_id, crawl_steps.c.key == key.removesuffix(EXPLORED))
    )
    statement = insert_into(connection, crawl_steps).from_select(list(values), parent)
    connection.execute(statement.on_conflict_do_nothing(index_elements=["extraction_id", "key"]))
