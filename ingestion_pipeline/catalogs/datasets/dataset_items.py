"""Rows of datasets: pages with their results, items with their evidence, and items of the last good one carried over.

| the page, this time | its items in the last good dataset |
|---|---|
| is unchanged | are taken over (`carried_from`, written when it was fetched) |
| failed to be fetched or extracted | are kept: nothing shows that they are gone |
| was left when the extraction became stale | are kept, likewise |
| states none, and stated some | are kept: it failed (see `extraction.missing_records`) |
| was not found, and a list above it failed | are kept: an unseen list proves nothing |
| answered 404 or 410, or no list names it | are gone |

A kept page is in ERROR, or still waits, and says where its items come from; a retry, or a resume,
fetches it again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    String,
    Subquery,
    and_,
    case,
    delete,
    exists,
    false,
    func,
    insert,
    literal,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.sql.selectable import FromClause

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.record import MODEL_METHODS, ExtractionResult, item_keys
from ingestion_pipeline.catalogs.extraction.source_selectors import load_entity_config
from ingestion_pipeline.catalogs.extraction_states import ActiveExtraction
from ingestion_pipeline.catalogs.recipes.next_pages import LIST_PAGES, NOTHING_TO_DO
from ingestion_pipeline.catalogs.recipes.recipe import PageType
from ingestion_pipeline.catalogs.states import (
    LINKS_MISSING,
    MISSING_CODES,
    NO_LINKS,
    READ_PAGES,
    UNFINISHED_PAGES,
    DatasetStatus,
    PageStatus,
    failure_code,
)
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.statements import insert_into, row_source
from ingestion_pipeline.store.tables import crawl_steps, data_items, datasets, extractions, pages
from ingestion_pipeline.store.types import Id, Json, UtcDateTime
from ingestion_pipeline.tasks.errors import FORBIDDEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A record of one page, in plain values; `is_flagged` if a required field is not proved."""

    item_key: str
    position: int
    data: Mapping[str, Any]
    grounding: Mapping[str, Any]
    extraction_method: str
    model: str | None
    confidence: float
    is_flagged: bool


def items_of(kind: EntityType, reading: ExtractionResult) -> list[Item]:
    """Return the page's complete records in page order, each under its own key."""
    whole = [record for record in reading.records if not record.missing_fields]
    items: list[Item] = []
    for position, (key, record) in enumerate(zip(item_keys(kind, whole), whole, strict=True), start=1):
        values = record.as_dict()
        item = Item(
            item_key=key,
            position=position,
            data={name: values[name] for name in record.fields},
            grounding=values["evidence"],
            extraction_method=record.method.value,
            model=record.model,
            confidence=record.confidence,
            is_flagged=record.is_flagged,
        )
        items.append(item)
    return items


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedPage:
    """The result to write to a page's row; `reader_hash` is None if not extracted."""

    id: int
    status: PageStatus
    item_count: int | None = None
    method: str | None = None
    reader_hash: str | None = None
    failure: Mapping[str, Any] | None = None


_PAGE_COLUMNS = {
    name: pages.c[name].type
    for name in ("id", "status", "item_count", "extraction_method", "reader_hash", "failure", "read_at", "run_id")
}


def write_pages(
    connection: Connection, finished: Sequence[FinishedPage], *, now: datetime, run_id: str | None = None
) -> set[int]:
    """Write the results of pages that still wait to be extracted; return their ids."""
    if not finished:
        return set()
    rows: list[tuple[Any, ...]] = []
    for page in finished:
        failure = None if page.failure is None else dict(page.failure)
        read_at = None if page.reader_hash is None else now
        result = (page.item_count, page.method, page.reader_hash, failure, read_at)
        rows.append((page.id, page.status.value, *result, run_id))
    page_rows = row_source(connection, _PAGE_COLUMNS, rows, "given")
    was_read = page_rows.c.read_at.is_not(None)  # else the result of the last extraction stays
    values = {
        name: case((was_read, page_rows.c[name]), else_=pages.c[name])
        for name in ("item_count", "extraction_method", "reader_hash", "read_at", "run_id")
    }
    statement = (
        update(pages)
        .where(pages.c.id == page_rows.c.id, pages.c.status == PageStatus.DOWNLOADED.value)
        .values(**values, status=page_rows.c.status, failure=page_rows.c.failure)
        .returning(pages.c.id)
    )
    return set(connection.execute(statement).scalars())


