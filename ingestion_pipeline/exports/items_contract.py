"""Whether the items that datasets publish, or that a run wrote, are as their type says.

Required fields are there, values are of their kind, what is stated has its evidence, keys are
unique. Items are looked at as they come from the database: memory does not grow with a dataset, and
what is found is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, false, func, select

from ingestion_pipeline.catalogs.entities.entity_type import (
    BadEntityType,
    EntityField,
    EntityType,
    FieldKind,
    UnknownEntityType,
    entity_type,
)
from ingestion_pipeline.exports.columns import exact
from ingestion_pipeline.exports.contracts import Contract, ContractRule
from ingestion_pipeline.exports.datasets import newest_published
from ingestion_pipeline.exports.holding import Case, findings
from ingestion_pipeline.exports.rules import PROVED_NAMES
from ingestion_pipeline.exports.written import IDS_AT_ONCE, last_of
from ingestion_pipeline.reading.grounding import Status
from ingestion_pipeline.sources.findings import Finding
from ingestion_pipeline.store.tables import data_items, datasets, extractions, pages

ITEMS = Contract(asset="datasets", export="data_items")
AT_ONCE = 200  # items that are in memory

_AGAIN = "`ingest extractions rerun ID` reads what is stored anew"
_TYPE = ContractRule(said="of a type that there is", cure="put its schema file back, or read anew")
_REQUIRED = ContractRule(said="stated and proved: the type requires it", cure=_AGAIN)
_KIND = ContractRule(said="of its field's kind", cure=f"the schema has changed since; {_AGAIN}")
_EVIDENCE = ContractRule(said="stated with its evidence", cure=_AGAIN)
_UNIQUE = ContractRule(said="unique in its dataset", cure=_AGAIN)
_STATUSES = frozenset(str(one) for one in Status)


def broken_items(
    connection: Connection,
    source_ids: Sequence[str] | None = None,
    *,
    most: int | None = None,
    entities: Path | None = None,
) -> list[Finding]:
    """What does not hold of the items that are published, of these sources or of all.

    Of at most so many items, those that were published last first. `entities` is the folder of
    schema files of one's own.
    """
    return findings(ITEMS, _cases(connection, source_ids, most, entities))


def _cases(
    connection: Connection,
    source_ids: Sequence[str] | None,
    most: int | None,
    entities: Path | None,
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


def broken_by_run(
    connection: Connection,
    source_ids: Sequence[str],
    *,
    run_id: str | None,
    most: int,
    entities: Path | None = None,
) -> list[Finding]:
    """What does not hold of the items that the run read, published or not: at most so many.

    Whether keys are unique is known when the extraction ends: then repeats are marked.
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


def _written(
    connection: Connection, source_ids: Sequence[str], run_id: str, most: int
) -> Iterator[Any]:
    """The items on pages of the last extractions that this run was the last to read."""
    names = ("id", "entity_type", "data", "grounding")
    query = (
        select(*(data_items.c[name] for name in names))
        .join(pages, pages.c.id == data_items.c.page_id)
        .join(datasets, datasets.c.id == data_items.c.dataset_id)
        .where(
            pages.c.extraction_id.in_(last_of(extractions, source_ids)),
            pages.c.run_id == run_id,
            datasets.c.extraction_id == pages.c.extraction_id,
            data_items.c.is_flagged.is_(false()),
        )
        .limit(most)
    )
    rows = connection.execute(query.execution_options(yield_per=AT_ONCE))
    for some in rows.partitions():
        yield from some


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
    for some in rows.partitions():
        yield from some


def _repeated(connection: Connection, dataset_id: int) -> Iterator[Case]:
    """The database counts: no key is held here."""
    key = data_items.c.item_key
    query = (
        select(func.min(data_items.c.id), key)
        .where(*_published(dataset_id))
        .group_by(key)
        .having(func.count() > 1)
    )
    for id_, item_key in connection.execute(query.execution_options(yield_per=AT_ONCE)):
        yield Case("item_key", _UNIQUE, str(id_), str(item_key))


def cases_of_item(
    kind: EntityType,
    item_id: str,
    data: Mapping[str, Any],
    grounding: Mapping[str, Mapping[str, Any]],
) -> Iterator[Case]:
    """What does not hold of one item, field by field."""
    for one in kind.fields:
        value = data.get(one.name)
        status = (grounding.get(one.name) or {}).get("status")
        if value is None:
            if one.required:
                yield Case(one.name, _REQUIRED, item_id, "nothing")
            continue
        if not _IS_KIND[one.kind](value, one):
            yield Case(one.name, _KIND, item_id, f"{value!r}")
        if status not in _STATUSES:
            yield Case(one.name, _EVIDENCE, item_id, f"{status or 'none'}")
        elif one.required and status not in PROVED_NAMES:
            yield Case(one.name, _REQUIRED, item_id, str(status))


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
