"""Add the pages that fetched pages lead to, with their tasks, to the extraction, each once.

Most links of a crawl are duplicates: they are dropped before anything is sent to the database, and
then by one anti-join for each extraction.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, Integer, Select, Text, and_, bindparam, exists, func, literal, select, update
from sqlalchemy.sql.dml import ReturningInsert

from ingestion_pipeline.catalogs.crawling.frontier import CHANGED_AT, LIST_MEMORY, KnownPageCache, PageWork
from ingestion_pipeline.catalogs.extraction.record import PageContent
from ingestion_pipeline.catalogs.recipes.next_pages import Followed, FollowedLink, StepKind
from ingestion_pipeline.catalogs.recipes.page_source import identity
from ingestion_pipeline.catalogs.recipes.recipe import PageType
from ingestion_pipeline.catalogs.states import EXPLORED, FETCH_PAGE, PageStatus
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
        first = entries[0][0]
        new = _NewPages(extraction_id, first.source_id or "", first.shard)
        for task, step, links in entries:
            if f"{step}{EXPLORED}".count("/") > settings.extraction.explore_depth:
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