def unpublished_dataset(connection: Connection, extraction_id: int) -> Row[Any, Any] | None:
    """Return the dataset that the extraction is building; a published one is never changed."""
    query = select(datasets.c.id, datasets.c.version).where(
        datasets.c.extraction_id == extraction_id, datasets.c.status != DatasetStatus.PUBLISHED.value
    )
    return connection.execute(query.order_by(datasets.c.version.desc()).limit(1)).one_or_none()


def ensure_dataset(connection: Connection, extraction: ActiveExtraction, reader_hash: str, *, now: datetime) -> int:
    """Return the extraction's own dataset; create one if needed."""
    existing = unpublished_dataset(connection, extraction.id)
    if existing is not None:
        return existing.id
    id_ = create_dataset(connection, extraction, literal(reader_hash), now=now)
    connection.execute(update(extractions).where(extractions.c.id == extraction.id).values(dataset_id=id_))
    return id_


def create_dataset(
    connection: Connection, extraction: ActiveExtraction | Row[Any], reader_hash: ColumnElement[str], *, now: datetime
) -> int:
    """Create a dataset with the source's next version.

    The extraction's row is locked and a source has only one running extraction: no other creates a version meanwhile.
    """
    last = select(func.coalesce(func.max(datasets.c.version), 0) + 1).where(
        datasets.c.source_id == extraction.source_id
    )
    statement = insert(datasets).values(
        source_id=extraction.source_id,
        extraction_id=extraction.id,
        version=last.scalar_subquery(),
        entity_type=extraction.entity_type,
        reader_hash=reader_hash,
        status=DatasetStatus.BUILDING.value,
        created_at=now,
    )
    return connection.execute(statement.returning(datasets.c.id)).scalar_one()


@dataclass(frozen=True, slots=True, kw_only=True)
class PageItems:
    """The items of one page of a dataset."""

    dataset_id: int
    page_id: int
    snapshot_id: int | None
    entity_type: str
    items: Sequence[Item]


_OF_PAGE = ("dataset_id", "page_id", "snapshot_id", "entity_type")  # fields of PageItems, and columns
_OF_ITEM = ("item_key", "position", "data", "grounding", "extraction_method", "model", "confidence", "is_flagged")
_ITEM_COLUMNS = {name: data_items.c[name].type for name in (*_OF_PAGE, *_OF_ITEM, "is_repeat")}
_IDENTITY = ("dataset_id", "page_id", "item_key")


def write_items(
    connection: Connection, page_items: Sequence[PageItems], *, read_before: Collection[int], now: datetime
) -> None:
    """Replace each page's items by these, in one statement; `read_before` may have had some.

    A page that is extracted twice leaves no duplicate: the natural key is the item's identity.
    """
    if read_before:
        of_these = data_items.c.page_id.in_(list(read_before))
        mine = data_items.c.dataset_id.in_({page.dataset_id for page in page_items})
        connection.execute(delete(data_items).where(of_these, mine))
    of_page, of_item = attrgetter(*_OF_PAGE), attrgetter(*_OF_ITEM)
    rows = [(*of_page(page), *of_item(item), False) for page in page_items for item in page.items]
    if not rows:
        return
    item_rows = row_source(connection, _ITEM_COLUMNS, rows, "given")
    selected = select(*item_rows.c, literal(now, UtcDateTime())).where(true())  # SQLite wants a WHERE
    statement = insert_into(connection, data_items).from_select([*_ITEM_COLUMNS, "created_at"], selected)
    changed = [name for name in _ITEM_COLUMNS if name not in _IDENTITY]
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=list(_IDENTITY), set_={name: statement.excluded[name] for name in changed}
        )
    )


