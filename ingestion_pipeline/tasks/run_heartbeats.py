"""Heartbeats of Dagster runs in our own store: which runs and workers are alive.

Dagster leaves a run STARTED for many minutes when its whole machine dies; the sensor `stale_runs`
asks here which runs stopped their heartbeat.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import Connection, func, select, update

from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import ACTIVE, runs, tasks
from ingestion_pipeline.tasks.task import TaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRun:
    """A run whose heartbeat stopped, and the owner of its claims."""

    run_id: str
    owner: str
    job: str
    lease_until: datetime


def begin_run(connection: Connection, *, run_id: str, owner: str, job: str, now: datetime, lease: timedelta) -> None:
    """Register the run as alive; `beat_run` must follow within the lease."""
    alive = {"lease_owner": owner, "lease_until": now + lease, "ended_at": None}
    statement = insert_into(connection, runs).values(run_id=run_id, job=job, started_at=now, **alive)
    connection.execute(statement.on_conflict_do_update(index_elements=["run_id"], set_=alive))


def beat_run(connection: Connection, *, run_id: str, now: datetime, lease: timedelta) -> None:
    """Extend the run's lease."""
    connection.execute(update(runs).where(runs.c.run_id == run_id).values(lease_until=now + lease))


def end_run(connection: Connection, *, run_id: str, now: datetime) -> str | None:
    """End the run; return the owner of its claims, None if the run was not registered."""
    statement = update(runs).where(runs.c.run_id == run_id, runs.c.ended_at.is_(None))
    return connection.execute(statement.values(ended_at=now).returning(runs.c.lease_owner)).scalar_one_or_none()


def lost_runs(connection: Connection, *, now: datetime, limit: int = 100) -> list[LostRun]:
    """Return the runs that neither ended nor renewed their lease in time."""
    query = (
        select(runs.c.run_id, runs.c.lease_owner, runs.c.job, runs.c.lease_until)
        .where(runs.c.ended_at.is_(None), runs.c.lease_until < now)
        .order_by(runs.c.lease_until)
        .limit(limit)
    )
    return [
        LostRun(run_id=run_id, owner=owner, job=job, lease_until=lease_until)
        for run_id, owner, job, lease_until in connection.execute(query)
    ]


class OwnerState(StrEnum):
    """State of a worker; the claims of a lost one are taken over when their leases expire."""

    IDLE = "idle"
    BUSY = "busy"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOwner:
    """A worker: its Dagster run, if any, and how many tasks of which kinds it holds."""

    owner: str
    state: OwnerState = OwnerState.IDLE
    job: str | None = None
    run_id: str | None = None
    claims: int = 0
    kinds: tuple[str, ...] = ()
    alive_until: datetime


def lease_owners(connection: Connection, *, now: datetime) -> list[LeaseOwner]:
    """Return every worker that runs or holds tasks, the lost ones first."""
    owners: dict[str, LeaseOwner] = {}
    running = select(runs.c.lease_owner, runs.c.run_id, runs.c.job, runs.c.lease_until).where(runs.c.ended_at.is_(None))
    for owner, run_id, job, until in connection.execute(running):
        owners[owner] = LeaseOwner(owner=owner, run_id=run_id, job=job, alive_until=until)
    held = (
        select(tasks.c.lease_owner, tasks.c.kind, func.count(), func.max(tasks.c.lease_until))
        .where(ACTIVE, tasks.c.status == TaskStatus.PROCESSING.value)
        .group_by(tasks.c.lease_owner, tasks.c.kind)
        .order_by(tasks.c.lease_owner, tasks.c.kind)
    )
    for owner, kind, count, until in connection.execute(held):
        earlier = owners.get(owner) or LeaseOwner(owner=owner, alive_until=until)
        owners[owner] = replace(
            earlier,
            state=OwnerState.BUSY,
            claims=earlier.claims + count,
            kinds=(*earlier.kinds, kind),
            alive_until=max(earlier.alive_until, until),
        )
    order = (OwnerState.LOST, OwnerState.BUSY, OwnerState.IDLE)
    workers = [replace(each, state=OwnerState.LOST) if each.alive_until < now else each for each in owners.values()]
    return sorted(workers, key=lambda worker: (order.index(worker.state), worker.job or "", worker.owner))
