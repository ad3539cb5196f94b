"""Items of datasets as rows: the fields of their type, their evidence, their lineage."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, count
from typing import Any
from urllib.parse import urljoin

import orjson
from sqlalchemy import Connection, Row, Select, Text, case, cast, exists, false, func, or_, select, true
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.catalogs.extraction.entity_type import EntityField, EntityType, FieldKind, SingleGoesToMax
from ingestion_pipeline.engine.system_spec import ColumnType, ExportColumn, PublishedTable
from ingestion_pipeline.exports.export_request import ITEMS, Dataset, ExportRequest
from ingestion_pipeline.exports.formats import Batches, exact
from ingestion_pipeline.pages.politeness.rights import META, RESERVATION, ROBOTS_TAG
from ingestion_pipeline.reading.evidence.grounding import PROVED
from ingestion_pipeline.store.tables import data_items, extractions, pages, snapshots

Value = str | bool | Decimal | None
Evidence = Mapping[str, Any]  # status, start, end

PROVED_NAMES = frozenset(str(status) for status in PROVED)
_SUFFIXED = re.compile(r"(.+)-[0-9]+", re.DOTALL)
# What the columns of an export of items mean; fields of entity types are described in their schema files.
ITEM_ROWS = PublishedTable(
    table=data_items,
    is_exported=False,
    meanings={
        "row_type": "whether the row is an item or the framework that items belong to",
        "grounded_percent": "how many of a hundred stated fields are proved; null: none is stated",
        "grounded_fields": "names of the fields that a text or the source proves",
        "ungrounded_fields": "names of the fields that nothing proves; they are blank",
        "dataset_version": "which of its source's datasets that is, counted from 1",
        "dataset_status": "state of that dataset; published, unless another was requested",
        "item_id": "number of the item: what `ingest explain data_items:ID` takes",
        "page_url": "absolute address of the page that states it",
        "fetched_at": "when that body was fetched, UTC; null: never visited",
        "read_at": "when the item was read from it, UTC",
        "run_id": "the Dagster run that read it; null: a command did, or it is older than lineage",
    },
)


class Ids:
    """Unique ids for the rows of a dataset: the first keeps its id, others get -2, -3, ...

    `repeated` are the ids that occur more than once, `taken` those that a suffix might collide
    with: an id that a page states is never given to another row.
    """

    def __init__(self, repeated: Collection[str], taken: Collection[str]) -> None:
        self._repeated = frozenset(repeated)
        self._given = set(taken)
        self._last: dict[str, int] = {}

    def unique(self, stated_id: str) -> str:
        """Return the exported id; call it in the order of the rows."""
        if stated_id not in self._repeated:
            return stated_id
        if stated_id not in self._last:
            self._last[stated_id] = 1
            return stated_id
        for number in count(self._last[stated_id] + 1):
            suffixed = f"{stated_id}-{number}"
            if suffixed not in self._given:
                self._last[stated_id] = number
                self._given.add(suffixed)
                return suffixed
        raise AssertionError("numbers do not end")


def could_be_taken(stated_id: str, repeated: Collection[str]) -> bool:
    """Return whether the id looks like a repeated id with a suffix."""
    match = _SUFFIXED.fullmatch(stated_id)
    return match is not None and match[1] in repeated


def id_field(kind: EntityType) -> str | None:
    """Return the id field of the type; None for a type without one."""
    name = f"{kind.name}_id"
    return name if any(field.name == name for field in kind.fields) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportValues:
    """The exported values of an item, and which of those it states are proved."""

    values: dict[str, Value]
    proved: list[str]
    unproved: list[str]


def export_values(
    fields: Iterable[EntityField], data: Mapping[str, Any], grounding: Mapping[str, Evidence], *, review: bool
) -> ExportValues:
    """Return the values to export: those that a text or the source itself proves.

    Under `review` required values are exported in any case, since they are what is reviewed.
    """
    values: dict[str, Value] = {}
    proved: list[str] = []
    unproved: list[str] = []
    for field in fields:
        name = field.name
        value = data.get(name)
        if value is None:
            values[name] = None
            continue
        evidence = grounding.get(name)
        is_proved = evidence is not None and evidence.get("status") in PROVED_NAMES
        (proved if is_proved else unproved).append(name)
        may_leave = is_proved or (review and field.required)
        values[name] = _AS_VALUE[field.kind](value) if may_leave else None
    return ExportValues(values=values, proved=proved, unproved=unproved)


def proved_values(fields: Iterable[EntityField], data: Mapping[str, Any]) -> list[Value]:
    """Return the values of an item whose data are all proved, in the order of the fields."""
    return [None if (value := data.get(field.name)) is None else _AS_VALUE[field.kind](value) for field in fields]


def _text(value: object) -> str | None:
    """Return the text; lone surrogates, which no format can hold, become question marks."""
    text = str(value)
    return (text if text.isascii() else text.encode("utf-8", "replace").decode()) or None


_AS_VALUE: Mapping[FieldKind, Callable[[object], Value]] = {
    FieldKind.TEXT: _text,
    FieldKind.CHOICE: _text,
    FieldKind.LANGUAGE: _text,
    FieldKind.NUMBER: exact,
    FieldKind.FLAG: lambda value: value if isinstance(value, bool) else None,
}


def write_ranges(kind: EntityType, values: dict[str, Value], evidence: dict[str, Evidence]) -> None:
    """Keep a maximum only beside a different minimum; a single value becomes the minimum."""
    for rule in kind.rules:
        if not isinstance(rule, SingleGoesToMax):
            continue
        low, high = rule.field, rule.to
        if values[high] is None or (values[low] is not None and values[low] != values[high]):
            continue
        if values[low] is None:
            values[low] = values[high]
            evidence[low] = evidence.get(high, {})
        values[high] = None
        evidence.pop(high, None)


def is_address(field: str) -> bool:
    """Return whether a field of that name holds a URL."""
    return field == "url" or field.endswith("_url")


def absolute(address: str | None, source_url: str) -> str | None:
    """Return the URL, resolved against the source's; an invalid one is unchanged."""
    if address is None or address.startswith(("https://", "http://")):
        return address
    try:
        return urljoin(source_url, address)
    except ValueError:
        return address


