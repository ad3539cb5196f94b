"""Extraction tasks: load the claimed pages, and the types of their results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, select, update

from ingestion_pipeline.catalogs.extraction.record import ExtractionResult, PageContent
from ingestion_pipeline.catalogs.extraction.source_selectors import EntityConfig, LearnedSelectors
from ingestion_pipeline.catalogs.frontier import extraction_step
from ingestion_pipeline.catalogs.recipes.next_pages import content_of
from ingestion_pipeline.catalogs.states import CRAWLING_STATES, EXTRACT_PAGE, ExtractionKind, PageStatus
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.handler import Outcome, Skipped
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.pages.politeness.rights import Rights
from ingestion_pipeline.reading.html.cleaning import cleaned_text
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.llm import OverBudget
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
from ingestion_pipeline.tasks.ended_tasks import Counts
from ingestion_pipeline.tasks.errors import Permanent, Transient
from ingestion_pipeline.tasks.task import Task, TaskStatus

SNAPSHOT_COLUMNS = ("body_hash", "text_hash", "final_url", "content_type")  # of a page, in its snapshot
CONTENT_MISSING = "content_missing"  # error code: the page must be fetched again


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadWork:
    """A claimed page to read; without a `body_hash` its snapshot is gone."""

    task: Task
    page_id: int
    extraction_id: int
    entity_type: str
    config: Mapping[str, Any]
    base_dataset_id: int | None
    kind: str
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
    learned: LearnedSelectors | None = None
    content_selector: str | None = None
    rights: Rights | None = None

    @property
    def host(self) -> None:
        """Return that it needs no host: the page comes from the content store."""

    @property
    def source(self) -> None:
        """Return that it needs no source's pace."""

    @property
    def may_wait(self) -> bool:
        """Whether half the price of a model is worth a day's wait: nothing published gets older by it."""
        return self.base_dataset_id is None or self.kind == ExtractionKind.RERUN

    def content(self, store: ContentStore) -> PageContent:
        """Return the stored page, or the selected part of it; see `stored_content`."""
        page = stored_content(store, url=self.url, **snapshot_columns_of(self))
        return page if self.content_selector is None else restrict_to_selector(page, self.content_selector)


def stored_content(
    store: ContentStore,
    *,
    url: str,
    final_url: str | None,
    body_hash: str | None,
    text_hash: str | None,
    content_type: str | None,
) -> PageContent:
    """Return the stored page.

    Raises:
        Permanent: the content is gone from the store; a retry does not restore it.
    """
    if body_hash is None:
        raise content_missing(url, "its snapshot was deleted")
    try:
        body, *text = store.get_together([body_hash, *filter(None, [text_hash])])
    except Transient as error:
        raise content_missing(url, str(error)) from error
    document = Document.of(body, content_type, url=final_url or url)
    return PageContent(document=document, text=text[0].decode() if text else document.html, content_type=content_type)


def snapshot_columns_of(page: object) -> dict[str, Any]:
    """Return the snapshot columns of a row or of work, by name."""
    return {name: getattr(page, name) for name in SNAPSHOT_COLUMNS}


def content_missing(url: str, reason: str) -> Permanent:
    """Return the error of a page whose stored content is missing or empty."""
    message = f"the content of {url} cannot be read: {reason}; a retry of its extraction fetches it again"
    return Permanent(message, code=CONTENT_MISSING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDone:
    """The records of a page, and the config they were read with."""

    work: ReadWork
    config: EntityConfig
    reading: ExtractionResult


ReadValue = ReadDone | OverBudget  # over budget: the extraction ends here
ReadOutcome = Outcome[ReadWork, ReadValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCounts(Counts):
    """Numbers of readings by result, and of the records found.

    `lost` were taken over by another worker meanwhile, `skipped` are no longer needed.
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
    extractions.c.kind,
    extractions.c.recipe,
    snapshots.c.rendered_at,
    sources.c.config,
    crawl_steps.c.key.label("step"),
    snapshots.c.id.label("snapshot_id"),
    *(snapshots.c[name] for name in SNAPSHOT_COLUMNS),
    snapshots.c.rights,
    learned_selectors.c.schema_hash,
    learned_selectors.c.selectors,
    learned_selectors.c.created_at.label("learned_at"),
)


def load_claimed_pages(
    connection: Connection, claimed: Sequence[Task], *, now: datetime
) -> list[ReadWork | Skipped[ReadWork]]:
    """Load the claimed pages and mark their reading as started."""
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
    mark_started = update(pages).where(pages.c.id.in_(list(rows)))
    if rows:
        connection.execute(mark_started.values(read_started_at=now))
    return [_claimed_page(task, rows.get(task.payload.get("page", 0))) for task in claimed]


def _claimed_page(task: Task, row: RowMapping | None) -> ReadWork | Skipped[ReadWork]:
    if row is None:
        return Skipped(task=task, reason="extraction has ended, or page already read")
    taken = ("extraction_id", "entity_type", "config", "base_dataset_id", "kind", "url", "key", "page_type", "rights")
    selector = None  # a rendered page is restricted already
    if row["rendered_at"] is None:
        selector = extraction_step(row["recipe"], row["step"]).recipe.rendering.content_selector
    learned = None
    if row["learned_at"] is not None:
        learned = LearnedSelectors(**{name: row[name] for name in ("schema_hash", "selectors", "learned_at")})
    return ReadWork(
        task=task,
        page_id=row["id"],
        was_read=row["read_at"] is not None,
        learned=learned,
        content_selector=selector,
        **{name: row[name] for name in (*taken, "step", "snapshot_id", *SNAPSHOT_COLUMNS)},
    )


NO_MODEL = "no_model"


def wake_for_models(ctx: RunContext) -> int:
    """Make pages that wait for a model due if one is configured by now; return how many."""
    if not ctx.settings.has_model:
        return 0
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        waiting = (
            select(tasks.c.id)
            .where(
                FRONTIER,
                tasks.c.kind == EXTRACT_PAGE,
                tasks.c.status == TaskStatus.PENDING.value,
                tasks.c.error_code == NO_MODEL,
                tasks.c.not_before > now,
            )
            .with_for_update(skip_locked=True)  # locked rows are being processed
            .cte("waiting")
        )
        is_waiting = tasks.c.id.in_(select(waiting.c.id))
        return connection.execute(update(tasks).where(is_waiting).values(not_before=now)).rowcount


def restrict_to_selector(page: PageContent, selector: str) -> PageContent:
    """Return the first matching element as a page of its own, with the offset of its text.

    Raises:
        Permanent: `content_selector` if nothing matches, or the match is empty.
    """
    document = Document(content_of(page.document.tree, selector).html or "", url=page.url)
    text = cleaned_text(document.html)
    starts_at = page.text.find(text)
    if starts_at < 0:  # the stored text has other line breaks: use all of it as evidence
        return replace(page, document=document)
    return replace(page, document=document, text=text, starts_at=starts_at)
