"""Finish a dataset: confirm the last one, publish, quarantine, or leave it incomplete.

Exports and views show the newest published version. A version that the gates hold back is stored
beside it until somebody accepts it, or the next extraction does better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, func, insert, null, select, update

from ingestion_pipeline.catalogs.datasets.carry_over import (
    NO_LIST,
    NOT_GOT,
    KeptItems,
    copy_carried,
    is_unchanged,
    keep_failed,
)
from ingestion_pipeline.catalogs.datasets.gates import (
    DatasetNumbers,
    RecordPages,
    as_stored,
    evaluate_gates,
    is_drop,
)
from ingestion_pipeline.catalogs.extraction.entity_type import BadEntityType, EntityType, entity_types
from ingestion_pipeline.catalogs.extraction.source_config import entity_folder
from ingestion_pipeline.catalogs.extractions import published_dataset
from ingestion_pipeline.catalogs.recipes.next_pages import StepKind
from ingestion_pipeline.catalogs.states import EXPLORED, RECORD_PAGES, DatasetStatus, PageStatus
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.tables import audit_log, crawl_steps, data_items, datasets, extractions, pages

RERUN = "extraction.rerun"  # in the audit log; with `publish` if an operator wants it shown


def newer_version(connection: Connection, extraction_id: int, entity_type: str) -> int | None:
    """Return the published version of a crawl later than the one that fetched these pages."""
    crawled = _crawl_of(connection, extraction_id)
    row = connection.execute(select(extractions.c.source_id).where(extractions.c.id == extraction_id)).one()
    query = select(datasets.c.version, datasets.c.extraction_id).where(
        datasets.c.source_id == row.source_id,
        datasets.c.entity_type == entity_type,
        datasets.c.status == DatasetStatus.PUBLISHED.value,
    )
    for version, built_by in connection.execute(query.order_by(datasets.c.version.desc())):
        if _crawl_of(connection, built_by) > crawled:
            return version
    return None


def _crawl_of(connection: Connection, extraction_id: int) -> int:
    """Return the extraction that fetched the pages: this one, or the one that it reruns."""
    origin: int | None = extraction_id
    while origin is not None:
        extraction_id = origin
        query = select(extractions.c.rerun_of).where(extractions.c.id == extraction_id)
        origin = connection.execute(query).scalar_one_or_none()
    return extraction_id


def is_publish_requested(connection: Connection, extraction_id: int) -> bool:
    """Whether whoever asked for the rerun wants it published, however old its pages are."""
    query = select(audit_log.c.detail).where(
        audit_log.c.action == RERUN, audit_log.c.subject == f"extraction:{extraction_id}"
    )
    return any(detail.get("publish") for detail in connection.execute(query).scalars())


NEVER_READ = "-"  # reader hash of a dataset without extracted pages: all its pages are gone


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedDataset:
    """A dataset as an extraction left it; `is_confirmed` if it is the last one, unchanged.

    `kept_items` come from the dataset before, since their pages failed; `unlisted` is the number of
    those pages that no list named this time.
    """

    id: int
    version: int
    status: DatasetStatus
    items: int
    flagged: int
    findings: Sequence[Mapping[str, str]] = ()
    is_confirmed: bool = False
    kept_items: int = 0
    unlisted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltExtraction:
    """What is needed of an extraction to finish its dataset."""

    extraction_id: int
    source_id: str
    entity_type: str
    base_id: int | None


def finish_dataset(
    connection: Connection, built: BuiltExtraction, *, settings: Settings, now: datetime
) -> FinishedDataset:
    """Publish or hold back the extraction's dataset, even if it has no item.

    If nothing was extracted, and every page with items is unchanged or failed, the base is
    confirmed, unless too many failed.
    """
    own = _unpublished_dataset(connection, built.extraction_id)
    base = built.base_id if built.base_id is not None or own is None else _published_id(connection, built)
    kept_items = KeptItems()
    if base is not None:
        kept_items = keep_failed(connection, built.extraction_id, base, now=now)
        if own is None and _still_holds(connection, built, base, settings=settings):
            return _confirm(connection, built, base, kept_items, now=now)
    id_ = own.id if own is not None else _create(connection, built, now=now)
    if base is not None:
        copy_carried(connection, built.extraction_id, from_id=base, to_id=id_, now=now)
    return _publish_or_quarantine(connection, id_, built, kept_items, settings=settings, now=now)


def _published_id(connection: Connection, built: BuiltExtraction) -> int | None:
    """Return the published dataset from which a rerun takes the items of failed pages."""
    query = select(published_dataset(built.source_id, built.entity_type))
    return connection.execute(query).scalar_one()


def _still_holds(connection: Connection, built: BuiltExtraction, base_id: int, *, settings: Settings) -> bool:
    """Whether the base already has all that this extraction could add."""
    if not is_unchanged(connection, built.extraction_id, base_id):
        return False
    before = numbers(connection, base_id, None).items
    failed = _on_failed_pages(connection, base_id, built.extraction_id)
    return not is_drop(before - failed, before, settings.extraction)


def leave_incomplete(connection: Connection, built: BuiltExtraction) -> FinishedDataset | None:
    """Count what was extracted so far and mark it incomplete; None if nothing was extracted."""
    own = _unpublished_dataset(connection, built.extraction_id)
    if own is None:
        return None
    _mark_repeats(connection, own.id)
    counts = numbers(connection, own.id, None)
    connection.execute(
        update(datasets)
        .where(datasets.c.id == own.id)
        .values(status=DatasetStatus.INCOMPLETE.value, item_count=counts.items, flagged_count=counts.flagged)
    )
    _link_dataset(connection, built.extraction_id, own.id)
    return FinishedDataset(
        id=own.id, version=own.version, status=DatasetStatus.INCOMPLETE, items=counts.items, flagged=counts.flagged
    )


def _last_good(connection: Connection, built: BuiltExtraction, *, before_version: int) -> int | None:
    """Return the source's last published dataset of this entity; None if there is none.

    One of another entity does not count: the source's declaration was changed.
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
    """Return how many items of the dataset stand on pages that failed in this extraction."""
    then, now = pages.alias("then"), pages.alias("now")
    query = (
        select(func.count())
        .select_from(now)
        .join(then, then.c.key == now.c.key)
        .join(datasets, datasets.c.extraction_id == then.c.extraction_id)
        .join(data_items, data_items.c.page_id == then.c.id)
        .where(
            now.c.extraction_id == extraction_id,
            now.c.status.in_(NOT_GOT),
            datasets.c.id == dataset_id,
            data_items.c.dataset_id == dataset_id,
            ~data_items.c.is_repeat,
        )
    )
    return connection.execute(query).scalar_one()


