"""What one kind of work brings to the engine: which tasks to claim, how to load, execute and persist them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from sqlalchemy import Connection

from ingestion_pipeline.engine.outcomes import EndedTask, Outcome
from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.settings import Work
from ingestion_pipeline.sources import Source
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.task import Task


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
Value = TypeVar("Value")


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
