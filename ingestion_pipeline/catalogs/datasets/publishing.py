"""Versions of a dataset: confirm the last one, publish, quarantine or leave incomplete; and how long old ones are kept.

Exports and views show the newest published version. The quality gates never change data: a version that
they hold back is stored beside it until somebody accepts it, or the next extraction does better.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    delete,
    exists,
    func,
    null,
    or_,
    select,
    union,
    update,
)

from ingestion_pipeline.catalogs.datasets.dataset_items import (
    NO_LIST,
    NOT_GOT,
    copy_carried,
    create_dataset,
    is_unchanged,
    keep_failed,
    unpublished_dataset,
)
from ingestion_pipeline.catalogs.datasets.item_changes import record_published
from ingestion_pipeline.catalogs.extraction.entity_type import BadEntityType, EntityType, entity_types
from ingestion_pipeline.catalogs.extraction.source_selectors import entity_folder
from ingestion_pipeline.catalogs.extraction_states import published_dataset
from ingestion_pipeline.catalogs.recipes.next_pages import StepKind
from ingestion_pipeline.catalogs.states import (
    CRAWLING_STATES,
    EXPLORED,
    RECORD_PAGES,
    DatasetStatus,
    PageStatus,
    failure_code,
)
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.statements import delete_unlocked
from ingestion_pipeline.store.tables import (
    audit_log,
    crawl_steps,
    data_items,
    datasets,
    extractions,
    model_answers,
    model_calls,
    model_spending,
    pages,
)

DROP_FLOOR = 5  # items; fewer lost ones are no drop
DROP_SHARE = 0.3  # of the items before; more lost ones are a drop
LOST_FIELD_SHARE = 0.5
FLAGGED_SHARE = 0.2  # of the items, with an unproved required field
MOSTLY = 0.5  # of the pages of a first dataset
NEARLY_ALL = 0.9  # a field that this share of the items had counts like a required one


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetNumbers:
    """The size of a dataset: items, how many are flagged, and how many have each field."""

    items: int
    flagged: int = 0
    fields: Mapping[str, int] = field(default_factory=dict[str, int])

    def share_with(self, name: str) -> float:
        """Return the share of the items that have the field."""
        return self.fields.get(name, 0) / self.items if self.items else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPages:
    """How many pages should state records, and how many failed or stated none; how many `lists` lead to such pages."""

    total: int
    without: int
    lists: int = 0
    failed_lists: int = 0


@dataclass(frozen=True, slots=True)
class GateFinding:
    """Why a dataset is held back: a code, and a message for people."""

    code: str
    message: str


def evaluate_gates(
    new: DatasetNumbers,
    before: DatasetNumbers | None,
    *,
    required: Collection[str],
    failed: int = 0,
    pages: RecordPages | None = None,
    newer: int | None = None,
) -> list[GateFinding]:
    """Return all findings that hold the new dataset back; `before` is the last good one, if any.

    `failed` is the number of earlier items on pages that failed this time. A first dataset is
    evaluated by its own `pages`. `newer` is the published version of a newer crawl, if any.
    """
    findings: list[GateFinding] = []
    if newer is not None:
        message = f"its pages are older than those of version {newer}, which stays published"
        findings.append(GateFinding("outdated", message))
    if before is None and pages is not None:
        findings += _first(new, pages)
    if before is not None and before.items:
        if not new.items:
            return [GateFinding("empty_after_full", f"no items, previously {before.items}"), *findings]
        if is_drop(new.items, before.items):
            findings.append(GateFinding("dropped", f"{new.items} items, previously {before.items}"))
        elif is_drop(before.items - failed, before.items):  # new items may hide it
            message = f"pages failed that stated {failed} of the {before.items} previous items"
            findings.append(GateFinding("failed_pages", message))
        findings += _lost_fields(new, before, required)
    if new.items and new.flagged > FLAGGED_SHARE * new.items:
        message = f"{new.flagged} of {new.items} items have a required field that is not proved"
        findings.append(GateFinding("unproved", message))
    return findings


def _first(new: DatasetNumbers, pages: RecordPages) -> Iterator[GateFinding]:
    if not new.items:
        yield GateFinding("empty_first", f"no items on {pages.total} pages, and none were ever found")
    elif pages.without > MOSTLY * pages.total:
        yield GateFinding("mostly_failed", f"{pages.without} of {pages.total} pages failed or gave no item")
    elif pages.failed_lists > MOSTLY * pages.lists:
        message = f"{pages.failed_lists} of {pages.lists} lists failed, and what they lead to is missing"
        yield GateFinding("failed_lists", message)


def is_drop(items: int, before: int) -> bool:
    """Whether `items` are far fewer than before: by share, and by an absolute minimum."""
    lost = before - items
    return lost >= DROP_FLOOR and lost > DROP_SHARE * before


def _lost_fields(new: DatasetNumbers, before: DatasetNumbers, required: Collection[str]) -> Iterator[GateFinding]:
    for name in sorted(before.fields):
        share_before, share = before.share_with(name), new.share_with(name)
        is_missed = name in required or share_before >= NEARLY_ALL
        if is_missed and share_before and share_before - share > LOST_FIELD_SHARE * share_before:
            message = f"{name} is stated by {share:.0%} of the items, previously {share_before:.0%}"
            yield GateFinding("lost_field", message)


RERUN = "extraction.rerun"  # in the audit log; with `publish` if an operator wants it shown


def newer_version(connection: Connection, extraction_id: int, source_id: str, entity: str) -> int | None:
    """Return the published version of a crawl later than the one that fetched these pages."""
    crawled = _crawl_of(connection, extraction_id)
    query = select(datasets.c.version, datasets.c.extraction_id).where(
        datasets.c.source_id == source_id,
        datasets.c.entity_type == entity,
        datasets.c.status == DatasetStatus.PUBLISHED.value,
    )
    versions = connection.execute(query.order_by(datasets.c.version.desc())).all()
    return next((version for version, built_by in versions if _crawl_of(connection, built_by) > crawled), None)


def _crawl_of(connection: Connection, extraction_id: int) -> int:
    """Return the extraction that fetched the pages: this one, or the one that it reruns."""
    origin: int | None = extraction_id
    while origin is not None:
        extraction_id = origin
        query = select(extractions.c.rerun_of).where(extractions.c.id == extraction_id)
        origin = connection.execute(query).scalar_one_or_none()
    return extraction_id


def _is_publish_requested(connection: Connection, extraction_id: int) -> bool:
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


def finish_dataset(
    connection: Connection, extraction: Row[Any], *, settings: Settings, now: datetime
) -> FinishedDataset:
    """Publish or hold back the dataset of the extraction, a row of `extractions`, even if it has no item.

    If nothing was extracted, and every page with items is unchanged or failed, the base is
    confirmed, unless too many failed.
    """
    own, kept_items, unlisted = unpublished_dataset(connection, extraction.id), 0, 0
    base = extraction.base_dataset_id if own is None else _base(connection, extraction)
    if base is not None:
        kept_items, unlisted = keep_failed(connection, extraction.id, base, now=now)
    if base is not None and own is None and _still_holds(connection, extraction.id, base):
        finished = _confirm(connection, base, now=now)
    else:
        id_ = _create(connection, extraction, now=now) if own is None else own.id
        if base is not None:
            copy_carried(connection, extraction.id, from_id=base, to_id=id_, now=now)
        finished = _publish_or_quarantine(connection, id_, extraction, settings=settings, now=now)
    return replace(finished, kept_items=kept_items, unlisted=unlisted)


def _base(connection: Connection, extraction: Row[Any]) -> int | None:
    """Return the base; of a rerun the published dataset, from which it takes the items of failed pages."""
    return _published(connection, extraction) if extraction.base_dataset_id is None else extraction.base_dataset_id


def _published(connection: Connection, extraction: Row[Any], *, before_version: int | None = None) -> int | None:
    dataset = published_dataset(extraction.source_id, extraction.entity_type, before_version=before_version)
    return connection.execute(select(dataset)).scalar_one()


def _still_holds(connection: Connection, extraction_id: int, base_id: int) -> bool:
    """Whether the base already has all that this extraction could add."""
    if not is_unchanged(connection, extraction_id, base_id):
        return False
    before = numbers(connection, base_id, None).items
    failed = _on_failed_pages(connection, base_id, extraction_id)
    return not is_drop(before - failed, before)


def leave_incomplete(connection: Connection, extraction_id: int) -> FinishedDataset | None:
    """Count what was extracted so far and mark it incomplete; None if nothing was extracted."""
    own = unpublished_dataset(connection, extraction_id)
    if own is None:
        return None
    _mark_repeats(connection, own.id)
    counts, status = numbers(connection, own.id, None), DatasetStatus.INCOMPLETE
    connection.execute(
        update(datasets)
        .where(datasets.c.id == own.id)
        .values(status=status.value, item_count=counts.items, flagged_count=counts.flagged)
    )
    return FinishedDataset(id=own.id, version=own.version, status=status, items=counts.items, flagged=counts.flagged)


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


def readable_entity_types(settings: Settings) -> Mapping[str, EntityType]:
    """Return the entity types; only our own if a schema of the user is broken, as extraction reports."""
    try:
        return entity_types(entity_folder(settings))
    except BadEntityType:
        return entity_types()


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


def _confirm(connection: Connection, base_id: int, *, now: datetime) -> FinishedDataset:
    statement = (
        update(datasets)
        .where(datasets.c.id == base_id)
        .values(confirmed_at=now)
        .returning(datasets.c.id, datasets.c.version, datasets.c.item_count, datasets.c.flagged_count)
    )
    row = connection.execute(statement).one()
    return FinishedDataset(
        id=row.id,
        version=row.version,
        status=DatasetStatus.PUBLISHED,
        items=row.item_count,
        flagged=row.flagged_count,
        is_confirmed=True,
    )


def _create(connection: Connection, extraction: Row[Any], *, now: datetime) -> int:
    """Create a dataset for what is left of the base, with the base's reader hash."""
    reader_hash = select(datasets.c.reader_hash).where(datasets.c.id == extraction.base_dataset_id)
    return create_dataset(connection, extraction, func.coalesce(reader_hash.scalar_subquery(), NEVER_READ), now=now)


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
    connection: Connection, dataset_id: int, extraction: Row[Any], *, settings: Settings, now: datetime
) -> FinishedDataset:
    """Count the dataset, evaluate it against the last good one, and publish or quarantine it.

    A dataset of another entity is not compared: the source's declaration was changed.
    """
    _mark_repeats(connection, dataset_id)
    source_id, entity = extraction.source_id, extraction.entity_type
    version: int = connection.execute(select(datasets.c.version).where(datasets.c.id == dataset_id)).scalar_one()
    kind = readable_entity_types(settings).get(entity)  # without its schema no field is checked
    good = _published(connection, extraction, before_version=version)
    new = numbers(connection, dataset_id, kind)
    is_requested = _is_publish_requested(connection, extraction.id)
    findings = evaluate_gates(
        new,
        None if good is None else numbers(connection, good, kind),
        required=kind.required if kind else (),
        failed=0 if good is None else _on_failed_pages(connection, good, extraction.id),
        pages=_record_pages(connection, extraction.id, kind),
        newer=None if is_requested else newer_version(connection, extraction.id, source_id, entity),
    )
    finished = FinishedDataset(
        id=dataset_id,
        version=version,
        status=DatasetStatus.QUARANTINED if findings else DatasetStatus.PUBLISHED,
        items=new.items,
        flagged=new.flagged,
        findings=[asdict(finding) for finding in findings],
    )
    connection.execute(
        update(datasets)
        .where(datasets.c.id == dataset_id)
        .values(
            status=finished.status.value,
            item_count=new.items,
            flagged_count=new.flagged,
            findings=finished.findings or null(),
            published_at=null() if findings else now,
        )
    )
    if not findings:
        record_published(connection, dataset_id, now=now, is_decided=is_requested)
    return finished