def _kind(name: str, settings: Settings) -> EntityType | None:
    """Return the entity's type; None if its schema is gone or broken: fields are unchecked then."""
    try:
        return entity_types(entity_folder(settings)).get(name)
    except BadEntityType:  # perhaps another type's; it is reported when pages are extracted
        return entity_types().get(name)


def numbers(connection: Connection, dataset_id: int, kind: EntityType | None) -> DatasetNumbers:
    """Count the dataset's records, each once, and how many state each of the entity's fields."""
    names = [] if kind is None else [field.name for field in kind.fields]
    stated = [
        func.count().filter(func.nullif(data_items.c.data[name].as_string(), "").is_not(None)).label(f"field_{place}")
        for place, name in enumerate(names)
    ]
    query = select(
        func.count().label("items"), func.count().filter(data_items.c.is_flagged).label("flagged"), *stated
    ).where(data_items.c.dataset_id == dataset_id, ~data_items.c.is_repeat)
    row = connection.execute(query).one()
    return DatasetNumbers(items=row.items, flagged=row.flagged, fields=dict(zip(names, row[2:], strict=True)))


def is_built(connection: Connection, extraction_id: int) -> bool:
    """Whether something was extracted into a dataset of the extraction's own."""
    return _unpublished_dataset(connection, extraction_id) is not None


def _unpublished_dataset(connection: Connection, extraction_id: int) -> Row[Any, Any] | None:
    """Return the dataset that the extraction is building; a published one is never changed."""
    query = select(datasets.c.id, datasets.c.version).where(
        datasets.c.extraction_id == extraction_id, datasets.c.status != DatasetStatus.PUBLISHED.value
    )
    return connection.execute(query.order_by(datasets.c.version.desc()).limit(1)).one_or_none()


def _confirm(
    connection: Connection, built: BuiltExtraction, base_id: int, kept_items: KeptItems, *, now: datetime
) -> FinishedDataset:
    statement = (
        update(datasets)
        .where(datasets.c.id == base_id)
        .values(confirmed_at=now)
        .returning(datasets.c.id, datasets.c.version, datasets.c.item_count, datasets.c.flagged_count)
    )
    row = connection.execute(statement).one()
    _link_dataset(connection, built.extraction_id, row.id)
    return FinishedDataset(
        id=row.id,
        version=row.version,
        status=DatasetStatus.PUBLISHED,
        items=row.item_count,
        flagged=row.flagged_count,
        is_confirmed=True,
        kept_items=kept_items.items,
        unlisted=kept_items.unlisted,
    )


def _create(connection: Connection, built: BuiltExtraction, *, now: datetime) -> int:
    """Create a dataset for what is left of the base, with the base's reader hash."""
    version = select(func.coalesce(func.max(datasets.c.version), 0) + 1).where(datasets.c.source_id == built.source_id)
    reader_hash = select(datasets.c.reader_hash).where(datasets.c.id == built.base_id)
    statement = insert(datasets).values(
        source_id=built.source_id,
        extraction_id=built.extraction_id,
        version=version.scalar_subquery(),
        entity_type=built.entity_type,
        reader_hash=func.coalesce(reader_hash.scalar_subquery(), NEVER_READ),
        status=DatasetStatus.BUILDING.value,
        created_at=now,
    )
    return connection.execute(statement.returning(datasets.c.id)).scalar_one()


