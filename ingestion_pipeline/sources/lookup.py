"""Queries for sources: by id or as a list, with their followers and the series they belong to.

The series is the operator's assignment, else the declaration, else the source's own id; no other place has that rule. A
series that was merged away keeps its row, and its id means the series it was merged into; merging keeps that at one
step, so that no chain has to be followed.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, RowMapping, Select, and_, case, exists, func, select

from ingestion_pipeline.sources.poll_tasks import POLL, UNPOLLED
from ingestion_pipeline.sources.source import INTERNED_KINDS, Kind, Source, SourceStatus, Tier
from ingestion_pipeline.store.tables import follows, sources, tasks
from ingestion_pipeline.store.tables import series as all_series
from ingestion_pipeline.tasks.task import TaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesAssignment:
    """The series of one source, and why it is that one."""

    series_id: str
    named: str  # what operator or file say, before any merging
    is_assigned: bool
    is_known: bool  # the named series has its row

    @property
    def why(self) -> str:
        """Return the reason for people."""
        reason = "assigned by an operator" if self.is_assigned else "as its declaration says"
        if self.named == self.series_id:
            return reason
        return f"{reason}: {self.named}, which was merged into {self.series_id}"


def named_series(declared: ColumnElement[Any] = sources.c.series_id) -> ColumnElement[str]:
    """Return the series id that a row of `sources` names; `declared` is the declared one."""
    return func.coalesce(sources.c.assigned_series_id, declared, sources.c.id)


def canonical_series_id(named: ColumnElement[str]) -> ColumnElement[str]:
    """Return the canonical series of an id: itself, or the one it was merged into."""
    target = all_series.alias()
    into = select(target.c.merged_into).where(target.c.id == named).correlate_except(target)
    return func.coalesce(into.scalar_subquery(), named)


def canonical_series_ids(connection: Connection, names: Collection[str]) -> dict[str, str]:
    """Return the canonical series of each of these ids; an unknown id means itself."""
    query = select(all_series.c.id, all_series.c.merged_into).where(
        all_series.c.id.in_(list(names)), all_series.c.merged_into.is_not(None)
    )
    into: dict[str, str] = {row.id: row.merged_into for row in connection.execute(query)}
    return {name: into.get(name, name) for name in names}


def series_aliases(connection: Connection, series_ids: Collection[str]) -> dict[str, set[str]]:
    """Return every id that means each of these series, its own included."""
    query = select(all_series.c.id, all_series.c.merged_into).where(all_series.c.merged_into.in_(list(series_ids)))
    names = {id_: {id_} for id_ in series_ids}
    for row in connection.execute(query):
        names[row.merged_into].add(row.id)
    return names


def series_assignments(connection: Connection, source_ids: Collection[str]) -> dict[str, SeriesAssignment]:
    """Return the series of each of these sources."""
    named = named_series()
    query = select(
        sources.c.id,
        canonical_series_id(named),
        named,
        sources.c.assigned_series_id.is_not(None),
        exists().where(all_series.c.id == named),
    ).where(sources.c.id.in_(list(source_ids)))
    return {
        id_: SeriesAssignment(series_id=home, named=name, is_assigned=bool(assigned), is_known=bool(is_known))
        for id_, home, name, assigned, is_known in connection.execute(query)
    }


def sources_of(connection: Connection, series_ids: Collection[str]) -> list[str]:
    """Return the ids of the sources of these series, sorted."""
    query = select(sources.c.id).where(
        sources.c.kind == "series", canonical_series_id(named_series()).in_(list(series_ids))
    )
    return list(connection.execute(query.order_by(sources.c.id)).scalars())


class UnknownSource(LookupError):
    """No source has this id."""

    def __init__(self, source_id: str) -> None:
        super().__init__(f"there is no source {source_id!r}; `ingest sources list` shows all")


_NAMES = tuple(Source.__dataclass_fields__)
_SOURCE_COLUMNS = tuple(sources.c[name] for name in _NAMES)


def sources_by_id(connection: Connection, ids: Collection[str]) -> dict[str, Source]:
    """Return the sources with these ids; missing ones are left out."""
    rows = connection.execute(select(*_SOURCE_COLUMNS).where(sources.c.id.in_(list(ids))))
    return {source.id: source for source in map(_source, rows)}


def list_sources(connection: Connection, *conditions: ColumnElement[bool], kind: Kind | None = None) -> list[Source]:
    """Return every source, by id; with conditions, those that meet them."""
    query = select(*_SOURCE_COLUMNS).where(*conditions).order_by(sources.c.id)
    if kind is not None:
        query = query.where(sources.c.kind == kind.value)
    return [_source(row) for row in connection.execute(query)]


def source_of(row: RowMapping | Mapping[str, Any]) -> Source:
    """Return the source of a row."""
    return _stated({str(name): value for name, value in row.items()})


def _source(row: Row[Any]) -> Source:
    """Return the source of a row of `_SOURCE_COLUMNS` by position: quicker than by name."""
    return _stated(dict(zip(_NAMES, row, strict=True)))


# A dict lookup is quicker than the enumeration's constructor, and there may be 100,000 rows.
_TIERS: dict[str, Tier] = {member.value: member for member in Tier}
_STATUSES: dict[str, SourceStatus] = {member.value: member for member in SourceStatus}


def _stated(values: dict[str, Any]) -> Source:
    values["kind"] = INTERNED_KINDS[values["kind"]]
    values["tier"] = _TIERS[values["tier"]]
    values["status"] = _STATUSES[values["status"]]
    return Source(**values)


ROWS_AT_ONCE = 5_000


class SourceLine(NamedTuple):
    """One line of a list of sources."""

    id: str
    platform: str | None
    tier: str
    tier_pinned: bool
    status: str
    record_count: int
    next_check_at: datetime | None
    url: str


def listed_sources(connection: Connection, *, kind: Kind | None = None) -> Iterator[SourceLine]:
    """Return all sources, or those of one kind, by id; rows are streamed."""
    next_check_at = case(  # as `Watched.next_check_at`
        (sources.c.status.in_(UNPOLLED), None),
        (tasks.c.status == TaskStatus.PENDING.value, tasks.c.not_before),
        else_=sources.c.next_check_at,
    )
    columns = [next_check_at if name == "next_check_at" else sources.c[name] for name in SourceLine._fields]
    poll = and_(tasks.c.source_id == sources.c.id, tasks.c.kind == POLL)
    query = select(*columns).outerjoin(tasks, poll).order_by(sources.c.id)
    if kind is not None:
        query = query.where(sources.c.kind == kind.value)
    rows = connection.execute(query.execution_options(yield_per=ROWS_AT_ONCE))
    return map(SourceLine._make, rows)


def follower_counts(connection: Connection, source_ids: Collection[str]) -> dict[str, int]:
    """Return the followers of each source's series; a source without any is left out."""
    query = _follower_query().where(sources.c.id.in_(list(source_ids)))
    return {row[0]: row[1] for row in connection.execute(query)}


def popular_sources(*, more_than: int) -> Select[Any]:
    """Return a subquery of the sources that more than so many follow."""
    counted = _follower_query().having(func.count() > more_than)
    return select(counted.subquery().c.id)


def _follower_query() -> Select[Any, Any]:
    followed = follows.c.series_id == canonical_series_id(named_series())
    query = select(sources.c.id, func.count()).select_from(sources.join(follows, followed))
    return query.group_by(sources.c.id)
