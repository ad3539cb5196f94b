"""Claims on tasks: the statements that make, renew and end them, the worker that holds them, and which runs are alive.

A claim is one conditional UPDATE: due and unleased, or leased and expired. It raises the fence, which every later write
must match: a worker that lost its claim changes nothing, and its whole transaction rolls back.

A worker is one identity per run. Runs have heartbeats in our own store, since Dagster leaves a run STARTED for many
minutes when its whole machine dies; the sensor `stale_runs` asks here which runs stopped theirs.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, Integer, TextClause, Update, and_, bindparam, case, func, or_, select, true, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql.dml import ReturningUpdate
from sqlalchemy.sql.elements import BindParameter, ColumnElement
from sqlalchemy.sql.selectable import CTE, FromClause

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.database import prepared
from ingestion_pipeline.store.statements import columns_of, insert_into, row_document, row_source, row_table
from ingestion_pipeline.store.tables import ACTIVE, FRONTIER, runs, tasks
from ingestion_pipeline.store.types import UtcDateTime
from ingestion_pipeline.tasks.task import Move, Suspicion, Task, TaskStatus


class LostClaim(RuntimeError):
    """Another worker has claimed the task; the whole transaction must roll back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFilter:
    """Which tasks a worker claims; with `source_ids` those of these sources, due or not.

    `frontier_of` selects the due tasks of one source, of which there may be very many; `due_of` the
    due tasks of several sources.
    """

    kind: str
    priority: int | None = None
    shard: int | None = None
    shards: int = 1
    source_ids: Collection[str] | None = None
    frontier_of: str | None = None
    due_of: Collection[str] | None = None


_TASK_FIELDS = tuple(field.name for field in fields(Task))
# The columns a claim returns; it knows the others, because it wrote or filtered by them.
_RETURNED_FIELDS = tuple(name for name in _TASK_FIELDS if name not in {"kind", "status", "lease_owner", "lease_until"})


def claim(
    connection: Connection, claim_filter: ClaimFilter, *, owner: str, now: datetime, lease: timedelta, limit: int
) -> list[Task]:
    """Lease at most `limit` tasks to `owner`; sorted by priority, not_before, created_at."""
    filters = _filter_parameters(claim_filter)
    until = now + lease
    parameters = {"wanted_kind": claim_filter.kind, "claimer": owner, "moment": now, "until": until, "at_most": limit}
    statement = _claim_statement(connection.dialect.name, *filters)
    rows = connection.execute(statement, parameters | filters).all()
    written = {"kind": claim_filter.kind, "status": TaskStatus.PROCESSING, "lease_owner": owner, "lease_until": until}
    claimed = [_task(dict(zip(_RETURNED_FIELDS, row, strict=True)) | written) for row in rows]
    return sorted(claimed, key=lambda task: (task.priority, task.not_before, task.created_at, task.id))


def _filter_parameters(claim_filter: ClaimFilter) -> dict[str, Any]:
    """Return the parameters of the filters beyond the kind, named as in `_FILTER_CONDITIONS`."""
    parameters: dict[str, Any] = {
        "wanted_sources": None if claim_filter.source_ids is None else list(claim_filter.source_ids),
        "due_sources": None if claim_filter.due_of is None else list(claim_filter.due_of),
        "frontier_source": claim_filter.frontier_of,
        "wanted_priority": claim_filter.priority,
        "wanted_shard": claim_filter.shard,
        "shards": None if claim_filter.shard is None else claim_filter.shards,
    }
    return {name: value for name, value in parameters.items() if value is not None}


def is_free(now: datetime | BindParameter[datetime]) -> ColumnElement[bool]:
    """Select tasks that no worker holds: pending ones, and those whose lease has expired."""
    is_lost = and_(tasks.c.status == TaskStatus.PROCESSING.value, tasks.c.lease_until < now)
    return or_(tasks.c.status == TaskStatus.PENDING.value, is_lost)


def is_any_claimable(connection: Connection, *kinds: str, now: datetime) -> bool:
    """Return whether a task of these kinds can be claimed now: one indexed query."""
    query = select(tasks.c.id).where(ACTIVE, tasks.c.kind.in_(kinds), tasks.c.not_before <= now, is_free(now))
    return connection.execute(query.limit(1)).first() is not None


