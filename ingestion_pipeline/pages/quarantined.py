"""A listing that was not believed, in the dead letters: somebody must look at its body."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from ingestion_pipeline.pages.batch_item import BatchItem, pages_of
from ingestion_pipeline.pages.snapshots import keep_snapshots
from ingestion_pipeline.pages.workshop import RunContext
from ingestion_pipeline.work.dead_letters import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.work.errors import Permanent

QUARANTINED = "quarantined"


def dead_letter_feed(
    connection: Connection,
    shop: RunContext,
    item: BatchItem,
    outcome: str,
    *,
    now: datetime,
) -> None:
    """The poll's dead letter says what is wrong and which snapshots prove it."""
    pages, task = pages_of([item]), item.task
    kept = keep_snapshots(connection, pages, now=now, failure=QUARANTINED, run_id=shop.run_id)
    cure = f"`ingest sources update {task.source_id} --accept-drop` says that it is right"
    error = Permanent(f"{outcome}; {cure}", code=QUARANTINED)
    add_dead_letters(
        connection, [DeadLetterEntry(task=task, error=error, evidence={"snapshots": kept})], now=now
    )
