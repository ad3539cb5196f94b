"""Links that a page of records is worth following for: few, near, and really on the page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, and_, func, literal, select

from ingestion_pipeline.catalogs.crawl.frontier import EXPLORED
from ingestion_pipeline.catalogs.crawl.spawning import Frontier, Spawner
from ingestion_pipeline.catalogs.entities.page_reading import PageContent
from ingestion_pipeline.catalogs.recipes.recipe import PageType
from ingestion_pipeline.catalogs.recipes.seen import identity
from ingestion_pipeline.catalogs.recipes.steps import FollowedLink, StepKind
from ingestion_pipeline.pages.crawled import PageDone
from ingestion_pipeline.reading.links import canonical_or_none, linked_page, page_links
from ingestion_pipeline.reading.markup import parse_html
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.insert import insert_into
from ingestion_pipeline.store.tables import crawl_steps, datasets, extractions, pages
from ingestion_pipeline.store.types import Id, UtcDateTime
from ingestion_pipeline.urls import host_of
from ingestion_pipeline.work.task import Task

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
