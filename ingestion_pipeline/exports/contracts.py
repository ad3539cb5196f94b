"""Contracts of the assets: columns, rules for their values, and checks of rows against them.

A contract never blocks what it describes: rows that break it are reported with the cure. Bad data
is held back before it becomes rows. What columns mean is in `meanings`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from ingestion_pipeline.catalogs.states import DatasetStatus, PageStatus
from ingestion_pipeline.companies.states import CompanyStatus, ListingDecision, ListingStatus, Priority
from ingestion_pipeline.exports.columns import ColumnType, ExportColumn
from ingestion_pipeline.exports.exporting import BATCH_ROWS
from ingestion_pipeline.exports.meanings import meaning
from ingestion_pipeline.exports.tables import table_columns, table_rows
from ingestion_pipeline.sources.health import Finding, Health
from ingestion_pipeline.sources.recipients import Mode
from ingestion_pipeline.sources.source import Kind, SourceStatus, Tier
from ingestion_pipeline.store import Store
from ingestion_pipeline.websites.states import AnalysisStatus

_URL = r"https?://.+"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractRule:
    """A rule for every value of a column; breaking it is an error unless it is a warning."""

    requirement: str
    cure: str
    matches: str | None = None
    among: tuple[str, ...] = ()
    between: tuple[float, float] | None = None
    is_required: bool = False
    is_warning: bool = False

    @property
    def pattern(self) -> str:
        """Return the pattern that the whole text must match."""
        return rf"^(?:{self.matches})$"

    def holds(self, value: object) -> bool:
        """Return whether the value keeps the rule; a missing one does unless it is required."""
        if value is None:
            return not self.is_required
        if self.matches is not None:
            return re.match(self.pattern, str(value)) is not None
        if self.between is not None:
            low, high = self.between
            return isinstance(value, int | float | Decimal) and low <= value <= high
        return not self.among or value in self.among


KEY = ContractRule(
    requirement="unique and never missing",
    cure="the database should refuse it: `ingest doctor` checks its integrity",
    is_required=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """The rows of an export that an asset publishes, and the rules of their columns."""

    asset: str
    export: str
    rules: Mapping[str, Sequence[ContractRule]] = field(default_factory=dict[str, Sequence[ContractRule]])

    own: Sequence[ExportColumn] = ()

    def columns(self) -> list[ExportColumn]:
        """Return the published columns: the contract's own, or those of the export."""
        return list(self.own) or table_columns(self.export)

    def describe(self, column: str) -> str:
        """Return what the column means, and its rules."""
        parts = [meaning(self.export, column), *(rule.requirement for rule in self.rules.get(column, ()))]
        return "; ".join(parts)

    def all_rules(self) -> dict[str, Sequence[ContractRule]]:
        """Return the rules by column; ids are unique besides."""
        has_id = any(column.name == "id" for column in self.columns())
        return {**({"id": [KEY]} if has_id else {}), **self.rules}


def _needed(cure: str) -> ContractRule:
    return ContractRule(requirement="never missing", cure=cure, is_required=True)


def _among(*words: str) -> ContractRule:
    cure = "a newer version may have written it: upgrade, or correct the row"
    return ContractRule(requirement=f"one of {', '.join(words)}", cure=cure, among=words)


_ADDRESS = ContractRule(
    requirement="an http or https address",
    cure="`ingest explain` shows what the source states; correct its config",
    matches=_URL,
    is_warning=True,
)
_SHOW_SOURCE = "`ingest sources show ID` shows the data behind it"
_COUNT = ContractRule(requirement="0 and up", cure=_SHOW_SOURCE, between=(0, float("inf")))
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
_HEALTH = tuple(
    ExportColumn(
        name=name, holds=next((holds for holds, names in _HEALTH_HOLDS.items() if name in names), ColumnType.TEXT)
    )
    for name in _HEALTH_NAMES
)
_REANALYSE = "analyse the website again: materialize its partition"
_TITLE = _needed("`ingest explain` shows the body; the reader's selector may have moved")

