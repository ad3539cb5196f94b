"""Contract checks of rows that one run wrote, and of the items of datasets.

Rows are found by their source's index; no statement scans what other runs have written.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, false, func, select
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.catalogs.extraction.entity_type import (
    BadEntityType,
    EntityField,
    EntityType,
    FieldKind,
    UnknownEntityType,
    entity_type,
)
from ingestion_pipeline.engine.published import Contract, ContractRule, newest_of
from ingestion_pipeline.exports.contracts import Case, findings
from ingestion_pipeline.exports.files import exact
from ingestion_pipeline.exports.items import ITEM_ROWS, PROVED_NAMES
from ingestion_pipeline.exports.request import newest_published
from ingestion_pipeline.reading.evidence.grounding import Status
from ingestion_pipeline.sources.health import Finding
from ingestion_pipeline.store.tables import data_items, datasets, extractions, pages

RUN_ROWS_AT_ONCE = 1_000  # rows that are in memory
IDS_AT_ONCE = 500  # sources of one statement


def written_rows(
    connection: Connection, contract: Contract, source_ids: Sequence[str], *, run_id: str | None
) -> Iterator[Mapping[str, Any]]:
    """Yield what the run has written of these sources; nothing if the rows name no run."""
    if contract.written is None or run_id is None:
        return
    columns: list[ColumnElement[Any]] = [contract.table.table.c[name] for name in contract.all_rules()]
    for start in range(0, len(source_ids), IDS_AT_ONCE):
        rows, those = contract.written(source_ids[start : start + IDS_AT_ONCE], run_id)
        query = select(*columns).select_from(rows).where(*those)
        result = connection.execute(query.execution_options(yield_per=RUN_ROWS_AT_ONCE))
        for batch in result.mappings().partitions():
            yield from map(dict, batch)


ITEMS = Contract(asset="datasets", table=ITEM_ROWS)
AT_ONCE = 200  # items that are in memory

_RERUN = "`ingest extractions rerun ID` extracts the stored pages again"
_TYPE = ContractRule(requirement="of a known type", cure="restore its schema file, or extract again")
_REQUIRED = ContractRule(requirement="stated and proved: the type requires it", cure=_RERUN)
_KIND = ContractRule(requirement="of its field's kind", cure=f"the schema has changed since; {_RERUN}")
_EVIDENCE = ContractRule(requirement="stated with its evidence", cure=_RERUN)
_UNIQUE = ContractRule(requirement="unique in its dataset", cure=_RERUN)
_STATUSES = frozenset(str(status) for status in Status)


def item_findings(
    connection: Connection,
    source_ids: Sequence[str] | None = None,
    *,
    most: int | None = None,
    entities: Path | None = None,
) -> list[Finding]:
    """Return the broken rules in the published items, of these sources or of all.

    At most `most` items are checked, the last published first. `entities` is the folder of your own
    schema files.
    """
    return findings(ITEMS, _cases(connection, source_ids, most, entities))


def _cases(
    connection: Connection, source_ids: Sequence[str] | None, most: int | None, entities: Path | None
) -> Iterator[Case]:
    query = select(datasets.c.id, datasets.c.entity_type, datasets.c.source_id).where(
        datasets.c.id.in_(newest_published())
    )
    if source_ids is not None:
        query = query.where(datasets.c.source_id.in_(list(source_ids)))
    left = most
    for dataset in connection.execute(query.order_by(datasets.c.published_at.desc())).all():
        if left is not None and left <= 0:
            return
        kind = _known(dataset.entity_type, entities)
        if kind is None:
            yield Case("entity_type", _TYPE, dataset.source_id, dataset.entity_type)
            continue
        yield from _repeated(connection, dataset.id)
        seen = 0
        for item in _items(connection, dataset.id, left):
            seen += 1
            yield from cases_of_item(kind, str(item.id), item.data, item.grounding)
        left = None if left is None else left - seen


def run_item_findings(
    connection: Connection, source_ids: Sequence[str], *, run_id: str | None, most: int, entities: Path | None = None
) -> list[Finding]:
    """Return the broken rules in at most `most` items the run read, published or not.

    Whether keys are unique is known when the extraction finishes: then repeats are marked.
    """
    if run_id is None:
        return []
    return findings(ITEMS, _written_cases(connection, source_ids, run_id, most, entities))


def _written_cases(
    connection: Connection, source_ids: Sequence[str], run_id: str, most: int, entities: Path | None
) -> Iterator[Case]:
    types: dict[str, EntityType | None] = {}
    left = most
    for start in range(0, len(source_ids), IDS_AT_ONCE):
        for item in _written(connection, source_ids[start : start + IDS_AT_ONCE], run_id, left):
            left -= 1
            name = item.entity_type
            if name not in types:
                types[name] = _known(name, entities)
            if (kind := types[name]) is None:
                yield Case("entity_type", _TYPE, str(item.id), name)
            else:
                yield from cases_of_item(kind, str(item.id), item.data, item.grounding)


def _written(connection: Connection, source_ids: Sequence[str], run_id: str, most: int) -> Iterator[Any]:
    """Yield the items on pages of the last extractions that this run was the last to read."""
    names = ("id", "entity_type", "data", "grounding")
    query = (
        select(*(data_items.c[name] for name in names))
        .join(pages, pages.c.id == data_items.c.page_id)
        .join(datasets, datasets.c.id == data_items.c.dataset_id)
        .where(
            pages.c.extraction_id.in_(newest_of(extractions, source_ids)),
            pages.c.run_id == run_id,
            datasets.c.extraction_id == pages.c.extraction_id,
            data_items.c.is_flagged.is_(false()),
        )
        .limit(most)
    )
    rows = connection.execute(query.execution_options(yield_per=AT_ONCE))
    for batch in rows.partitions():
        yield from batch


def _known(name: str, entities: Path | None) -> EntityType | None:
    try:
        return entity_type(name, folder=entities)
    except (BadEntityType, UnknownEntityType):
        return None


def _published(dataset_id: int) -> tuple[Any, ...]:
    return (
        data_items.c.dataset_id == dataset_id,
        data_items.c.is_repeat.is_(false()),
        data_items.c.is_flagged.is_(false()),
    )


def _items(connection: Connection, dataset_id: int, most: int | None) -> Iterator[Any]:
    query = select(data_items.c.id, data_items.c.data, data_items.c.grounding)
    query = query.where(*_published(dataset_id)).limit(most)
    rows = connection.execute(query.execution_options(yield_per=AT_ONCE))
    for batch in rows.partitions():
        yield from batch


def _repeated(connection: Connection, dataset_id: int) -> Iterator[Case]:
    """Yield keys that occur twice; the database counts, no key is held in memory."""
    key = data_items.c.item_key
    query = select(func.min(data_items.c.id), key).where(*_published(dataset_id)).group_by(key).having(func.count() > 1)
    for id_, item_key in connection.execute(query.execution_options(yield_per=AT_ONCE)):
        yield Case("item_key", _UNIQUE, str(id_), str(item_key))


def cases_of_item(
    kind: EntityType, item_id: str, data: Mapping[str, Any], grounding: Mapping[str, Mapping[str, Any]]
) -> Iterator[Case]:
    """Yield the broken rules of one item, field by field."""
    for field in kind.fields:
        value = data.get(field.name)
        status = (grounding.get(field.name) or {}).get("status")
        if value is None:
            if field.required:
                yield Case(field.name, _REQUIRED, item_id, "nothing")
            continue
        if not _IS_KIND[field.kind](value, field):
            yield Case(field.name, _KIND, item_id, f"{value!r}")
        if status not in _STATUSES:
            yield Case(field.name, _EVIDENCE, item_id, f"{status or 'none'}")
        elif field.required and status not in PROVED_NAMES:
            yield Case(field.name, _REQUIRED, item_id, str(status))


def _is_text(value: object, field: EntityField) -> bool:  # noqa: ARG001 - as the others
    return isinstance(value, str)


def _is_choice(value: object, field: EntityField) -> bool:
    return value in field.choices


def _is_number(value: object, field: EntityField) -> bool:  # noqa: ARG001 - as the others
    is_figure = isinstance(value, str | int | float | Decimal) and not isinstance(value, bool)
    return is_figure and exact(value) is not None


def _is_flag(value: object, field: EntityField) -> bool:  # noqa: ARG001 - as the others
    return isinstance(value, bool)


_IS_KIND: Mapping[FieldKind, Callable[[object, EntityField], bool]] = {
    FieldKind.TEXT: _is_text,
    FieldKind.LANGUAGE: _is_text,
    FieldKind.CHOICE: _is_choice,
    FieldKind.NUMBER: _is_number,
    FieldKind.FLAG: _is_flag,
}
