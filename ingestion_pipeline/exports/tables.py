"""The tables that are exported as they are, but for what is nobody's business."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column as TableColumn
from sqlalchemy import Connection, Select, Table, select
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.exports.columns import Batches, Column, Holds, columns_of, exact
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.store import tables


@dataclass(frozen=True, slots=True, kw_only=True)
class TableExport:
    """A table, the columns that stay in the house, and how its rows belong to a source."""

    table: Table
    without: frozenset[str] = frozenset()
    source_id: ColumnElement[Any] | None = None

    def columns(self) -> list[TableColumn[Any]]:
        """Those that leave."""
        return [one for one in self.table.columns if one.name not in self.without]


# A source's configuration may hold what only its reader should see: headers, tokens, cookies.
_PRIVATE = frozenset({"config", "etag", "last_modified", "reader", "content_hash"})
_UNTOLD = frozenset(one.name for one in tables.sources.columns if one.name.startswith("untold_"))

TABLES: Mapping[str, TableExport] = {
    "sources": TableExport(
        table=tables.sources, without=_PRIVATE | _UNTOLD, source_id=tables.sources.c.id
    ),
    "series": TableExport(table=tables.series),
    "chapters": TableExport(table=tables.chapters),
    "chapter_sources": TableExport(
        table=tables.chapter_sources,
        without=frozenset({"fingerprint"}),
        source_id=tables.chapter_sources.c.source_id,
    ),
    "extractions": TableExport(
        table=tables.extractions,
        without=frozenset({"recipe"}),
        source_id=tables.extractions.c.source_id,
    ),
    "pages": TableExport(
        table=tables.pages,
        source_id=select(tables.extractions.c.source_id)
        .where(tables.extractions.c.id == tables.pages.c.extraction_id)
        .scalar_subquery(),
    ),
    "datasets": TableExport(table=tables.datasets, source_id=tables.datasets.c.source_id),
}


class NoSourceOfRows(ValueError):
    """The rows belong to no single source."""


def table_columns(name: str) -> list[Column]:
    """The columns of the export."""
    return columns_of(TABLES[name].columns())


def table_rows(
    connection: Connection, name: str, *, source_id: str | None, batch_rows: int
) -> Batches:
    """The rows by their primary key, a batch at a time."""
    statement = _statement(connection, name, source_id).execution_options(yield_per=batch_rows)
    numbers = [place for place, one in enumerate(table_columns(name)) if one.holds is Holds.DECIMAL]
    for batch in connection.execute(statement).partitions():
        yield [_with_numbers(row, numbers) for row in batch] if numbers else list(batch)


def _statement(connection: Connection, name: str, source_id: str | None) -> Select[Any]:
    export = TABLES[name]
    statement = select(*export.columns()).order_by(*export.table.primary_key.columns)
    if source_id is None:
        return statement
    if export.source_id is None:
        raise NoSourceOfRows(f"rows of {name} belong to no single source: leave the source out")
    if source_id not in sources_by_id(connection, [source_id]):
        raise UnknownSource(source_id)
    return statement.where(export.source_id == source_id)


def _with_numbers(row: Any, numbers: list[int]) -> list[Any]:  # noqa: ANN401 - any column's
    values = list(row)
    for place in numbers:
        values[place] = exact(values[place])
    return values
