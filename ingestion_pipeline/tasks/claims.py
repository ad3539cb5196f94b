"""The statements on `tasks`: claim, heartbeat, hold, apply. One function, one statement.

A claim is one conditional UPDATE: due and unleased, or leased and expired, whoever comes first. The
fence it raises is the token that every later write must show; whoever lost the claim in between
changes nothing, and its whole transaction rolls back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    Integer,
    Row,
    String,
    Text,
    TextClause,
    Update,
    and_,
    bindparam,
    case,
    func,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import CTE, FromClause

from ingestion_pipeline.store.bulk import row_document, row_source, row_table
from ingestion_pipeline.store.engine import prepared
from ingestion_pipeline.store.tables import ACTIVE, FRONTIER, tasks
from ingestion_pipeline.store.types import Id, Json, UtcDateTime
from ingestion_pipeline.tasks.task import Move, Task, TaskStatus


class LostClaim(RuntimeError):
    """Another worker has the task now; nothing of this transaction may stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFilter:
    """Which tasks a worker asks for; with `source_ids` by hand, whether they are due or not.

    `frontier_of` asks for one source's due tasks, of which there may be very many; `due_of` for
    those of several that are due.
    """

    kind: str
    priority: int | None = None
    shard: int | None = None
    shards: int = 1
    source_ids: Collection[str] | None = None
    frontier_of: str | None = None
    due_of: Collection[str] | None = None


_TASK_FIELDS = tuple(one.name for one in fields(Task))
TASK_COLUMNS = tuple(tasks.c[name] for name in _TASK_FIELDS)
# What a claim has to be told; the rest it knows, having written or asked for it.
_TOLD_FIELDS = tuple(
    name for name in _TASK_FIELDS if name not in {"kind", "status", "lease_owner", "lease_until"}
)


def claim(
    connection: Connection,
    wanted: ClaimFilter,
    *,
    owner: str,
    now: datetime,
    lease: timedelta,
    limit: int,
) -> list[Task]:
    """At most `limit` tasks, now leased to `owner`, by priority, not_before, created_at."""
    narrowed = _narrowed(wanted)
    until = now + lease
    given = {
        "wanted_kind": wanted.kind,
        "claimer": owner,
        "moment": now,
        "until": until,
        "at_most": limit,
    }
    statement = _claim_statement(connection.dialect.name, *narrowed)
    rows = connection.execute(statement, given | narrowed).all()
    known = {
        "kind": wanted.kind,
        "status": TaskStatus.PROCESSING,
        "lease_owner": owner,
        "lease_until": until,
    }
    found = [_task(dict(zip(_TOLD_FIELDS, row, strict=True)) | known) for row in rows]
    return sorted(
        found, key=lambda task: (task.priority, task.not_before, task.created_at, task.id)
    )


def _narrowed(wanted: ClaimFilter) -> dict[str, Any]:
    """What is asked for beyond the kind, by the names of `_NARROWING`."""
    asked: dict[str, Any] = {}
    if wanted.source_ids is not None:
        asked["wanted_sources"] = list(wanted.source_ids)
    if wanted.due_of is not None:
        asked["due_sources"] = list(wanted.due_of)
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
    "due_sources": tasks.c.source_id.in_(bindparam("due_sources", expanding=True)),
    # By FRONTIER's own words the index is found that has one source's tasks in their order.
    "frontier_source": and_(FRONTIER, tasks.c.source_id == bindparam("frontier_source")),
    "wanted_priority": tasks.c.priority == bindparam("wanted_priority"),
    "wanted_shard": tasks.c.shard % bindparam("shards", type_=Integer())
    == bindparam("wanted_shard"),
}


@cache  # to write it anew takes longer than to run it
def _claim_statement(dialect: str, *narrowed: str) -> Update:
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
    statement = (
        update(tasks)
        .where(_is_one_of(dialect, due))
        .values(
            status=TaskStatus.PROCESSING.value,
            lease_owner=bindparam("claimer"),
            lease_until=bindparam("until", type_=UtcDateTime()),
            fence=tasks.c.fence + 1,
            attempts=tasks.c.attempts + 1,
            not_before=case((tasks.c.not_before > _MOMENT, _MOMENT), else_=tasks.c.not_before),
            updated_at=_MOMENT,
        )
        .returning(*(tasks.c[name] for name in _TOLD_FIELDS))
    )
    # A list of sources is written out, so that no two texts are equal.
    is_list = "wanted_sources" in narrowed or "due_sources" in narrowed
    return statement if is_list else prepared(statement)


def _is_one_of(dialect: str, found: CTE) -> ColumnElement[bool]:
    """Looked up by id: given a subquery, PostgreSQL reads a table of a few thousand whole."""
    ids = select(found.c.id)
    if dialect != "postgresql":
        return tasks.c.id.in_(ids)
    return tasks.c.id == func.any(func.array(ids.scalar_subquery()))


