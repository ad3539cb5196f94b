"""A JOB task for each listing that is to be judged, in the lineage of the poll that brought it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, update

from ingestion_pipeline.companies.job_tasks import job_task
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.tables import ACTIVE, tasks
from ingestion_pipeline.work.queue import Spawned, Spawning, continue_all, spawn_all, tell_refused
from ingestion_pipeline.work.task import NewTask, Task, TaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """A listing that its board has just brought, changed or brought back."""

    parent: Task
    source: Source
    listing_id: int
    url: str | None
    is_new: bool
    posted_at: datetime | None = None
    is_unreported: bool = False  # its match, if it is one, was told to nobody

    @property
    def is_backlog(self) -> bool:
        """Whether it is of a first sync, and not posted since the board's last good answer.

        A board that moved has its first sync again, but what came meanwhile is news.
        """
        if self.source.synced_at is not None:
            return False
        last = self.source.last_success_at
        return last is None or self.posted_at is None or self.posted_at <= last


def spawn_jobs(
    connection: Connection, judged: Sequence[Judging], *, now: datetime, settings: Settings
) -> None:
    """Each has its task.

    A new one passes the spawn guard; what changed is judged again in any case, but never twice at
    a time.
    """
    once = {one.listing_id: one for one in sorted(judged, key=lambda one: one.listing_id)}
    new = [_spawning(one, now=now) for one in once.values() if one.is_new]
    again = [_spawning(one, now=now) for one in once.values() if not one.is_new]
    spawned = spawn_all(connection, new, now=now, policy=settings.work) if new else Spawned()
    _make_news(connection, [one.child for one in again if one.child.payload.get("is_unreported")])
    continue_all(connection, again, now=now)
    if spawned.known or spawned.too_deep:
        tell_refused(connection, new, now=now, policy=settings.work)


def _make_news(connection: Connection, children: Sequence[NewTask]) -> None:
    """Let tasks that still wait, as a first sync left them, notify of what has become news."""
    for child in children:
        connection.execute(
            update(tasks)
            .where(
                ACTIVE,
                tasks.c.kind == child.kind,
                tasks.c.dedupe_key == child.dedupe_key,
                tasks.c.status == TaskStatus.PENDING.value,
            )
            .values(payload=dict(child.payload))
        )


def _spawning(one: Judging, *, now: datetime) -> Spawning:
    child = job_task(
        one.listing_id,
        one.url,
        one.source.id,
        now=now,
        board_url=one.source.url,
        is_first_sync=one.is_backlog,
        is_unreported=one.is_unreported,
    )
    return Spawning(parent=one.parent, child=child)
