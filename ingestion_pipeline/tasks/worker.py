"""A worker: one identity per run, its claims, and the heartbeat that renews them."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, update
from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, LostClaim
from ingestion_pipeline.tasks.task import Task, TaskStatus

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
                claims.claim(connection, claim_filter, owner=self.owner, now=now, lease=self.lease, limit=limit)
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
            claimed = claims.claimed_by(connection, self.owner)
            with self._lock:
                self._claims = claimed | (self._claims or {})
        held_claims = list(self._claims.items())
        renewed = claims.heartbeat(connection, held_claims, now=now, lease=self.lease)
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
