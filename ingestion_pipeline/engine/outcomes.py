"""The outcomes of work, one set for every kind: completed, skipped, failed; and what becomes of their tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from random import Random
from typing import Any, Generic, TypeVar, assert_never

from sqlalchemy import Connection

from ingestion_pipeline.settings import Work
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.dead_letters import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.tasks.errors import WorkError
from ingestion_pipeline.tasks.retry import DeadLetterTask, Decision, ReleaseTask, Retry, after_failure
from ingestion_pipeline.tasks.task import Move, Task, TaskStatus, failed, finished, released, retried

Item = TypeVar("Item")
Value = TypeVar("Value")


class NotNeeded(Exception):
    """Raised by work that turns out not to be needed; its task is skipped."""

    def __init__(self, reason: str, *, code: str = "not_needed") -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed(Generic[Item, Value]):
    """Work that was done, with its result."""

    task: Task
    item: Item
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped(Generic[Item]):
    """Work that is not needed, and why; `item` if it was loaded, `source_id` if a source makes it needless."""

    task: Task
    reason: str
    code: str = "not_needed"
    item: Item | None = None
    source_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Generic[Item]):
    """Work that failed or was not started; `item` if it was loaded, `decision` once it is persisted."""

    task: Task
    error: WorkError
    item: Item | None = None
    stack: str | None = None
    decision: Decision | None = None


Outcome = Completed[Item, Value] | Skipped[Item] | Failed[Item]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTask:
    """What becomes of a task: its move, the name that it is counted by, further numbers, and its dead letter.

    Without a move it is written already. `again_at` is when it is due again: a run waits for it if that is soon.
    """

    move: Move | None
    count: str
    amounts: Mapping[str, int] = field(default_factory=dict[str, int])
    again_at: datetime | None = None
    dead_letter: DeadLetterEntry | None = None

    @property
    def is_pending(self) -> bool:
        """Whether the task is executed again."""
        return self.move is not None and self.move.status is TaskStatus.PENDING

    def with_move(self, **changes: Any) -> "EndedTask":  # noqa: ANN401 - fields of Move
        """Return the same end with fields of its move changed."""
        if self.move is None:
            raise ValueError("the end of this task is written already")
        return replace(self, move=replace(self.move, **changes))


def completed(task: Task, count: str = "completed") -> EndedTask:
    """Return the end of a task whose work was done."""
    return EndedTask(move=finished(task), count=count)


def skipped(outcome: Skipped[Item], count: str = "skipped") -> EndedTask:
    """Return the end of a task whose work is not needed, with the reason."""
    move = finished(outcome.task, status=TaskStatus.SKIPPED)
    return EndedTask(move=replace(move, error_code=outcome.code, error=outcome.reason), count=count)


def decided(outcome: Outcome[Item, Value], *, now: datetime, policy: Work, random: Random) -> Outcome[Item, Value]:
    """Return the outcome; a failure with what is decided about it."""
    if not isinstance(outcome, Failed):
        return outcome
    decision = after_failure(outcome.task, outcome.error, now=now, policy=policy, random=random)
    return replace(outcome, decision=decision)


def not_done(failure: Failed[Item]) -> EndedTask:
    """Return the end of a failed task, by the decision: retried, released, or dead-lettered."""
    task, error = failure.task, failure.error
    match failure.decision:
        case Retry(not_before):
            return EndedTask(move=retried(task, error, not_before=not_before), count="retried", again_at=not_before)
        case ReleaseTask(not_before):
            return EndedTask(move=released(task, error, not_before=not_before), count="given_back")
        case DeadLetterTask():
            entry = DeadLetterEntry(task=task, error=error, stack=failure.stack)
            return EndedTask(move=failed(task, error), count="failed", dead_letter=entry)
        case None:
            raise ValueError(f"nothing is decided about task {task.id}")
        case _:
            assert_never(failure.decision)


def end_tasks(connection: Connection, ended: Sequence[EndedTask], *, now: datetime) -> None:
    """Write the dead letters and the moves of tasks that are held; a lost claim raises `LostClaim`."""
    add_dead_letters(connection, [end.dead_letter for end in ended if end.dead_letter is not None], now=now)
    claims.apply(connection, [end.move for end in ended if end.move is not None], now=now)
