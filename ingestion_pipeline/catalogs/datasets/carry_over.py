"""Carry items over from the last good dataset: those of unchanged pages, and of failed ones.

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

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    String,
    Subquery,
    and_,
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

from ingestion_pipeline.catalogs.extraction.record import MODEL_METHODS
from ingestion_pipeline.catalogs.extraction.source_config import load_entity_config
from ingestion_pipeline.catalogs.extractions import ActiveExtraction
from ingestion_pipeline.catalogs.recipes.next_pages import LIST_PAGES, NOTHING_TO_DO
from ingestion_pipeline.catalogs.recipes.recipe import PageType
from ingestion_pipeline.catalogs.states import (
    LINKS_MISSING,
    MISSING_CODES,
    NO_LINKS,
    READ_PAGES,
    UNFINISHED_PAGES,
    PageStatus,
    failure_code,
)
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import crawl_steps, data_items, datasets, extractions, pages
from ingestion_pipeline.store.types import Id, Json, UtcDateTime
from ingestion_pipeline.tasks.errors import FORBIDDEN

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


_COPIED = (
    *("snapshot_id", "entity_type", "item_key", "position", "data", "grounding"),
    *("extraction_method", "model", "confidence", "is_flagged"),
)


def copy_carried(connection: Connection, extraction_id: int, *, from_id: int, to_id: int, now: datetime) -> None:
    """Copy the items of carried pages into the new dataset; one statement, idempotent."""
    values: dict[str, ColumnElement[Any]] = {
        "dataset_id": literal(to_id, Id),
        "page_id": pages.c.id,
        **{name: data_items.c[name] for name in _COPIED},
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
    once = statement.on_conflict_do_nothing(index_elements=["dataset_id", "page_id", "item_key"])
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

    Without a model, pages that a model has read are carried over as well, unless the source's
    configuration changed: nothing could read them again. One statement, and none for an extraction
    without a published dataset.
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
