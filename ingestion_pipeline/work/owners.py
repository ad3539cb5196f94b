"""Who holds leases: the workers of now, idle, busy or lost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Connection, func, select

from ingestion_pipeline.store.tables import ACTIVE, runs, tasks
from ingestion_pipeline.work.task import TaskStatus


class OwnerState(StrEnum):
    """A lost worker's claims are taken over when their leases end."""

    IDLE = "idle"
    BUSY = "busy"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOwner:
    """A worker: the run it works for, if it is one's, and how much it holds of what."""

    owner: str
    state: OwnerState
    job: str | None
    run_id: str | None
    claims: int
    kinds: tuple[str, ...]
    alive_until: datetime


def lease_owners(connection: Connection, *, now: datetime) -> list[LeaseOwner]:
    """Every worker that runs or holds something, the lost ones first."""
    held, known = _held(connection), _running(connection)
    found = [
        _owner(owner, known.get(owner), held.get(owner), now)
        for owner in sorted(known.keys() | held.keys())
    ]
    order = (OwnerState.LOST, OwnerState.BUSY, OwnerState.IDLE)
    return sorted(found, key=lambda one: (order.index(one.state), one.job or "", one.owner))


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
    found: dict[str, _Held] = {}
    for owner, kind, count, until in connection.execute(query):
        before = found.get(owner) or _Held(claims=0, kinds=(), until=until)
        found[owner] = _Held(
            claims=before.claims + count,
            kinds=(*before.kinds, kind),
            until=max(before.until, until),
        )
    return found


def _owner(owner: str, run: _Run | None, held: _Held | None, now: datetime) -> LeaseOwner:
    alive_until = max(one for one in (run and run.until, held and held.until) if one is not None)
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
    query = select(runs.c.lease_owner, runs.c.run_id, runs.c.job, runs.c.lease_until).where(
        runs.c.ended_at.is_(None)
    )
    return {
        owner: _Run(run_id=run_id, job=job, until=until)
        for owner, run_id, job, until in connection.execute(query)
    }
