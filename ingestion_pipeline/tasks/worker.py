"""A worker: one identity per run, its claims, and the heartbeat that keeps them."""

from __future__ import annotations

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
    """Claims tasks under a fresh uuid, so that no restart can be mistaken for the dead one before.

    `may_start` turns false at two thirds of the lease without a heartbeat, judged by the monotonic
    clock: whoever was stopped or cut off begins nothing new, whatever its wall clock says.
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
        # Fence by task. An owner that goes on with the work of another step has to look for it.
        self._claims: dict[int, int] | None = {} if owner is None else None
        self._lock = threading.Lock()  # a thread of its own renews
        self.lease = timedelta(seconds=lease_seconds)
        self._monotonic = monotonic
        self._renewed_at = monotonic()

    def claim(self, wanted: ClaimFilter, *, limit: int) -> list[Task]:
        """At most `limit` tasks, now leased to this worker."""
        return self.claim_all([(wanted, limit)])

    def claim_all(self, wishes: Sequence[tuple[ClaimFilter, int]]) -> list[Task]:
        """Of each wish at most so many tasks, now leased to this worker, in one transaction."""

        def act(connection: Connection) -> tuple[list[Task], float]:
            now, renewed_at = self.store.clock.now(connection), self._monotonic()
            # Those claimed before are renewed as well, since `may_start` speaks of all of them.
            self._renew(connection, now)
            each = [
                claims.claim(
                    connection, wanted, owner=self.owner, now=now, lease=self.lease, limit=limit
                )
                for wanted, limit in wishes
            ]
            return [task for some in each for task in some], renewed_at

        found, self._renewed_at = self.store.write(act)
        with self._lock:
            self._claims = (self._claims or {}) | {task.id: task.fence for task in found}
        return found

    def renew(self) -> int:
        """Every claim lasts a lease longer; how many there are."""
        with self.store.begin() as connection:
            now, renewed_at = self.store.clock.now(connection), self._monotonic()
            kept = self._renew(connection, now)
        self._renewed_at = renewed_at
        return kept

    def _renew(self, connection: Connection, now: datetime) -> int:
        if self._claims is None:
            found = claims.claimed_by(connection, self.owner)
            with self._lock:
                self._claims = found | (self._claims or {})
        asked = list(self._claims.items())
        kept = claims.heartbeat(connection, asked, now=now, lease=self.lease)
        with self._lock:  # what was given back and claimed anew meanwhile has another fence
            ended = {(task_id, fence) for task_id, fence in asked if task_id not in kept}
            self._claims = dict(self._claims.items() - ended)
        return len(kept)

    def may_start(self) -> bool:
        """Whether the claims are fresh enough to begin something new."""
        return self._monotonic() - self._renewed_at < self.lease.total_seconds() * 2 / 3

    async def keep_alive(self, *also: Callable[[], object]) -> None:
        """Renew every third of a lease until cancelled; `also` is called with each heartbeat."""
        while True:
            await asyncio.sleep(self.lease.total_seconds() / 3)
            for beat in (self.renew, *also):
                try:
                    await asyncio.to_thread(beat)
                except SQLAlchemyError:
                    log.warning(
                        "heartbeat failed; the lease goes on until it expires", exc_info=True
                    )


def set_progress(
    connection: Connection, task: Task, *, stage: str, state: Mapping[str, Any]
) -> None:
    """The task's row says so; `LostClaim` if it is another worker's now."""
    changed = connection.execute(
        update(tasks)
        .where(
            tasks.c.id == task.id,
            tasks.c.fence == task.fence,
            tasks.c.status == TaskStatus.PROCESSING.value,
        )
        .values(stage=stage, state=dict(state))
    ).rowcount
    if not changed:
        raise LostClaim(f"task {task.id} is another worker's now; nothing is kept")