CONTRACTS: Mapping[str, Contract] = {
    contract.asset: contract
    for contract in (
        Contract(
            asset="sources",
            export="sources",
            rules={"url": [_ADDRESS], "tier": [_among(*Tier)], "status": [_among(*SourceStatus)]},
        ),
        Contract(
            asset="chapters",
            export="chapter_sources",
            rules={"chapter_id": [_needed("the chapter is gone; `ingest series` moves links")], "url": [_ADDRESS]},
        ),
        Contract(asset="pages", export="pages", rules={"url": [_ADDRESS], "status": [_among(*PageStatus)]}),
        Contract(
            asset="datasets",
            export="datasets",
            rules={
                "version": [
                    ContractRule(requirement="from 1 on", cure="delete the dataset", between=(1, float("inf")))
                ],
                "status": [_among(*DatasetStatus)],
                "item_count": [_COUNT],
            },
        ),
        Contract(
            asset="companies",
            export="companies",
            rules={
                "website": [_ADDRESS],
                "status": [_among(*CompanyStatus)],
                "tier": [_among("S", "A", "B", "C", "D")],
            },
        ),
        Contract(
            asset="job_listings",
            export="job_listings",
            rules={
                "title": [_TITLE],
                "url": [_ADDRESS],
                "remote": [_among("remote", "hybrid", "on_site")],
                "status": [_among(*ListingStatus)],
                "decision": [_among(*ListingDecision)],
            },
        ),
        Contract(
            asset="job_matches",
            export="job_matches",
            rules={
                "score": [
                    ContractRule(requirement="0 to 100", cure="evaluate it again: touch the profile", between=(0, 100))
                ],
                "priority": [_among(*Priority)],
                "reason": [_needed("evaluate it again: touch the profile")],
            },
        ),
        Contract(
            asset="website_info",
            export="website_analyses",
            rules={"url": [_ADDRESS], "status": [_among(*AnalysisStatus)]},
        ),
        Contract(
            asset="website_prompts",
            export="website_analyses",
            rules={"progress_percent": [ContractRule(requirement="0 to 100", cure=_REANALYSE, between=(0, 100))]},
        ),
        Contract(
            asset="website_analysis",
            export="website_rankings",
            rules={
                "visibility": [ContractRule(requirement="0 to 1", cure=_REANALYSE, between=(0, 1))],
                "score": [ContractRule(requirement="0 to 100", cure=_REANALYSE, between=(0, 100))],
            },
        ),
        Contract(
            asset="notices",
            export="notices",
            rules={
                "recipient": [_needed("`ingest recipients list` shows who there is")],
                "status": [_among("pending", "sent", "failed", "muted")],
                "mode": [_among(*Mode)],
            },
        ),
        Contract(
            asset="source_health",
            export="source_health",
            rules={
                "kind": [_among(*Kind)],
                "tier": [_among(*Tier)],
                "status": [_among(*SourceStatus)],
                "health": [_among(*Health)],
                "health_reason": [_needed(_SHOW_SOURCE)],
                "why": [_needed(_SHOW_SOURCE)],
                "breaker": [_among("open", "closed")],
                "failure_count": [_COUNT],
                "record_count": [_COUNT],
                "changes_per_day": [_COUNT],
                "change_confidence": [ContractRule(requirement="0 to 1", cure=_SHOW_SOURCE, between=(0, 1))],
                "cost_30d_usd": [_COUNT],
            },
            own=_HEALTH,
        ),
    )
}


# pandera has no types of its own that this project's strictness could use.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false


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
    from ingestion_pipeline.exports.frames import to_frame

    columns = contract.columns()
    with store.read() as connection:
        for source_id in source_ids if source_ids is not None else [None]:
            batches = table_rows(connection, contract.export, source_id=source_id, batch_rows=BATCH_ROWS, newest=most)
            for batch in batches:
                yield from cases_in(to_frame(columns, iter([batch])), contract)


def cases_of(rows: Iterable[Mapping[str, Any]], contract: Contract) -> Iterator[Case]:
    """Yield the broken rules in these rows, without pandas; rules of missing columns hold."""
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


def cases_in(frame: Any, contract: Contract) -> Iterator[Case]:  # noqa: ANN401 - a DataFrame
    """Yield the broken rules in the rows of a frame."""
    from pandera.errors import SchemaErrors

    try:
        schema_of(contract).validate(frame, lazy=True)
    except SchemaErrors as error:
        for case in error.failure_cases.to_dict("records"):
            yield _case(contract, frame, case)


def schema_of(contract: Contract) -> Any:  # noqa: ANN401 - a DataFrameSchema
    """Return the contract as a pandera schema."""
    import pandera.pandas as pa

    rules = contract.all_rules()
    return pa.DataFrameSchema(
        {
            column.name: _column(column, rules.get(column.name, ()), contract.describe(column.name))
            for column in contract.columns()
        },
        strict=True,
        name=contract.asset,
    )


def _column(column: ExportColumn, rules: Sequence[ContractRule], description: str) -> Any:  # noqa: ANN401
    import pandera.pandas as pa

    return pa.Column(
        checks=[_check(rule) for rule in rules if not rule.is_required],
        nullable=not any(rule.is_required for rule in rules),
        unique=KEY in rules,
        description=f"{column.holds.value}: {description}",
    )


def _check(rule: ContractRule) -> Any:  # noqa: ANN401 - a pandera Check
    import pandera.pandas as pa

    if rule.matches is not None:
        return pa.Check.str_matches(rule.pattern)
    if rule.between is not None:
        return pa.Check.in_range(*rule.between)
    return pa.Check.isin(rule.among)


def _case(contract: Contract, frame: Any, case: Mapping[str, Any]) -> Case:  # noqa: ANN401
    column, index = str(case["column"]), case["index"]
    rules = contract.all_rules()[column]
    number = case["check_number"]
    # Without a number the case is a missing or duplicate value.
    has_number = isinstance(number, int | float) and number == number  # noqa: PLR0124 - no NaN
    candidates = [rule for rule in rules if rule.is_required is not has_number]
    rule = candidates[int(number)] if has_number else candidates[0]
    row = frame.at[index, "id"] if index is not None and "id" in frame.columns else index
    return Case(column, rule, str(row), str(case["failure_case"]))


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
