"""A listing that was not believed, in the dead letters: somebody must look at its body."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection

from ingestion_pipeline.pages.poll_results import PageRef
from ingestion_pipeline.pages.snapshots import keep_snapshots
from ingestion_pipeline.work.dead_letters import Burial, bury
from ingestion_pipeline.work.errors import Permanent
from ingestion_pipeline.work.task import Task

QUARANTINED = "quarantined"


def bury_listing(
    connection: Connection,
    task: Task,
    pages: Sequence[tuple[str, PageRef]],
    outcome: str,
    *,
    now: datetime,
) -> None:
    """The poll's dead letter says what is wrong and which snapshots prove it."""
    kept = keep_snapshots(connection, pages, now=now, failure=QUARANTINED)
    cure = f"`ingest sources update {task.source_id} --accept-drop` says that it is right"
    error = Permanent(f"{outcome}; {cure}", code=QUARANTINED)
    bury(connection, [Burial(task=task, error=error, evidence={"snapshots": kept})], now=now)
