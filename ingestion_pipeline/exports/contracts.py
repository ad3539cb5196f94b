"""What each asset publishes, column by column: one declaration for the catalogue and for the check.

A contract never stops what it describes: rows that break it are named, with the cure. Bad readings
are held back elsewhere, before they are rows.
"""

# pandera has no types of its own that this project's strictness could use.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ingestion_pipeline.exports.columns import Column
from ingestion_pipeline.exports.frames import frame_of
from ingestion_pipeline.exports.names import Wanted
from ingestion_pipeline.exports.tables import TABLES, table_columns
from ingestion_pipeline.sources.findings import Finding
from ingestion_pipeline.store import Store

NAMED = 20  # rows that a finding names
_URL = r"https?://.+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What holds of every value of a column; a broken one is an error unless it is a warning."""

    said: str
    cure: str
    matches: str | None = None
    among: tuple[str, ...] = ()
    between: tuple[float, float] | None = None
    is_required: bool = False
    is_warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """The rows of an export that an asset publishes, and what holds of their columns."""

    asset: str
    export: str
    rules: Mapping[str, Sequence[Rule]] = field(default_factory=dict[str, Sequence[Rule]])

    def columns(self) -> list[Column]:
        """As the export has them: what is not exported is no part of it."""
        return table_columns(self.export)

    def describe(self, column: str) -> str:
        """What the table says of the column, and what holds of it."""
        own = TABLES[self.export].table.columns.get(column)
        said = (own.comment if own is not None else None) or _ORIGIN.get(column, "")
        told = filter(None, [said, *(one.said for one in self.rules.get(column, ()))])
        return "; ".join(told) or column.replace("_", " ")


_ORIGIN = {
    "snapshot_ids": "the bodies that it was read from",
    "run_id": "the run that wrote it",
    "config_version": "of the source, when it was read",
    "fetched_at": "when its body was fetched, UTC",
    "source_id": "the source, which is the partition",
}


def _needed(cure: str) -> Rule:
    return Rule(said="never missing", cure=cure, is_required=True)


def _among(*words: str) -> Rule:
    cure = "a newer version may have written it: upgrade, or correct the row"
    return Rule(said=f"one of {', '.join(words)}", cure=cure, among=words)


_ADDRESS = Rule(
    said="an http or https address",
    cure="`ingest explain` shows what the source says; correct its config",
    matches=_URL,
    is_warning=True,
)
_ANEW = "analyse the website anew: materialize its partition"
_TITLE = _needed("`ingest explain` shows the body; the reader's selector may have moved")

CONTRACTS: Mapping[str, Contract] = {
    one.asset: one
    for one in (
        Contract(
            asset="sources",
            export="sources",
            rules={
                "url": [_ADDRESS],
                "tier": [_among("hot", "warm", "cold")],
                "status": [_among("active", "pending_validation", "open", "disabled")],
            },
        ),
        Contract(
            asset="chapters",
            export="chapter_sources",
            rules={
                "chapter_id": [_needed("the chapter is gone; `ingest series` moves links")],
                "url": [_ADDRESS],
            },
        ),
        Contract(asset="pages", export="pages", rules={"url": [_ADDRESS]}),
        Contract(
            asset="datasets",
            export="datasets",
            rules={
                "version": [
                    Rule(said="from 1 on", cure="delete the dataset", between=(1, float("inf")))
                ],
                "status": [
                    Rule(
                        said="never empty",
                        cure="`ingest extractions list` shows what builds it",
                        matches=r"[a-z]+",
                    )
                ],
            },
        ),
        Contract(
            asset="companies",
            export="companies",
            rules={
                "website": [_ADDRESS],
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
                "status": [_among("open", "closed")],
                "verdict": [_among("filtered", "skipped", "matched")],
            },
        ),
        Contract(
            asset="job_matches",
            export="job_matches",
            rules={
                "score": [
                    Rule(said="0 to 100", cure="judge it anew: touch the profile", between=(0, 100))
                ],
                "priority": [_among("high", "medium", "low")],
                "reason": [_needed("judge it anew: touch the profile")],
            },
        ),
        Contract(asset="website_info", export="website_analyses", rules={"url": [_ADDRESS]}),
        Contract(asset="website_prompts", export="website_analyses"),
        Contract(
            asset="website_analysis",
            export="website_rankings",
            rules={
                "visibility": [Rule(said="0 to 1", cure=_ANEW, between=(0, 1))],
                "score": [Rule(said="0 to 100", cure=_ANEW, between=(0, 100))],
            },
        ),
    )
}


