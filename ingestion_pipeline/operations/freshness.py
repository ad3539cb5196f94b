"""Freshness objectives: the share of time in which a source was checked within its `max_delay`, and what is left of it.

Maintenance adds the seconds since its last run to the day's row of each source with an objective; thirty days count.
What a source is allowed to be late, its error budget, is the part of thirty days that the target leaves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, func, select

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.declarations import duration_text
from ingestion_pipeline.sources.source import SourceStatus
from ingestion_pipeline.store.statements import insert_into
from ingestion_pipeline.store.tables import freshness_days, sources

MONTH = timedelta(days=30)
# Maintenance runs every five minutes. After a longer pause nobody knows how often the source succeeded meanwhile.
KNOWN = timedelta(minutes=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainment:
    """What a source has attained of its objective in thirty days."""

    source_id: str
    max_delay: timedelta
    target: float
    measured_seconds: float
    late_seconds: float
    is_spent: bool  # as of the last measurement

    @property
    def share(self) -> float:
        """Return the share of the measured time in which it was fresh."""
        return 1 - self.late_seconds / self.measured_seconds if self.measured_seconds else 1.0

    @property
    def budget_seconds(self) -> float:
        """Return how long it may be late in thirty days."""
        return (1 - self.target) * MONTH.total_seconds()

    @property
    def budget_left(self) -> float:
        """Return the share of the error budget that is left, between 0 and 1."""
        return max(0.0, 1 - self.late_seconds / self.budget_seconds)

    def __str__(self) -> str:
        left = "spent" if not self.budget_left else f"{100 * self.budget_left:.0f} % left"
        return f"{100 * self.share:.2f} % within {duration_text(self.max_delay)}; budget {left}"


def attainments(connection: Connection, settings: Settings, *, now: datetime) -> list[Attainment]:
    """Return what each source with an objective has attained, the least budget first."""
    days = freshness_days.c
    newest = select(func.max(days.day)).where(days.source_id == sources.c.id).correlate(sources).scalar_subquery()
    spent = select(days.is_spent).where(days.source_id == sources.c.id, days.day == newest).correlate(sources)
    query = (
        select(
            sources.c.id,
            sources.c.max_delay_seconds,
            func.coalesce(func.sum(days.measured_seconds), 0.0),
            func.coalesce(func.sum(days.late_seconds), 0.0),
            spent.scalar_subquery(),
        )
        .outerjoin(freshness_days, (days.source_id == sources.c.id) & (days.day > day_of(now - MONTH)))
        .where(sources.c.max_delay_seconds.is_not(None), sources.c.status != SourceStatus.DISABLED.value)
        .group_by(sources.c.id, sources.c.max_delay_seconds)
    )
    target = settings.health.freshness_target
    rows = [
        Attainment(
            source_id=id_,
            max_delay=timedelta(seconds=seconds),
            target=target,
            measured_seconds=measured,
            late_seconds=late,
            is_spent=bool(is_spent),
        )
        for id_, seconds, measured, late, is_spent in connection.execute(query)
    ]
    return sorted(rows, key=lambda row: (row.budget_left, row.share, row.source_id))


def delete_old_days(connection: Connection, *, now: datetime) -> None:
    """Delete the days that no longer count."""
    connection.execute(delete(freshness_days).where(freshness_days.c.day <= day_of(now - MONTH)))


def lateness(
    max_delay: timedelta, *, since: datetime, fresh_at: datetime, success: datetime, now: datetime
) -> tuple[float, float]:
    """Return the measured and the late seconds from `since` to now; `fresh_at` is the success before `success`."""
    start = max(since, success) if now - since > KNOWN else since
    spans = [
        (max(start, fresh_at + max_delay), success),  # before the last success
        (max(start, success, success + max_delay), now),
    ]
    late = sum((max(end - begin, timedelta(0)) for begin, end in spans), timedelta(0))
    return max((now - start).total_seconds(), 0.0), late.total_seconds()


def last_measurements(connection: Connection, ids: Sequence[str]) -> dict[str, tuple[datetime, datetime]]:
    """Return the end of the last measurement of each source, and the last success known then."""
    days = freshness_days.c
    query = select(days.source_id, days.measured_until, days.fresh_at).where(days.source_id.in_(ids))
    return {row.source_id: (row.measured_until, row.fresh_at) for row in connection.execute(query.order_by(days.day))}


def add_measurement(connection: Connection, row: Mapping[str, Any]) -> None:
    """Add the seconds of a measurement to the row of its day; of two callers at once one adds them."""
    statement = insert_into(connection, freshness_days).values(row)
    new, old = statement.excluded, freshness_days.c
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["source_id", "day"],
            set_={
                "measured_seconds": old.measured_seconds + new.measured_seconds,
                "late_seconds": old.late_seconds + new.late_seconds,
                **{name: new[name] for name in ("measured_until", "fresh_at", "is_spent")},
            },
            where=old.measured_until < new.measured_until,
        )
    )


def day_of(moment: datetime) -> str:
    """Return the day by which measurements are stored."""
    return f"{moment:%Y-%m-%d}"
