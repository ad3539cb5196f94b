"""The series a source belongs to: the operator's assignment, else its declaration, else its own id.

This is the only place with that rule. A series that was merged away keeps its row, and its id means
the series it was merged into; merging keeps that at one step, so that no chain has to be followed.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, exists, func, select
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.store.tables import series as all_series
from ingestion_pipeline.store.tables import sources


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
