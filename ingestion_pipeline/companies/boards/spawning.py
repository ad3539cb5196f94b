"""A JOB task for each listing that is to be judged, in the lineage of the poll that brought it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from ingestion_pipeline.companies.states import JOB
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.urls import BadUrl, canonical_url
from ingestion_pipeline.work.queue import Spawned, Spawning, continue_all, spawn_all
from ingestion_pipeline.work.task import NewTask, Task

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """A listing that its board has just brought, changed or brought back."""

    parent: Task
    source: Source
    listing_id: int
    url: str | None
    is_new: bool


def spawn_jobs(
    connection: Connection, judged: Sequence[Judging], *, now: datetime, settings: Settings
) -> None:
    """Each has its task.

    A new one passes the spawn guard; what changed is judged again in any case, but never twice at
    a time.
    """
    once = {one.listing_id: one for one in judged}
    new = [_spawning(one, now=now) for one in once.values() if one.is_new]
    again = [_spawning(one, now=now) for one in once.values() if not one.is_new]
    spawned = spawn_all(connection, new, now=now, policy=settings.work) if new else Spawned()
    continue_all(connection, again, now=now)
    if spawned.known or spawned.too_deep:
        _tell_refusals(connection, new, spawned, now=now)


def _spawning(one: Judging, *, now: datetime) -> Spawning:
    url = _address(one)
    child = NewTask(
        kind=JOB,
        dedupe_key=url if one.url else f"listing:{one.listing_id}",
        not_before=now,
        shard=one.source.shard,
        source_id=one.source.id,
        url=url,
        payload={"listing_id": one.listing_id, "is_first_sync": one.source.synced_at is None},
    )
    return Spawning(parent=one.parent, child=child)


def _address(one: Judging) -> str:
    """The listing's own URL; one that has none is a place on its board's page."""
    try:
        return canonical_url(one.url or "")
    except BadUrl:
        return f"{canonical_url(one.source.url)}#listing-{one.listing_id}"


def _tell_refusals(
    connection: Connection, wanted: Sequence[Spawning], spawned: Spawned, *, now: datetime
) -> None:
    """One line for a poll: which of a board's jobs were refused, their lineage knows."""
    for parent in {one.parent.id: one.parent for one in wanted}.values():
        reason = "too_deep" if spawned.too_deep else "in_lineage"
        count = spawned.too_deep + spawned.known
        log.warning("spawn of %d %s tasks refused: %s", count, JOB, reason)
        audit(
            connection,
            actor="system",
            action="spawn.refused",
            subject=f"task:{parent.tracking_id}",
            now=now,
            detail={"kind": JOB, "parent": parent.id, "reason": reason, "count": count},
        )
