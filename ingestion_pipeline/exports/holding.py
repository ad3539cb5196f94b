"""Whether rows keep a contract: by pandera over frames, or row by row where pandas costs too much.

Both say the same, which a test proves; what is found is bounded however many rows break a rule.
"""

# pandera has no types of its own that this project's strictness could use.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ingestion_pipeline.exports.columns import ExportColumn
from ingestion_pipeline.exports.contracts import KEY, Contract, ContractRule
from ingestion_pipeline.exports.exporting import BATCH_ROWS
from ingestion_pipeline.exports.tables import table_rows
from ingestion_pipeline.sources.findings import Finding
from ingestion_pipeline.store import Store

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


def broken(
    store: Store, contract: Contract, source_ids: Sequence[str] | None = None, *, most: int | None
) -> list[Finding]:
    """What does not hold of the rows of these sources, or of all; of at most so many, the newest.

    A frame holds a batch of them, however many there are.
    """
    return findings(contract, _cases(store, contract, source_ids, most))


def _cases(
    store: Store, contract: Contract, source_ids: Sequence[str] | None, most: int | None
) -> Iterator[Case]:
    from ingestion_pipeline.exports.arrow import to_frame

    columns = contract.columns()
    with store.read() as connection:
        for source_id in source_ids if source_ids is not None else [None]:
            batches = table_rows(
                connection,
                contract.export,
                source_id=source_id,
                batch_rows=BATCH_ROWS,
                newest=most,
            )
            for batch in batches:
                yield from cases_in(to_frame(columns, iter([batch])), contract)


def cases_of(rows: Iterable[Mapping[str, Any]], contract: Contract) -> Iterator[Case]:
    """What does not hold of these rows, without pandas; those without a column keep its rules."""
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
    """What does not hold of the rows of a frame."""
    from pandera.errors import SchemaErrors

    try:
        schema_of(contract).validate(frame, lazy=True)
    except SchemaErrors as error:
        for case in error.failure_cases.to_dict("records"):
            yield _case(contract, frame, case)


def schema_of(contract: Contract) -> Any:  # noqa: ANN401 - a DataFrameSchema
    """The contract as pandera has it."""
    import pandera.pandas as pa

    rules = contract.all_rules()
    return pa.DataFrameSchema(
        {
            one.name: _column(one, rules.get(one.name, ()), contract.describe(one.name))
            for one in contract.columns()
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
    # Without a number it is about what is missing or there twice.
    has_number = isinstance(number, int | float) and number == number  # noqa: PLR0124 - no NaN
    asked = [rule for rule in rules if rule.is_required is not has_number]
    rule = asked[int(number)] if has_number else asked[0]
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
    """A finding for each rule that is broken, with its first rows and values, and the cure."""
    tallies: dict[tuple[str, ContractRule], _Tally] = {}
    for case in cases:
        tallies.setdefault((case.column, case.rule), _Tally()).add(case)
    return [_finding(contract, *broken, tally) for broken, tally in tallies.items()]


def _finding(contract: Contract, column: str, rule: ContractRule, tally: _Tally) -> Finding:
    more = f" and {tally.count - NAMED} more" if tally.count > NAMED else ""
    named = f"{', '.join(tally.rows)}{more}"
    values = ", ".join(tally.values)
    message = f"{column} is to be {rule.said}, not {values}: rows {named}; {rule.cure}"
    subject = f"{contract.export}.{column}"
    return Finding(subject=subject, message=message, is_error=not rule.is_warning)
