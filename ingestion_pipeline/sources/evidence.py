"""When the changes that a poll found happened: between two polls, or when the records say. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from ingestion_pipeline.sources.source import Source

DAY = timedelta(days=1)
REMEMBERED_DATES = 60  # of a backlog; older ones would count for nothing by the last

Change = tuple[float, float]


def changes_found(
    source: Source, *, published: Sequence[datetime], has_news: bool, now: datetime
) -> list[Change]:
    """Each change as the seconds between which it happened, in the order of time.

    Of a first sync only what states its date is known. Later on a date is believed if it lies
    between the last good poll and this one; another clock, or an old record that came late, says
    nothing about when it was there to be found.
    """
    if not has_news:
        return []
    since = source.last_success_at if source.synced_at is not None else None
    known = [one for at in sorted(published) if (one := _between(at, since, now)) is not None]
    if known or since is None:
        return known[-REMEMBERED_DATES:]
    return [(since.timestamp(), now.timestamp())]


def _between(at: datetime, since: datetime | None, now: datetime) -> Change | None:
    """A date without a time of day may mean any hour of its day."""
    is_date = (at.hour, at.minute, at.second) == (0, 0, 0)
    start, end = at, at + DAY - timedelta(seconds=1) if is_date else at
    if since is not None:
        start = max(start, since)
    end = min(end, now)
    return (start.timestamp(), end.timestamp()) if start <= end else None
