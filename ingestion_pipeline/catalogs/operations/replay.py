"""A dead letter of a page, replayed: it waits again, its extraction goes on for it."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, RowMapping, func, null, select, update

from ingestion_pipeline.catalogs.operations.control import Unfit, UnknownExtraction, retry_page
from ingestion_pipeline.catalogs.states import CRAWLING_STATES, MISSING_CODES, PageStatus
from ingestion_pipeline.store.tables import extractions, pages, tasks
from ingestion_pipeline.tasks.dead_letters import requeue_task


def requeue_page(connection: Connection, letter: RowMapping, now: datetime) -> str:
    """The page and its task wait; an extraction that has ended is opened for this page alone."""
    return _requeue(connection, letter, PageStatus.WAITING, now)


def requeue_reading(connection: Connection, letter: RowMapping, now: datetime) -> str:
    """The page waits to be read once more, as it is stored."""
    return _requeue(connection, letter, PageStatus.DOWNLOADED, now)


def superseded(extraction_id: int) -> str:
    """What is said of a page that a later extraction has gone through."""
    return f"extraction {extraction_id} came after it and has the page anew; discard the letter"


def _requeue(connection: Connection, letter: RowMapping, status: PageStatus, now: datetime) -> str:
    payload = letter["payload"]
    query = select(extractions.c.status).where(extractions.c.id == payload["extraction"])
    # Locked: it does not end meanwhile.
    is_over = connection.execute(query.with_for_update()).scalar() not in CRAWLING_STATES
    if is_over or letter["error_code"] in MISSING_CODES:  # which to read again would not help
        return _reopened(connection, letter, now)
    outcome = requeue_task(connection, letter, now)
    if outcome == "queued":
        connection.execute(
            update(pages)
            .where(pages.c.id == payload["page"], pages.c.status == PageStatus.ERROR.value)
            .values(status=status.value, failure=null())
        )
        afresh = update(tasks).where(tasks.c.id == letter["task_id"])
        connection.execute(afresh.values(state=null()))  # with all patience, too
    return outcome


def _reopened(connection: Connection, letter: RowMapping, now: datetime) -> str:
    """The newest extraction of a source goes on for the page; of older ones nothing is changed."""
    extraction_id, page_id = letter["payload"]["extraction"], letter["payload"]["page"]
    source = select(extractions.c.source_id).where(extractions.c.id == extraction_id)
    later = select(func.max(extractions.c.id)).where(
        extractions.c.source_id == source.scalar_subquery(), extractions.c.id > extraction_id
    )
    if newer := connection.execute(later).scalar():
        return superseded(newer)
    actor = f"dead letter {letter['id']}"
    try:
        retry_page(connection, extraction_id, page_id, actor=actor, now=now)
    except (UnknownExtraction, Unfit) as error:
        return str(error)
    return "queued"