def heartbeat(
    connection: Connection,
    claimed: Collection[tuple[int, int]],
    *,
    now: datetime,
    lease: timedelta,
) -> set[int]:
    """Of these (id, fence) the ids still ours; their claims last a lease longer."""
    if not claimed:
        return set()
    dialect = connection.dialect.name
    document = row_document(dialect, _CLAIM_COLUMNS, list(claimed))
    given = {"claims": document, "until": now + lease}
    return set(connection.execute(_heartbeat_statement(dialect), given).scalars())


_CLAIM_COLUMNS = {"id": Id, "fence": Integer()}


@cache
def _heartbeat_statement(dialect: str) -> ReturningUpdate[int]:
    ours = _still_ours(dialect, row_table(dialect, _CLAIM_COLUMNS, "claims"))
    return prepared(
        update(tasks)
        .where(_is_one_of(dialect, ours))
        .values(lease_until=bindparam("until", type_=UtcDateTime()))
        .returning(tasks.c.id)
    )


def claimed_by(connection: Connection, owner: str) -> dict[int, int]:
    """The fence by id of everything that `owner` holds; it reads every active task to find them.

    No index names the owner: each claim would have to write it, and all the others with it.
    """
    query = select(tasks.c.id, tasks.c.fence).where(*_is_claimed_by(owner))
    return {row.id: row.fence for row in connection.execute(query)}


def expire(connection: Connection, *, owner: str, now: datetime) -> int:
    """A dead worker's claims are claimable at once instead of after their lease."""
    # Locked by id as everybody does it: no two statements wait for each other.
    query = select(tasks.c.id).where(*_is_claimed_by(owner), tasks.c.lease_until > now)
    locked = query.order_by(tasks.c.id).with_for_update().cte("locked")
    statement = update(tasks).where(_is_one_of(connection.dialect.name, locked))
    return connection.execute(statement.values(lease_until=now)).rowcount


def _is_claimed_by(owner: str) -> tuple[ColumnElement[bool] | TextClause, ...]:
    is_running = tasks.c.status == TaskStatus.PROCESSING.value
    return ACTIVE, is_running, tasks.c.lease_owner == owner


def held(connection: Connection, claimed: Collection[tuple[int, int]]) -> set[int]:
    """Of these (id, fence) the ids still ours; nobody takes them during this transaction."""
    if not claimed:
        return set()
    given = row_source(connection, _CLAIM_COLUMNS, list(claimed), "given")
    ours = _still_ours(connection.dialect.name, given)
    return set(connection.execute(select(ours.c.id)).scalars())


def _still_ours(dialect: str, given: CTE) -> CTE:
    """Of these claims those that nobody has taken, locked; one order for all, so no deadlock."""
    if dialect != "postgresql":
        return select(*given.c).join_from(given, tasks, _holds(given)).cte("ours")
    # One look by id for each: a plain join reads a small table whole, and every running task of a
    # large one, however few are given.
    ordered = select(*given.c).order_by(given.c.id).subquery("ordered")
    locked = select(tasks.c.id).where(_holds(ordered)).with_for_update().lateral("locked")
    return select(*ordered.c).join_from(ordered, locked, true()).cte("ours")


def _holds(given: FromClause) -> ColumnElement[bool]:
    return and_(
        tasks.c.id == given.c.id,
        tasks.c.fence == given.c.fence,
        tasks.c.status == TaskStatus.PROCESSING.value,
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
    ours = _still_ours(dialect, given)
    return prepared(
        update(tasks)
        .where(_is_one_of(dialect, ours), tasks.c.id == ours.c.id)
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


def task_of(row: Row[*tuple[Any, ...]]) -> Task:
    """The task a row of `TASK_COLUMNS` states."""
    return _task(dict(zip(_TASK_FIELDS, row, strict=True)))


def _task(values: dict[str, Any]) -> Task:
    values["status"] = TaskStatus(values["status"])
    values["ancestry"] = tuple(values["ancestry"])
    return Task(**values)


def tasks_by_id(connection: Connection, ids: Collection[int]) -> dict[int, Task]:
    """The tasks with these ids, as they are."""
    rows = connection.execute(select(*TASK_COLUMNS).where(tasks.c.id.in_(list(ids))))
    return {task.id: task for task in map(task_of, rows.all())}


def set_stage(connection: Connection, claimed: Collection[tuple[int, int]], stage: str) -> None:
    """Remember how far the work came, for whoever finds its worker dead."""
    mine = held(connection, claimed)  # in one order, as the heartbeat has them
    connection.execute(update(tasks).where(tasks.c.id.in_(mine)).values(stage=stage))