def _record_pages(connection: Connection, extraction_id: int, kind: EntityType | None) -> RecordPages:
    """Count the pages that should state records, and the lists, except the first page; and those that failed.

    Pages that exploring found need not state any, nor those of an entity type with a presence check,
    which most pages do not state.
    """
    without = [*NOT_GOT]
    if kind is None or not kind.presence_check:
        without.append(PageStatus.EXTRACTED_NO_DATA.value)
    is_record_page = and_(pages.c.page_type.in_(RECORD_PAGES), ~crawl_steps.c.key.endswith(EXPLORED))
    is_list = and_(
        pages.c.page_type.not_in(RECORD_PAGES),
        crawl_steps.c.kind != StepKind.FETCH_ROOT.value,
        failure_code(pages).not_in(NO_LIST),
    )
    query = (
        select(
            func.count().filter(is_record_page).label("total"),
            func.count().filter(is_record_page, pages.c.status.in_(without)).label("without"),
            func.count().filter(is_list).label("lists"),
            func.count().filter(is_list, pages.c.status.in_(NOT_GOT)).label("failed_lists"),
        )
        .join(crawl_steps, crawl_steps.c.id == pages.c.step_id)
        .where(pages.c.extraction_id == extraction_id)
    )
    return RecordPages(**connection.execute(query).mappings().one())