def percent(exported: ExportValues) -> float | None:
    """Return the percentage of stated values that are proved, to a tenth."""
    stated = len(exported.proved) + len(exported.unproved)
    return round(100 * len(exported.proved) / stated, 1) if stated else None


# A row for what several items belong to precedes them, once: the field that names it.
HEADINGS: Mapping[str, str] = {"competency": "competency_framework"}

_HELD = {FieldKind.NUMBER: ColumnType.DECIMAL, FieldKind.FLAG: ColumnType.FLAG}
_PROOF = (
    ExportColumn(name="grounded_percent", holds=ColumnType.FLOAT),
    ExportColumn(name="grounded_fields"),
    ExportColumn(name="ungrounded_fields"),
)
_REVIEW = (
    ExportColumn(name="is_flagged", holds=ColumnType.FLAG),
    ExportColumn(name="is_repeat", holds=ColumnType.FLAG),
)
_LINEAGE = (
    ExportColumn(name="entity_type"),
    ExportColumn(name="source_id"),
    ExportColumn(name="dataset_id", holds=ColumnType.WHOLE),
    ExportColumn(name="dataset_version", holds=ColumnType.WHOLE),
    ExportColumn(name="dataset_status"),
    ExportColumn(name="item_id", holds=ColumnType.WHOLE),
    ExportColumn(name="item_key"),
    ExportColumn(name="page_id", holds=ColumnType.WHOLE),
    ExportColumn(name="page_url"),
    ExportColumn(name="snapshot_id", holds=ColumnType.WHOLE),
    ExportColumn(name="fetched_at", holds=ColumnType.TIME),
    ExportColumn(name="read_at", holds=ColumnType.TIME),
    ExportColumn(name="run_id"),
    ExportColumn(name="config_version", holds=ColumnType.WHOLE),
    ExportColumn(name="extraction_method"),
    ExportColumn(name="model"),
    ExportColumn(name="confidence", holds=ColumnType.FLOAT),
)


