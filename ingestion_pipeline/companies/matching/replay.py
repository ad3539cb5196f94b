"""A dead letter of a listing, replayed: it is judged again, if a board still lists it."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, RowMapping, select

from ingestion_pipeline.companies.job_tasks import job_task
from ingestion_pipeline.companies.states import ListingStatus
from ingestion_pipeline.store.tables import job_listings, tasks
from ingestion_pipeline.work.dead_letters import revive_task
from ingestion_pipeline.work.queue import insert_tasks
from ingestion_pipeline.work.task import TaskStatus

CLOSED = "no board lists it any more"


def revive_job(connection: Connection, letter: RowMapping, now: datetime) -> str:
    """Its task waits, or another one, where that was cleared away or has ended since."""
    names = ("id", "url", "url_key", "source_id")
    query = select(*(job_listings.c[name] for name in names)).where(
        job_listings.c.id == letter["payload"].get("listing_id"),
        job_listings.c.status == ListingStatus.OPEN.value,
    )
    listing = connection.execute(query).mappings().one_or_none()
    if listing is None:
        return CLOSED
    status = connection.execute(
        select(tasks.c.status).where(tasks.c.id == letter["task_id"])
    ).scalar()
    if status not in {None, TaskStatus.SKIPPED.value, TaskStatus.CANCELLED.value}:
        return revive_task(connection, letter, now)
    url = listing["url"] if listing["url_key"] else None
    made = insert_tasks(
        connection, [job_task(listing["id"], url, listing["source_id"], now=now)], now=now
    )
    return "queued" if made else "already queued"
