"""The statements on `tasks`: claim, heartbeat, hold, apply. One function, one statement.

A claim is one conditional UPDATE: due and unleased, or leased and expired, whoever comes first. The
fence it raises is the token that every later write must show; whoever lost the claim in between
changes nothing, and its whole transaction rolls back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    Integer,
    Row,
    Select,
    String,
    Text,
    TextClause,
    Update,
    and_,
    bindparam,
    case,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import CTE

from ingestion_pipeline.store.rows import row_document, row_source, row_table
from ingestion_pipeline.store.tables import ACTIVE, FRONTIER, HELD, tasks
from ingestion_pipeline.store.types import Id, Json, UtcDateTime
from ingestion_pipeline.work.task import Move, Task, TaskStatus


class LostClaim(RuntimeError):
    """Another worker has the task now; nothing of this transaction may stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which tasks a worker asks for; with `source_ids` by hand, whether they are due or not.

    `frontier_of` asks for one source's due tasks, of which there may be very many.
    """

    kind: str
    priority: int | None = None
    shard: int | None = None
    shards: int = 1
    source_ids: Collection[str] | None = None
    frontier_of: str | None = None


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
    narrowed = _narrowed(wanted)
    given = {
        "wanted_kind": wanted.kind,
        "claimer": owner,
        "moment": now,
        "until": now + lease,
        "at_most": limit,
    }
    rows = connection.execute(_claim_statement(*narrowed), given | narrowed)
    return sorted(
        map(task_of, rows.all()),
        key=lambda task: (task.priority, task.not_before, task.created_at, task.id),
    )


def _narrowed(wanted: Wanted) -> dict[str, Any]:
    """What is asked for beyond the kind, by the names of `_NARROWING`."""
    asked: dict[str, Any] = {}
    if wanted.source_ids is not None:
        asked["wanted_sources"] = list(wanted.source_ids)
    if wanted.frontier_of is not None:
        asked["frontier_source"] = wanted.frontier_of
    if wanted.priority is not None:
        asked["wanted_priority"] = wanted.priority
    if wanted.shard is not None:
        asked |= {"wanted_shard": wanted.shard, "shards": wanted.shards}
    return asked


_MOMENT = bindparam("moment", type_=UtcDateTime())
_NARROWING: dict[str, ColumnElement[bool]] = {
    "wanted_sources": tasks.c.source_id.in_(bindparam("wanted_sources", expanding=True)),
    # By FRONTIER's own words the index is found that has one source's tasks in their order.
    "frontier_source": and_(FRONTIER, tasks.c.source_id == bindparam("frontier_source")),
    "wanted_priority": tasks.c.priority == bindparam("wanted_priority"),
    "wanted_shard": tasks.c.shard % bindparam("shards", type_=Integer())
    == bindparam("wanted_shard"),
}


@cache  # to write it anew takes longer than to run it
def _claim_statement(*narrowed: str) -> Update:
    """Due, or asked for by hand; unleased, or leased and expired."""
    due = (
        select(tasks.c.id)
        .where(
            ACTIVE,
            tasks.c.kind == bindparam("wanted_kind"),
            or_(
                tasks.c.status == TaskStatus.PENDING.value,
                and_(tasks.c.status == TaskStatus.PROCESSING.value, tasks.c.lease_until < _MOMENT),
            ),
            *(_NARROWING[name] for name in narrowed if name in _NARROWING),
            *([] if "wanted_sources" in narrowed else [tasks.c.not_before <= _MOMENT]),
        )
        .order_by(tasks.c.priority, tasks.c.not_before, tasks.c.created_at)
        .limit(bindparam("at_most", type_=Integer()))
        .with_for_update(skip_locked=True)
        .cte("due")
    )
    return (
        update(tasks)
        .where(tasks.c.id.in_(select(due.c.id)))
        .values(
            status=TaskStatus.PROCESSING.value,
            lease_owner=bindparam("claimer"),
            lease_until=bindparam("until", type_=UtcDateTime()),
            fence=tasks.c.fence + 1,
            attempts=tasks.c.attempts + 1,
            not_before=case((tasks.c.not_before > _MOMENT, _MOMENT), else_=tasks.c.not_before),
            updated_at=_MOMENT,
        )
        .returning(*TASK_COLUMNS)
    )


def heartbeat(connection: Connection, *, owner: str, now: datetime, lease: timedelta) -> int:
    """Every claim of `owner` lasts a lease longer; how many there are."""
    statement = update(tasks).where(_locked(*_claimed_by(owner)))
    return connection.execute(statement.values(lease_until=now + lease)).rowcount


def expire(connection: Connection, *, owner: str, now: datetime) -> int:
    """A dead worker's claims are claimable at once instead of after their lease."""
    statement = update(tasks).where(_locked(*_claimed_by(owner), tasks.c.lease_until > now))
    return connection.execute(statement.values(lease_until=now)).rowcount


