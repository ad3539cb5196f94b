"""A task and its state machine.

```
                 claim: fence+1, attempts+1, lease
     ┌─────────┐ ─────────────────────────────────> ┌────────────┐ ──┐ lease expired: claimed again
     │ PENDING │                                    │ PROCESSING │ <─┘ by the same statement
     └─────────┘ <───────────────────────────────── └────────────┘
        ^   retried (backoff) · released (attempt back)    │
        │   · rearmed (a poll: attempts 0, next check)     │ finished / failed
        │                                                  v
        └──── operator: resume, replay, enable ──── SUCCESS FILTERED SKIPPED FAILED CANCELLED
```

Every arrow out of PROCESSING is a `Move` (pure), applied by one statement that checks id, fence and
status (`tasks/claims.py`). A claim counts the attempt. A task whose worker died is suspected, keeps
its attempts, and is executed again alone or in a small group; if its worker dies while it executes
this task alone, the task is the cause: the attempt counts, and at last it is dead-lettered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any

from ingestion_pipeline.tasks.errors import WorkError

ASKED = "asked"  # the stage of a task that an operator requested, ahead of any schedule


class TaskStatus(StrEnum):
    """Status of a task: two are active, the others final but for an operator's audited action."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    SUCCESS = "SUCCESS"
    FILTERED = "FILTERED"
    SKIPPED = "SKIPPED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_active(self) -> bool:
        """Whether the task is pending or running."""
        return self in {TaskStatus.PENDING, TaskStatus.PROCESSING}


class Suspicion(IntEnum):
    """How far a task is suspected of killing its worker: by what died with it."""

    NONE = 0
    CROWD = 1
    GROUP = 2
    ALONE = 3  # nothing else was executed: the task is the cause
    COUNTED = 4  # the claim that found this out has counted it; the next worker may die before it is recorded


WORKER_LOST = "worker_lost"  # the error code of a task that killed its worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One row of `tasks` at the time it was read; `fence` is the token of the claim."""

    id: int
    kind: str
    dedupe_key: str
    source_id: str | None
    url: str | None
    payload: Mapping[str, Any]
    status: TaskStatus
    priority: int
    shard: int
    stage: str | None
    state: Mapping[str, Any] | None
    attempts: int
    suspicion: int
    not_before: datetime
    lease_owner: str | None
    lease_until: datetime | None
    fence: int
    tracking_id: str
    parent_id: int | None
    ancestry: tuple[int, ...]
    spawn_depth: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The next state of a claimed task; applied only if the claim is still held."""

    task: Task
    status: TaskStatus
    not_before: datetime
    attempts: int
    priority: int
    suspicion: int = Suspicion.NONE
    stage: str | None = None
    state: Mapping[str, Any] | None = None
    error_class: str | None = None
    error_code: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """A task to be enqueued or spawned."""

    kind: str
    dedupe_key: str
    not_before: datetime
    priority: int = 5
    shard: int = 0
    source_id: str | None = None
    url: str | None = None
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tracking_id: str | None = None  # of a root that continues an older lineage


def finished(task: Task, *, status: TaskStatus = TaskStatus.SUCCESS) -> Move:
    """Return the move to a terminal status."""
    return _move(task, status, not_before=task.not_before, attempts=task.attempts)


def failed(task: Task, error: WorkError) -> Move:
    """Return the move to FAILED with the error; its dead letter is written beside it."""
    return _move(task, TaskStatus.FAILED, not_before=task.not_before, attempts=task.attempts, error=error)


def retried(task: Task, error: WorkError, *, not_before: datetime) -> Move:
    """Return the move back to PENDING after a failure that counts."""
    return _move(task, TaskStatus.PENDING, not_before=not_before, attempts=task.attempts, error=error)


def released(task: Task, error: WorkError | None, *, not_before: datetime) -> Move:
    """Return the move back to PENDING that does not count the attempt."""
    move = _move(task, TaskStatus.PENDING, not_before=not_before, attempts=max(task.attempts - 1, 0), error=error)
    return replace(move, suspicion=min(task.suspicion, Suspicion.GROUP))


def rearmed(task: Task, *, not_before: datetime, priority: int, error: WorkError | None = None) -> Move:
    """Return the move of a permanent task to its next time, with all its attempts."""
    return _move(task, TaskStatus.PENDING, not_before=not_before, attempts=0, priority=priority, error=error)


def _move(
    task: Task,
    status: TaskStatus,
    *,
    not_before: datetime,
    attempts: int,
    priority: int | None = None,
    error: WorkError | None = None,
) -> Move:
    return Move(
        task=task,
        status=status,
        not_before=not_before,
        attempts=attempts,
        priority=task.priority if priority is None else priority,
        suspicion=Suspicion.GROUP if error and error.code == WORKER_LOST else Suspicion.NONE,
        stage=task.stage if attempts else None,  # a task without attempts has no stage
        state=task.state,
        error_class=error.error_class.value if error else None,
        error_code=error.code if error else None,
        error=error.text if error else None,
    )
