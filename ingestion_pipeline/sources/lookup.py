"""Sources as they stand, by id or all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, RowMapping, Select, and_, case, func, select

from ingestion_pipeline.sources.canonical_series import home_of, named_series
from ingestion_pipeline.sources.poll_tasks import POLL
from ingestion_pipeline.sources.source import Kind, Source, SourceStatus, Tier
from ingestion_pipeline.store.tables import follows, sources, tasks
from ingestion_pipeline.tasks.task import TaskStatus


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


ROWS_AT_ONCE = 5_000
_UNPOLLED = (SourceStatus.DISABLED.value, SourceStatus.PENDING_VALIDATION.value)


class SourceLine(NamedTuple):
    """What a list shows of a source."""

    id: str
    platform: str | None
    tier: str
    tier_pinned: bool
    status: str
    record_count: int
    next_check_at: datetime | None
    url: str


def listed_sources(connection: Connection, *, kind: Kind | None = None) -> Iterator[SourceLine]:
    """All of them, or of one kind, by id; read as they are asked for."""
    query = _query().order_by(sources.c.id)
    if kind is not None:
        query = query.where(sources.c.kind == kind.value)
    found = connection.execute(query.execution_options(yield_per=ROWS_AT_ONCE))
    return map(SourceLine._make, found)


def _query() -> Select[Any]:
    """When it is polled next, as `Watched.next_check_at` has it."""
    next_check_at = case(
        (sources.c.status.in_(_UNPOLLED), None),
        (tasks.c.status == TaskStatus.PENDING.value, tasks.c.not_before),
        else_=sources.c.next_check_at,
    )
    shown = {name: sources.c[name] for name in SourceLine._fields if name != "next_check_at"}
    columns = [shown.get(name, next_check_at) for name in SourceLine._fields]
    poll = and_(tasks.c.source_id == sources.c.id, tasks.c.kind == POLL)
    return select(*columns).outerjoin(tasks, poll)


def readers_of(connection: Connection, source_ids: Collection[str]) -> dict[str, int]:
    """The followers of each source's series; a source without any is not in it."""
    query = _readers().where(sources.c.id.in_(list(source_ids)))
    return {row[0]: row[1] for row in connection.execute(query)}


def popular_sources(*, more_than: int) -> Select[Any]:
    """The ids of the sources that more than so many follow, as a subquery."""
    counted = _readers().having(func.count() > more_than)
    return select(counted.subquery().c.id)


def _readers() -> Select[Any, Any]:
    followed = follows.c.series_id == home_of(named_series())
    query = select(sources.c.id, func.count()).select_from(sources.join(follows, followed))
    return query.group_by(sources.c.id)
