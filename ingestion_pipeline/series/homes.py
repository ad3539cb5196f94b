"""The series that listings are written to, found and locked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from ingestion_pipeline.series import rows
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.belonging import homes


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalSeries:
    """The series of each source, by its id, and those of them that were made just now."""

    series: Mapping[str, str]
    new: set[str]


def lock_homes(
    connection: Connection, told_by: Sequence[Source], *, now: datetime
) -> CanonicalSeries:
    """Where each source belongs; each series has its row, and is ours until the end."""
    found = homes(connection, [source.id for source in told_by])
    names = {found[one.id].series_id: one.name or found[one.id].series_id for one in told_by}
    unknown = {home.series_id for home in found.values() if not home.is_known}
    new = rows.ensure_series(connection, {one: names[one] for one in unknown}, now=now)
    if rows.lock_series(connection, names.keys()):
        # Merged while we waited for the lock, by one who did not know this source yet.
        return lock_homes(connection, told_by, now=now)
    return CanonicalSeries(series={one: home.series_id for one, home in found.items()}, new=new)
