"""A clock that was set back: leases and due times written before would else hold for as long.

SQLite has no clock of its own, so the machine's decides. Rows that are dated in the future show
that it was set back; whoever is alive has renewed its leases since.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, Update, and_, func, or_, select, update

from ingestion_pipeline.pages.hosts import lock_hosts
from ingestion_pipeline.store.tables import ACTIVE, hosts, runs, tasks
from ingestion_pipeline.work.task import TaskStatus

log = logging.getLogger(__name__)

TOLERANCE = timedelta(minutes=2)  # clocks of several machines differ, and are set by seconds


def clock_set_back(connection: Connection, *, now: datetime) -> timedelta | None:
    """Return by how much the newest run or open task is dated ahead of the clock, if it is."""
    queries = (
        select(func.max(runs.c.started_at)),
        select(func.max(tasks.c.updated_at)).where(ACTIVE),  # no other holds anything up
    )
    newest = [connection.execute(query).scalar() for query in queries]
    ahead = max((at - now for at in newest if at is not None), default=timedelta())
    return ahead if ahead > TOLERANCE else None


def mend_clock_step(connection: Connection, *, now: datetime, longest_lease: timedelta) -> int:
    """Free leases and make due what was written before the clock was set back; how many tasks."""
    future = now + TOLERANCE
    query = select(runs.c.run_id).where(runs.c.started_at > future).limit(1)
    if connection.execute(query).first() is None:  # each step of a run asks this
        return 0
    mended = _mend_tasks(connection, now=now, unrenewed=future + longest_lease)
    _mend_hosts(connection, now=now, unrenewed=future + longest_lease)
    is_over = or_(runs.c.ended_at.is_not(None), runs.c.lease_until > runs.c.started_at)
    connection.execute(
        update(runs)
        .where(runs.c.started_at > future, is_over)
        .values(started_at=now, lease_until=now)
    )
    log.warning("clock was set back: %d tasks are due or claimable again", mended)
    return mended


def _mend_tasks(connection: Connection, *, now: datetime, unrenewed: datetime) -> int:
    is_dated_ahead = tasks.c.updated_at > now + TOLERANCE
    is_waiting = and_(tasks.c.status == TaskStatus.PENDING.value, tasks.c.not_before > now)
    is_held = and_(tasks.c.status == TaskStatus.PROCESSING.value, tasks.c.lease_until > unrenewed)
    waiting = update(tasks).values(not_before=now, updated_at=now)
    expired = now - timedelta(seconds=1)
    held = update(tasks).values(not_before=now, lease_until=expired, updated_at=now)
    return _changed(connection, waiting, is_dated_ahead, is_waiting) + _changed(
        connection, held, is_dated_ahead, is_held
    )


def _changed(connection: Connection, change: Update, *those: ColumnElement[bool]) -> int:
    """Lock the tasks by id, as everybody does it, and change them."""
    locked = select(tasks.c.id).where(ACTIVE, *those).order_by(tasks.c.id).with_for_update()
    ids = locked.cte("locked")
    return connection.execute(change.where(tasks.c.id.in_(select(ids.c.id)))).rowcount


def _mend_hosts(connection: Connection, *, now: datetime, unrenewed: datetime) -> None:
    is_free = or_(hosts.c.lease_owner.is_(None), hosts.c.lease_until > unrenewed)
    query = select(hosts.c.host).where(hosts.c.leased_at > now + TOLERANCE, is_free)
    dated_ahead = list(connection.execute(query).scalars())
    lock_hosts(connection, dated_ahead)
    nothing = {"lease_owner": None, "lease_until": None, "leased_at": None, "next_allowed_at": None}
    connection.execute(update(hosts).where(hosts.c.host.in_(dated_ahead)).values(nothing))
