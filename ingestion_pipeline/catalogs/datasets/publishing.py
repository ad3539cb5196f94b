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
    ScalarSelect,
    func,
    insert,
    null,
    select,
    update,
)

from ingestion_pipeline.catalogs.datasets.carry_over import (
    NO_LIST,
    NOT_GOT,
    Kept,
    copy_carried,
    is_unchanged,
    keep_failed,
)
from ingestion_pipeline.catalogs.datasets.gates import (
    DatasetNumbers,
    GateFinding,
    Outdated,
    RecordPages,
    as_stored,
    is_drop,
    judge,
)
from ingestion_pipeline.catalogs.extraction.entity_type import (
    BadEntityType,
    EntityType,
    entity_types,
)
from ingestion_pipeline.catalogs.extraction.source_config import entity_folder
from ingestion_pipeline.catalogs.recipes.next_pages import StepKind
from ingestion_pipeline.catalogs.states import EXPLORED, RECORD_PAGES, DatasetStatus, PageStatus
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.tables import (
    audit_log,
    crawl_steps,
    data_items,
    datasets,
    extractions,
    pages,
)


def published_dataset(source_id: str, entity: str) -> ScalarSelect[int]:
    """The newest dataset of the source that is published: unchanged pages are taken from it."""
    query = select(datasets.c.id).where(
        datasets.c.source_id == source_id,
        datasets.c.entity_type == entity,
        datasets.c.status == DatasetStatus.PUBLISHED.value,
    )
    return query.order_by(datasets.c.version.desc()).limit(1).scalar_subquery()


RERUN = "extraction.rerun"  # in the audit log; with `publish` if an operator wants it shown


def newer_version(connection: Connection, extraction_id: int, entity_type: str) -> int | None:
    """The published version of a later crawl than the one that got these pages; None if none is."""
    crawled = _crawl_of(connection, extraction_id)
    row = connection.execute(
        select(extractions.c.source_id).where(extractions.c.id == extraction_id)
    ).one()
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
    """The extraction that fetched the pages: its own, or the one that it reads again."""
    origin: int | None = extraction_id
    while origin is not None:
        extraction_id = origin
        query = select(extractions.c.rerun_of).where(extractions.c.id == extraction_id)
        origin = connection.execute(query).scalar_one_or_none()
    return extraction_id


def is_wanted(connection: Connection, extraction_id: int) -> bool:
    """Whether whoever asked for a rerun wants to have it shown, old as its pages may be."""
    query = select(audit_log.c.detail).where(
        audit_log.c.action == RERUN, audit_log.c.subject == f"extraction:{extraction_id}"
    )
    return any(detail.get("publish") for detail in connection.execute(query).scalars())


