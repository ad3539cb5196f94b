"""Decide what it means that a page has no record although the published dataset has some of it.

| the page now | result |
|---|---|
| differs from its siblings: reports a failure, has the text of another page | it has failed |
| is like its siblings, for the first time | it has failed; the next crawl decides |
| is like its siblings, as in the crawl before | its records are removed |
| needs a model that read it before, and none is configured | it waits |

A failed page keeps its records (see `datasets.dataset_items`). A page of an exploratory crawl that
never had any fails likewise if it lost links: the pages that they led to stay.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, func, literal, or_, select

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.pipeline import is_json
from ingestion_pipeline.catalogs.extraction.record import PageContent
from ingestion_pipeline.catalogs.extraction.tasks import SNAPSHOT_COLUMNS, ReadWork, stored_content
from ingestion_pipeline.catalogs.extraction_states import published_dataset
from ingestion_pipeline.catalogs.recipes.next_pages import identity
from ingestion_pipeline.catalogs.recipes.recipe import PageType
from ingestion_pipeline.catalogs.states import (
    LINKS_MISSING,
    RECORDS_MISSING,
    RECORDS_MISSING_ONCE,
    ExtractionKind,
    PageStatus,
)
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.reading.html.links import failure_notice
from ingestion_pipeline.store.tables import crawl_steps, data_items, datasets, extractions, pages, snapshots
from ingestion_pipeline.store.types import Id
from ingestion_pipeline.tasks.errors import Permanent, WorkError
from ingestion_pipeline.terminal import counted

MAX_SIBLINGS = 3  # besides the page's own earlier version
MAX_NAMED = 50  # records of the page whose names are searched for
MIN_NAME_CHARACTERS = 4  # a shorter name is on any page
SHARED_LINES = 0.5  # of the lines that all siblings have: those of the template
SHARED_ELEMENTS = 0.8  # of the elements that all siblings have, by tag and class
LOST_LINKS = 0.5  # of a page's links; a list usually loses a few between two crawls


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRecords:
    """Published records of a page, and what is needed to judge their loss."""

    count: int = 0
    by_model: int = 0
    last_code: str | None = None
    is_text_of_another: bool = False
    names: frozenset[str] = frozenset()
    siblings: Sequence[PageContent] = ()
    explored: Sequence[PageContent] = ()  # for a page that never had records: itself, then siblings


def is_first_extraction(connection: Connection, work: ReadWork) -> bool:
    """Return whether the source has no extraction before this one: no page has earlier records."""
    query = select(extractions.c.id).where(
        extractions.c.source_id == work.task.source_id, extractions.c.id < work.extraction_id
    )
    return connection.execute(query.limit(1)).first() is None


def load_earlier(connection: Connection, work: ReadWork, kind: EntityType, content: ContentStore) -> EarlierRecords:
    """Return the page's published records, and all that is needed to judge that it states none any more."""
    query = (
        select(func.count(), func.count(data_items.c.model))
        .join(pages, pages.c.id == data_items.c.page_id)
        .where(*_is_published(work), pages.c.key == work.key)
    )
    count, by_model = connection.execute(query).one()
    if count:
        return EarlierRecords(
            count=count,
            by_model=by_model,
            last_code=_last_code(connection, work),
            is_text_of_another=_is_text_of_another(connection, work),
            names=_names(connection, work, kind),
            siblings=_siblings(connection, work, content),
        )
    if work.page_type == PageType.EXPLORATORY:
        explored = _explored(connection, work, content)
        return EarlierRecords(last_code=_last_code(connection, work), explored=explored)
    return EarlierRecords()


def missing_records(page: PageContent, earlier: EarlierRecords) -> Permanent | None:
    """Return why a page without records has failed; None if it has none from now on."""
    if not earlier.count:
        return None
    reason = unlike_siblings(page, earlier)
    if reason is None and earlier.last_code == RECORDS_MISSING_ONCE:
        return None
    message = f"{page.url} had {counted(earlier.count, 'record')} and now has none: "
    if reason is not None:
        return Permanent(f"{message}{reason}; its records are kept", code=RECORDS_MISSING)
    message += "it looks like its siblings; its records are kept until the next crawl confirms it"
    return Permanent(message, code=RECORDS_MISSING_ONCE)