def _claimed_by(owner: str) -> tuple[ColumnElement[bool], TextClause]:
    return tasks.c.lease_owner == owner, HELD


def _locked(*conditions: ColumnElement[bool] | TextClause) -> ColumnElement[bool]:
    """These rows, locked by id as `held` does it: no two statements wait for each other."""
    query = select(tasks.c.id).where(*conditions).order_by(tasks.c.id).with_for_update()
    return tasks.c.id.in_(select(query.cte("locked").c.id))


def held(connection: Connection, claimed: Collection[tuple[int, int]]) -> set[int]:
    """Of these (id, fence) the ids still ours; nobody takes them during this transaction."""
    if not claimed:
        return set()
    given = row_source(connection, {"id": Id, "fence": Integer()}, list(claimed), "given")
    return set(connection.execute(_still_ours(select(tasks.c.id), given)).scalars())


def _still_ours(query: Select[Any], given: CTE) -> Select[Any]:
    """Of these claims those that nobody has taken, locked; one order for all, so no deadlock."""
    return (
        query.join_from(
            given, tasks, and_(tasks.c.id == given.c.id, tasks.c.fence == given.c.fence)
        )
        .where(tasks.c.status == TaskStatus.PROCESSING.value)
        .order_by(tasks.c.id)
        .with_for_update(of=tasks)
    )


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
    dialect = connection.dialect.name
    document = row_document(dialect, _MOVE_COLUMNS, [_values(move) for move in moves])
    given = {"moves": document, "moment": now}
    changed = connection.execute(_apply_statement(dialect), given).rowcount
    if changed != len(moves):
        raise LostClaim(f"{len(moves) - changed} of {len(moves)} claims were lost; nothing is kept")


@cache
def _apply_statement(dialect: str) -> Update:
    given = row_table(dialect, _MOVE_COLUMNS, "moves")
    # Nothing but the id is left to compare: given more, PostgreSQL looks at every active task.
    ours = _still_ours(select(*given.c), given).cte("ours")
    return (
        update(tasks)
        .where(tasks.c.id == ours.c.id)
        .values(
            {name: ours.c[name] for name in _MOVE_COLUMNS if name not in {"id", "fence"}}
            | {"lease_owner": None, "lease_until": None, "updated_at": _MOMENT}
        )
    )


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


_TASK_FIELDS = tuple(column.name for column in TASK_COLUMNS)


def task_of(row: Row[*tuple[Any, ...]]) -> Task:
    """The task a row of `TASK_COLUMNS` states."""
    values: dict[str, Any] = dict(zip(_TASK_FIELDS, row, strict=True))
    values["status"] = TaskStatus(values["status"])
    values["ancestry"] = tuple(values["ancestry"])
    return Task(**values)


def tasks_by_id(connection: Connection, ids: Collection[int]) -> dict[int, Task]:
    """The tasks with these ids, as they are."""
    rows = connection.execute(select(*TASK_COLUMNS).where(tasks.c.id.in_(list(ids))))
    return {task.id: task for task in map(task_of, rows.all())}


def set_stage(connection: Connection, claimed: Collection[tuple[int, int]], stage: str) -> None:
    """Remember how far the work came, for whoever finds its worker dead."""
    pairs = list(claimed)
    connection.execute(
        update(tasks).where(tuple_(tasks.c.id, tasks.c.fence).in_(pairs)).values(stage=stage)
    )
