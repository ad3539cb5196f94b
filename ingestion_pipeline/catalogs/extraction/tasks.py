"""Downloaded pages as work: which are claimed, what is to be read, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, select, update

from ingestion_pipeline.catalogs.crawling.frontier import extraction_step
from ingestion_pipeline.catalogs.extraction.page_reader import restricted
from ingestion_pipeline.catalogs.extraction.page_result import PageContent, PageReading
from ingestion_pipeline.catalogs.extraction.source_config import EntityConfig
from ingestion_pipeline.catalogs.learning.learned_selectors import Learned
from ingestion_pipeline.catalogs.states import CRAWLING_STATES, EXTRACT_PAGE, PageStatus
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.protocol import PageGone
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.reading.llm import OverBudget
from ingestion_pipeline.reading.text.decoding import decode
from ingestion_pipeline.store.tables import (
    FRONTIER,
    crawl_steps,
    extractions,
    learned_selectors,
    pages,
    snapshots,
    sources,
    tasks,
)
from ingestion_pipeline.tasks.errors import Permanent, Transient
from ingestion_pipeline.tasks.results import Counts, FailedResult, Result
from ingestion_pipeline.tasks.task import Task, TaskStatus

FORMS = ("body_hash", "text_hash", "final_url", "content_type")  # of a page, in its snapshot
CONTENT_MISSING = "content_missing"  # the page is to be fetched again


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadWork:
    """A page that is ours to read; without a `body_hash` its snapshot is gone."""

    task: Task
    page_id: int
    extraction_id: int
    entity_type: str
    config: Mapping[str, Any]
    base_dataset_id: int | None
    url: str
    key: str
    step: str
    page_type: str
    was_read: bool
    snapshot_id: int | None
    body_hash: str | None
    text_hash: str | None
    final_url: str | None
    content_type: str | None
    learned: Learned | None = None
    content_selector: str | None = None

    def content(self, store: ContentStore) -> PageContent:
        """The page as it is stored, or the part of it that counts; see `stored_content`."""
        page = stored_content(store, url=self.url, **forms_of(self))
        return page if self.content_selector is None else restricted(page, self.content_selector)


def stored_content(
    store: ContentStore,
    *,
    url: str,
    final_url: str | None,
    body_hash: str | None,
    text_hash: str | None,
    content_type: str | None,
) -> PageContent:
    """The page as it is stored; what is gone from there does not come back by waiting."""
    if body_hash is None:
        raise gone(url, "its snapshot is no longer kept")
    try:
        body, *text = store.get_together([body_hash, *filter(None, [text_hash])])
    except Transient as error:
        raise gone(url, str(error)) from error
    decoded = decode(body, content_type)
    return PageContent(
        url=final_url or url,
        body=decoded,
        text=text[0].decode() if text else decoded,
        content_type=content_type,
    )


def forms_of(page: object) -> dict[str, Any]:
    """Where the forms of a page are stored, of a row or of work."""
    return {name: getattr(page, name) for name in FORMS}


def gone(url: str, why: str) -> Permanent:
    """The failure of a page whose stored content is no longer there, or is nothing."""
    said = f"the content of {url} cannot be read: {why}; a retry of its extraction fetches it again"
    return Permanent(said, code=CONTENT_MISSING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDone(Result[ReadWork]):
    """A page that was read."""

    wanted: EntityConfig
    reading: PageReading


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFailed(FailedResult[ReadWork]):
    """A page that was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOver(Result[ReadWork]):
    """A page that its extraction cannot pay for: the extraction ends here."""

    why: OverBudget


ReadResult = ReadDone | ReadFailed | ReadOver | PageGone


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCounts(Counts):
    """How many readings ended how, and how many records they found.

    `lost` were taken over by another worker meanwhile, `skipped` nobody wants any more.
    """

    read: int = 0
    empty: int = 0
    items: int = 0
    explored: int = 0
    retried: int = 0
    given_back: int = 0
    failed: int = 0
    skipped: int = 0
    lost: int = 0


_COLUMNS = (
    pages.c.id,
    pages.c.extraction_id,
    pages.c.url,
    pages.c.key,
    pages.c.page_type,
    pages.c.read_at,
    extractions.c.entity_type,
    extractions.c.base_dataset_id,
    extractions.c.recipe,
    snapshots.c.rendered_at,
    sources.c.config,
    crawl_steps.c.key.label("step"),
    snapshots.c.id.label("snapshot_id"),
    *(snapshots.c[name] for name in FORMS),
    learned_selectors.c.schema_hash,
    learned_selectors.c.selectors,
    learned_selectors.c.created_at.label("learned_at"),
)


def open_readings(
    connection: Connection, claimed: Sequence[Task], *, now: datetime
) -> list[ReadWork | PageGone]:
    """What is to be read of each claimed page; its reading begins now."""
    ids = [task.payload.get("page", 0) for task in claimed]
    query = (
        select(*_COLUMNS)
        .join(extractions, extractions.c.id == pages.c.extraction_id)
        .join(sources, sources.c.id == extractions.c.source_id)
        .join(crawl_steps, crawl_steps.c.id == pages.c.step_id)
        .outerjoin(snapshots, snapshots.c.id == pages.c.snapshot_id)
        .outerjoin(
            learned_selectors,
            and_(
                learned_selectors.c.source_id == extractions.c.source_id,
                learned_selectors.c.entity_type == extractions.c.entity_type,
            ),
        )
        .where(
            pages.c.id.in_(ids),
            pages.c.status == PageStatus.DOWNLOADED.value,
            extractions.c.status.in_(CRAWLING_STATES),
        )
    )
    rows = {row["id"]: row for row in connection.execute(query).mappings()}
    begun = update(pages).where(pages.c.id.in_(list(rows)))
    if rows:
        connection.execute(begun.values(reading_at=now))
    return [_opened(task, rows.get(task.payload.get("page", 0))) for task in claimed]


def _opened(task: Task, row: RowMapping | None) -> ReadWork | PageGone:
    if row is None:
        return PageGone(task=task, why="its extraction has ended, or it was read already")
    taken = ("extraction_id", "entity_type", "config", "base_dataset_id", "url", "key", "page_type")
    return ReadWork(
        task=task,
        page_id=row["id"],
        was_read=row["read_at"] is not None,
        learned=_learned(row),
        content_selector=_content_selector(row),
        **{name: row[name] for name in (*taken, "step", "snapshot_id", *FORMS)},
    )


def _content_selector(row: RowMapping) -> str | None:
    """What cuts the content out of its pages; a browser has done so already."""
    if row["rendered_at"] is not None:
        return None
    return extraction_step(row["recipe"], row["step"]).recipe.rendering.content_selector


def _learned(row: RowMapping) -> Learned | None:
    if row["learned_at"] is None:
        return None
    return Learned(**{name: row[name] for name in ("schema_hash", "selectors", "learned_at")})


NO_MODEL = "no_model"


def wake_for_models(shop: RunContext) -> int:
    """What waits for want of a model is due, if one is configured by now; how many pages."""
    if not shop.settings.has_model:
        return 0
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        waiting = (
            select(tasks.c.id)
            .where(
                FRONTIER,
                tasks.c.kind == EXTRACT_PAGE,
                tasks.c.status == TaskStatus.PENDING.value,
                tasks.c.error_code == NO_MODEL,
                tasks.c.not_before > now,
            )
            .with_for_update(skip_locked=True)  # what somebody has is being dealt with
            .cte("waiting")
        )
        is_waiting = tasks.c.id.in_(select(waiting.c.id))
        return connection.execute(update(tasks).where(is_waiting).values(not_before=now)).rowcount