def fill_incomplete(connection: Connection, dataset_id: int, extraction: Row[Any], *, now: datetime) -> DatasetNumbers:
    """Add to an incomplete dataset what the base has of unchanged and of unread pages."""
    base = _base(connection, extraction)
    if base is not None:
        keep_failed(connection, extraction.id, base, now=now)
        copy_carried(connection, extraction.id, from_id=base, to_id=dataset_id, now=now)
    _mark_repeats(connection, dataset_id)
    return numbers(connection, dataset_id, None)


MODEL_ROWS_FOR = timedelta(days=365)  # calls and answers, kept so that no answer is paid twice
KEPT_VERSIONS = 10  # of a source's dataset, the published one besides
SWEPT_AT_ONCE = 50  # datasets or extractions; the rest follows at the next sweep


def old_datasets(connection: Connection, settings: Settings, now: datetime) -> int:  # noqa: ARG001
    """Delete versions beyond the newest `kept_versions` of their source, with their items.

    Never the published one, nor one that an extraction builds or carries pages over from.
    """
    newest_first = datasets.c.version.desc()
    by_source = func.row_number().over(partition_by=datasets.c.source_id, order_by=newest_first)
    by_status = func.row_number().over(partition_by=(datasets.c.source_id, datasets.c.status), order_by=newest_first)
    ranked = select(
        datasets.c.id,
        datasets.c.status,
        datasets.c.extraction_id,
        by_source.label("place"),
        by_status.label("place_among_its_like"),
    ).subquery()
    is_shown = (ranked.c.status == DatasetStatus.PUBLISHED.value) & (ranked.c.place_among_its_like == 1)
    is_in_use = exists().where(
        extractions.c.status.in_(CRAWLING_STATES),
        or_(extractions.c.id == ranked.c.extraction_id, extractions.c.base_dataset_id == ranked.c.id),
    )
    query = (
        select(ranked.c.id)
        .where(ranked.c.place > KEPT_VERSIONS, ~is_shown, ~is_in_use)
        .order_by(ranked.c.id)
        .limit(SWEPT_AT_ONCE)
    )
    ids = _unlocked(connection, datasets.c.id, query)
    connection.execute(delete(data_items).where(data_items.c.dataset_id.in_(ids)))
    return connection.execute(delete(datasets).where(datasets.c.id.in_(ids))).rowcount