def missing_links(page: PageContent, earlier: EarlierRecords) -> Permanent | None:
    """Return why a page of an exploratory crawl has failed: it reports a failure, or lost links."""
    if not earlier.explored:
        return None
    before, links = _links(earlier.explored[0]), _links(page)
    lost = len(before - links)
    message = f"{page.url} lost {lost} of {len(before)} links"
    lost_most = lost > LOST_LINKS * len(before)
    leads_on = not lost_most or bool(links - before)
    if lost and (reason := _unlike_explored(page, earlier.explored, leads_on=leads_on)):
        message += f": {reason}; the pages behind them are kept"
        return Permanent(message, code=RECORDS_MISSING)
    if not lost_most or earlier.last_code == LINKS_MISSING:
        return None
    message += "; the pages behind them are kept until the next crawl confirms it"
    return Permanent(message, code=LINKS_MISSING)


def _unlike_explored(page: PageContent, explored: Sequence[PageContent], *, leads_on: bool) -> str | None:
    """Return how the page differs from what it was; a page with onward links is no notice."""
    phrase = failure_notice(page.text)
    if phrase and phrase not in " ".join(explored[0].text.lower().split()):
        return f"it says {phrase!r}"
    is_alike = leads_on or _has_lines_of(page, explored) or _has_elements_of(page, explored)
    return None if is_alike else "it has little in common with its siblings"


def _links(page: PageContent) -> frozenset[str]:
    return frozenset(map(identity, page.document.links))


def unlike_siblings(page: PageContent, earlier: EarlierRecords) -> str | None:
    """Return how the page differs from its siblings; None if it is like them."""
    if is_json(page.body):  # an API with an empty list; its shape was checked before
        is_alike = all(is_json(sibling.body) for sibling in earlier.siblings)
        return None if is_alike else "it is JSON, and its siblings are HTML"
    texts = [" ".join(sibling.text.lower().split()) for sibling in earlier.siblings]
    phrase = failure_notice(page.text)
    if phrase and not any(phrase in text for text in texts):
        return f"it says {phrase!r}"
    if earlier.is_text_of_another:
        return "another URL has the same text"
    text, siblings = " ".join(page.text.casefold().split()), earlier.siblings
    if any(name in text for name in earlier.names):
        return None
    is_alike = bool(siblings) and (_has_lines_of(page, siblings) or _has_elements_of(page, siblings))
    return None if is_alike else "it has little in common with its siblings"


def _has_lines_of(page: PageContent, siblings: Sequence[PageContent]) -> bool:
    shared = frozenset[str].intersection(*(_lines(sibling.text) for sibling in siblings))
    return bool(shared) and len(shared & _lines(page.text)) >= SHARED_LINES * len(shared)


def _lines(text: str) -> frozenset[str]:
    return frozenset(stripped for line in text.splitlines() if (stripped := line.strip()))


def _has_elements_of(page: PageContent, siblings: Sequence[PageContent]) -> bool:
    """Return whether it has most elements that all siblings have; bare tags do not count."""
    shared = frozenset[str].intersection(*map(_elements, siblings))
    if not any("." in element for element in shared):
        return False
    return len(shared & _elements(page)) >= SHARED_ELEMENTS * len(shared)


def _elements(page: PageContent) -> frozenset[str]:
    elements: set[str] = set()
    for node in page.document.tree.css("body *"):
        classes = (node.attrs.get("class") or "").split()
        elements.add(".".join([node.tag or "", *sorted(classes)]))
    return frozenset(elements)


def _is_published(work: ReadWork) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Return the conditions of items and pages of the dataset that the extraction builds on.

    Of a rerun it is the one that it may replace.
    """
    if work.base_dataset_id is not None:
        dataset_id: ColumnElement[int] = literal(work.base_dataset_id, Id)
    else:
        dataset_id = published_dataset(work.task.source_id or "", work.entity_type)
    built_by = select(datasets.c.extraction_id).where(datasets.c.id == dataset_id).scalar_subquery()
    return data_items.c.dataset_id == dataset_id, pages.c.extraction_id == built_by


def _last_code(connection: Connection, work: ReadWork) -> str | None:
    """Return the page's failure code of the crawl before this one, if any.

    A rerun reads stored pages: it does not count as a second fetch of the page.
    """
    query = (
        select(pages.c.failure["code"].as_string())
        .join(extractions, extractions.c.id == pages.c.extraction_id)
        .where(*_is_earlier_visit(work))
        .order_by(extractions.c.id.desc())
        .limit(1)
    )
    return connection.execute(query).scalar_one_or_none()


def _is_earlier_visit(work: ReadWork) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of the page, and the extraction, of crawls before this one."""
    own = extractions.alias("own")
    crawled = select(func.coalesce(own.c.rerun_of, own.c.id)).where(own.c.id == work.extraction_id)
    return (
        extractions.c.source_id == work.task.source_id,
        extractions.c.id < crawled.scalar_subquery(),
        extractions.c.kind != ExtractionKind.RERUN.value,
        pages.c.key == work.key,
    )


