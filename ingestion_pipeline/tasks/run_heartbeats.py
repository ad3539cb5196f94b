"""Heartbeats of Dagster runs in our own store: which runs and workers are alive.

Dagster leaves a run STARTED for many minutes when its whole machine dies; the sensor `stale_runs`
asks here which runs stopped their heartbeat.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    state: OwnerState
    job: str | None
    run_id: str | None
    claims: int
    kinds: tuple[str, ...]
    alive_until: datetime


def lease_owners(connection: Connection, *, now: datetime) -> list[LeaseOwner]:
    """Return every worker that runs or holds tasks, the lost ones first."""
    held, running = _held(connection), _running(connection)
    owners = [_owner(owner, running.get(owner), held.get(owner), now) for owner in sorted(running.keys() | held.keys())]
    order = (OwnerState.LOST, OwnerState.BUSY, OwnerState.IDLE)
    return sorted(
        owners, key=lambda lease_owner: (order.index(lease_owner.state), lease_owner.job or "", lease_owner.owner)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    claims: int
    kinds: tuple[str, ...]
    until: datetime


def _held(connection: Connection) -> dict[str, _Held]:
    query = (
        select(tasks.c.lease_owner, tasks.c.kind, func.count(), func.max(tasks.c.lease_until))
        .where(ACTIVE, tasks.c.status == TaskStatus.PROCESSING.value)
        .group_by(tasks.c.lease_owner, tasks.c.kind)
        .order_by(tasks.c.lease_owner, tasks.c.kind)
    )
    held_by_owner: dict[str, _Held] = {}
    for owner, kind, count, until in connection.execute(query):
        before = held_by_owner.get(owner) or _Held(claims=0, kinds=(), until=until)
        held_by_owner[owner] = _Held(
            claims=before.claims + count, kinds=(*before.kinds, kind), until=max(before.until, until)
        )
    return held_by_owner


def _owner(owner: str, run: _Run | None, held: _Held | None, now: datetime) -> LeaseOwner:
    alive_until = max(until for until in (run and run.until, held and held.until) if until is not None)
    state = OwnerState.IDLE if held is None else OwnerState.BUSY
    return LeaseOwner(
        owner=owner,
        state=OwnerState.LOST if alive_until < now else state,
        job=run.job if run else None,
        run_id=run.run_id if run else None,
        claims=held.claims if held else 0,
        kinds=held.kinds if held else (),
        alive_until=alive_until,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    run_id: str
    job: str
    until: datetime


def _running(connection: Connection) -> dict[str, _Run]:
    query = select(runs.c.lease_owner, runs.c.run_id, runs.c.job, runs.c.lease_until).where(runs.c.ended_at.is_(None))
    return {owner: _Run(run_id=run_id, job=job, until=until) for owner, run_id, job, until in connection.execute(query)}