def item_columns(request: ExportRequest, datasets: Sequence[Dataset]) -> list[ExportColumn]:
    """Return the fields of the requested types, their evidence, and their lineage."""
    names = dict.fromkeys(field.entity_type for field in datasets)
    kinds = [request.kind(name) for name in (names if request.name == ITEMS else [request.name])]
    fields: dict[str, ExportColumn] = {}
    for field in chain.from_iterable(kind.fields for kind in kinds):
        column = ExportColumn(name=field.name, holds=_HELD.get(field.kind, ColumnType.TEXT))
        if fields.setdefault(field.name, column) != column:  # two types, one name: as text
            fields[field.name] = ExportColumn(name=field.name)
    head = [ExportColumn(name="row_type")] if request.name in HEADINGS else []
    own = chain.from_iterable(
        [column, *_evidence_columns(column.name)] if request.evidence else [column] for column in fields.values()
    )
    return [*head, *own, *_PROOF, *(_REVIEW if request.with_flagged else ()), *_LINEAGE]


def _evidence_columns(field: str) -> list[ExportColumn]:
    return [
        ExportColumn(name=f"{field}__evidence"),
        ExportColumn(name=f"{field}__start", holds=ColumnType.WHOLE),
        ExportColumn(name=f"{field}__end", holds=ColumnType.WHOLE),
    ]


def item_rows(
    connection: Connection, request: ExportRequest, datasets: Sequence[Dataset], *, batch_rows: int
) -> Batches:
    """Yield the rows, dataset after dataset, each in the order of its natural keys."""
    columns = item_columns(request, datasets)
    names = [item.name for item in columns]
    for dataset in datasets:
        shaper = _Shaper(connection, request, dataset)
        mixed = _mixed(columns, shaper.kind)
        statement = _statement(request, dataset).execution_options(yield_per=batch_rows)
        for batch in connection.execute(statement).partitions():
            rows = [list(map(row.get, names)) for item in batch for row in shaper.rows(item)]
            for row in rows:
                for place in mixed:
                    row[place] = None if row[place] is None else str(row[place])
            yield rows


def _mixed(columns: Sequence[ExportColumn], kind: EntityType) -> list[int]:
    """Return the places of columns that are text because two types differ about them."""
    own = {field.name: _HELD.get(field.kind, ColumnType.TEXT) for field in kind.fields}
    return [
        place for place, column in enumerate(columns) if column.name in own and own[column.name] is not column.holds
    ]


_SELECTED = (
    *("item_id", "item_key", "page_id", "page_url", "snapshot_id", "fetched_at", "read_at"),
    *("run_id", "config_version"),
    *("extraction_method", "model", "confidence", "is_flagged", "is_repeat", "data", "grounding"),
)


# As `rights.is_reserved` decides.
_RIGHTS = {name: snapshots.c.rights[name].as_string() for name in (RESERVATION, ROBOTS_TAG, META)}
_IS_RESERVED = or_(_RIGHTS[RESERVATION] == "1", _RIGHTS[ROBOTS_TAG].is_not(None), _RIGHTS[META].is_not(None))


def _exported_items(request: ExportRequest, dataset: Dataset) -> ColumnElement[bool]:
    is_exported = data_items.c.dataset_id == dataset.id
    if request.honours_rights:
        is_exported &= ~exists().where(snapshots.c.id == data_items.c.snapshot_id, _IS_RESERVED).correlate(data_items)
    if request.with_flagged:
        return is_exported
    return is_exported & data_items.c.is_repeat.is_(false()) & data_items.c.is_flagged.is_(false())


def _statement(request: ExportRequest, dataset: Dataset) -> Select[*tuple[Any, ...]]:
    heading = HEADINGS.get(request.name)
    first = [] if heading is None else [_proved_text(heading)]
    item = data_items.c
    return (
        select(
            item.id.label("item_id"),
            item.item_key,
            item.page_id,
            pages.c.url.label("page_url"),
            item.snapshot_id,
            func.coalesce(snapshots.c.fetched_at, pages.c.visited_at).label("fetched_at"),
            func.coalesce(pages.c.read_at, item.created_at).label("read_at"),
            pages.c.run_id,
            extractions.c.config_version,
            item.extraction_method,
            item.model,
            item.confidence,
            item.is_flagged,
            item.is_repeat,
            cast(item.data, Text).label("data"),
            cast(item.grounding, Text).label("grounding"),
        )
        .join(pages, pages.c.id == item.page_id)
        .join(extractions, extractions.c.id == pages.c.extraction_id)
        .join(snapshots, snapshots.c.id == item.snapshot_id, isouter=True)
        .where(_exported_items(request, dataset))
        .order_by(*first, item.item_key, item.id)
    )


