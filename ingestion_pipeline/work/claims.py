"""The statements on `tasks`: claim, heartbeat, hold, apply. One function, one statement.

A claim is one conditional UPDATE: due and unleased, or leased and expired, whoever comes first. The
fence it raises is the token that every later write must show; whoever lost the claim in between
changes nothing, and its whole transaction rolls back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    Connection,
    Integer,
    RowMapping,
    String,
    Text,
    and_,
    case,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.store.rows import row_source
from ingestion_pipeline.store.tables import ACTIVE, tasks
from ingestion_pipeline.store.types import Id, Json, UtcDateTime
from ingestion_pipeline.work.task import Move, Task, TaskStatus


class LostClaim(RuntimeError):
    """Another worker has the task now; nothing of this transaction may stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which tasks a worker asks for; with `source_ids` by hand, whether they are due or not."""

    kind: str
    priority: int | None = None
    shard: int | None = None
    shards: int = 1
    source_ids: Collection[str] | None = None


def claim(
    connection: Connection,
    wanted: Wanted,
    *,
    owner: str,
    now: datetime,
    lease: timedelta,
    limit: int,
) -> list[Task]:
    """At most `limit` tasks, now leased to `owner`, by priority, not_before, created_at."""
    due = (
        select(tasks.c.id)
        .where(*_claimable(wanted, now=now))
        .order_by(tasks.c.priority, tasks.c.not_before, tasks.c.created_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
        .cte("due")
    )
    statement = (
        update(tasks)
        .where(tasks.c.id.in_(select(due.c.id)))
        .values(
            status=TaskStatus.PROCESSING.value,
            lease_owner=owner,
            lease_until=now + lease,
            fence=tasks.c.fence + 1,
            attempts=tasks.c.attempts + 1,
            not_before=case((tasks.c.not_before > now, now), else_=tasks.c.not_before),
            updated_at=now,
        )
        .returning(*TASK_COLUMNS)
    )
    found = [task_of(row) for row in connection.execute(statement).mappings()]
    return sorted(
        found, key=lambda task: (task.priority, task.not_before, task.created_at, task.id)
    )


def _claimable(wanted: Wanted, *, now: datetime) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [
        ACTIVE,  # pyright: ignore[reportAssignmentType] - text, so that SQLite sees its own index
        tasks.c.kind == wanted.kind,
        or_(
            tasks.c.status == TaskStatus.PENDING.value,
            and_(tasks.c.status == TaskStatus.PROCESSING.value, tasks.c.lease_until < now),
        ),
    ]
    if wanted.source_ids is None:
        conditions.append(tasks.c.not_before <= now)
    else:
        conditions.append(tasks.c.source_id.in_(wanted.source_ids))
    if wanted.priority is not None:
        conditions.append(tasks.c.priority == wanted.priority)
    if wanted.shard is not None:
        conditions.append(tasks.c.shard % wanted.shards == wanted.shard)
    return conditions


def heartbeat(connection: Connection, *, owner: str, now: datetime, lease: timedelta) -> int:
    """Every claim of `owner` lasts a lease longer; how many there are."""
    statement = update(tasks).where(_locked(*_claimed_by(owner)))
    return connection.execute(statement.values(lease_until=now + lease)).rowcount


def expire(connection: Connection, *, owner: str, now: datetime) -> int:
    """A dead worker's claims are claimable at once instead of after their lease."""
    statement = update(tasks).where(_locked(*_claimed_by(owner), tasks.c.lease_until > now))
    return connection.execute(statement.values(lease_until=now)).rowcount


def _claimed_by(owner: str) -> list[ColumnElement[bool]]:
    return [tasks.c.lease_owner == owner, tasks.c.status == TaskStatus.PROCESSING.value]


