"""Requeue listings: those that wait for a profile, those evaluated by other rules, and replayed dead letters."""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, RowMapping, TextClause, or_, select, update

from ingestion_pipeline.companies.boards.listing_rows import given_ids
from ingestion_pipeline.companies.company_states import JOB, ListingStatus, job_task
from ingestion_pipeline.companies.matching.evaluation import NO_PROFILE
from ingestion_pipeline.companies.matching.tasks import Rules
from ingestion_pipeline.store.tables import ACTIVE, FRONTIER, LISTED, job_listings, listing_sources, sources, tasks
from ingestion_pipeline.tasks.dead_letters import requeue_task
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask, TaskStatus

REQUEUED_AT_ONCE = 2_000  # the rest follows with the next run


def make_due_for_profile(connection: Connection, *, now: datetime) -> int:
    """Make listings due that wait for a profile; call when there is one."""
    return _make_due(connection, *_waits_for_profile(), now=now)


def make_due(connection: Connection, source_ids: Collection[str], *, now: datetime) -> int:
    """Make the waiting listings of these boards due, whatever they wait for."""
    is_theirs = tasks.c.source_id.in_(list(source_ids))
    return _make_due(connection, *_is_pending(), is_theirs, now=now)


def _make_due(connection: Connection, *conditions: ColumnElement[bool] | TextClause, now: datetime) -> int:
    waiting = (
        select(tasks.c.id)
        .where(*conditions, tasks.c.not_before > now)
        .with_for_update(skip_locked=True)  # locked tasks are being worked on
        .cte("waiting")
    )
    statement = update(tasks).where(tasks.c.id.in_(select(waiting.c.id)))
    return connection.execute(statement.values(not_before=now)).rowcount


def _is_pending() -> tuple[ColumnElement[bool] | TextClause, ...]:
    return FRONTIER, tasks.c.kind == JOB, tasks.c.status == TaskStatus.PENDING.value


def _waits_for_profile() -> tuple[ColumnElement[bool] | TextClause, ...]:
    return *_is_pending(), tasks.c.error_code == NO_PROFILE


def requeue_outdated(
    connection: Connection,
    rules: Rules,
    *,
    now: datetime,
    source_ids: Collection[str] | None = None,
    limit: int = REQUEUED_AT_ONCE,
) -> int:
    """Requeue open listings that were evaluated by other rules, at most `limit`; return how many."""
    # This check uses the index; finding the oldest reads many more rows.
    if not _has_outdated(connection, rules):
        return 0
    query = select(job_listings.c.id).where(LISTED, _has_other_rules(rules)).limit(limit)
    if source_ids is not None:
        query = query.where(job_listings.c.source_id.in_(list(source_ids)))
    chosen = connection.execute(query.order_by(job_listings.c.id)).scalars().all()
    return len(insert_tasks(connection, evaluation_tasks(connection, chosen, now=now), now=now))


def evaluation_tasks(connection: Connection, listing_ids: Collection[int], *, now: datetime) -> list[NewTask]:
    """Return an evaluation task for each of these listings that is open, in its lineage.

    Listings of a board's first sync stay unreported, whatever profile they fit later: a new profile
    is not news of the board.
    """
    requested = given_ids(connection, listing_ids)
    names = ("id", "url", "url_key", "source_id", "tracking_id", "first_seen_at")
    query = (
        select(*(job_listings.c[name] for name in names), sources.c.synced_at)
        .join(requested, requested.c.id == job_listings.c.id)
        .outerjoin(sources, sources.c.id == job_listings.c.source_id)
        .where(job_listings.c.status == ListingStatus.OPEN.value)
        .order_by(job_listings.c.id)
    )
    return [
        job_task(
            row["id"],
            row["url"] if row["url_key"] else None,  # a shared URL is not the listing's own
            row["source_id"],
            now=now,
            is_first_sync=row["synced_at"] is None or row["first_seen_at"] <= row["synced_at"],
            tracking_id=row["tracking_id"],
        )
        for row in connection.execute(query).mappings()
    ]


def _has_other_rules(rules: Rules) -> ColumnElement[bool]:
    """Select listings evaluated by other rules; those never evaluated are not selected."""
    own = rules.rules_hash("")
    judged = job_listings.c.rules_hash
    return or_(judged < own, judged >= own[:-1] + ";")  # ";" is the character after ":"


def is_work_waiting(connection: Connection, rules: Rules | None, *, now: datetime) -> bool:
    """Return whether a listing is due, waits for a profile, or has outdated rules."""
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
    return connection.execute(sleeping).first() is not None or _has_outdated(connection, rules)


def _has_outdated(connection: Connection, rules: Rules) -> bool:
    others = select(job_listings.c.id).where(LISTED, _has_other_rules(rules)).limit(1)
    return connection.execute(others).first() is not None


def external_ids(connection: Connection, listings: Sequence[tuple[int, str]]) -> dict[int, str]:
    """Return the platform's own id of each of these listings on its first board."""
    query = select(listing_sources.c.listing_id, listing_sources.c.source_id, listing_sources.c.external_id).where(
        listing_sources.c.listing_id.in_([listing_id for listing_id, _ in listings])
    )
    boards = dict(listings)
    return {
        row.listing_id: row.external_id
        for row in connection.execute(query)
        if row.external_id and boards[row.listing_id] == row.source_id
    }


CLOSED = "no board lists it any more"


def requeue_job(connection: Connection, dead_letter: RowMapping, now: datetime) -> str:
    """Requeue the task, or insert a new one if it was deleted or has ended since."""
    listing_id = dead_letter["payload"].get("listing_id")
    again = evaluation_tasks(connection, [] if listing_id is None else [listing_id], now=now)
    if not again:
        return CLOSED
    status = connection.execute(select(tasks.c.status).where(tasks.c.id == dead_letter["task_id"])).scalar()
    if status not in {None, TaskStatus.SKIPPED.value, TaskStatus.CANCELLED.value}:
        return requeue_task(connection, dead_letter, now)
    made = insert_tasks(connection, again, now=now)
    return "queued" if made else "already queued"
