"""The exported tables: their columns, and the lineage of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Date, FromClause, Select, String, Table, cast, select
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.exports.columns import Batches, ColumnType, ExportColumn, columns_of, exact
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.store import tables

Origin = Sequence[ColumnElement[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableExport:
    """A table to export, the columns left out, the lineage of a row, and its source."""

    table: Table
    without: frozenset[str] = frozenset()
    source_id: ColumnElement[Any] | None = None
    rows: FromClause | None = None
    origin: Origin = ()

    def columns(self) -> list[ColumnElement[Any]]:
        """Return the exported columns."""
        own = [column for column in self.table.columns if column.name not in self.without]
        return [*(_plain(column) for column in own), *self.origin]


def _plain(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a date column as ISO 8601 text, in every format."""
    is_day = isinstance(column.type, Date)
    return cast(column, String(10)).label(column.key or "") if is_day else column


# A source's configuration may hold what only its reader should see: headers, tokens, cookies.
_PRIVATE = frozenset({"config", "etag", "last_modified", "parser_version", "content_hash"})
_UNREPORTED = frozenset(column.name for column in tables.sources.columns if column.name.startswith("unreported_"))

_polls = tables.ingestions
_POLLED: Origin = (
    _polls.c.snapshots.label("snapshot_ids"),
    _polls.c.run_id,
    _polls.c.config_version,
    _polls.c.fetched_at,
)


def _first_link() -> ColumnElement[Any]:
    """Select the link of the source that had the chapter first, of those that have it."""
    links = tables.chapter_sources
    return (
        select(links.c.id)
        .where(links.c.chapter_id == tables.chapters.c.id)
        .order_by(links.c.available.desc(), links.c.id)
        .limit(1)
        .correlate(tables.chapters)
        .scalar_subquery()
    )


_link = tables.chapter_sources.alias("first_link")
_chapters = tables.chapters.outerjoin(_link, _link.c.id == _first_link()).outerjoin(
    _polls, _polls.c.id == _link.c.ingestion_id
)
_matches = tables.job_matches.outerjoin(
    tables.job_listings, tables.job_listings.c.id == tables.job_matches.c.listing_id
).outerjoin(_polls, _polls.c.id == tables.job_listings.c.ingestion_id)
_answers = tables.website_answers.outerjoin(
    tables.website_analyses, tables.website_analyses.c.id == tables.website_answers.c.analysis_id
)
_rankings = tables.website_rankings.outerjoin(
    tables.website_analyses, tables.website_analyses.c.id == tables.website_rankings.c.analysis_id
)
_of_analysis: Origin = (tables.website_analyses.c.source_id, tables.website_analyses.c.config_version)


def _from_poll(table: Table) -> FromClause:
    return table.outerjoin(_polls, _polls.c.id == table.c.ingestion_id)


TABLES: Mapping[str, TableExport] = {
    "sources": TableExport(table=tables.sources, without=_PRIVATE | _UNREPORTED, source_id=tables.sources.c.id),
    "series": TableExport(table=tables.series),
    "chapters": TableExport(
        table=tables.chapters, rows=_chapters, origin=(_link.c.source_id, _link.c.ingestion_id, *_POLLED)
    ),
    "chapter_sources": TableExport(
        table=tables.chapter_sources,
        without=frozenset({"fingerprint"}),
        source_id=tables.chapter_sources.c.source_id,
        rows=_from_poll(tables.chapter_sources),
        origin=_POLLED,
    ),
    "extractions": TableExport(
        table=tables.extractions, without=frozenset({"recipe"}), source_id=tables.extractions.c.source_id
    ),
    "pages": TableExport(
        table=tables.pages,
        source_id=select(tables.extractions.c.source_id)
        .where(tables.extractions.c.id == tables.pages.c.extraction_id)
        .scalar_subquery(),
    ),
    "datasets": TableExport(table=tables.datasets, source_id=tables.datasets.c.source_id),
    "companies": TableExport(table=tables.companies, source_id=tables.companies.c.source_id),
    "job_listings": TableExport(
        table=tables.job_listings,
        without=frozenset({"url_key", "fingerprint", "origin_key", "content_hash", "rules_hash"}),
        source_id=tables.job_listings.c.source_id,
        rows=_from_poll(tables.job_listings),
        origin=_POLLED,
    ),
    "listing_sources": TableExport(
        table=tables.listing_sources,
        without=frozenset({"content_hash", "stated"}),
        source_id=tables.listing_sources.c.source_id,
        rows=_from_poll(tables.listing_sources),
        origin=_POLLED,
    ),
    "job_matches": TableExport(
        table=tables.job_matches,
        without=frozenset({"rules_hash"}),
        source_id=tables.job_matches.c.source_id,
        rows=_matches,
        origin=(
            tables.job_listings.c.snapshot_id,
            _polls.c.snapshots.label("snapshot_ids"),
            _polls.c.run_id.label("listing_run_id"),
            _polls.c.config_version,
        ),
    ),
    "businesses": TableExport(table=tables.businesses, without=frozenset({"url_key"})),
    "website_analyses": TableExport(table=tables.website_analyses, source_id=tables.website_analyses.c.source_id),
    "website_rankings": TableExport(
        table=tables.website_rankings,
        source_id=tables.website_analyses.c.source_id,
        rows=_rankings,
        origin=_of_analysis,
    ),
    "website_answers": TableExport(
        table=tables.website_answers, source_id=tables.website_analyses.c.source_id, rows=_answers, origin=_of_analysis
    ),
}

# Published by an asset but not exported: notices are internal.
PUBLISHED: Mapping[str, TableExport] = {
    **TABLES,
    "notices": TableExport(table=tables.notices, without=frozenset({"payload"})),
}


class NoSourceOfRows(ValueError):
    """An export by source of rows that belong to no single source."""


def table_columns(name: str) -> list[ExportColumn]:
    """Return the columns of the export, or of what an asset publishes."""
    return columns_of(PUBLISHED[name].columns())


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

    With `newest` only so many, the last written first.
    """
    statement = _statement(connection, name, source_id)
    if since is not None:
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
