"""Rows of datasets: pages with their results, and items with natural key and evidence."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Float,
    Integer,
    Row,
    String,
    Text,
    case,
    delete,
    func,
    insert,
    literal,
    select,
    true,
    update,
)

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.record import ExtractionResult, item_keys
from ingestion_pipeline.catalogs.extractions import ActiveExtraction
from ingestion_pipeline.catalogs.states import DatasetStatus, PageStatus
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import data_items, datasets, extractions, pages
from ingestion_pipeline.store.types import Id, Json, UtcDateTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A record of one page, in plain values; `is_flagged` if a required field is not proved."""

    key: str
    position: int
    data: Mapping[str, Any]
    grounding: Mapping[str, Any]
    method: str
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
            key=key,
            position=position,
            data={name: values[name] for name in record.fields},
            grounding=values["evidence"],
            method=record.method.value,
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
    "id": Id,
    "status": String(20),
    "item_count": Integer(),
    "extraction_method": String(20),
    "reader_hash": String(64),
    "failure": Json,
    "read_at": UtcDateTime(),
    "run_id": String(64),
}


def write_pages(
    connection: Connection, finished: Sequence[FinishedPage], *, now: datetime, run_id: str | None = None
) -> set[int]:
    """Write the results of pages that still wait to be extracted; return their ids."""
    if not finished:
        return set()
    rows = [
        (
            page.id,
            page.status.value,
            page.item_count,
            page.method,
            page.reader_hash,
            None if page.failure is None else dict(page.failure),
            None if page.reader_hash is None else now,
            run_id,
        )
        for page in finished
    ]
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


_ITEM_COLUMNS = {
    "dataset_id": Id,
    "page_id": Id,
    "snapshot_id": Id,
    "entity_type": String(60),
    "item_key": Text(),
    "position": Integer(),
    "data": Json,
    "grounding": Json,
    "extraction_method": String(20),
    "model": Text(),
    "confidence": Float(),
    "is_flagged": Boolean(),
    "is_repeat": Boolean(),
}
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
    rows = [
        (
            page.dataset_id,
            page.page_id,
            page.snapshot_id,
            page.entity_type,
            item.key,
            item.position,
            item.data,
            item.grounding,
            item.method,
            item.model,
            item.confidence,
            item.is_flagged,
            False,
        )
        for page in page_items
        for item in page.items
    ]
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