def _locked(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    """These rows, locked by id as `held` does it: no two statements wait for each other."""
    query = select(tasks.c.id).where(*conditions).order_by(tasks.c.id).with_for_update()
    return tasks.c.id.in_(select(query.cte("locked").c.id))


def held(connection: Connection, claimed: Collection[tuple[int, int]]) -> set[int]:
    """Of these (id, fence) the ids still ours; nobody takes them during this transaction."""
    if not claimed:
        return set()
    given = row_source(connection, {"id": Id, "fence": Integer()}, list(claimed), "given")
    statement = (
        select(tasks.c.id)
        .join(given, and_(tasks.c.id == given.c.id, tasks.c.fence == given.c.fence))
        .where(tasks.c.status == TaskStatus.PROCESSING.value)
        .order_by(tasks.c.id)  # one order for every worker: no deadlock
        .with_for_update(of=tasks)
    )
    return set(connection.execute(statement).scalars())


_MOVE_COLUMNS = {
    "id": Id,
    "fence": Integer(),
    "status": String(10),
    "not_before": UtcDateTime(),
    "attempts": Integer(),
    "priority": Integer(),
    "stage": String(40),
    "state": Json,
    "error_class": String(20),
    "error_code": String(40),
    "error": Text(),
}


def apply(connection: Connection, moves: Sequence[Move], *, now: datetime) -> None:
    """Every move takes effect, or `LostClaim` and none of this transaction does."""
    if not moves:
        return
    given = row_source(connection, _MOVE_COLUMNS, [_values(move) for move in moves], "given")
    statement = (
        update(tasks)
        .where(
            _locked(tasks.c.id.in_(select(given.c.id))),
            tasks.c.id == given.c.id,
            tasks.c.fence == given.c.fence,
            tasks.c.status == TaskStatus.PROCESSING.value,
        )
        .values(
            {name: given.c[name] for name in _MOVE_COLUMNS if name not in {"id", "fence"}}
            | {"lease_owner": None, "lease_until": None, "updated_at": now}
        )
    )
    changed = connection.execute(statement).rowcount
    if changed != len(moves):
        raise LostClaim(f"{len(moves) - changed} of {len(moves)} claims were lost; nothing is kept")


def _values(move: Move) -> tuple[object, ...]:
    return (
        move.task.id,
        move.task.fence,
        move.status.value,
        move.not_before,
        move.attempts,
        move.priority,
        move.stage,
        None if move.state is None else dict(move.state),
        move.error_class,
        move.error_code,
        move.error,
    )


TASK_COLUMNS = (
    tasks.c.id,
    tasks.c.kind,
    tasks.c.dedupe_key,
    tasks.c.source_id,
    tasks.c.url,
    tasks.c.payload,
    tasks.c.status,
    tasks.c.priority,
    tasks.c.shard,
    tasks.c.stage,
    tasks.c.state,
    tasks.c.attempts,
    tasks.c.not_before,
    tasks.c.lease_owner,
    tasks.c.lease_until,
    tasks.c.fence,
    tasks.c.tracking_id,
    tasks.c.parent_id,
    tasks.c.ancestry,
    tasks.c.spawn_depth,
    tasks.c.created_at,
)


def task_of(row: RowMapping) -> Task:
    """The task a row of `TASK_COLUMNS` states."""
    values: dict[str, Any] = {str(name): value for name, value in row.items()}
    values["status"] = TaskStatus(values["status"])
    values["ancestry"] = tuple(values["ancestry"])
    return Task(**values)


def tasks_by_id(connection: Connection, ids: Collection[int]) -> dict[int, Task]:
    """The tasks with these ids, as they are."""
    rows = connection.execute(select(*TASK_COLUMNS).where(tasks.c.id.in_(list(ids))))
    return {task.id: task for task in map(task_of, rows.mappings())}


def set_stage(connection: Connection, claimed: Collection[tuple[int, int]], stage: str) -> None:
    """Remember how far the work came, for whoever finds its worker dead."""
    pairs = list(claimed)
    connection.execute(
        update(tasks).where(tuple_(tasks.c.id, tasks.c.fence).in_(pairs)).values(stage=stage)
    )