def broken(
    store: Store, contract: Contract, source_ids: Sequence[str] | None = None, *, most: int
) -> list[Finding]:
    """What does not hold of the rows of these sources, or of all; of at most so many rows."""
    names = source_ids if source_ids is not None else [None]
    found: list[Finding] = []
    for source_id in names:
        wanted = Wanted(name=contract.export, source_id=source_id, newest=most)
        found += broken_in(frame_of(store, wanted), contract)
    return found


def broken_in(frame: Any, contract: Contract) -> list[Finding]:  # noqa: ANN401 - a DataFrame
    """What does not hold of the rows: a finding for each rule, with its rows and the cure."""
    from pandera.errors import SchemaErrors

    try:
        schema_of(contract).validate(frame, lazy=True)
    except SchemaErrors as error:
        return _findings(contract, frame, error.failure_cases)
    return []


def schema_of(contract: Contract) -> Any:  # noqa: ANN401 - a DataFrameSchema
    """The contract as pandera has it."""
    import pandera.pandas as pa

    return pa.DataFrameSchema(
        {one.name: _column(one, contract.rules.get(one.name, ())) for one in contract.columns()},
        strict=True,
        name=contract.asset,
    )


def _column(column: Column, rules: Sequence[Rule]) -> Any:  # noqa: ANN401 - a pandera Column
    import pandera.pandas as pa

    is_key = column.name == "id"
    is_required = is_key or any(rule.is_required for rule in rules)
    checks = [_check(rule) for rule in rules if not rule.is_required]
    description = f"{column.holds.value}, {'never missing' if is_required else 'may be missing'}"
    return pa.Column(
        checks=checks, nullable=not is_required, unique=is_key, description=description
    )


def _check(rule: Rule) -> Any:  # noqa: ANN401 - a pandera Check
    import pandera.pandas as pa

    if rule.matches is not None:
        return pa.Check.str_matches(rf"^(?:{rule.matches})$")
    if rule.between is not None:
        return pa.Check.in_range(*rule.between)
    return pa.Check.isin(rule.among)


def _findings(contract: Contract, frame: Any, cases: Any) -> list[Finding]:  # noqa: ANN401
    groups: dict[tuple[str, str], list[Any]] = {}
    for case in cases.to_dict("records"):
        groups.setdefault((str(case["column"]), str(case["check"])), []).append(case)
    return [_finding(contract, frame, *key, some) for key, some in groups.items()]


def _finding(
    contract: Contract,
    frame: Any,  # noqa: ANN401
    column: str,
    check: str,
    cases: Sequence[Mapping[str, Any]],
) -> Finding:
    rule = _rule(contract, column, cases[0]["check_number"])
    rows = [_row(frame, one["index"]) for one in cases if one["index"] is not None]
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    values = sorted({str(one["failure_case"])[:40] for one in cases})[:3]
    said, cure = (rule.said, rule.cure) if rule else (check, "`ingest doctor` names versions")
    named = ", ".join(rows[:NAMED])
    message = f"{column} is to be {said}, not {', '.join(values)}: rows {named}{more}; {cure}"
    is_error = rule is None or not rule.is_warning
    return Finding(subject=f"{contract.export}.{column}", message=message, is_error=is_error)


def _rule(contract: Contract, column: str, number: object) -> Rule | None:
    """The rule of pandera's check; without a number it is about what is missing or there twice."""
    rules = contract.rules.get(column, ())
    if isinstance(number, int | float) and number == number:  # noqa: PLR0124 - no NaN
        return [one for one in rules if not one.is_required][int(number)]
    return next((one for one in rules if one.is_required), None)


def _row(frame: Any, index: int) -> str:  # noqa: ANN401 - a DataFrame
    return str(frame.at[index, "id"]) if "id" in frame.columns else str(index)
