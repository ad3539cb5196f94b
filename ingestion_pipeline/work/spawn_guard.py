"""What may spawn what: the four checks against loops, and how a refusal is told."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Connection, select

from ingestion_pipeline.settings import Work
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.tables import audit_log
from ingestion_pipeline.urls import without_credentials
from ingestion_pipeline.work.task import NewTask, Task, TaskStatus

log = logging.getLogger(__name__)


class Refusal(StrEnum):
    """Why a task was not made."""

    TOO_DEEP = "too_deep"
    IN_ANCESTRY = "in_ancestry"
    ACTIVE_DUPLICATE = "active_duplicate"
    TERMINAL_IN_LINEAGE = "terminal_in_lineage"
    QUEUE_FULL = "queue_full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relative:
    """What the guard must know of another task of the lineage."""

    kind: str
    url: str | None
    status: TaskStatus
    is_ancestor: bool


def refusal(
    child: NewTask, *, depth: int, lineage: Collection[Relative], policy: Work
) -> Refusal | None:
    """Why the lineage does not want this child, or None; the same URL of another kind is fine."""
    if depth > policy.spawn_depth:
        return Refusal.TOO_DEEP
    same = [one for one in lineage if (one.kind, one.url) == (child.kind, child.url)]
    if any(one.is_ancestor for one in same):
        return Refusal.IN_ANCESTRY
    if any(one.status.is_active for one in same):
        return Refusal.ACTIVE_DUPLICATE
    return Refusal.TERMINAL_IN_LINEAGE if same else None


REFUSED = "spawn.refused"  # the action in the audit log; its subject is the lineage


def lineage_of(tracking_id: str) -> str:
    """How the audit log names a lineage."""
    return f"task:{tracking_id}"


def tell_refusal(
    connection: Connection, parent: Task, child: NewTask, why: Refusal, *, now: datetime
) -> None:
    """One warning and one line of the audit log; the same edge of a lineage only once."""
    shown, subject = without_credentials(child.url or ""), lineage_of(parent.tracking_id)
    edge = {"kind": child.kind, "url": shown, "reason": why.value}
    told = connection.execute(
        select(audit_log.c.detail).where(
            audit_log.c.subject == subject, audit_log.c.action == REFUSED
        )
    ).scalars()
    if any({name: one.get(name) for name in edge} == edge for one in told):
        return
    log.warning("spawn of %s %s refused: %s", child.kind, shown, why.value)
    audit(
        connection,
        actor="system",
        action=REFUSED,
        subject=subject,
        now=now,
        detail={**edge, "parent": parent.id},
    )