GONE = ("http_404", "http_410")  # the server says that there is no such page
UNLISTED = {
    "class": "transient",
    "code": "unlisted",
    "message": "a list that may lead to it failed; its items are kept from the version before",
}
# Carried from another extraction's page; a page that points at itself was not read again.
NOT_GOT = [PageStatus.ERROR.value, *UNFINISHED_PAGES]  # once the extraction has ended
UNCHANGED = and_(pages.c.status.not_in(NOT_GOT), pages.c.carried_from != pages.c.id)
KEPT = and_(pages.c.status.in_(NOT_GOT), pages.c.carried_from.is_not(None))
# A page without a link that the recipe follows is no list: menus link to such pages, too.
NO_LIST = (*GONE, NOTHING_TO_DO, FORBIDDEN)
_CODE = pages.c.failure["code"].as_string()
# However they failed: their published items are from an earlier version, or unknown.
MISSING = and_(
    pages.c.status == PageStatus.ERROR.value,
    or_(
        pages.c.carried_from.is_not(None),
        _CODE.in_(MISSING_CODES),
        and_(pages.c.page_type.not_in(READ_PAGES), _CODE.not_in(NO_LIST)),
    ),
)


def keep_failed(connection: Connection, extraction_id: int, dataset_id: int, *, now: datetime) -> tuple[int, int]:
    """Point pages that failed, or that a failed list hides, at their items in the last dataset.

    Return how many items are kept, and how many of these pages are unlisted.
    """
    stated = (
        select(data_items.c.page_id, func.count().label("held"))
        .where(data_items.c.dataset_id == dataset_id)
        .group_by(data_items.c.page_id)
        .subquery("stated")
    )
    _fail_lists(connection, extraction_id)
    _keep_found(connection, extraction_id, stated)
    unlisted = _keep_unlisted(connection, extraction_id, stated, now=now)
    query = select(func.coalesce(func.sum(pages.c.item_count), 0)).where(pages.c.extraction_id == extraction_id, KEPT)
    return int(connection.execute(query).scalar_one()), unlisted


def _fail_lists(connection: Connection, extraction_id: int) -> None:
    """Mark lists as failed that led to pages the last time, and lead to none for the first time."""
    source_id = select(extractions.c.source_id).where(extractions.c.id == extraction_id)
    earlier = select(extractions.c.id).where(
        extractions.c.source_id == source_id.scalar_subquery(), extractions.c.id < extraction_id
    )
    visit, before = pages.alias("visit"), pages.alias("before")
    last = select(func.max(visit.c.id)).where(
        visit.c.extraction_id.in_(earlier), visit.c.key == pages.c.key, visit.c.status.not_in(UNFINISHED_PAGES)
    )
    led_on = exists().where(
        before.c.id == last.correlate(pages).scalar_subquery(),
        before.c.status == PageStatus.SUCCESS.value,
        before.c.failure.is_(None),
    )
    failure = {
        "class": "permanent",
        "code": LINKS_MISSING,
        "message": "it led to pages and now leads to none; they are kept until the next crawl",
    }
    leads_nowhere = and_(pages.c.status == PageStatus.SUCCESS.value, _CODE == NO_LINKS)
    statement = update(pages).where(pages.c.extraction_id == extraction_id, leads_nowhere, led_on)
    connection.execute(statement.values(status=PageStatus.ERROR.value, failure=failure))


def _is_failed(page: FromClause) -> ColumnElement[bool]:
    is_gone = and_(page.c.status == PageStatus.ERROR.value, failure_code(page).in_(GONE))
    return and_(page.c.status.in_(NOT_GOT), ~is_gone)


def _keep_found(connection: Connection, extraction_id: int, stated: Subquery) -> None:
    new, old = pages.alias("new"), pages.alias("old")
    matches = (
        select(new.c.id.label("page_id"), old.c.id.label("old_id"), stated.c.held)
        .join_from(stated, old, old.c.id == stated.c.page_id)
        .join(new, new.c.key == old.c.key)
        .where(new.c.extraction_id == extraction_id, _is_failed(new))
        .cte("found")
    )
    connection.execute(
        update(pages)
        .where(pages.c.id == matches.c.page_id)
        .values(carried_from=matches.c.old_id, item_count=matches.c.held)
    )