def _mark_repeats(connection: Connection, dataset_id: int) -> None:
    """Mark repeats: of equal keys one item counts, an unflagged one, first page and position.

    A flagged item is not exported: it must not hide another page's that is proved.
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


def _publish_or_quarantine(
    connection: Connection,
    dataset_id: int,
    built: BuiltExtraction,
    kept_items: KeptItems,
    *,
    settings: Settings,
    now: datetime,
) -> FinishedDataset:
    """Count the dataset, evaluate it against the last good one, and publish or quarantine it."""
    _mark_repeats(connection, dataset_id)
    query = select(datasets.c.version).where(datasets.c.id == dataset_id)
    version: int = connection.execute(query).scalar_one()
    kind = _kind(built.entity_type, settings)
    good = _last_good(connection, built, before_version=version)
    new = numbers(connection, dataset_id, kind)
    before = None if good is None else numbers(connection, good, kind)
    required = kind.required if kind else ()
    failed = 0 if good is None else _on_failed_pages(connection, good, built.extraction_id)
    problems = evaluate_gates(
        new,
        before,
        required=required,
        limits=settings.extraction,
        failed=failed,
        pages=_record_pages(connection, built.extraction_id, kind),
        newer=_newer_crawl(connection, built),
    )
    status = DatasetStatus.QUARANTINED if problems else DatasetStatus.PUBLISHED
    findings = as_stored(problems)
    connection.execute(
        update(datasets)
        .where(datasets.c.id == dataset_id)
        .values(
            status=status.value,
            item_count=new.items,
            flagged_count=new.flagged,
            findings=findings or null(),
            published_at=null() if problems else now,
        )
    )
    _link_dataset(connection, built.extraction_id, dataset_id)
    return FinishedDataset(
        id=dataset_id,
        version=version,
        status=status,
        items=new.items,
        flagged=new.flagged,
        findings=findings,
        kept_items=kept_items.items,
        unlisted=kept_items.unlisted,
    )


def _record_pages(connection: Connection, extraction_id: int, kind: EntityType | None) -> RecordPages:
    """Count the pages that should state records; those that exploring found need not.

    Nor need those of an entity type with a presence check, which most pages do not state.
    """
    without = [*NOT_GOT]
    if kind is None or not kind.presence_check:
        without.append(PageStatus.EXTRACTED_NO_DATA.value)
    query = (
        select(func.count(), func.count().filter(pages.c.status.in_(without)))
        .join(crawl_steps, crawl_steps.c.id == pages.c.step_id)
        .where(
            pages.c.extraction_id == extraction_id,
            pages.c.page_type.in_(RECORD_PAGES),
            ~crawl_steps.c.key.endswith(EXPLORED),
        )
    )
    total, missing = connection.execute(query).one()
    lists, failed_lists = _lists(connection, extraction_id)
    return RecordPages(total=total, without=missing, lists=lists, failed_lists=failed_lists)


def _lists(connection: Connection, extraction_id: int) -> tuple[int, int]:
    """Count the pages that lead to others, except the first page, and how many of them failed."""
    code = func.coalesce(pages.c.failure["code"].as_string(), "")
    query = (
        select(func.count(), func.count().filter(pages.c.status.in_(NOT_GOT)))
        .join(crawl_steps, crawl_steps.c.id == pages.c.step_id)
        .where(
            pages.c.extraction_id == extraction_id,
            pages.c.page_type.not_in(RECORD_PAGES),
            crawl_steps.c.kind != StepKind.FETCH_ROOT.value,
            code.not_in(NO_LIST),
        )
    )
    lists, failed = connection.execute(query).one()
    return lists, failed


def fill_incomplete(
    connection: Connection, dataset_id: int, built: BuiltExtraction, *, now: datetime
) -> DatasetNumbers:
    """Add to an incomplete dataset what the base has of unchanged and of unread pages."""
    base = built.base_id if built.base_id is not None else _published_id(connection, built)
    if base is not None:
        keep_failed(connection, built.extraction_id, base, now=now)
        copy_carried(connection, built.extraction_id, from_id=base, to_id=dataset_id, now=now)
    _mark_repeats(connection, dataset_id)
    return numbers(connection, dataset_id, None)


def _newer_crawl(connection: Connection, built: BuiltExtraction) -> int | None:
    """Return the published version of a newer crawl, unless an operator asked to replace it."""
    newer = newer_version(connection, built.extraction_id, built.entity_type)
    return None if is_publish_requested(connection, built.extraction_id) else newer


def _link_dataset(connection: Connection, extraction_id: int, dataset_id: int) -> None:
    connection.execute(update(extractions).where(extractions.c.id == extraction_id).values(dataset_id=dataset_id))
