"""Heartbeats of Dagster runs: who is alive, told by our own store.

Dagster leaves a run STARTED for many minutes when everything around it dies at once; the sensor
`stale_runs` asks here which runs have fallen silent.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, select, update

from ingestion_pipeline.store.insert import insert_into
from ingestion_pipeline.store.tables import runs


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRun:
    """A run whose heartbeat stopped, and the owner of its claims."""

    run_id: str
    owner: str
    job: str
    lease_until: datetime


def begin_run(
    connection: Connection, *, run_id: str, owner: str, job: str, now: datetime, lease: timedelta
) -> None:
    """The run is known and alive; `beat_run` must follow within the lease."""
    alive = {"lease_owner": owner, "lease_until": now + lease, "ended_at": None}
    statement = insert_into(connection, runs).values(
        run_id=run_id, job=job, started_at=now, **alive
    )
    connection.execute(statement.on_conflict_do_update(index_elements=["run_id"], set_=alive))


def beat_run(connection: Connection, *, run_id: str, now: datetime, lease: timedelta) -> None:
    """The run is alive for another lease."""
    connection.execute(update(runs).where(runs.c.run_id == run_id).values(lease_until=now + lease))


def end_run(connection: Connection, *, run_id: str, now: datetime) -> str | None:
    """The run needs no heartbeat any more; the owner of its claims, if the run was known."""
    statement = update(runs).where(runs.c.run_id == run_id, runs.c.ended_at.is_(None))
    return connection.execute(
        statement.values(ended_at=now).returning(runs.c.lease_owner)
    ).scalar_one_or_none()


def lost_runs(connection: Connection, *, now: datetime, limit: int = 100) -> list[LostRun]:
    """Runs that neither ended nor gave a sign of life within their lease."""
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
