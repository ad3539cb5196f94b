"""Replay the dead letter of a page: queue its task again, reopening its extraction if needed."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, RowMapping, func, null, select, update

from ingestion_pipeline.catalogs.operations.control import InvalidState, UnknownExtraction, retry_page
from ingestion_pipeline.catalogs.states import CRAWLING_STATES, MISSING_CODES, PageStatus
from ingestion_pipeline.store.tables import extractions, pages, tasks
from ingestion_pipeline.tasks.dead_letters import requeue_task


def requeue_page(connection: Connection, dead_letter: RowMapping, now: datetime) -> str:
    """Queue the page and its task again; an ended extraction is reopened for this page alone."""
    return _requeue(connection, dead_letter, PageStatus.WAITING, now)


def requeue_reading(connection: Connection, dead_letter: RowMapping, now: datetime) -> str:
    """Queue the stored page to be extracted again."""
    return _requeue(connection, dead_letter, PageStatus.DOWNLOADED, now)


def superseded(extraction_id: int) -> str:
    """Return the message for a page that a later extraction has covered."""
    return f"extraction {extraction_id} is newer and covers the page; discard the dead letter"


def _requeue(connection: Connection, dead_letter: RowMapping, status: PageStatus, now: datetime) -> str:
    payload = dead_letter["payload"]
    query = select(extractions.c.status).where(extractions.c.id == payload["extraction"])
    # Locked, so that it does not end meanwhile.
    is_over = connection.execute(query.with_for_update()).scalar() not in CRAWLING_STATES
    if is_over or dead_letter["error_code"] in MISSING_CODES:  # extracting it again would not help
        return _reopened(connection, dead_letter, now)
    outcome = requeue_task(connection, dead_letter, now)
    if outcome == "queued":
        connection.execute(
            update(pages)
            .where(pages.c.id == payload["page"], pages.c.status == PageStatus.ERROR.value)
            .values(status=status.value, failure=null())
        )
        reset = update(tasks).where(tasks.c.id == dead_letter["task_id"])
        connection.execute(reset.values(state=null()))  # the patience for retries starts again, too
    return outcome


def _reopened(connection: Connection, dead_letter: RowMapping, now: datetime) -> str:
    """Reopen the source's newest extraction for the page; older ones are not changed."""
    extraction_id, page_id = dead_letter["payload"]["extraction"], dead_letter["payload"]["page"]
    source = select(extractions.c.source_id).where(extractions.c.id == extraction_id)
    later = select(func.max(extractions.c.id)).where(
        extractions.c.source_id == source.scalar_subquery(), extractions.c.id > extraction_id
    )
    if newer := connection.execute(later).scalar():
        return superseded(newer)
    actor = f"dead letter {dead_letter['id']}"
    try:
        retry_page(connection, extraction_id, page_id, actor=actor, now=now)
    except (UnknownExtraction, InvalidState) as error:
        return str(error)
    return "queued"
