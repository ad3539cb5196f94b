"""Which polled sources Dagster must still be told of; what it is told, their systems know."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, func, or_, select, update

from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.store.locking import lock_rows
from ingestion_pipeline.store.tables import sources


def unreported(connection: Connection, kinds: Collection[Kind], *, limit: int) -> list[str]:
    """Sources of these kinds that changed since Dagster was last told, oldest change first."""
    query = (
        select(sources.c.id)
        .where(
            sources.c.kind.in_([kind.value for kind in kinds]),
            sources.c.last_changed_at.is_not(None),
            or_(
                sources.c.reported_at.is_(None),
                sources.c.last_changed_at > sources.c.reported_at,
            ),
        )
        .order_by(sources.c.last_changed_at)
        .limit(limit)
        # Another run may be telling of the same ones.
        .with_for_update(skip_locked=True, key_share=True)
    )
    return list(connection.execute(query).scalars())


def lock_sources(connection: Connection, source_ids: Collection[str]) -> None:
    """No poll of theirs ends before this transaction does: nothing is counted and not told."""
    lock_rows(connection, sources.c.id, source_ids)


def mark_reported(connection: Connection, source_ids: Collection[str]) -> None:
    """Dagster has been told of everything up to now; the next report counts from here."""
    connection.execute(
        update(sources)
        .where(sources.c.id.in_(list(source_ids)))
        .values(
            reported_at=func.coalesce(sources.c.last_changed_at, sources.c.reported_at),
            untold_polls=0,
            untold_changes=0,
            untold_updated=0,
            untold_withdrawn=0,
        )
    )
