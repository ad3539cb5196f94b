"""A model of the task state machine without a database: the reference for `tasks/claims.py`.

Every operation takes the time as an argument and has the name of the SQL statement it models. The
tests run it side by side with SQL, and use it to simulate what would take too long to wait for.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from itertools import pairwise
from random import Random

from ingestion_pipeline.settings import Work
from ingestion_pipeline.tasks.claims import ClaimFilter, LostClaim
from ingestion_pipeline.tasks.ended_tasks import DeadLetterTask, ReleaseTask, Retry, after_failure
from ingestion_pipeline.tasks.errors import Transient, WorkError
from ingestion_pipeline.tasks.task import (
    WORKER_LOST,
    Move,
    NewTask,
    Suspicion,
    Task,
    TaskStatus,
    failed,
    released,
    retried,
)

LOST = Transient("worker lost while it executed this task alone", code=WORKER_LOST)


@dataclass(slots=True)
class Lease:
    """One claim: when it was made, how long it lasts, and whether its worker ended it."""

    fence: int
    since: datetime
    until: datetime
    is_ended: bool = False


@dataclass(slots=True)
class Model:
    """All tasks, every lease each of them had, the committed effects and the dead letters."""

    tasks: dict[int, Task] = field(default_factory=dict[int, Task])
    leases: dict[int, list[Lease]] = field(default_factory=dict[int, list[Lease]])
    effects: list[int] = field(default_factory=list[int])
    dead_lettered: list[int] = field(default_factory=list[int])


def enqueue(model: Model, new: NewTask, *, now: datetime) -> int | None:
    """Return the id of the new task; None while an active task has the same kind and dedupe key."""
    active = [(t.kind, t.dedupe_key) for t in model.tasks.values() if t.status.is_active]
    if (new.kind, new.dedupe_key) in active:
        return None
    names = {attribute.name for attribute in fields(NewTask)} - {"tracking_id"}
    task = Task(
        **{name: getattr(new, name) for name in names},
        id=len(model.tasks) + 1,
        status=TaskStatus.PENDING,
        stage=None,
        state=None,
        attempts=0,
        suspicion=Suspicion.NONE,
        lease_owner=None,
        lease_until=None,
        fence=0,
        tracking_id=new.tracking_id or "",
        parent_id=None,
        ancestry=(),
        spawn_depth=0,
        created_at=now,
    )
    model.tasks[task.id], model.leases[task.id] = task, []
    return task.id


def claim(
    model: Model, claim_filter: ClaimFilter, *, owner: str, now: datetime, lease: timedelta, limit: int
) -> list[Task]:
    """Lease the first `limit` claimable tasks to `owner`, each under its next fence."""
    due = sorted((t for t in model.tasks.values() if _claimable(t, claim_filter, now=now)), key=_order)
    taken: list[Task] = []
    for task in due[:limit]:
        has_died = task.status is TaskStatus.PROCESSING
        claimed = replace(
            task,
            status=TaskStatus.PROCESSING,
            lease_owner=owner,
            lease_until=now + lease,
            fence=task.fence + 1,
            attempts=task.attempts + (not has_died or task.suspicion == Suspicion.ALONE),
            suspicion=max(task.suspicion, Suspicion.CROWD) if has_died else task.suspicion,
            not_before=min(task.not_before, now),
        )
        model.tasks[task.id] = claimed
        model.leases[task.id].append(Lease(claimed.fence, now, now + lease))
        taken.append(claimed)
    return sorted(taken, key=_order)


def heartbeat(model: Model, claimed: Collection[tuple[int, int]], *, now: datetime, lease: timedelta) -> set[int]:
    """Extend these (id, fence) claims by a lease; return the ids that are still held."""
    ours = held(model, claimed)
    _set_leases(model, [model.tasks[task_id] for task_id in ours], until=now + lease)
    return ours


def claimed_by(model: Model, owner: str) -> dict[int, int]:
    """Return the fence by id of every task that `owner` holds."""
    return {t.id: t.fence for t in model.tasks.values() if _is_claimed_by(t, owner)}


def expire(model: Model, *, owner: str, now: datetime) -> int:
    """Make the claims of a dead worker claimable at once; return how many there were."""
    mine = [t for t in model.tasks.values() if _is_claimed_by(t, owner)]
    return _set_leases(model, [t for t in mine if model.leases[t.id][-1].until > now], until=now)


def _set_leases(model: Model, claimed: Sequence[Task], *, until: datetime) -> int:
    for task in claimed:
        model.tasks[task.id] = replace(task, lease_until=until)
        model.leases[task.id][-1].until = until
    return len(claimed)


def held(model: Model, claimed: Collection[tuple[int, int]]) -> set[int]:
    """Return the ids of these (id, fence) claims that are still held."""
    return {task_id for task_id, fence in claimed if _holds(model, task_id, fence)}


def apply(model: Model, moves: Sequence[Move]) -> None:
    """Apply every move, or raise `LostClaim` and apply none."""
    lost = sum(not _holds(model, move.task.id, move.task.fence) for move in moves)
    if lost:
        raise LostClaim(f"{lost} of {len(moves)} claims were lost; nothing is written")
    for move in moves:
        model.tasks[move.task.id] = replace(
            model.tasks[move.task.id],
            status=move.status,
            not_before=move.not_before,
            attempts=move.attempts,
            suspicion=move.suspicion,
            priority=move.priority,
            stage=move.stage,
            state=move.state,
            lease_owner=None,
            lease_until=None,
        )
        model.leases[move.task.id][-1].is_ended = True
        if move.status is TaskStatus.SUCCESS:
            model.effects.append(move.task.id)
        if move.status is TaskStatus.FAILED:
            model.dead_lettered.append(move.task.id)


def move_after_failure(task: Task, error: WorkError, *, now: datetime, policy: Work, random: Random) -> Move:
    """Return the move for a task whose work raised `error`."""
    match after_failure(task, error, now=now, policy=policy, random=random):
        case Retry(not_before):
            return retried(task, error, not_before=not_before)
        case ReleaseTask(not_before):
            return released(task, error, not_before=not_before)
        case DeadLetterTask():
            return failed(task, error)


def isolate(model: Model, claimed: Collection[tuple[int, int]]) -> None:
    """Note that each of these (id, fence) claims is executed alone."""
    for task_id in held(model, claimed):
        model.tasks[task_id] = replace(model.tasks[task_id], suspicion=Suspicion.ALONE)


def moves_of_causes(claimed: Sequence[Task], *, now: datetime, policy: Work, random: Random) -> list[Move]:
    """Return the moves of the tasks whose worker died while it executed them alone."""
    causes = [task for task in claimed if task.suspicion == Suspicion.ALONE]
    return [move_after_failure(task, LOST, now=now, policy=policy, random=random) for task in causes]


def invariants(model: Model, *, policy: Work) -> list[str]:
    """Return a description of every invariant that does not hold; empty for a valid history."""
    active = [(t.kind, t.dedupe_key) for t in model.tasks.values() if t.status.is_active]
    broken = [f"active twice: {sorted(active)}"] if len(active) != len(set(active)) else []
    for task in model.tasks.values():
        leases = model.leases[task.id]
        promises = {
            "its fence grows one by one": [lease.fence for lease in leases] == list(range(1, task.fence + 1)),
            "never two live leases": all(
                lease.is_ended or lease.until < after.since for lease, after in pairwise(leases)
            ),
            "it has a lease while it runs": (task.lease_until is not None) == (task.status is TaskStatus.PROCESSING),
            "its attempts are bounded": 0 <= task.attempts <= policy.max_attempts + 1,
            "one effect, and only of success": model.effects.count(task.id) == (task.status is TaskStatus.SUCCESS),
            "one dead letter, and only of failure": model.dead_lettered.count(task.id)
            == (task.status is TaskStatus.FAILED),
        }
        broken += [f"{promise}: {task}" for promise, is_kept in promises.items() if not is_kept]
    return broken


def _claimable(task: Task, claim_filter: ClaimFilter, *, now: datetime) -> bool:
    is_free, is_due = task.lease_until is None or task.lease_until < now, task.not_before <= now
    return (
        (task.status.is_active and is_free and task.kind == claim_filter.kind)
        and (is_due if claim_filter.source_ids is None else task.source_id in claim_filter.source_ids)
        and (claim_filter.frontier_of in {None, task.source_id})
        and (claim_filter.due_of is None or task.source_id in claim_filter.due_of)
        and (claim_filter.priority in {None, task.priority})
        and (claim_filter.shard in {None, task.shard % claim_filter.shards})
    )


def _order(task: Task) -> tuple[int, datetime, datetime, int]:
    return (task.priority, task.not_before, task.created_at, task.id)


def _is_claimed_by(task: Task, owner: str) -> bool:
    return task.status is TaskStatus.PROCESSING and task.lease_owner == owner


def _holds(model: Model, task_id: int, fence: int) -> bool:
    task = model.tasks[task_id]
    return task.status is TaskStatus.PROCESSING and task.fence == fence