_MOMENT = bindparam("moment", type_=UtcDateTime())
_FILTER_CONDITIONS: dict[str, ColumnElement[bool]] = {
    "wanted_sources": tasks.c.source_id.in_(bindparam("wanted_sources", expanding=True)),
    "due_sources": tasks.c.source_id.in_(bindparam("due_sources", expanding=True)),
    # The literal FRONTIER condition makes the planner use the index on one source's tasks.
    "frontier_source": and_(FRONTIER, tasks.c.source_id == bindparam("frontier_source")),
    "wanted_priority": tasks.c.priority == bindparam("wanted_priority"),
    "wanted_shard": tasks.c.shard % bindparam("shards", type_=Integer()) == bindparam("wanted_shard"),
}


@cache  # compiling it takes longer than running it
def _claim_statement(dialect: str, *filters: str) -> Update:
    """Return the statement that claims due or requested tasks that are unleased or expired."""
    due = (
        select(tasks.c.id)
        .where(
            ACTIVE,
            tasks.c.kind == bindparam("wanted_kind"),
            is_free(_MOMENT),
            *(_FILTER_CONDITIONS[name] for name in filters if name in _FILTER_CONDITIONS),
            *([] if "wanted_sources" in filters else [tasks.c.not_before <= _MOMENT]),
        )
        .order_by(tasks.c.priority, tasks.c.not_before, tasks.c.created_at)
        .limit(bindparam("at_most", type_=Integer()))
        .with_for_update(skip_locked=True)
        .cte("due")
    )
    died = tasks.c.status == TaskStatus.PROCESSING.value  # its worker did, since its lease has expired
    statement = (
        update(tasks)
        .where(_id_is_in(dialect, due))
        .values(
            status=TaskStatus.PROCESSING.value,
            lease_owner=bindparam("claimer"),
            lease_until=bindparam("until", type_=UtcDateTime()),
            fence=tasks.c.fence + 1,
            attempts=case(
                (and_(died, tasks.c.suspicion != Suspicion.ALONE), tasks.c.attempts), else_=tasks.c.attempts + 1
            ),
            suspicion=case(
                (died & tasks.c.suspicion.in_([Suspicion.NONE, Suspicion.ALONE]), tasks.c.suspicion + 1),
                else_=tasks.c.suspicion,
            ),
            not_before=case((tasks.c.not_before > _MOMENT, _MOMENT), else_=tasks.c.not_before),
            updated_at=_MOMENT,
        )
        .returning(*(tasks.c[name] for name in _RETURNED_FIELDS))
    )
    # A list of sources is expanded in the text, so preparing the statement does not pay.
    is_list = "wanted_sources" in filters or "due_sources" in filters
    return statement if is_list else prepared(statement)


def _id_is_in(dialect: str, rows: CTE) -> ColumnElement[bool]:
    """Match tasks by id; with a plain subquery PostgreSQL scans a table of a few thousand rows."""
    ids = select(rows.c.id)
    if dialect != "postgresql":
        return tasks.c.id.in_(ids)
    return tasks.c.id == func.any(func.array(ids.scalar_subquery()))


def heartbeat(
    connection: Connection, claimed: Collection[tuple[int, int]], *, now: datetime, lease: timedelta
) -> set[int]:
    """Extend these (id, fence) claims by a lease; return the ids that are still held."""
    if not claimed:
        return set()
    dialect = connection.dialect.name
    document = row_document(dialect, _CLAIM_COLUMNS, list(claimed))
    parameters = {"claims": document, "until": now + lease}
    return set(connection.execute(_heartbeat_statement(dialect), parameters).scalars())


_CLAIM_COLUMNS = columns_of(tasks, ("id", "fence"))


@cache
def _heartbeat_statement(dialect: str) -> ReturningUpdate[int]:
    ours = _lock_held_claims(dialect, row_table(dialect, _CLAIM_COLUMNS, "claims"))
    return prepared(
        update(tasks)
        .where(_id_is_in(dialect, ours))
        .values(lease_until=bindparam("until", type_=UtcDateTime()))
        .returning(tasks.c.id)
    )


def claimed_by(connection: Connection, owner: str) -> dict[int, int]:
    """Return the fence by id of all tasks `owner` holds, without an index, which each renewal would update."""
    query = select(tasks.c.id, tasks.c.fence).where(*_is_claimed_by(owner))
    return {row.id: row.fence for row in connection.execute(query)}


def expire(connection: Connection, *, owner: str, now: datetime) -> int:
    """Make the claims of a dead worker claimable at once; return how many there were."""
    # Locked in id order like everywhere else, so that no two statements deadlock.
    query = select(tasks.c.id).where(*_is_claimed_by(owner), tasks.c.lease_until > now)
    locked = query.order_by(tasks.c.id).with_for_update().cte("locked")
    statement = update(tasks).where(_id_is_in(connection.dialect.name, locked))
    return connection.execute(statement.values(lease_until=now)).rowcount


