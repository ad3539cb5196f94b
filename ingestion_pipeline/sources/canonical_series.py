"""Which series a source tells of: an operator's word, else its file's, else its own id; merged on.

Nobody else knows this rule. A series that was merged away keeps its row, and whoever names it means
the one it went into; merging keeps that at one step, so that no chain has to be followed.
"""

from __future__ import annotations

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
        """For people."""
        said = "assigned by an operator" if self.is_assigned else "as its declaration says"
        if self.named == self.series_id:
            return said
        return f"{said}: {self.named}, which was merged into {self.series_id}"


def named_series(declared: ColumnElement[Any] = sources.c.series_id) -> ColumnElement[str]:
    """What a row of `sources` names; `declared` stands for what its file says."""
    return func.coalesce(sources.c.assigned_series_id, declared, sources.c.id)


def home_of(named: ColumnElement[str]) -> ColumnElement[str]:
    """The series that a name means: itself, or the one it was merged into."""
    known = all_series.alias()
    into = select(known.c.merged_into).where(known.c.id == named).correlate_except(known)
    return func.coalesce(into.scalar_subquery(), named)


def meanings(connection: Connection, names: Collection[str]) -> dict[str, str]:
    """What each of these names of series means; one that nobody knows means itself."""
    query = select(all_series.c.id, all_series.c.merged_into).where(
        all_series.c.id.in_(list(names)), all_series.c.merged_into.is_not(None)
    )
    into: dict[str, str] = {row.id: row.merged_into for row in connection.execute(query)}
    return {name: into.get(name, name) for name in names}


def names_of(connection: Connection, series_ids: Collection[str]) -> dict[str, set[str]]:
    """Every name that means each of these series, its own among them."""
    query = select(all_series.c.id, all_series.c.merged_into).where(
        all_series.c.merged_into.in_(list(series_ids))
    )
    names = {id_: {id_} for id_ in series_ids}
    for row in connection.execute(query):
        names[row.merged_into].add(row.id)
    return names


def homes(connection: Connection, source_ids: Collection[str]) -> dict[str, SeriesAssignment]:
    """The series of each of these sources."""
    named = named_series()
    query = select(
        sources.c.id,
        home_of(named),
        named,
        sources.c.assigned_series_id.is_not(None),
        exists().where(all_series.c.id == named),
    ).where(sources.c.id.in_(list(source_ids)))
    return {
        id_: SeriesAssignment(
            series_id=home, named=name, is_assigned=bool(assigned), is_known=bool(known)
        )
        for id_, home, name, assigned, known in connection.execute(query)
    }


def sources_of(connection: Connection, series_ids: Collection[str]) -> list[str]:
    """The sources that tell of these series, by id."""
    query = select(sources.c.id).where(
        sources.c.kind == "series", home_of(named_series()).in_(list(series_ids))
    )
    return list(connection.execute(query.order_by(sources.c.id)).scalars())
