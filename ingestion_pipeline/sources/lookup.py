"""Sources as they stand, by id or all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, select

from ingestion_pipeline.sources.source import Kind, Source, SourceStatus, Tier
from ingestion_pipeline.store.tables import sources


class UnknownSource(LookupError):
    """No source has this id."""

    def __init__(self, source_id: str) -> None:
        super().__init__(f"there is no source {source_id!r}; `ingest sources list` shows all")


_SOURCE_COLUMNS = tuple(sources.c[name] for name in Source.__dataclass_fields__)


def sources_by_id(connection: Connection, ids: Collection[str]) -> dict[str, Source]:
    """The sources with these ids; those that are gone are not in it."""
    rows = connection.execute(select(*_SOURCE_COLUMNS).where(sources.c.id.in_(list(ids))))
    return {found.id: found for found in map(source_of, rows.mappings())}


def list_sources(
    connection: Connection,
    *conditions: ColumnElement[bool],
    kind: Kind | None = None,
    limit: int | None = None,
) -> list[Source]:
    """Every source, by id; with conditions, those that meet them."""
    query = select(*_SOURCE_COLUMNS).where(*conditions).order_by(sources.c.id)
    if kind is not None:
        query = query.where(sources.c.kind == kind.value)
    if limit is not None:
        query = query.limit(limit)
    return [source_of(row) for row in connection.execute(query).mappings()]


def source_of(row: RowMapping | Mapping[str, Any]) -> Source:
    """The source a row states."""
    values: dict[str, Any] = {str(name): value for name, value in row.items()}
    values["kind"] = Kind(values["kind"])
    values["tier"] = Tier(values["tier"])
    values["status"] = SourceStatus(values["status"])
    return Source(**values)
