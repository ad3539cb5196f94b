"""What a system publishes: tables with the lineage of each row, and contracts of the assets.

A contract never blocks what it describes: rows that break it are reported with the cure. Bad data
is held back before it becomes rows.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, Boolean, Date, Float, FromClause, Integer, Select, String, Table, cast, func, select
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.store.tables import ingestions
from ingestion_pipeline.store.tables.metadata import SHARED_COMMENTS
from ingestion_pipeline.store.types import ExactDecimal, UtcDateTime


class ColumnType(StrEnum):
    """The type of a column's values; each may be missing."""

    TEXT = "text"
    WHOLE = "whole"
    DECIMAL = "decimal"
    FLOAT = "float"
    FLAG = "flag"
    TIME = "time"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportColumn:
    """A column of an export."""

    name: str
    holds: ColumnType = ColumnType.TEXT


def _held(column: ColumnElement[Any]) -> ColumnType:
    kinds = (
        (ExactDecimal, ColumnType.DECIMAL),
        (UtcDateTime, ColumnType.TIME),
        (Boolean, ColumnType.FLAG),
        (Integer, ColumnType.WHOLE),
        (Float, ColumnType.FLOAT),
        (JSON, ColumnType.JSON),
    )
    matches = (holds for kind, holds in kinds if isinstance(column.type, kind))
    return next(matches, ColumnType.TEXT)


Origin = Sequence[ColumnElement[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """A table that is exported under its own name: the columns left out, the lineage of a row, its source.

    `rows` is what is selected from, if not the table alone; `origin` are the columns that it adds, and
    `meanings` describe those that no comment of a column describes. Rows that belong to no single
    source have no `source_id`. What is not exported is only shown by an asset. `own` are the columns of
    rows that are computed, not selected.
    """

    table: Table
    without: frozenset[str] = frozenset()
    source_id: ColumnElement[Any] | None = None
    rows: FromClause | None = None
    origin: Origin = ()
    meanings: Mapping[str, str] = field(default_factory=dict[str, str])
    is_exported: bool = True
    own: Sequence[ExportColumn] = ()

    @property
    def name(self) -> str:
        """Return the name of the table, which is that of the export."""
        return self.table.name

    def columns(self) -> list[ColumnElement[Any]]:
        """Return the columns as they are selected."""
        own = [column for column in self.table.columns if column.name not in self.without]
        return [*(_plain(column) for column in own), *self.origin]

    def export_columns(self) -> list[ExportColumn]:
        """Return the columns as they are exported."""
        selected = [ExportColumn(name=column.key or "", holds=_held(column)) for column in self.columns()]
        return list(self.own) or selected

    def meaning(self, column: str) -> str:
        """Return what the column means; raise LookupError if nothing describes it."""
        stored = self.table.columns.get(column)
        comment = None if stored is None else stored.comment
        text = self.meanings.get(column) or comment or SHARED_COMMENTS.get(column)
        if text is None:
            raise LookupError(f"no meaning of {self.name}.{column}: add a comment to its column")
        return text


def _plain(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a date column as ISO 8601 text, in every format."""
    is_day = isinstance(column.type, Date)
    return cast(column, String(10)).label(column.key or "") if is_day else column


# The lineage of a row that a poll wrote; `joined_to_poll` is what it is selected from.
POLL_ORIGIN: Origin = (
    ingestions.c.snapshots.label("snapshot_ids"),
    ingestions.c.run_id,
    ingestions.c.config_version,
    ingestions.c.fetched_at,
)


def joined_to_poll(table: Table) -> FromClause:
    """Return the rows of the table with the poll that wrote each of them."""
    return table.outerjoin(ingestions, ingestions.c.id == table.c.ingestion_id)


Written = tuple[FromClause, Sequence[ColumnElement[bool]]]  # the rows, and conditions


def polls_of_run(source_ids: Sequence[str], run_id: str) -> Select[int]:
    """Select the polls of these sources that the run ingested."""
    return select(ingestions.c.id).where(ingestions.c.source_id.in_(source_ids), ingestions.c.run_id == run_id)


def newest_of(table: Table, source_ids: Sequence[str]) -> Select[Any]:
    """Select the newest row of each of these sources."""
    newest = select(func.max(table.c.id)).where(table.c.source_id.in_(source_ids))
    return newest.group_by(table.c.source_id)


def written_by_polls(table: Table) -> Callable[[Sequence[str], str], Written]:
    """Return the selection of rows that a run's polls wrote; the table has `source_id` and `ingestion_id`."""

    def written(source_ids: Sequence[str], run_id: str) -> Written:
        is_written = table.c.ingestion_id.in_(polls_of_run(source_ids, run_id))
        return table, [table.c.source_id.in_(source_ids), is_written]

    return written


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
    """The rows of an export that an asset publishes, and the rules of their columns.

    `written` selects the rows that a run wrote of these sources; without it they name no run.
    """

    asset: str
    table: PublishedTable
    rules: Mapping[str, Sequence[ContractRule]] = field(default_factory=dict[str, Sequence[ContractRule]])
    written: Callable[[Sequence[str], str], Written] | None = None

    @property
    def export(self) -> str:
        """Return the name of the export."""
        return self.table.name

    def columns(self) -> list[ExportColumn]:
        """Return the published columns."""
        return self.table.export_columns()

    def describe(self, column: str) -> str:
        """Return what the column means, and its rules."""
        parts = [self.table.meaning(column), *(rule.requirement for rule in self.rules.get(column, ()))]
        return "; ".join(parts)

    def all_rules(self) -> dict[str, Sequence[ContractRule]]:
        """Return the rules by column; ids are unique besides."""
        has_id = any(column.name == "id" for column in self.columns())
        return {**({"id": [KEY]} if has_id else {}), **self.rules}


def required(cure: str) -> ContractRule:
    """Return the rule that a value is never missing."""
    return ContractRule(requirement="never missing", cure=cure, is_required=True)


def one_of(*words: str) -> ContractRule:
    """Return the rule that a value is one of these words."""
    cure = "a newer version may have written it: upgrade, or correct the row"
    return ContractRule(requirement=f"one of {', '.join(words)}", cure=cure, among=words)


ADDRESS = ContractRule(
    requirement="an http or https address",
    cure="`ingest explain` shows what the source states; correct its config",
    matches=r"https?://.+",
    is_warning=True,
)
COUNT = ContractRule(
    requirement="0 and up", cure="`ingest sources show ID` shows the data behind it", between=(0, float("inf"))
)
