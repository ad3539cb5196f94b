"""The contracts of all assets, and checks of rows against them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ingestion_pipeline.engine.published import (
    ADDRESS,
    COUNT,
    KEY,
    ColumnType,
    Contract,
    ContractRule,
    ExportColumn,
    PublishedTable,
    one_of,
    required,
)
from ingestion_pipeline.exports.exporting import BATCH_ROWS
from ingestion_pipeline.exports.tables import NOTICES, SOURCES, table_rows
from ingestion_pipeline.registry import systems
from ingestion_pipeline.sources.health import Finding, Health
from ingestion_pipeline.sources.recipients import Mode
from ingestion_pipeline.sources.source import Kind, SourceStatus, Tier
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import source_health

_HEALTH_HOLDS = {
    ColumnType.TIME: ("last_checked_at", "last_success_at", "next_check_at"),
    ColumnType.WHOLE: ("failure_count", "record_count"),
    ColumnType.FLOAT: ("changes_per_day", "change_confidence"),
    ColumnType.DECIMAL: ("cost_30d_usd",),
    ColumnType.JSON: ("failures", "coverage"),
}
_HEALTH_NAMES = (
    *("id", "kind", "tier", "status", "health", "health_reason", "why", "last_outcome"),
    *("last_checked_at", "last_success_at", "next_check_at", "failure_count", "record_count"),
    *("error_class", "breaker", "failures", "coverage", "cost_30d_usd", "changes_per_day"),
    "change_confidence",
)
_HEALTH_COLUMNS = tuple(
    ExportColumn(
        name=name, holds=next((holds for holds, names in _HEALTH_HOLDS.items() if name in names), ColumnType.TEXT)
    )
    for name in _HEALTH_NAMES
)
HEALTH = PublishedTable(
    table=source_health,
    own=_HEALTH_COLUMNS,
    is_exported=False,
    meanings={
        "id": "the source that the row is about (`sources.id`)",
        "kind": "what it lists: catalog, website, company, job_board or series",
        "tier": "how often it is checked",
        "status": "whether it is polled; open: its breaker is",
        "health": "its health in one word; the worst comes first",
        "health_reason": "reason of the health, for people",
        "why": "why it was or was not polled, for people",
        "last_outcome": "outcome of its last poll, for people; null: never polled",
        "last_checked_at": "when a poll of it last ended, UTC; null: never",
        "last_success_at": "when a poll of it last succeeded, UTC; null: never",
        "next_check_at": "when it is polled next, UTC; null: it is not",
        "failure_count": "failed polls in a row; 0 after a success",
        "record_count": "records that its last complete listing had",
        "error_class": "class of the last poll's error; null: it had none",
        "breaker": "open while it is paused after five failures, else closed",
        "failures": "open dead letters as JSON: how many of each class of error",
        "coverage": "as JSON: how much was obtained of what exists; null: not countable",
        "changes_per_day": "changes a day that are expected, by which its next check is decided; null: nothing"
        " is estimated of its kind",
        "change_confidence": "how sure that is, 0 to 1; 0: only the usual rate of its platform; null: nothing"
        " is estimated of its kind",
        "cost_30d_usd": "US dollars that models cost for it in 30 days",
    },
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
