"""What an extraction's dataset comes to: confirmed, published, quarantined, or left incomplete.

The newest published version is what exports and views show. A version that the gates hold back
stands beside it until somebody accepts it, or the next extraction does better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    false,
    func,
    insert,
    literal,
    null,
    select,
    update,
)

from ingestion_pipeline.catalogs.completing.gates import DatasetNumbers, as_stored, judge
from ingestion_pipeline.catalogs.entities.declared import entity_folder
from ingestion_pipeline.catalogs.entities.entity_type import (
    BadEntityType,
    EntityType,
    entity_types,
)
from ingestion_pipeline.catalogs.states import DatasetStatus, PageStatus
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.insert import insert_into
from ingestion_pipeline.store.tables import data_items, datasets, extractions, pages
from ingestion_pipeline.store.types import Id, UtcDateTime

NEVER_READ = "-"  # of a dataset that no reader has added to: all its pages are gone


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEnd:
    """A dataset as an extraction left it; `is_confirmed` if it is the last one, unchanged."""

    id: int
    version: int
    status: DatasetStatus
    items: int
    flagged: int
    findings: Sequence[Mapping[str, str]] = ()
    is_confirmed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What must be known of an extraction to end its dataset."""

    extraction_id: int
    source_id: str
    entity_type: str
    base_id: int | None


def end_dataset(
    connection: Connection, built: Built, *, settings: Settings, now: datetime
) -> DatasetEnd | None:
    """The complete extraction's dataset is published or held back; None if it found nothing ever.

    Nothing was read anew, and every page with items is as it was: the base is confirmed.
    """
    own = _own(connection, built.extraction_id)
    if own is None and built.base_id is not None and _is_unchanged(connection, built):
        return _confirm(connection, built, now=now)
    if own is None and built.base_id is None:
        return None
    id_ = own.id if own is not None else _create(connection, built, now=now)
    if built.base_id is not None:
        _copy_carried(connection, id_, built, now=now)
    return _settle(connection, id_, built, settings=settings, now=now)


def leave_incomplete(connection: Connection, built: Built) -> DatasetEnd | None:
    """What was read so far stands, is counted, and is shown to nobody; None if nothing was."""
    own = _own(connection, built.extraction_id)
    if own is None:
        return None
    _mark_repeats(connection, own.id)
    counts = numbers(connection, own.id, None)
    # One that was published already, and opened again for a retry, stays published.
    is_shown = own.status == DatasetStatus.PUBLISHED.value
    status = DatasetStatus.PUBLISHED if is_shown else DatasetStatus.INCOMPLETE
    connection.execute(
        update(datasets)
        .where(datasets.c.id == own.id)
        .values(status=status.value, item_count=counts.items, flagged_count=counts.flagged)
    )
    _point(connection, built.extraction_id, own.id)
    return DatasetEnd(
        id=own.id,
        version=own.version,
        status=status,
        items=counts.items,
        flagged=counts.flagged,
    )


def _last_good(connection: Connection, built: Built, *, before_version: int) -> int | None:
    """The dataset that the source has shown of this entity before; None if it has shown none.

    One of another entity says nothing: the source was declared anew.
    """
    query = select(datasets.c.id).where(
        datasets.c.source_id == built.source_id,
        datasets.c.entity_type == built.entity_type,
        datasets.c.status == DatasetStatus.PUBLISHED.value,
        datasets.c.version < before_version,
    )
    newest = query.order_by(datasets.c.version.desc()).limit(1)
    return connection.execute(newest).scalar_one_or_none()


def _on_failed_pages(connection: Connection, dataset_id: int, extraction_id: int) -> int:
    """How many items of the dataset stand on pages that failed in this extraction."""
    then, now = pages.alias("then"), pages.alias("now")
    query = (
        select(func.count())
        .select_from(now)
        .join(then, then.c.key == now.c.key)
        .join(datasets, datasets.c.extraction_id == then.c.extraction_id)
        .join(data_items, data_items.c.page_id == then.c.id)
        .where(
            now.c.extraction_id == extraction_id,
            now.c.status == PageStatus.ERROR.value,
            datasets.c.id == dataset_id,
            data_items.c.dataset_id == dataset_id,
            ~data_items.c.is_repeat,
        )
    )
    return connection.execute(query).scalar_one()


def _kind(name: str, settings: Settings) -> EntityType | None:
    """The entity's type; None if its schema file is gone or broken: then fields are not judged."""
    try:
        return entity_types(entity_folder(settings)).get(name)
    except BadEntityType:  # of another type, perhaps; whoever reads pages says so
        return entity_types().get(name)


def numbers(connection: Connection, dataset_id: int, kind: EntityType | None) -> DatasetNumbers:
    """What the dataset holds, each record once; of the entity's fields how many state them."""
    names = [] if kind is None else [field.name for field in kind.fields]
    stated = [
        func.count()
        .filter(func.nullif(data_items.c.data[name].as_string(), "").is_not(None))
        .label(f"field_{place}")
        for place, name in enumerate(names)
    ]
    query = select(
        func.count().label("items"),
        func.count().filter(data_items.c.is_flagged).label("flagged"),
        *stated,
    ).where(data_items.c.dataset_id == dataset_id, ~data_items.c.is_repeat)
    row = connection.execute(query).one()
    return DatasetNumbers(
        items=row.items, flagged=row.flagged, fields=dict(zip(names, row[2:], strict=True))
    )


def _own(connection: Connection, extraction_id: int) -> Row[Any, Any, Any] | None:
    query = select(datasets.c.id, datasets.c.version, datasets.c.status).where(
        datasets.c.extraction_id == extraction_id
    )
    return connection.execute(query.order_by(datasets.c.version.desc()).limit(1)).one_or_none()


