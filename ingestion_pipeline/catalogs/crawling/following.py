"""What pages lead to: further pages and their tasks, added to their extraction, each once.

Duplicates are what a crawl mostly finds: they are dropped before anything is sent, and then by one
anti-join for each extraction.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    Integer,
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

from ingestion_pipeline.catalogs.crawling.frontier import (
    CHANGED_AT,
    EXPLORED,
    LIST_MEMORY,
    PagePlan,
)
from ingestion_pipeline.catalogs.extraction.page_result import PageContent
from ingestion_pipeline.catalogs.recipes.next_pages import Followed, FollowedLink, StepKind
from ingestion_pipeline.catalogs.recipes.page_source import identity
from ingestion_pipeline.catalogs.recipes.recipe import PageType
from ingestion_pipeline.catalogs.states import PageStatus
from ingestion_pipeline.engine.crawling.protocol import FETCH_PAGE, KnownPages, PageDone
from ingestion_pipeline.reading.html.links import canonical_or_none, linked_page, page_links
from ingestion_pipeline.reading.html.parsing import parse_html
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.bulk import row_document, row_source, row_table
from ingestion_pipeline.store.inserts import insert_for, insert_into
from ingestion_pipeline.store.tables import CRAWLING, crawl_steps, datasets, extractions, pages
from ingestion_pipeline.store.types import Id, UtcDateTime
from ingestion_pipeline.tasks.queue import Spawning, spawn_all
from ingestion_pipeline.tasks.task import NewTask, Task
from ingestion_pipeline.urls import host_of

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Frontier:
    """What the pages of one extraction lead to, each page once."""

    source_id: str
    shard: int
    found: dict[str, tuple[Task, FollowedLink]] = field(
        default_factory=dict[str, tuple[Task, FollowedLink]]
    )
    beyond: int = 0


def write_followed(
    connection: Connection,
    done: Iterable[PageDone],
    *,
    known: KnownPages,
    now: datetime,
    settings: Settings,
) -> None:
    """The pages that follow wait to be claimed, unless their extraction knows them already.

    Too deep, or beyond the extraction's budget: counted in its row, told once.
    """
    frontiers: dict[int, Frontier] = {}
    for one in done:
        plan: PagePlan = one.work.plan
        followed: Followed = one.followed
        frontier = frontiers.setdefault(
            plan.extraction_id, Frontier(one.work.source.id, one.work.source.shard)
        )
        frontier.beyond += followed.beyond
        has = known.of(plan.extraction_id)
        for found in followed.pages:
            if found.key not in has:
                frontier.found.setdefault(found.key, (one.work.task, found))
    for extraction_id, frontier in sorted(frontiers.items()):
        if frontier.found or frontier.beyond:
            spawner = Spawner(connection, extraction_id, frontier, now=now, settings=settings)
            known.add(extraction_id, spawner.spawn())


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
    """Pages that an extraction does not have; written once, since a flush asks it so often."""
    given = row_table(dialect, _FOUND_COLUMNS, "given")
    extraction = bindparam("extraction", type_=Id)
    is_known = exists().where(pages.c.extraction_id == extraction, pages.c.key == given.c.key)
    values = {
        "extraction_id": extraction,
        "step_id": crawl_steps.c.id,
        "url": given.c.url,
        "key": given.c.key,
        "host": given.c.host,
        "status": literal(PageStatus.WAITING.value),
        "page_type": crawl_steps.c.page_type,
        "position": given.c.position,
        "created_at": bindparam("moment", type_=UtcDateTime()),
    }
    missing = (
        select(*(value.label(name) for name, value in values.items()))
        .join_from(given, crawl_steps, crawl_steps.c.key == given.c.step)
        .where(crawl_steps.c.extraction_id == extraction, ~is_known)
        .order_by(given.c.place)
        .limit(bindparam("room", type_=Integer()))
    )
    statement = insert_for(dialect, pages).from_select(list(values), missing)
    once = statement.on_conflict_do_nothing(index_elements=["extraction_id", "key"])
    return once.returning(pages.c.key, pages.c.id)


class Spawner:
    """Adds to one extraction what its pages lead to; its row is locked."""

    def __init__(
        self,
        connection: Connection,
        extraction_id: int,
        frontier: Frontier,
        *,
        now: datetime,
        settings: Settings,
    ) -> None:
        self._connection = connection
        self._id = extraction_id
        self._frontier = frontier
        self._now = now
        self._settings = settings

    def spawn(self) -> Collection[str]:
        """Pages and their tasks, one statement each; what is refused is counted.

        The answer is what was there already, as far as that is known.
        """
        page_count = self._page_count()
        if page_count is None:
            return ()
        wanted = self._frontier.found
        most = self._settings.work.spawn_depth
        deep = {key for key, (task, found) in wanted.items() if _depth(task, found) > most}
        fit = {key: one for key, one in wanted.items() if key not in deep}
        room = self._settings.crawl.max_pages - page_count
        ids = self._insert(fit, room) if fit and room > 0 else {}
        over = self._count_unknown(fit.keys() - ids.keys()) if len(ids) >= room else 0
        too_deep = self._count_unknown(deep)
        spawnings = [self._spawning(*wanted[key], page_id) for key, page_id in ids.items()]
        spawn_all(self._connection, spawnings, now=self._now, policy=self._settings.work)
        self._count(
            page_count=len(ids), too_deep=too_deep, over_budget=over + self._frontier.beyond
        )
        return fit.keys() - ids.keys() if len(ids) < room else ()

    def _page_count(self) -> int | None:
        """How many pages it has; None if it was cancelled meanwhile."""
        query = select(extractions.c.page_count).where(extractions.c.id == self._id, CRAWLING)
        return self._connection.execute(query).scalar_one_or_none()

    def _insert(self, fit: Mapping[str, tuple[Task, FollowedLink]], room: int) -> dict[str, int]:
        """The ids of the pages that are new, by key; at most `room`, in the order they came."""
        rows = [
            (place, found.step, found.url, key, host_of(found.url), found.position)
            for place, (key, (_, found)) in enumerate(fit.items())
        ]
        dialect = self._connection.dialect.name
        given = {
            "given": row_document(dialect, _FOUND_COLUMNS, rows),
            "extraction": self._id,
            "moment": self._now,
            "room": room,
        }
        new = self._connection.execute(_insert_statement(dialect), given)
        return {row.key: row.id for row in new}

    def _count_unknown(self, keys: Collection[str]) -> int:
        if not keys:
            return 0
        given = row_source(self._connection, {"key": Text()}, [(key,) for key in keys], "given")
        is_known = exists().where(pages.c.extraction_id == self._id, pages.c.key == given.c.key)
        query = select(func.count()).select_from(given).where(~is_known)
        return self._connection.execute(query).scalar_one()

    def _spawning(self, task: Task, found: FollowedLink, page_id: int) -> Spawning:
        child = NewTask(
            kind=FETCH_PAGE,
            dedupe_key=f"{self._id}:{found.key}",
            not_before=self._now,
            priority=task.priority,
            shard=self._frontier.shard,
            source_id=self._frontier.source_id,
            url=found.url,
            payload={"page": page_id, "extraction": self._id} | _facts(found),
        )
        return Spawning(parent=task, child=child, is_sibling=found.is_sibling)

    def _count(self, **counts: int) -> None:
        """The extraction's row counts them; the first of each kind of refusal is told."""
        names = {name: extractions.c[name] + count for name, count in counts.items()}
        statement = update(extractions).where(extractions.c.id == self._id)
        changed = statement.values(**names).returning(
            extractions.c.too_deep, extractions.c.over_budget, extractions.c.tracking_id
        )
        row = self._connection.execute(changed).one()
        for reason in ("too_deep", "over_budget"):
            count = counts[reason]
            if count and getattr(row, reason) == count:
                self._tell(reason, count, row.tracking_id)

    def _tell(self, reason: str, count: int, tracking_id: str) -> None:
        source_id = self._frontier.source_id
        said = "extraction %s of %s: %d pages are not followed so far: %s"
        log.warning(said, self._id, source_id, count, reason)
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