def _is_claimed_by(owner: str) -> tuple[ColumnElement[bool] | TextClause, ...]:
    is_running = tasks.c.status == TaskStatus.PROCESSING.value
    return ACTIVE, is_running, tasks.c.lease_owner == owner


def held(connection: Connection, claimed: Collection[tuple[int, int]]) -> set[int]:
    """Return which of these (id, fence) claims are still held, locked for this transaction."""
    if not claimed:
        return set()
    input_rows = row_source(connection, _CLAIM_COLUMNS, list(claimed), "given")
    ours = _lock_held_claims(connection.dialect.name, input_rows)
    return set(connection.execute(select(ours.c.id)).scalars())


def _lock_held_claims(dialect: str, input_rows: CTE) -> CTE:
    """Lock those of these claims that are still held, in one order for all, so without deadlock."""
    if dialect != "postgresql":
        return select(*input_rows.c).join_from(input_rows, tasks, _holds(input_rows)).cte("ours")
    # One lookup by id for each: a plain join scans a small table, and every running task of a
    # large one, however few claims are given.
    ordered = select(*input_rows.c).order_by(input_rows.c.id).subquery("ordered")
    locked = select(tasks.c.id).where(_holds(ordered)).with_for_update().lateral("locked")
    return select(*ordered.c).join_from(ordered, locked, true()).cte("ours")


def _holds(input_rows: FromClause) -> ColumnElement[bool]:
    return and_(
        tasks.c.id == input_rows.c.id,
        tasks.c.fence == input_rows.c.fence,
        tasks.c.status == TaskStatus.PROCESSING.value,
    )


_MOVED = (
    *("status", "not_before", "attempts", "priority", "suspicion", "stage", "state"),
    *("error_class", "error_code", "error"),
)
_MOVE_COLUMNS = columns_of(tasks, ("id", "fence", *_MOVED))
_move_values: Callable[[Move], tuple[Any, ...]] = attrgetter("task.id", "task.fence", *_MOVED)


def apply(connection: Connection, moves: Sequence[Move], *, now: datetime) -> None:
    """Apply every move, or raise `LostClaim`, which rolls back the transaction."""
    if not moves:
        return
    dialect = connection.dialect.name
    document = row_document(dialect, _MOVE_COLUMNS, list(map(_move_values, moves)))
    parameters = {"moves": document, "moment": now}
    changed = connection.execute(_apply_statement(dialect), parameters).rowcount
    if changed != len(moves):
        raise LostClaim(f"{len(moves) - changed} of {len(moves)} claims were lost; nothing is written")


@cache
def _apply_statement(dialect: str) -> Update:
    input_rows = row_table(dialect, _MOVE_COLUMNS, "moves")
    ours = _lock_held_claims(dialect, input_rows)
    return prepared(
        update(tasks)
        .where(_id_is_in(dialect, ours), tasks.c.id == ours.c.id)
        .values(
            {name: ours.c[name] for name in _MOVE_COLUMNS if name not in {"id", "fence"}}
            | {"lease_owner": None, "lease_until": None, "updated_at": _MOMENT}
        )
    )


def _task(values: dict[str, Any]) -> Task:
    values["status"] = TaskStatus(values["status"])
    values["ancestry"] = tuple(values["ancestry"])
    return Task(**values)


def tasks_by_id(connection: Connection, ids: Collection[int]) -> dict[int, Task]:
    """Return the tasks with these ids."""
    columns = [tasks.c[name] for name in _TASK_FIELDS]
    rows = connection.execute(select(*columns).where(tasks.c.id.in_(list(ids)))).mappings()
    return {row["id"]: _task(dict(row)) for row in rows}


def set_stage(connection: Connection, claimed: Collection[tuple[int, int]], stage: str) -> None:
    """Store how far the work came, for whoever finds its worker dead; its execution alone has ended."""
    mine = held(connection, claimed)  # locked in the order of the heartbeat
    suspicion = case((tasks.c.suspicion > Suspicion.GROUP, Suspicion.GROUP.value), else_=tasks.c.suspicion)
    connection.execute(update(tasks).where(tasks.c.id.in_(mine)).values(stage=stage, suspicion=suspicion))


