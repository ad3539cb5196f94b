"""What pages lead to: further pages and their tasks, added to their extraction, each once.

Duplicates are what a crawl mostly finds: they are dropped before anything is sent, and then by one
anti-join for each extraction.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, Integer, Text, bindparam, exists, func, literal, select, update
from sqlalchemy.sql.dml import ReturningInsert

from ingestion_pipeline.catalogs.crawl.frontier import CHANGED_AT, LIST_MEMORY, PagePlan
from ingestion_pipeline.catalogs.recipes.steps import Followed, FollowedLink
from ingestion_pipeline.catalogs.states import PageStatus
from ingestion_pipeline.pages.crawled import FETCH_PAGE, KnownPages, PageDone
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.insert import insert_for
from ingestion_pipeline.store.rows import row_document, row_source, row_table
from ingestion_pipeline.store.tables import CRAWLING, crawl_steps, extractions, pages
from ingestion_pipeline.store.types import Id, UtcDateTime
from ingestion_pipeline.urls import host_of
from ingestion_pipeline.work.queue import Spawning, spawn_all
from ingestion_pipeline.work.task import NewTask, Task

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