def _facts(found: FollowedLink) -> dict[str, Any]:
    """Return what is known of the page before it is fetched, for its task's payload."""
    facts: dict[str, Any] = {}
    if found.changed_at is not None:
        facts[CHANGED_AT] = found.changed_at.isoformat()
    if found.memory is not None:
        facts[LIST_MEMORY] = found.memory.to_payload()
    return facts


def _depth(task: Task, found: FollowedLink) -> int:
    return task.spawn_depth + (0 if found.is_sibling else 1)


Explored = Mapping[int, Sequence[tuple[Task, str, tuple[str, ...]]]]


def links_on(page: PageContent, wanted: Sequence[str], *, known_as: str) -> tuple[str, ...]:
    """Of these addresses those that the page links to, on the page's own host, each once."""
    if not wanted:
        return ()
    tree = parse_html(page.body)
    own, there = host_of(known_as), set(page_links(tree, page.url))
    urls = (canonical_or_none(linked_page(page.url, one) or "") for one in wanted)
    found = [url for url in urls if url in there and host_of(url) == own]
    kept = {identity(url): url for url in reversed(found) if identity(url) != identity(known_as)}
    return tuple(reversed(kept.values()))


def explore(
    connection: Connection, explored: Explored, *, now: datetime, settings: Settings
) -> int:
    """The pages that these links lead to wait to be fetched; how many addresses were looked at.

    `explored` has, by extraction, the task of each page with its step and its links. A step that is
    too far from the root is not made; a page that the extraction knows is no error.
    """
    count = 0
    for extraction_id, told in sorted(explored.items()):
        source_id, shard = told[0][0].source_id or "", told[0][0].shard
        frontier = Frontier(source_id, shard)
        for task, step, links in told:
            if f"{step}{EXPLORED}".count("/") > settings.extraction.explore_depth:
                continue
            found = [
                FollowedLink(url=url, key=identity(url), step=step + EXPLORED) for url in links
            ]
            for one in found:
                frontier.found.setdefault(one.key, (task, one))
        if not frontier.found:
            continue
        for step in sorted({found.step for _, found in frontier.found.values()}):
            _ensure_step(connection, extraction_id, step, now=now)
        count += len(frontier.found)
        Spawner(connection, extraction_id, frontier, now=now, settings=settings).spawn()
    return count


