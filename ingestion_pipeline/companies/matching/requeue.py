"""Listings that wait: for a profile, or to be judged anew because the rules are others now."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, RowMapping, TextClause, or_, select, update

from ingestion_pipeline.companies.matching.evaluation import NO_PROFILE
from ingestion_pipeline.companies.matching.stages import Rules
from ingestion_pipeline.companies.states import JOB, ListingStatus, job_task
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.tables import (
    ACTIVE,
    FRONTIER,
    LISTED,
    job_listings,
    listing_sources,
    sources,
    tasks,
)
from ingestion_pipeline.store.types import Id
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask, TaskStatus

REJUDGED_AT_ONCE = 2_000  # the rest follows with the next run


def wake_for_profile(connection: Connection, *, now: datetime) -> int:
    """What waits for want of a profile is due; to be called when there is one."""
    return _make_due(connection, *_waits_for_profile(), now=now)


def make_due(connection: Connection, source_ids: Collection[str], *, now: datetime) -> int:
    """What waits of these boards is due, whatever it waits for."""
    is_theirs = tasks.c.source_id.in_(list(source_ids))
    return _make_due(connection, *_is_pending(), is_theirs, now=now)


def _make_due(
    connection: Connection, *conditions: ColumnElement[bool] | TextClause, now: datetime
) -> int:
    waiting = (
        select(tasks.c.id)
        .where(*conditions, tasks.c.not_before > now)
        .with_for_update(skip_locked=True)  # what somebody has is being dealt with
        .cte("waiting")
    )
    statement = update(tasks).where(tasks.c.id.in_(select(waiting.c.id)))
    return connection.execute(statement.values(not_before=now)).rowcount


def _is_pending() -> tuple[ColumnElement[bool] | TextClause, ...]:
    return FRONTIER, tasks.c.kind == JOB, tasks.c.status == TaskStatus.PENDING.value


def _waits_for_profile() -> tuple[ColumnElement[bool] | TextClause, ...]:
    return *_is_pending(), tasks.c.error_code == NO_PROFILE


def judge_anew(
    connection: Connection,
    rules: Rules,
    *,
    now: datetime,
    source_ids: Collection[str] | None = None,
    limit: int = REJUDGED_AT_ONCE,
) -> int:
    """Open listings that were judged by other rules are to be judged again; how many, at most.

    One that is being judged anyway is not asked for twice.
    """
    if not _has_others(connection, rules):  # by the index; to find the oldest looks at many more
        return 0
    query = select(job_listings.c.id).where(LISTED, _judged_otherwise(rules)).limit(limit)
    if source_ids is not None:
        query = query.where(job_listings.c.source_id.in_(list(source_ids)))
    chosen = connection.execute(query.order_by(job_listings.c.id)).scalars().all()
    return len(insert_tasks(connection, tasks_again(connection, chosen, now=now), now=now))


def tasks_again(
    connection: Connection, listing_ids: Collection[int], *, now: datetime
) -> list[NewTask]:
    """A task that judges each of these that is open, in the lineage that brought it.

    What came with its board's first listing stays untold, whatever profile it fits later: that we
    look at it with other eyes is no news of the board.
    """
    given = row_source(connection, {"id": Id}, [(one,) for one in sorted(listing_ids)], "given")
    names = ("id", "url", "url_key", "source_id", "tracking_id", "first_seen_at")
    query = (
        select(*(job_listings.c[name] for name in names), sources.c.synced_at)
        .join(given, given.c.id == job_listings.c.id)
        .outerjoin(sources, sources.c.id == job_listings.c.source_id)
        .where(job_listings.c.status == ListingStatus.OPEN.value)
        .order_by(job_listings.c.id)
    )
    return [_judged_again(row, now=now) for row in connection.execute(query).mappings()]


def _judged_again(row: RowMapping, *, now: datetime) -> NewTask:
    """As its board asks for it: an address that it shares with others is not its own."""
    synced_at: datetime | None = row["synced_at"]
    return job_task(
        row["id"],
        row["url"] if row["url_key"] else None,
        row["source_id"],
        now=now,
        is_first_sync=synced_at is None or row["first_seen_at"] <= synced_at,
        tracking_id=row["tracking_id"],
    )


def _judged_otherwise(rules: Rules) -> ColumnElement[bool]:
    """Before or behind those that were judged by these rules; those never judged are neither."""
    own = rules.judged_as("")
    judged = job_listings.c.judged_as
    return or_(judged < own, judged >= own[:-1] + ";")  # the letter behind the colon


def is_work_waiting(connection: Connection, rules: Rules | None, *, now: datetime) -> bool:
    """Whether a listing is to be judged: due, woken by a profile, or judged by other rules."""
    is_due = select(tasks.c.id).where(
        ACTIVE,
        tasks.c.kind == JOB,
        or_(
            (tasks.c.status == TaskStatus.PENDING.value) & (tasks.c.not_before <= now),
            (tasks.c.status == TaskStatus.PROCESSING.value) & (tasks.c.lease_until < now),
        ),
    )
    if connection.execute(is_due.limit(1)).first() is not None:
        return True
    if rules is None:
        return False
    sleeping = select(tasks.c.id).where(*_waits_for_profile()).limit(1)
    if connection.execute(sleeping).first() is not None:
        return True
    return _has_others(connection, rules)


def _has_others(connection: Connection, rules: Rules) -> bool:
    others = select(job_listings.c.id).where(LISTED, _judged_otherwise(rules)).limit(1)
    return connection.execute(others).first() is not None


def external_ids(connection: Connection, wanted: Sequence[tuple[int, str]]) -> dict[int, str]:
    """The platform's own id of each of these listings on its first board."""
    query = select(
        listing_sources.c.listing_id, listing_sources.c.source_id, listing_sources.c.external_id
    ).where(listing_sources.c.listing_id.in_([listing_id for listing_id, _ in wanted]))
    boards = dict(wanted)
    return {
        row.listing_id: row.external_id
        for row in connection.execute(query)
        if row.external_id and boards[row.listing_id] == row.source_id
    }
