"""Replays the dead letter of a listing: requeues its evaluation if a board still lists it."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, RowMapping, select

from ingestion_pipeline.companies.matching.requeue import evaluation_tasks
from ingestion_pipeline.store.tables import tasks
from ingestion_pipeline.tasks.dead_letters import requeue_task
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import TaskStatus

CLOSED = "no board lists it any more"


def requeue_job(connection: Connection, dead_letter: RowMapping, now: datetime) -> str:
    """Requeue the task, or insert a new one if it was deleted or has ended since."""
    listing_id = dead_letter["payload"].get("listing_id")
    again = evaluation_tasks(connection, [] if listing_id is None else [listing_id], now=now)
    if not again:
        return CLOSED
    status = connection.execute(select(tasks.c.status).where(tasks.c.id == dead_letter["task_id"])).scalar()
    if status not in {None, TaskStatus.SKIPPED.value, TaskStatus.CANCELLED.value}:
        return requeue_task(connection, dead_letter, now)
    made = insert_tasks(connection, again, now=now)
    return "queued" if made else "already queued"
