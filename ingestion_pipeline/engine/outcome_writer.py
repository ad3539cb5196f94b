"""Writes the outcomes of tasks in fenced transactions, all together or one by one if that fails."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Generic, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.handler import Item, TaskHandler, Value
from ingestion_pipeline.engine.outcomes import Completed, EndedTask, Failed, Outcome, decided, end_tasks
from ingestion_pipeline.pages.politeness.host_leases import HostLease, LeasedHosts, next_allowed_at
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import LostClaim
from ingestion_pipeline.tasks.errors import Fatal, Permanent, classify

log = logging.getLogger(__name__)

NOT_WRITTEN = "not_written"  # the code of an outcome that the database refuses


class OutcomeWriter(Generic[Item, Value]):
    """Writes the outcomes of a handler's tasks, decides about failures, and counts.

    An outcome counts only if its claim is still held: the others are lost to another worker.
    """

    def __init__(self, ctx: RunContext, handler: TaskHandler[Item, Value], hosts: LeasedHosts | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.fatal: Fatal | None = None
        self._ctx = ctx
        self._handler = handler
        self._hosts = hosts
        self._due_times: list[datetime] = []

    def take_due_times(self) -> Sequence[datetime]:
        """Return when tasks that were written since the last call are due again."""
        taken, self._due_times = self._due_times, []
        return taken

    def write(self, outcomes: Sequence[Outcome[Item, Value]], left: dict[str, HostLease] | None = None) -> None:
        """Write the outcomes; the first transaction releases the hosts that are left, too."""
        hosts = dict(left or {})

        def persist(entries: Sequence[Outcome[Item, Value]]) -> Sequence[None]:
            return self._persist(entries, hosts)

        prepared, size = self._prepared(outcomes), self._handler.transaction_size
        for start in range(0, len(prepared), size):
            part = prepared[start : start + size]
            one_by_one_on_failure(part, persist, self._persist_failure)
            self._handler.after_persist(part)
        if hosts and self._hosts is not None:
            self._hosts.release_in_own_transaction(hosts)

    def _prepared(self, outcomes: Sequence[Outcome[Item, Value]]) -> Sequence[Outcome[Item, Value]]:
        """Prepare the outcomes; if that is fatal, their tasks are released."""
        try:
            self._handler.prepare(outcomes)
        except Fatal as error:
            self.fatal = error
            return [
                Failed(task=outcome.task, item=outcome.item, error=error) if isinstance(outcome, Completed) else outcome
                for outcome in outcomes
            ]
        return outcomes

    def _persist(self, outcomes: Sequence[Outcome[Item, Value]], hosts: dict[str, HostLease]) -> Sequence[None]:
        def write(connection: Connection) -> tuple[Sequence[EndedTask], int]:
            now = self._ctx.store.clock.now(connection)
            allowed_at = next_allowed_at(hosts, self._ctx.store, connection) if hosts else {}
            self._handler.lock(connection, outcomes)
            held = claims.held(connection, [(outcome.task.id, outcome.task.fence) for outcome in outcomes])
            owned = [self._decided(outcome, now) for outcome in outcomes if outcome.task.id in held]
            ended = self._handler.persist(connection, owned, now=now) if owned else ()
            end_tasks(connection, ended, now=now)
            self._handler.finish(connection, owned, now=now)
            if self._hosts is not None and hosts:
                self._hosts.release(connection, hosts, allowed_at, now=now)
            return ended, len(outcomes) - len(owned)

        ended, lost = self._ctx.store.write(write)
        hosts.clear()
        for end in ended:
            self.counts[end.count] += 1
            for name, amount in end.amounts.items():
                self.counts[name] += amount
        if lost:
            self.counts["lost"] += lost
        self._due_times += [end.again_at for end in ended if end.again_at is not None]
        return ()

    def _decided(self, outcome: Outcome[Item, Value], now: datetime) -> Outcome[Item, Value]:
        return decided(outcome, now=now, policy=self._handler.policy, random=self._ctx.random)

    def _persist_failure(self, outcome: Outcome[Item, Value], error: Exception) -> None:
        """Fail a task whose outcome cannot be persisted; if that fails too, its lease expires."""
        if isinstance(error, LostClaim):
            self.counts["lost"] += 1
            return
        log.warning("outcome not persisted task=%d", outcome.task.id, exc_info=True)
        if isinstance(outcome, Failed):
            return
        reason = classify(error)
        if isinstance(error, DBAPIError):
            reason = Permanent(f"its outcome could not be written: {reason.text}", code=NOT_WRITTEN)
        failure: Outcome[Item, Value] = Failed(task=outcome.task, item=outcome.item, error=reason)
        one_by_one_on_failure([failure], lambda entries: self._persist(entries, {}), self._persist_failure)


Entry = TypeVar("Entry")
Done = TypeVar("Done")


def one_by_one_on_failure(
    entries: Sequence[Entry],
    act: Callable[[Sequence[Entry]], Sequence[Done]],
    failed: Callable[[Entry, Exception], Done],
) -> list[Done]:
    """Do all entries in one transaction, or each in its own if that fails; a fatal error is raised."""
    try:
        return list(act(entries))
    except Exception as error:
        if isinstance(classify(error), Fatal):
            raise
        if len(entries) == 1:
            return [failed(entries[0], error)]
        log.warning("batch failed entries=%d; trying one by one", len(entries), exc_info=True)
    return [done for entry in entries for done in one_by_one_on_failure([entry], act, failed)]