def _explored(connection: Connection, work: ReadWork, content: ContentStore) -> list[PageContent]:
    """Return the page as last fetched successfully, then siblings of it; empty if it never was."""
    last = (
        select(extractions.c.id)
        .join(pages, pages.c.extraction_id == extractions.c.id)
        .where(*_is_earlier_visit(work), pages.c.status == PageStatus.SUCCESS.value)
        .order_by(extractions.c.id.desc())
        .limit(1)
    )
    is_own = pages.c.key == work.key
    query = (
        select(pages.c.url, pages.c.key, *(snapshots.c[name] for name in SNAPSHOT_COLUMNS))
        .join_from(pages, crawl_steps, crawl_steps.c.id == pages.c.step_id)
        .join(snapshots, snapshots.c.id == pages.c.snapshot_id)
        .where(
            pages.c.extraction_id == last.scalar_subquery(),
            pages.c.status == PageStatus.SUCCESS.value,
            or_(is_own, crawl_steps.c.key == work.step),
        )
        .order_by(is_own.desc(), pages.c.id)
        .limit(1 + MAX_SIBLINGS)
    )
    rows = connection.execute(query).all()
    if not rows or rows[0].key != work.key:
        return []
    with suppress(WorkError):  # a stored object was deleted
        return [stored_content(content, row) for row in rows]
    return []


def _is_text_of_another(connection: Connection, work: ReadWork) -> bool:
    """Return whether another address of the source has, or had, the same text."""
    own = select(snapshots.c.content_hash).where(snapshots.c.id == work.snapshot_id)
    query = select(snapshots.c.id).where(
        snapshots.c.content_hash == own.scalar_subquery(),
        snapshots.c.source_id == work.task.source_id,
        snapshots.c.url != work.url,
    )
    return connection.execute(query.limit(1)).first() is not None


def _names(connection: Connection, work: ReadWork, kind: EntityType) -> frozenset[str]:
    """Return the names of the page's earlier records, in the form to search for."""
    query = (
        select(data_items.c.data)
        .join(pages, pages.c.id == data_items.c.page_id)
        .where(*_is_published(work), pages.c.key == work.key)
        .limit(MAX_NAMED)
    )
    values = [
        " ".join(str(data.get(name) or "").casefold().split())
        for data in connection.execute(query).scalars()
        for name in kind.key_fields
    ]
    return frozenset(value for value in values if len(value) >= MIN_NAME_CHARACTERS)


def _siblings(connection: Connection, work: ReadWork, content: ContentStore) -> list[PageContent]:
    """Return stored pages of the same step with published records, the page's own version first."""
    is_own = pages.c.key == work.key
    siblings: list[PageContent] = []
    for condition, limit in ((is_own, 1), (~is_own, MAX_SIBLINGS)):
        stated_by = (
            select(func.min(data_items.c.snapshot_id))
            .where(_is_published(work)[0], data_items.c.page_id == pages.c.id)
            .scalar_subquery()
        )
        query = (
            select(pages.c.url, *(snapshots.c[name] for name in SNAPSHOT_COLUMNS))
            .join_from(pages, crawl_steps, crawl_steps.c.id == pages.c.step_id)
            .join(snapshots, snapshots.c.id == stated_by)
            .where(
                _is_published(work)[1],
                condition,
                crawl_steps.c.key == work.step,
                pages.c.item_count > 0,
                snapshots.c.body_hash.is_not(None),
            )
            .order_by(pages.c.id)
            .limit(limit)
        )
        for row in connection.execute(query):
            with suppress(WorkError):  # deleted from the store: use the others
                siblings.append(stored_content(content, row))
    return siblings