def explore_again(
    connection: Connection,
    done: Iterable[PageDone],
    carried: Collection[int],
    *,
    now: datetime,
    settings: Settings,
) -> int:
    """Pages that are not read again lead where they led before; how many addresses that are.

    By step, since nobody keeps which page led to which: what a step's unchanged pages may have led
    to is fetched, and what is gone fails there.
    """
    tasks = {one.work.plan.page_id: one.task for one in done if one.work.plan.page_id in carried}
    explored: dict[int, list[tuple[Task, str, tuple[str, ...]]]] = {}
    for row in connection.execute(_led_before(list(tasks))) if tasks else ():
        told = explored.setdefault(row.extraction_id, [])
        told.append((tasks[row.page_id], row.step, (row.url,)))
    return explore(connection, explored, now=now, settings=settings)


def _led_before(carried: Sequence[int]) -> Select[*tuple[Any, ...]]:
    """Every page that exploring found from the steps of these pages, one of them for each step."""
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
            and_(
                old_step.c.extraction_id == datasets.c.extraction_id,
                old_step.c.key == crawl_steps.c.key + EXPLORED,
            ),
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
        and_(
            crawl_steps.c.extraction_id == extraction_id,
            crawl_steps.c.key == key.removesuffix(EXPLORED),
        )
    )
    statement = insert_into(connection, crawl_steps).from_select(list(values), parent)
    connection.execute(statement.on_conflict_do_nothing(index_elements=["extraction_id", "key"]))