def _proved_text(field: str) -> ColumnElement[str]:
    """Return the exported value of a text field as SQL; empty text for none."""
    text = data_items.c.data[field].as_string()
    return func.coalesce(case((_is_proved(field), text)), "")


def _is_proved(field: str) -> ColumnElement[bool]:
    return data_items.c.grounding[(field, "status")].as_string().in_(PROVED_NAMES)


def _ids(connection: Connection, request: ExportRequest, dataset: Dataset, kind: EntityType) -> Ids:
    """Return the ids that need a suffix; the database counts, so unique ids cost nothing."""
    field = id_field(kind)
    if field is None:
        return Ids((), ())
    in_review = request.with_flagged and kind.field(field).required
    stated_id = data_items.c.data[field].as_string()
    stated = select(stated_id).where(
        _exported_items(request, dataset), stated_id.is_not(None), true() if in_review else _is_proved(field)
    )
    counted = stated.group_by(stated_id).having(func.count() > 1)
    repeated = {str(value) for value in connection.scalars(counted)}
    if not repeated:
        return Ids((), ())
    every = connection.scalars(stated.execution_options(yield_per=10_000))
    taken = {str(value) for value in every if could_be_taken(str(value), repeated)}
    return Ids(repeated, taken)


class _Shaper:
    """Builder of the rows of one dataset, in order: ids and headings depend on earlier rows."""

    def __init__(self, connection: Connection, request: ExportRequest, dataset: Dataset) -> None:
        self.kind = request.kind(dataset.entity_type)
        self._wanted = request
        self._source_url = dataset.source_url
        self._id = id_field(self.kind)
        self._ids = _ids(connection, request, dataset, self.kind)
        self._heading = HEADINGS.get(request.name)
        named = [field.name for field in self.kind.fields if is_address(field.name)]
        self._addresses = [*named, "page_url"]
        self._last_heading: object = None
        self._origin = {
            "entity_type": self.kind.name,
            "source_id": dataset.source_id,
            "dataset_id": dataset.id,
            "dataset_version": dataset.version,
            "dataset_status": dataset.status,
        }

    def rows(self, item: Row[*tuple[Any, ...]]) -> list[dict[str, Any]]:
        """Return the item's row, after its heading's row if it is the first under it."""
        row = self._row(item)
        if self._heading is None:
            return [row]
        heading = row[self._heading]
        is_first = heading is not None and heading != self._last_heading
        self._last_heading = heading
        row["row_type"] = self.kind.name
        if not is_first:
            return [row]
        return [{"row_type": self._heading, self._heading: heading, **self._origin}, row]

    def _row(self, item: Row[*tuple[Any, ...]]) -> dict[str, Any]:
        row: dict[str, Any] = dict(zip(_SELECTED, item, strict=True))
        data, grounding = _document(row["data"]), _document(row["grounding"])
        review = self._wanted.with_flagged
        exported = export_values(self.kind.fields, data, grounding, review=review)
        write_ranges(self.kind, exported.values, grounding)
        row.update(exported.values)
        row.update(self._origin)
        row["grounded_percent"] = percent(exported)
        row["grounded_fields"] = ", ".join(exported.proved)
        row["ungrounded_fields"] = ", ".join(exported.unproved)
        if self._id is not None and row[self._id] is not None:
            row[self._id] = self._ids.unique(row[self._id])
        for name in self._addresses:
            row[name] = absolute(row[name], self._source_url)
        if self._wanted.evidence:
            row.update(_evidence(self.kind, grounding))
        return row


def _evidence(kind: EntityType, grounding: Mapping[str, Evidence]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for field in kind.fields:
        evidence = grounding.get(field.name, {})
        columns[f"{field.name}__evidence"] = evidence.get("status")
        columns[f"{field.name}__start"] = evidence.get("start")
        columns[f"{field.name}__end"] = evidence.get("end")
    return columns


def _document(text: str) -> dict[str, Any]:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # what only the standard library takes for JSON: NaN
        return json.loads(text)