def _keep_unlisted(connection: Connection, extraction_id: int, stated: Subquery, *, now: datetime) -> int:
    """Insert a row for each page that was not found below a failed page; return their number."""
    old, old_step = pages.alias("old"), crawl_steps.alias("old_step")
    is_hidden = _is_hidden(connection, extraction_id, old_step)
    if is_hidden is None:
        return 0
    seen, new_step = pages.alias("seen"), crawl_steps.alias("new_step")
    copied = ("url", "key", "host", "page_type", "position", "snapshot_id")
    values: dict[str, ColumnElement[Any]] = {
        "extraction_id": literal(extraction_id, Id),
        "step_id": new_step.c.id,
        **{name: old.c[name] for name in copied},
        "status": literal(PageStatus.ERROR.value),
        "failure": literal(UNLISTED, Json),
        "item_count": stated.c.held,
        "carried_from": old.c.id,
        "created_at": literal(now, UtcDateTime()),
    }
    is_seen = exists().where(seen.c.extraction_id == extraction_id, seen.c.key == old.c.key)
    hidden = (
        select(*(value.label(name) for name, value in values.items()))
        .join_from(stated, old, old.c.id == stated.c.page_id)
        .join(old_step, old_step.c.id == old.c.step_id)
        # A step that exploring would have made may be missing: then its parent is taken.
        .join(new_step, and_(new_step.c.extraction_id == extraction_id, _is_nearest(new_step, old_step)))
        .where(~is_seen, is_hidden)
        .order_by(old.c.id)
    )
    made = connection.execute(insert(pages).from_select(list(values), hidden)).rowcount
    if made:
        mine = update(extractions).where(extractions.c.id == extraction_id)
        connection.execute(mine.values(page_count=extractions.c.page_count + made))
    return made


def _is_nearest(new_step: FromClause, old_step: FromClause) -> ColumnElement[bool]:
    """Match the step of the same key, else the deepest one above it."""
    other = crawl_steps.alias("other")
    nearer = exists().where(
        other.c.extraction_id == new_step.c.extraction_id,
        _is_above(other, old_step),
        func.length(other.c.key) > func.length(new_step.c.key),
    )
    return and_(_is_above(new_step, old_step), ~nearer)


def _is_above(upper: FromClause, lower: FromClause) -> ColumnElement[bool]:
    """Match if the upper step's key is the lower one's, or a path prefix of it."""
    start = upper.c.key + "/"
    return func.substr(lower.c.key + "/", 1, func.length(start)) == start


def _is_hidden(connection: Connection, extraction_id: int, old_step: FromClause) -> ColumnElement[bool] | None:
    """Match steps below incomplete lists (failed, or cut off); None if all lists are complete."""
    cut_off = select(extractions.c.id).where(extractions.c.id == extraction_id, extractions.c.over_budget > 0)
    if connection.execute(cut_off).first() is not None:
        return true()
    failed = (
        select(crawl_steps.c.key, crawl_steps.c.page_type)
        .join(pages, pages.c.step_id == crawl_steps.c.id)
        .where(pages.c.extraction_id == extraction_id, _is_failed(pages), failure_code(pages) != UNLISTED["code"])
        .distinct()
    )
    # There are a handful of steps, whatever the number of pages: one query, not one per page.
    below = [_leads_to(key, page_type, old_step) for key, page_type in connection.execute(failed)]
    return or_(*below) if below else None


def _leads_to(key: str, page_type: str, step: FromClause) -> ColumnElement[bool]:
    """Match if pages of a step with this key and type lead to pages of the other step.

    The further pages of a list lead where its first one leads; exploring stays in its step.
    """
    start = f"{key.removesuffix(LIST_PAGES)}/"
    is_exploring = page_type == PageType.EXPLORATORY.value
    lower = step.c.key + "/" if is_exploring else step.c.key
    return func.substr(lower, 1, len(start)) == start


def is_unchanged(connection: Connection, extraction_id: int, dataset_id: int) -> bool:
    """Whether every page that the dataset has items of is unchanged or kept."""
    of_base = select(data_items.c.page_id).where(data_items.c.dataset_id == dataset_id)
    carried = select(pages.c.carried_from).where(
        pages.c.extraction_id == extraction_id, pages.c.carried_from.is_not(None)
    )
    # As sets: looked up one by one, each item would scan all pages.
    lost = of_base.except_(carried).limit(1)
    return connection.execute(lost).first() is None


