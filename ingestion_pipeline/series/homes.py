"""The series that listings are written to, found and locked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection

from ingestion_pipeline.series import rows
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.belonging import homes


def lock_homes(
    connection: Connection, told_by: Sequence[Source], *, now: datetime
) -> dict[str, str]:
    """The series of each source, by its id; each has its row, and is ours until the end."""
    found = homes(connection, [source.id for source in told_by])
    names = {found[one.id].series_id: one.name or found[one.id].series_id for one in told_by}
    unknown = {home.series_id for home in found.values() if not home.is_known}
    rows.ensure_series(connection, {one: names[one] for one in unknown}, now=now)
    if rows.lock_series(connection, names.keys()):
        # Merged while we waited for the lock, by one who did not know this source yet.
        return lock_homes(connection, told_by, now=now)
    return {source_id: home.series_id for source_id, home in found.items()}
