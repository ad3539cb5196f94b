"""Sources as they stand, by id or all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, RowMapping, select

from ingestion_pipeline.sources.source import Kind, Source, SourceStatus, Tier
from ingestion_pipeline.store.tables import sources


class UnknownSource(LookupError):
    """No source has this id."""

    def __init__(self, source_id: str) -> None:
        super().__init__(f"there is no source {source_id!r}; `ingest sources list` shows all")


_NAMES = tuple(Source.__dataclass_fields__)
_SOURCE_COLUMNS = tuple(sources.c[name] for name in _NAMES)


def sources_by_id(connection: Connection, ids: Collection[str]) -> dict[str, Source]:
    """The sources with these ids; those that are gone are not in it."""
    rows = connection.execute(select(*_SOURCE_COLUMNS).where(sources.c.id.in_(list(ids))))
    return {found.id: found for found in map(_source, rows)}


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
    return [_source(row) for row in connection.execute(query)]


def source_of(row: RowMapping | Mapping[str, Any]) -> Source:
    """The source a row states."""
    return _stated({str(name): value for name, value in row.items()})


def _source(row: Row[Any]) -> Source:
    """Of a row of `_SOURCE_COLUMNS`: by its place, which is quicker than by name."""
    return _stated(dict(zip(_NAMES, row, strict=True)))


# To look a word up is quicker than to ask its enumeration, and there may be 100,000 rows.
_KINDS: dict[str, Kind] = {one.value: one for one in Kind}
_TIERS: dict[str, Tier] = {one.value: one for one in Tier}
_STATUSES: dict[str, SourceStatus] = {one.value: one for one in SourceStatus}


def _stated(values: dict[str, Any]) -> Source:
    values["kind"] = _KINDS[values["kind"]]
    values["tier"] = _TIERS[values["tier"]]
    values["status"] = _STATUSES[values["status"]]
    return Source(**values)