def copy_carried(connection: Connection, extraction_id: int, *, from_id: int, to_id: int, now: datetime) -> None:
    """Copy the items of carried pages into the new dataset; one statement, idempotent."""
    values: dict[str, ColumnElement[Any]] = {
        "dataset_id": literal(to_id, Id),
        "page_id": pages.c.id,
        **{name: data_items.c[name] for name in ("snapshot_id", "entity_type", *_OF_ITEM)},
        "is_repeat": false(),
        "created_at": literal(now, UtcDateTime()),
    }
    carried = (
        select(*(value.label(name) for name, value in values.items()))
        .select_from(pages)
        .join(data_items, data_items.c.page_id == pages.c.carried_from)
        .where(pages.c.extraction_id == extraction_id, data_items.c.dataset_id == from_id)
        .order_by(pages.c.key, data_items.c.position)
    )
    statement = insert_into(connection, data_items).from_select(list(values), carried)
    once = statement.on_conflict_do_nothing(index_elements=list(_IDENTITY))
    connection.execute(once)


_READ = [PageStatus.SUCCESS.value, PageStatus.EXTRACTED_NO_DATA.value]
_TAKEN = ("status", "item_count", "extraction_method", "reader_hash", "failure", "run_id")


def carry_over(
    connection: Connection,
    downloaded: Collection[int],
    active: Mapping[int, ActiveExtraction],
    *,
    now: datetime,
    settings: Settings,
) -> set[int]:
    """Mark pages whose content, key and reader hash are known as read; return their ids.

    Without a model, pages that a model has read are carried over as well, unless the source's configuration changed:
    nothing could read them again. One statement, and none for an extraction without a published dataset.
    """
    rows = [
        (extraction.id, extraction.base_dataset_id, name)
        for extraction in active.values()
        if extraction.base_dataset_id is not None and (name := _reader_hash(extraction, settings))
    ]
    if not rows or not downloaded:
        return set()
    columns = {"extraction_id": Id, "dataset_id": Id, "name": String(64)}
    bases = row_source(connection, columns, rows, "given")
    new, old = pages.alias("new"), pages.alias("old")
    after, before = extractions.alias("after"), extractions.alias("before")
    is_known = old.c.reader_hash == bases.c.name
    if not settings.has_model:
        is_same_config = after.c.config_version.is_not_distinct_from(before.c.config_version)
        is_known = or_(is_known, and_(old.c.extraction_method.in_(MODEL_METHODS), is_same_config))
    matches = (
        select(new.c.id.label("page_id"), old.c.id.label("carried_from"))
        .add_columns(*(old.c[name].label(f"old_{name}") for name in _TAKEN))
        .join_from(bases, datasets, datasets.c.id == bases.c.dataset_id)
        .join(before, before.c.id == datasets.c.extraction_id)
        .join(after, after.c.id == bases.c.extraction_id)
        .join(new, new.c.extraction_id == bases.c.extraction_id)
        .join(old, and_(old.c.extraction_id == datasets.c.extraction_id, old.c.key == new.c.key))
        .where(
            new.c.id.in_(list(downloaded)),
            new.c.status == PageStatus.DOWNLOADED.value,
            old.c.snapshot_id == new.c.snapshot_id,
            is_known,
            old.c.status.in_(_READ),
        )
        .cte("found")
    )
    statement = (
        update(pages)
        .where(pages.c.id == matches.c.page_id)
        .values(
            {name: matches.c[f"old_{name}"] for name in _TAKEN}
            | {"carried_from": matches.c.carried_from, "read_at": literal(now, UtcDateTime())}
        )
        .returning(pages.c.id)
    )
    return set(connection.execute(statement).scalars())


def _reader_hash(extraction: ActiveExtraction, settings: Settings) -> str | None:
    try:
        return extraction.reader_hash(
            load_entity_config(extraction.config, settings, entity=extraction.entity_type), settings
        )
    except ValueError:  # reported when the page is extracted
        return None