NEVER_READ = "-"  # of a dataset that no reader has added to: all its pages are gone


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEnd:
    """A dataset as an extraction left it; `is_confirmed` if it is the last one, unchanged.

    `kept` items are of the time before, since their pages failed; of these pages so many are
    `unlisted`.
    """

    id: int
    version: int
    status: DatasetStatus
    items: int
    flagged: int
    findings: Sequence[Mapping[str, str]] = ()
    is_confirmed: bool = False
    kept: int = 0
    unlisted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What must be known of an extraction to end its dataset."""

    extraction_id: int
    source_id: str
    entity_type: str
    base_id: int | None


def end_dataset(
    connection: Connection, built: Built, *, settings: Settings, now: datetime
) -> DatasetEnd:
    """The extraction's dataset is published or held back; also one without a single item.

    Nothing was read anew, and every page with items is as it was, or failed: the base is confirmed,
    unless too many failed.
    """
    own = _own(connection, built.extraction_id)
    base = built.base_id if built.base_id is not None or own is None else _shown(connection, built)
    kept = Kept()
    if base is not None:
        kept = keep_failed(connection, built.extraction_id, base, now=now)
        if own is None and _still_holds(connection, built, base, settings=settings):
            return _confirm(connection, built, base, kept, now=now)
    id_ = own.id if own is not None else _create(connection, built, now=now)
    if base is not None:
        copy_carried(connection, built.extraction_id, from_id=base, to_id=id_, now=now)
    return _settle(connection, id_, built, kept, settings=settings, now=now)


def _shown(connection: Connection, built: Built) -> int | None:
    """What a rerun takes the items of failed pages from: unchanged pages it has none."""
    query = select(published_dataset(built.source_id, built.entity_type))
    return connection.execute(query).scalar_one()


def _still_holds(connection: Connection, built: Built, base_id: int, *, settings: Settings) -> bool:
    """Whether the base says all that this extraction could say."""
    if not is_unchanged(connection, built.extraction_id, base_id):
        return False
    before = numbers(connection, base_id, None).items
    failed = _on_failed_pages(connection, base_id, built.extraction_id)
    return not is_drop(before - failed, before, settings.extraction)


def leave_incomplete(connection: Connection, built: Built) -> DatasetEnd | None:
    """What was read so far stands, is counted, and is shown to nobody; None if nothing was."""
    own = _own(connection, built.extraction_id)
    if own is None:
        return None
    _mark_repeats(connection, own.id)
    counts = numbers(connection, own.id, None)
    connection.execute(
        update(datasets)
        .where(datasets.c.id == own.id)
        .values(
            status=DatasetStatus.INCOMPLETE.value,
            item_count=counts.items,
            flagged_count=counts.flagged,
        )
    )
    _point(connection, built.extraction_id, own.id)
    return DatasetEnd(
        id=own.id,
        version=own.version,
        status=DatasetStatus.INCOMPLETE,
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
            now.c.status.in_(NOT_GOT),
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


def is_built(connection: Connection, extraction_id: int) -> bool:
    """Return whether something was read into a dataset of the extraction's own."""
    return _own(connection, extraction_id) is not None


def _own(connection: Connection, extraction_id: int) -> Row[Any, Any] | None:
    """What the extraction is building; one that was published is nobody's to change."""
    query = select(datasets.c.id, datasets.c.version).where(
        datasets.c.extraction_id == extraction_id,
        datasets.c.status != DatasetStatus.PUBLISHED.value,
    )
    return connection.execute(query.order_by(datasets.c.version.desc()).limit(1)).one_or_none()


def _confirm(
    connection: Connection, built: Built, base_id: int, kept: Kept, *, now: datetime
) -> DatasetEnd:
    statement = (
        update(datasets)
        .where(datasets.c.id == base_id)
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
        kept=kept.items,
        unlisted=kept.unlisted,
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
    connection: Connection,
    dataset_id: int,
    built: Built,
    kept: Kept,
    *,
    settings: Settings,
    now: datetime,
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
    found = judge(
        new,
        before,
        required=required,
        limits=settings.extraction,
        failed=failed,
        pages=_record_pages(connection, built.extraction_id, kind),
    )
    found += _age(connection, built)
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
        kept=kept.items,
        unlisted=kept.unlisted,
    )


def _record_pages(
    connection: Connection, extraction_id: int, kind: EntityType | None
) -> RecordPages:
    """Count the pages that should state records; those that exploring found need not.

    Nor need those of a type that most pages have no list of.
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
    """Count the pages that lead to others, the first page apart, and those of them that failed."""
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
    connection: Connection, dataset_id: int, built: Built, *, now: datetime
) -> DatasetNumbers:
    """Add to an incomplete dataset what the base has of unchanged and of unread pages."""
    base = built.base_id if built.base_id is not None else _shown(connection, built)
    if base is not None:
        keep_failed(connection, built.extraction_id, base, now=now)
        copy_carried(connection, built.extraction_id, from_id=base, to_id=dataset_id, now=now)
    _mark_repeats(connection, dataset_id)
    return numbers(connection, dataset_id, None)


def _age(connection: Connection, built: Built) -> list[GateFinding]:
    """What is older than what is shown replaces it only if an operator wants that."""
    newer = newer_version(connection, built.extraction_id, built.entity_type)
    if newer is None or is_wanted(connection, built.extraction_id):
        return []
    return [Outdated(newer=newer)]


def _point(connection: Connection, extraction_id: int, dataset_id: int) -> None:
    connection.execute(
        update(extractions).where(extractions.c.id == extraction_id).values(dataset_id=dataset_id)
    )