def set_suspicion(connection: Connection, claimed: Collection[tuple[int, int]], suspicion: Suspicion) -> None:
    """Store before their execution what is known of the tasks if their worker dies over it."""
    mine = held(connection, claimed)
    connection.execute(update(tasks).where(tasks.c.id.in_(mine)).values(suspicion=suspicion.value))


log = logging.getLogger(__name__)


class Worker:
    """Claims tasks under a new uuid, so that a restart is not mistaken for the dead process.

    `may_start` turns false at two thirds of the lease without a heartbeat, measured by the monotonic clock: a worker
    that was stopped or cut off starts nothing new, whatever its wall clock says.
    """

    def __init__(
        self,
        store: Store,
        *,
        lease_seconds: float,
        owner: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.owner = owner or str(uuid4())
        # Fence by task; an owner that continues another step's work reads them when it renews.
        self._claims: dict[int, int] | None = {} if owner is None else None
        self._lock = threading.Lock()  # a separate thread renews
        self.lease = timedelta(seconds=lease_seconds)
        self._monotonic = monotonic
        self._renewed_at = monotonic()

    def claim(self, claim_filter: ClaimFilter, *, limit: int) -> list[Task]:
        """Claim at most `limit` tasks for this worker."""
        return self.claim_all([(claim_filter, limit)])

    def claim_all(self, claim_requests: Sequence[tuple[ClaimFilter, int]]) -> list[Task]:
        """Claim at most `limit` tasks for each (filter, limit), in one transaction."""

        def act(connection: Connection) -> tuple[list[Task], float]:
            now, renewed_at = self.store.clock.now(connection), self._monotonic()
            # Earlier claims are renewed as well, since `may_start` covers all of them.
            self._renew(connection, now)
            each = [
                claim(connection, claim_filter, owner=self.owner, now=now, lease=self.lease, limit=limit)
                for claim_filter, limit in claim_requests
            ]
            return [task for claimed_tasks in each for task in claimed_tasks], renewed_at

        claimed, self._renewed_at = self.store.write(act)
        with self._lock:
            self._claims = (self._claims or {}) | {task.id: task.fence for task in claimed}
        return claimed

    def renew(self) -> int:
        """Extend every claim by a lease; return how many are still held."""
        with self.store.begin() as connection:
            now, renewed_at = self.store.clock.now(connection), self._monotonic()
            renewed = self._renew(connection, now)
        self._renewed_at = renewed_at
        return renewed

    def _renew(self, connection: Connection, now: datetime) -> int:
        if self._claims is None:
            claimed = claimed_by(connection, self.owner)
            with self._lock:
                self._claims = claimed | (self._claims or {})
        held_claims = list(self._claims.items())
        renewed = heartbeat(connection, held_claims, now=now, lease=self.lease)
        with self._lock:  # a task released and claimed again meanwhile has another fence
            ended = {(task_id, fence) for task_id, fence in held_claims if task_id not in renewed}
            self._claims = dict(self._claims.items() - ended)
        return len(renewed)

    def may_start(self) -> bool:
        """Return whether the claims are fresh enough to start something new."""
        return self._monotonic() - self._renewed_at < self.lease.total_seconds() * 2 / 3

    async def keep_alive(self, *also: Callable[[], object]) -> None:
        """Renew every third of a lease until cancelled; `also` is called with each heartbeat."""
        while True:
            await asyncio.sleep(self.lease.total_seconds() / 3)
            for beat in (self.renew, *also):
                try:
                    await asyncio.to_thread(beat)
                except SQLAlchemyError:
                    log.warning("heartbeat failed; the lease stays until it expires", exc_info=True)


def set_progress(connection: Connection, task: Task, *, stage: str, state: Mapping[str, Any]) -> None:
    """Store stage and state of the task; raise `LostClaim` if another worker has it now."""
    changed = connection.execute(
        update(tasks)
        .where(tasks.c.id == task.id, tasks.c.fence == task.fence, tasks.c.status == TaskStatus.PROCESSING.value)
        .values(stage=stage, state=dict(state))
    ).rowcount
    if not changed:
        raise LostClaim(f"task {task.id} was claimed by another worker; nothing is written")


LOST_AT_ONCE = 100  # runs; the next call returns the others


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


def lost_runs(connection: Connection, *, now: datetime) -> list[LostRun]:
    """Return the runs that neither ended nor renewed their lease in time."""
    query = (
        select(runs.c.run_id, runs.c.lease_owner, runs.c.job, runs.c.lease_until)
        .where(runs.c.ended_at.is_(None), runs.c.lease_until < now)
        .order_by(runs.c.lease_until)
        .limit(LOST_AT_ONCE)
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
