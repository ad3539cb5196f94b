"""The contracts of all assets, and checks of rows against them: of a table, of one run, or of a dataset's items.

Rows that a run wrote are found by their source's index; no statement scans what other runs have written.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from ingestion_pipeline.engine.system_spec import (
    ADDRESS,
    COUNT,
    KEY,
    ColumnType,
    Contract,
    ContractRule,
    ExportColumn,
    PublishedTable,
    newest_of,
    one_of,
    required,
)
from ingestion_pipeline.exports.export_request import NOTICES, SOURCES, newest_published, table_rows
from ingestion_pipeline.exports.exported_items import ITEM_ROWS, PROVED_NAMES
from ingestion_pipeline.exports.exporting import BATCH_ROWS
from ingestion_pipeline.exports.formats import exact
from ingestion_pipeline.reading.evidence.grounding import Status
from ingestion_pipeline.registry import systems
from ingestion_pipeline.sources.source import Kind, Mode, SourceStatus, Tier
from ingestion_pipeline.sources.status import Finding, Health
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import data_items, datasets, extractions, pages, source_health

# The columns of a health report: the type of the values, and what they mean.
_HEALTH_COLUMNS = {
    "id": (ColumnType.TEXT, "the source that the row is about (`sources.id`)"),
    "kind": (ColumnType.TEXT, "what it lists: catalog, website, company, job_board or series"),
    "tier": (ColumnType.TEXT, "how often it is checked"),
    "status": (ColumnType.TEXT, "whether it is polled; open: its breaker is"),
    "health": (ColumnType.TEXT, "its health in one word; the worst comes first"),
    "health_reason": (ColumnType.TEXT, "reason of the health, for people"),
    "why": (ColumnType.TEXT, "why it was or was not polled, for people"),
    "last_outcome": (ColumnType.TEXT, "outcome of its last poll, for people; null: never polled"),
    "last_checked_at": (ColumnType.TIME, "when a poll of it last ended, UTC; null: never"),
    "last_success_at": (ColumnType.TIME, "when a poll of it last succeeded, UTC; null: never"),
    "next_check_at": (ColumnType.TIME, "when it is polled next, UTC; null: it is not"),
    "failure_count": (ColumnType.WHOLE, "failed polls in a row; 0 after a success"),
    "record_count": (ColumnType.WHOLE, "records that its last complete listing had"),
    "error_class": (ColumnType.TEXT, "class of the last poll's error; null: it had none"),
    "breaker": (ColumnType.TEXT, "open while it is paused after five failures, else closed"),
    "failures": (ColumnType.JSON, "open dead letters as JSON: how many of each class of error"),
    "coverage": (ColumnType.JSON, "as JSON: how much was obtained of what exists; null: not countable"),
    "cost_30d_usd": (ColumnType.DECIMAL, "US dollars that models cost for it in 30 days"),
    "changes_per_day": (
        ColumnType.FLOAT,
        "changes a day that are expected, by which its next check is decided; null: nothing is estimated of its kind",
    ),
    "change_confidence": (
        ColumnType.FLOAT,
        "how sure that is, 0 to 1; 0: only the usual rate of its platform; null: nothing is estimated of its kind",
    ),
    "max_delay_seconds": (ColumnType.WHOLE, "its freshness objective; null: it has none"),
    "freshness_30d": (
        ColumnType.FLOAT,
        "share of 30 days in which it was checked within its objective, 0 to 1; null: it has none",
    ),
    "freshness_budget_left": (
        ColumnType.FLOAT,
        "share of its error budget of 30 days that is left, 0 to 1; null: it has no objective",
    ),
}
HEALTH = PublishedTable(
    table=source_health,
    own=[ExportColumn(name=name, holds=holds) for name, (holds, _) in _HEALTH_COLUMNS.items()],
    is_exported=False,
    meanings={name: meaning for name, (_, meaning) in _HEALTH_COLUMNS.items()},
)
_SHOW_SOURCE = COUNT.cure

CONTRACTS: Mapping[str, Contract] = {
    contract.asset: contract
    for contract in (
        Contract(
            asset="sources",
            table=SOURCES,
            rules={"url": [ADDRESS], "tier": [one_of(*Tier)], "status": [one_of(*SourceStatus)]},
        ),
        *(contract for system in systems() for contract in system.contracts),
        Contract(
            asset="notices",
            table=NOTICES,
            rules={
                "recipient": [required("`ingest recipients list` shows who there is")],
                "status": [one_of("pending", "sent", "failed", "muted")],
                "mode": [one_of(*Mode)],
            },
        ),
        Contract(
            asset="source_health",
            table=HEALTH,
            rules={
                "kind": [one_of(*Kind)],
                "tier": [one_of(*Tier)],
                "status": [one_of(*SourceStatus)],
                "health": [one_of(*Health)],
                "health_reason": [required(_SHOW_SOURCE)],
                "why": [required(_SHOW_SOURCE)],
                "breaker": [one_of("open", "closed")],
                "failure_count": [COUNT],
                "record_count": [COUNT],
                "changes_per_day": [COUNT],
                "change_confidence": [ContractRule(requirement="0 to 1", cure=_SHOW_SOURCE, between=(0, 1))],
                "cost_30d_usd": [COUNT],
                "freshness_30d": [ContractRule(requirement="0 to 1", cure=_SHOW_SOURCE, between=(0, 1))],
                "freshness_budget_left": [ContractRule(requirement="0 to 1", cure=_SHOW_SOURCE, between=(0, 1))],
            },
        ),
    )
}


NAMED = 20  # rows that a finding names
VALUES = 3  # values that it shows
VALUE_CHARS = 40


@dataclass(frozen=True, slots=True)
class Case:
    """A value that breaks a rule of its column."""

    column: str
    rule: ContractRule
    row: str
    value: str


def contract_findings(
    store: Store, contract: Contract, source_ids: Sequence[str] | None = None, *, most: int | None
) -> list[Finding]:
    """Return the broken rules in the rows of these sources, or of all.

    At most the `most` newest rows are checked, a batch in memory at a time.
    """
    return findings(contract, _cases(store, contract, source_ids, most))


def _cases(store: Store, contract: Contract, source_ids: Sequence[str] | None, most: int | None) -> Iterator[Case]:
    names = [column.name for column in contract.columns()]
    with store.read() as connection:
        for source_id in source_ids if source_ids is not None else [None]:
            batches = table_rows(connection, contract.export, source_id=source_id, batch_rows=BATCH_ROWS, newest=most)
            for batch in batches:
                yield from cases_of((dict(zip(names, row, strict=True)) for row in batch), contract)


def cases_of(rows: Iterable[Mapping[str, Any]], contract: Contract) -> Iterator[Case]:
    """Yield the broken rules in these rows; rules of missing columns hold."""
    seen: set[object] = set()
    by_column = contract.all_rules()
    for row in rows:
        for column, rules in by_column.items():
            if column not in row:
                continue
            value = row[column]
            for rule in rules:
                is_twice = rule is KEY and value is not None and value in seen
                if is_twice or not rule.holds(value):
                    yield Case(column, rule, str(row.get("id")), str(value))
        seen.add(row.get("id"))


@dataclass(slots=True)
class _Tally:
    count: int = 0
    rows: list[str] = field(default_factory=list[str])
    values: list[str] = field(default_factory=list[str])

    def add(self, case: Case) -> None:
        self.count += 1
        if len(self.rows) < NAMED:
            self.rows.append(case.row)
        value = case.value[:VALUE_CHARS]
        if len(self.values) < VALUES and value not in self.values:
            self.values.append(value)


def findings(contract: Contract, cases: Iterable[Case]) -> list[Finding]:
    """Return a finding for each broken rule, with its first rows and values, and the cure."""
    tallies: dict[tuple[str, ContractRule], _Tally] = {}
    for case in cases:
        tallies.setdefault((case.column, case.rule), _Tally()).add(case)
    return [_finding(contract, *broken, tally) for broken, tally in tallies.items()]


def _finding(contract: Contract, column: str, rule: ContractRule, tally: _Tally) -> Finding:
    more = f" and {tally.count - NAMED} more" if tally.count > NAMED else ""
    named = f"{', '.join(tally.rows)}{more}"
    values = ", ".join(tally.values)
    message = f"{column} must be {rule.requirement}, not {values}: rows {named}; {rule.cure}"
    subject = f"{contract.export}.{column}"
    return Finding(subject=subject, message=message, is_error=not rule.is_warning)


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
    return findings(ITEMS, _item_cases(connection, source_ids, most, entities))


def _item_cases(
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
    yield from connection.execute(query.execution_options(yield_per=AT_ONCE))


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
    yield from connection.execute(query.execution_options(yield_per=AT_ONCE))


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
    for entity_field in kind.fields:
        value = data.get(entity_field.name)
        status = (grounding.get(entity_field.name) or {}).get("status")
        if value is None:
            if entity_field.required:
                yield Case(entity_field.name, _REQUIRED, item_id, "nothing")
            continue
        if not _IS_KIND[entity_field.kind](value, entity_field):
            yield Case(entity_field.name, _KIND, item_id, f"{value!r}")
        if status not in _STATUSES:
            yield Case(entity_field.name, _EVIDENCE, item_id, f"{status or 'none'}")
        elif entity_field.required and status not in PROVED_NAMES:
            yield Case(entity_field.name, _REQUIRED, item_id, str(status))


_IS_KIND: Mapping[FieldKind, Callable[[object, EntityField], bool]] = {
    FieldKind.TEXT: lambda value, _: isinstance(value, str),
    FieldKind.LANGUAGE: lambda value, _: isinstance(value, str),
    FieldKind.CHOICE: lambda value, entity_field: value in entity_field.choices,
    FieldKind.NUMBER: lambda value, _: isinstance(value, str | int | float | Decimal) and exact(value) is not None,
    FieldKind.FLAG: lambda value, _: isinstance(value, bool),
}
