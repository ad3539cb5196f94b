"""What one kind of work brings to the engine: which tasks to claim, how to load, execute and persist them.

The outcomes are one set for every kind of work: completed, skipped, failed; and what becomes of their tasks.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from random import Random
from typing import Any, Generic, Protocol, TypeVar, assert_never

from sqlalchemy import Connection

from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.settings import Work
from ingestion_pipeline.sources import Source
from ingestion_pipeline.tasks import claims, ended_tasks
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.errors import WorkError
from ingestion_pipeline.tasks.task import Move, Task, TaskStatus, failed, finished, released, retried

AnyItem = TypeVar("AnyItem")
Value = TypeVar("Value")


class NotNeeded(Exception):
    """Raised by work that turns out not to be needed; its task is skipped."""

    def __init__(self, reason: str, *, code: str = "not_needed") -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed(Generic[AnyItem, Value]):
    """Work that was done, with its result."""

    task: Task
    item: AnyItem
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped(Generic[AnyItem]):
    """Work that is not needed, and why; `item` if it was loaded, `source_id` if a source makes it needless."""

    task: Task
    reason: str
    code: str = "not_needed"
    item: AnyItem | None = None
    source_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Generic[AnyItem]):
    """Work that failed or was not started; `item` if it was loaded, `decision` once it is persisted."""

    task: Task
    error: WorkError
    item: AnyItem | None = None
    stack: str | None = None
    decision: ended_tasks.Decision | None = None


Outcome = Completed[AnyItem, Value] | Skipped[AnyItem] | Failed[AnyItem]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTask:
    """What becomes of a task: its move, the name that it is counted by, further numbers, and its dead letter.

    Without a move it is written already. `again_at` is when it is due again: a run waits for it if that is soon.
    """

    move: Move | None
    count: str
    amounts: Mapping[str, int] = field(default_factory=dict[str, int])
    again_at: datetime | None = None
    dead_letter: ended_tasks.DeadLetterEntry | None = None

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


def skipped(outcome: Skipped[AnyItem], count: str = "skipped") -> EndedTask:
    """Return the end of a task whose work is not needed, with the reason."""
    move = finished(outcome.task, status=TaskStatus.SKIPPED)
    return EndedTask(move=replace(move, error_code=outcome.code, error=outcome.reason), count=count)


def decided(
    outcome: Outcome[AnyItem, Value], *, now: datetime, policy: Work, random: Random
) -> Outcome[AnyItem, Value]:
    """Return the outcome; a failure with what is decided about it."""
    if not isinstance(outcome, Failed):
        return outcome
    decision = ended_tasks.after_failure(outcome.task, outcome.error, now=now, policy=policy, random=random)
    return replace(outcome, decision=decision)


def not_done(failure: Failed[AnyItem]) -> EndedTask:
    """Return the end of a failed task, by the decision: retried, released, or dead-lettered."""
    task, error = failure.task, failure.error
    match failure.decision:
        case ended_tasks.Retry(not_before):
            return EndedTask(move=retried(task, error, not_before=not_before), count="retried", again_at=not_before)
        case ended_tasks.ReleaseTask(not_before):
            return EndedTask(move=released(task, error, not_before=not_before), count="given_back")
        case ended_tasks.DeadLetterTask():
            entry = ended_tasks.DeadLetterEntry(task=task, error=error, stack=failure.stack)
            return EndedTask(move=failed(task, error), count="failed", dead_letter=entry)
        case None:
            raise ValueError(f"nothing is decided about task {task.id}")
        case _:
            assert_never(failure.decision)


def end_tasks(connection: Connection, ended: Sequence[EndedTask], *, now: datetime) -> None:
    """Write the dead letters and the moves of tasks that are held; a lost claim raises `LostClaim`."""
    ended_tasks.add_dead_letters(connection, [end.dead_letter for end in ended if end.dead_letter is not None], now=now)
    claims.apply(connection, [end.move for end in ended if end.move is not None], now=now)


class LoadedItem(Protocol):
    """A claimed task with what its work needs; without a host it needs no lease, and no source either."""

    @property
    def task(self) -> Task:
        """The claimed task."""
        ...

    @property
    def host(self) -> str | None:
        """The host of the first request; None if it needs no lease."""
        ...

    @property
    def source(self) -> Source | None:
        """The source whose pace applies to the host."""
        ...


Item = TypeVar("Item", bound=LoadedItem)


class TaskHandler(ABC, Generic[Item, Value]):
    """What one kind of work brings to the loop: no loops, leases, retries or heartbeats in here.

    `concurrency` hosts, or items without a host, are worked on side by side (`host_concurrency` hosts, if that is
    given); at most `capacity` tasks are held; `policy` has the attempts and the backoff. Outcomes are persisted as
    soon as there are `flush_after` of them, at most `transaction_size` in one transaction (1 where they lock rows of
    one another). More is claimed as soon as at most `refill_share` of what was
    claimed is held or, when outcomes are persisted at once, of the capacity.
    """

    concurrency: int
    host_concurrency: int | None = None
    capacity: int
    policy: Work
    transaction_size: int = 500
    flush_after: int = 1
    refill_share: float = 0.5

    @abstractmethod
    def claim_requests(self, room: int, held: Sequence[Item]) -> Sequence[tuple[ClaimFilter, int]]:
        """Return which tasks to claim next beside those held, and how many of each."""

    @abstractmethod
    def load(
        self, connection: Connection, tasks: Sequence[Task], *, now: datetime
    ) -> Sequence[Item | Outcome[Item, Value]]:
        """Return what each task needs, or its outcome if nothing is to be executed; one error affects no other task."""

    @abstractmethod
    async def execute(self, item: Item, host: HostLease | None) -> Value:
        """Do the work, under the lease of its host if it has one; raise an error if it fails, or `NotNeeded`."""

    @abstractmethod
    def persist(
        self, connection: Connection, outcomes: Sequence[Outcome[Item, Value]], *, now: datetime
    ) -> Sequence[EndedTask]:
        """Write what the outcomes change, and return what becomes of each task; all their claims are held."""

    def may_start(self) -> bool:
        """Return whether the run may start more work, beside its time."""
        return True

    def next_due(self) -> datetime | None:
        """Return when other tasks are due that the run should wait for; its own retries need not be named."""
        return None

    def size_bytes(self, value: Value) -> int:  # noqa: ARG002 - a hook
        """Return how much memory the value takes until it is persisted."""
        return 0

    def is_urgent(self, outcome: Outcome[Item, Value]) -> bool:  # noqa: ARG002 - a hook
        """Take note of an outcome, and return whether it must be persisted at once."""
        return False

    def prepare(self, outcomes: Sequence[Outcome[Item, Value]]) -> None:
        """Do slow work before the transaction that persists the outcomes, such as writing files."""

    def lock(self, connection: Connection, outcomes: Sequence[Outcome[Item, Value]]) -> None:
        """Lock the rows that come before tasks in the order of locks."""

    def finish(self, connection: Connection, outcomes: Sequence[Outcome[Item, Value]], *, now: datetime) -> None:
        """Write what depends on the end of the tasks, in the same transaction."""

    def after_persist(self, outcomes: Sequence[Outcome[Item, Value]]) -> None:
        """Act after outcomes were persisted, outside their transaction."""
