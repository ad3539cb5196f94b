"""How many people follow what a source tells of: the more, the sooner they want to know."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Select, func, select

from ingestion_pipeline.sources.belonging import home_of, named_series
from ingestion_pipeline.store.tables import follows, sources


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
