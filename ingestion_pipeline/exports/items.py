"""Items of datasets as rows: the fields of their type, what proves them, where they come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Select, case, false, func, select, true
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.catalogs.entities.entity_type import EntityType, FieldKind, entity_type
from ingestion_pipeline.exports import rules
from ingestion_pipeline.exports.columns import Batches, Column, Holds
from ingestion_pipeline.exports.datasets import Dataset
from ingestion_pipeline.exports.names import ITEMS, Wanted
from ingestion_pipeline.store.tables import data_items, pages, snapshots

# A row for what several items belong to precedes them, once: the field that names it.
HEADINGS: Mapping[str, str] = {"competency": "competency_framework"}

_HELD = {FieldKind.NUMBER: Holds.DECIMAL, FieldKind.FLAG: Holds.FLAG}
_PROOF = (
    Column(name="grounded_percent", holds=Holds.FLOAT),
    Column(name="grounded_fields"),
    Column(name="ungrounded_fields"),
)
_REVIEW = (
    Column(name="is_flagged", holds=Holds.FLAG),
    Column(name="is_repeat", holds=Holds.FLAG),
)
_LINEAGE = (
    Column(name="entity_type"),
    Column(name="source_id"),
    Column(name="dataset_id", holds=Holds.WHOLE),
    Column(name="dataset_version", holds=Holds.WHOLE),
    Column(name="dataset_status"),
    Column(name="item_id", holds=Holds.WHOLE),
    Column(name="item_key"),
    Column(name="page_id", holds=Holds.WHOLE),
    Column(name="page_url"),
    Column(name="snapshot_id", holds=Holds.WHOLE),
    Column(name="fetched_at", holds=Holds.TIME),
    Column(name="read_at", holds=Holds.TIME),
    Column(name="rung"),
    Column(name="model"),
    Column(name="confidence", holds=Holds.FLOAT),
)


def item_columns(wanted: Wanted, datasets: Sequence[Dataset]) -> list[Column]:
    """The fields of the types that are wanted, what proves them, and where they come from."""
    names = dict.fromkeys(one.entity_type for one in datasets)
    kinds = [entity_type(name) for name in (names if wanted.name == ITEMS else [wanted.name])]
    fields: dict[str, Column] = {}
    for one in chain.from_iterable(kind.fields for kind in kinds):
        column = Column(name=one.name, holds=_HELD.get(one.kind, Holds.TEXT))
        if fields.setdefault(one.name, column) != column:  # two types, one name: as text
            fields[one.name] = Column(name=one.name)
    head = [Column(name="row_type")] if wanted.name in HEADINGS else []
    own = chain.from_iterable(
        [column, *_evidence_columns(column.name)] if wanted.evidence else [column]
        for column in fields.values()
    )
    return [*head, *own, *_PROOF, *(_REVIEW if wanted.with_flagged else ()), *_LINEAGE]


def _evidence_columns(field: str) -> list[Column]:
    return [
        Column(name=f"{field}__evidence"),
        Column(name=f"{field}__start", holds=Holds.WHOLE),
        Column(name=f"{field}__end", holds=Holds.WHOLE),
    ]


def item_rows(
    connection: Connection, wanted: Wanted, datasets: Sequence[Dataset], *, batch_rows: int
) -> Batches:
    """Dataset after dataset, each in the order of its natural keys."""
    columns = item_columns(wanted, datasets)
    texts = frozenset(one.name for one in columns if one.holds is Holds.TEXT)
    for dataset in datasets:
        shaper = _Shaper(connection, wanted, dataset)
        statement = _statement(wanted, dataset).execution_options(yield_per=batch_rows)
        for found in connection.execute(statement).mappings().partitions():
            rows = chain.from_iterable(shaper.rows(dict(item)) for item in found)
            yield [[_held(row.get(one.name), one.name, texts) for one in columns] for row in rows]


def _held(value: Any, name: str, texts: frozenset[str]) -> Any:  # noqa: ANN401
    return value if value is None or name not in texts else str(value)


def _kept(wanted: Wanted, dataset: Dataset) -> ColumnElement[bool]:
    kept = data_items.c.dataset_id == dataset.id
    if wanted.with_flagged:
        return kept
    return kept & data_items.c.is_repeat.is_(false()) & data_items.c.is_flagged.is_(false())


def _statement(wanted: Wanted, dataset: Dataset) -> Select[*tuple[Any, ...]]:
    heading = HEADINGS.get(wanted.name)
    first = [] if heading is None else [_proved_text(heading)]
    item = data_items.c
    return (
        select(
            item.entity_type,
            item.id.label("item_id"),
            item.item_key,
            item.page_id,
            pages.c.url.label("page_url"),
            item.snapshot_id,
            func.coalesce(snapshots.c.fetched_at, pages.c.visited_at).label("fetched_at"),
            func.coalesce(pages.c.read_at, item.created_at).label("read_at"),
            item.rung,
            item.model,
            item.confidence,
            item.is_flagged,
            item.is_repeat,
            item.data,
            item.grounding,
        )
        .join(pages, pages.c.id == item.page_id)
        .join(snapshots, snapshots.c.id == item.snapshot_id, isouter=True)
        .where(_kept(wanted, dataset))
        .order_by(*first, item.item_key, item.id)
    )


def _proved_text(field: str) -> ColumnElement[str]:
    """What the export shows of a text field, as the database sees it; nothing is an empty text."""
    text = data_items.c.data[field].as_string()
    return func.coalesce(case((_is_proved(field), text)), "")


def _is_proved(field: str) -> ColumnElement[bool]:
    return data_items.c.grounding[(field, "status")].as_string().in_(rules.PROVED_NAMES)


def _ids(connection: Connection, wanted: Wanted, dataset: Dataset, kind: EntityType) -> rules.Ids:
    """Who has to get a suffix: the database counts, so that ids that occur once cost nothing."""
    field = rules.id_field(kind)
    if field is None:
        return rules.Ids((), ())
    in_review = wanted.with_flagged and kind.field(field).required
    given = data_items.c.data[field].as_string()
    stated = select(given).where(
        _kept(wanted, dataset), given.is_not(None), true() if in_review else _is_proved(field)
    )
    counted = stated.group_by(given).having(func.count() > 1)
    repeated = {str(one) for one in connection.scalars(counted)}
    if not repeated:
        return rules.Ids((), ())
    every = connection.scalars(stated.execution_options(yield_per=10_000))
    taken = {str(one) for one in every if rules.could_be_taken(str(one), repeated)}
    return rules.Ids(repeated, taken)


class _Shaper:
    """Makes the rows of one dataset, in order: ids and headings know what came before."""

    def __init__(self, connection: Connection, wanted: Wanted, dataset: Dataset) -> None:
        self._wanted = wanted
        self._dataset = dataset
        self._kind = entity_type(dataset.entity_type)
        self._id = rules.id_field(self._kind)
        self._ids = _ids(connection, wanted, dataset, self._kind)
        self._heading = HEADINGS.get(wanted.name)
        self._addresses = [one.name for one in self._kind.fields if rules.is_address(one.name)]
        self._last_heading: object = None

    def rows(self, item: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """The item's row, and before it the heading's that it is the first under."""
        row = self._row(item)
        if self._heading is None:
            yield row
            return
        heading = row[self._heading]
        if heading is not None and heading != self._last_heading:
            yield {"row_type": self._heading, self._heading: heading, **self._origin()}
        self._last_heading = heading
        yield {"row_type": self._kind.name, **row}

    def _row(self, item: Mapping[str, Any]) -> dict[str, Any]:
        grounding = dict(item["grounding"])
        review = self._wanted.with_flagged
        values = rules.shown(self._kind, item["data"], grounding, review=review)
        rules.write_ranges(self._kind, values, grounding)
        row: dict[str, Any] = {**item, **values, **self._origin()}
        if self._id is not None and row[self._id] is not None:
            row[self._id] = self._ids.unique(row[self._id])
        for name in (*self._addresses, "page_url"):
            row[name] = rules.absolute(row[name], self._dataset.source_url)
        row.update(self._proof(item))
        if self._wanted.evidence:
            row.update(self._evidence(grounding))
        return row

    def _proof(self, item: Mapping[str, Any]) -> dict[str, Any]:
        data, grounding = item["data"], item["grounding"]
        stated = [one.name for one in self._kind.fields if data.get(one.name) is not None]
        proved = [name for name in stated if rules.is_proved(grounding.get(name))]
        return {
            "grounded_percent": rules.percent(len(proved), len(stated)),
            "grounded_fields": ", ".join(proved),
            "ungrounded_fields": ", ".join(name for name in stated if name not in proved),
        }

    def _evidence(self, grounding: Mapping[str, rules.Evidence]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for one in self._kind.fields:
            evidence = grounding.get(one.name, {})
            found[f"{one.name}__evidence"] = evidence.get("status")
            found[f"{one.name}__start"] = evidence.get("start")
            found[f"{one.name}__end"] = evidence.get("end")
        return found

    def _origin(self) -> dict[str, Any]:
        return {
            "entity_type": self._kind.name,
            "source_id": self._dataset.source_id,
            "dataset_id": self._dataset.id,
            "dataset_version": self._dataset.version,
            "dataset_status": self._dataset.status,
        }
