"""The exported tables: their columns, and the lineage of each row."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, select
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.engine.published import ColumnType, ExportColumn, PublishedTable
from ingestion_pipeline.exports.files import Batches, exact
from ingestion_pipeline.registry import systems
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.store import tables

# A source's configuration may hold what only its reader should see: headers, tokens, cookies.
_PRIVATE = frozenset({"config", "etag", "last_modified", "parser_version", "content_hash"})
_UNREPORTED = frozenset(column.name for column in tables.sources.columns if column.name.startswith("unreported_"))
SOURCES = PublishedTable(table=tables.sources, without=_PRIVATE | _UNREPORTED, source_id=tables.sources.c.id)
# Published by an asset but not exported: notices are internal.
NOTICES = PublishedTable(table=tables.notices, without=frozenset({"payload"}), is_exported=False)

PUBLISHED: Mapping[str, PublishedTable] = {
    table.name: table for table in (SOURCES, *(table for system in systems() for table in system.published), NOTICES)
}
TABLES: Mapping[str, PublishedTable] = {name: table for name, table in PUBLISHED.items() if table.is_exported}


class NoSourceOfRows(ValueError):
    """An export by source of rows that belong to no single source."""


def table_columns(name: str) -> list[ExportColumn]:
    """Return the columns of the export, or of what an asset publishes."""
    return PUBLISHED[name].export_columns()


def table_rows(
    connection: Connection,
    name: str,
    *,
    source_id: str | None,
    batch_rows: int,
    since: datetime | None = None,
    newest: int | None = None,
) -> Batches:
    """Yield the rows by their primary key in batches; with `since` those written from then on.

    A table without `modified_at` gives all its rows. With `newest` only so many, the last written first.
    """
    statement = _statement(connection, name, source_id)
    if since is not None and "modified_at" in TABLES[name].table.c:
        statement = statement.where(TABLES[name].table.c.modified_at >= since)
    if newest is not None:
        statement = statement.order_by(None).order_by(*_last_first(name)).limit(newest)
    statement = statement.execution_options(yield_per=batch_rows)
    numbers = [place for place, column in enumerate(table_columns(name)) if column.holds is ColumnType.DECIMAL]
    for batch in connection.execute(statement).partitions():
        yield [_with_numbers(row, numbers) for row in batch] if numbers else list(batch)


def _last_first(name: str) -> list[ColumnElement[Any]]:
    table = PUBLISHED[name].table
    if "modified_at" in table.columns:
        return [table.c.modified_at.desc().nulls_last()]
    return [column.desc() for column in table.primary_key.columns]


def _statement(connection: Connection, name: str, source_id: str | None) -> Select[Any]:
    export = PUBLISHED[name]
    rows = export.table if export.rows is None else export.rows
    statement = select(*export.columns()).select_from(rows)
    statement = statement.order_by(*export.table.primary_key.columns)
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