def old_extractions(connection: Connection, settings: Settings, now: datetime) -> int:  # noqa: ARG001
    """Delete extractions beyond the newest of their source, with their steps and pages.

    Never a running one, nor one that built a dataset which is kept, or is being rerun.
    """
    place = func.row_number().over(partition_by=extractions.c.source_id, order_by=extractions.c.id.desc())
    ranked = select(extractions.c.id, extractions.c.status, place.label("place")).subquery()
    needed = union(
        select(datasets.c.extraction_id),
        select(extractions.c.rerun_of).where(
            extractions.c.status.in_(CRAWLING_STATES), extractions.c.rerun_of.is_not(None)
        ),
    ).subquery()
    query = (
        select(ranked.c.id)
        .where(
            ranked.c.place > settings.retention.extractions_per_source,
            ranked.c.status.not_in(CRAWLING_STATES),
            ranked.c.id.not_in(select(needed)),
        )
        .order_by(ranked.c.id)
        .limit(SWEPT_AT_ONCE)
    )
    ids = _unlocked(connection, extractions.c.id, query)
    for column in (pages.c.extraction_id, crawl_steps.c.extraction_id, extractions.c.id):
        connection.execute(delete(column.table).where(column.in_(ids)))
    return len(ids)


def _unlocked(connection: Connection, key: ColumnElement[int], old: Select[int]) -> list[int]:
    """Return those of these ids that nobody has locked: an operator may just reopen one."""
    query = select(key).where(key.in_(old)).order_by(key)
    return list(connection.execute(query.with_for_update(skip_locked=True)).scalars())


def old_model_calls(connection: Connection, _settings: Settings, now: datetime) -> int:
    """Delete old rows of the model ledger; their sums are in each extraction's summary."""
    before = now - MODEL_ROWS_FOR
    is_running = model_calls.c.extraction_id.in_(
        select(extractions.c.id).where(extractions.c.status.in_(CRAWLING_STATES))
    )
    old = delete_unlocked(
        model_calls, model_calls.c.created_at < before, or_(model_calls.c.extraction_id.is_(None), ~is_running)
    )
    gone = connection.execute(old).rowcount
    # Counters of a day, a month or an extraction without recent spending.
    counters = delete_unlocked(model_spending, model_spending.c.updated_at < before)
    return gone + connection.execute(counters).rowcount


def old_model_answers(connection: Connection, _settings: Settings, now: datetime) -> int:
    """Delete old cached answers; the same question would be asked and paid for again."""
    before = now - MODEL_ROWS_FOR
    statement = delete_unlocked(model_answers, model_answers.c.created_at < before)
    return connection.execute(statement).rowcount
