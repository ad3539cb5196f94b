"""What a dead letter is about, as it was served: the snapshots somebody has to look at."""

from __future__ import annotations

from sqlalchemy import Connection, RowMapping, select

from ingestion_pipeline.store.tables import snapshots

_SHOWN = (
    snapshots.c.id,
    snapshots.c.url,
    snapshots.c.fetched_at,
    snapshots.c.status_code,
    snapshots.c.content_type,
    snapshots.c.size_bytes,
    snapshots.c.failure,
    snapshots.c.body_hash,
)


def dead_letter_snapshots(connection: Connection, letter: RowMapping) -> list[RowMapping]:
    """Those the letter names; else the newest of its address, which may be older than the failure.

    None where nothing of it was ever stored, or retention has taken it.
    """
    payload = letter["payload"]
    query = select(*_SHOWN).order_by(snapshots.c.fetched_at.desc(), snapshots.c.id.desc())
    if named := payload.get("snapshots"):
        return list(connection.execute(query.where(snapshots.c.id.in_(named))).mappings())
    query = query.where(snapshots.c.source_id == letter["source_id"])
    query = query.where(snapshots.c.url == payload.get("url")).limit(1)
    return list(connection.execute(query).mappings())