def _is_unchanged(connection: Connection, built: Built) -> bool:
    """Whether every page that the base has items of was found, unchanged, by this extraction."""
    of_base = select(data_items.c.page_id).where(data_items.c.dataset_id == built.base_id)
    found = select(pages.c.carried_from).where(
        pages.c.extraction_id == built.extraction_id, pages.c.carried_from.is_not(None)
    )
    # As sets: looked up one by one, each item would walk through all pages.
    lost = of_base.except_(found).limit(1)
    return connection.execute(lost).first() is None


def _confirm(connection: Connection, built: Built, *, now: datetime) -> DatasetEnd:
    statement = (
        update(datasets)
        .where(datasets.c.id == built.base_id)
        .values(confirmed_at=now)
        .returning(
            datasets.c.id, datasets.c.version, datasets.c.item_count, datasets.c.flagged_count
        )
    )
    row = connection.execute(statement).one()
    _point(connection, built.extraction_id, row.id)
    return DatasetEnd(
        id=row.id,
        version=row.version,
        status=DatasetStatus.PUBLISHED,
        items=row.item_count,
        flagged=row.flagged_count,
        is_confirmed=True,
    )


def _create(connection: Connection, built: Built, *, now: datetime) -> int:
    """A dataset for what is left of the base: its reader's hash is the base's."""
    version = select(func.coalesce(func.max(datasets.c.version), 0) + 1).where(
        datasets.c.source_id == built.source_id
    )
    read_as = select(datasets.c.read_as).where(datasets.c.id == built.base_id)
    statement = insert(datasets).values(
        source_id=built.source_id,
        extraction_id=built.extraction_id,
        version=version.scalar_subquery(),
        entity_type=built.entity_type,
        read_as=func.coalesce(read_as.scalar_subquery(), NEVER_READ),
        status=DatasetStatus.BUILDING.value,
        created_at=now,
    )
    return connection.execute(statement.returning(datasets.c.id)).scalar_one()


_COPIED = (
    *("snapshot_id", "entity_type", "item_key", "position", "data", "grounding"),
    *("rung", "model", "confidence", "is_flagged"),
)


def _copy_carried(connection: Connection, dataset_id: int, built: Built, *, now: datetime) -> None:
    """The items of unchanged pages are the new dataset's, too; one statement, once."""
    values = {
        "dataset_id": literal(dataset_id, Id),
        "page_id": pages.c.id,
        **{name: data_items.c[name] for name in _COPIED},
        "is_repeat": false(),
        "created_at": literal(now, UtcDateTime()),
    }
    carried = (
        select(*(value.label(name) for name, value in values.items()))
        .select_from(pages)
        .join(data_items, data_items.c.page_id == pages.c.carried_from)
        .where(
            pages.c.extraction_id == built.extraction_id, data_items.c.dataset_id == built.base_id
        )
        .order_by(pages.c.key, data_items.c.position)
    )
    statement = insert_into(connection, data_items).from_select(list(values), carried)
    once = statement.on_conflict_do_nothing(index_elements=["dataset_id", "page_id", "item_key"])
    connection.execute(once)


def _mark_repeats(connection: Connection, dataset_id: int) -> None:
    """Of equal keys one item counts: an unflagged one, of the first page, the first on it.

    A flagged one is not exported: it must not hide another page's that is proved.
    """
    first = (data_items.c.is_flagged, pages.c.key, data_items.c.position, data_items.c.id)
    place = func.row_number().over(partition_by=data_items.c.item_key, order_by=first)
    ranked = (
        select(data_items.c.id, (place > 1).label("is_repeat"))
        .join(pages, pages.c.id == data_items.c.page_id)
        .where(data_items.c.dataset_id == dataset_id)
        .subquery("ranked")
    )
    connection.execute(
        update(data_items)
        .where(data_items.c.id == ranked.c.id, data_items.c.is_repeat != ranked.c.is_repeat)
        .values(is_repeat=ranked.c.is_repeat)
    )


def _settle(
    connection: Connection, dataset_id: int, built: Built, *, settings: Settings, now: datetime
) -> DatasetEnd:
    """Counted, judged against the last good one, and published or quarantined."""
    _mark_repeats(connection, dataset_id)
    query = select(datasets.c.version).where(datasets.c.id == dataset_id)
    version: int = connection.execute(query).scalar_one()
    kind = _kind(built.entity_type, settings)
    good = _last_good(connection, built, before_version=version)
    new = numbers(connection, dataset_id, kind)
    before = None if good is None else numbers(connection, good, kind)
    required = kind.required if kind else ()
    failed = 0 if good is None else _on_failed_pages(connection, good, built.extraction_id)
    found = judge(new, before, required=required, limits=settings.extraction, failed=failed)
    status = DatasetStatus.QUARANTINED if found else DatasetStatus.PUBLISHED
    findings = as_stored(found)
    connection.execute(
        update(datasets)
        .where(datasets.c.id == dataset_id)
        .values(
            status=status.value,
            item_count=new.items,
            flagged_count=new.flagged,
            findings=findings or null(),
            published_at=null() if found else now,
        )
    )
    _point(connection, built.extraction_id, dataset_id)
    return DatasetEnd(
        id=dataset_id,
        version=version,
        status=status,
        items=new.items,
        flagged=new.flagged,
        findings=findings,
    )


def _point(connection: Connection, extraction_id: int, dataset_id: int) -> None:
    connection.execute(
        update(extractions).where(extractions.c.id == extraction_id).values(dataset_id=dataset_id)
    )
