"""A dead letter of a page, replayed: it waits again, if its extraction still goes on."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, RowMapping, null, select, update

from ingestion_pipeline.catalogs.states import CRAWLING_STATES, PageStatus
from ingestion_pipeline.store.tables import extractions, pages, tasks
from ingestion_pipeline.work.dead_letters import revive_task


def revive_page(connection: Connection, letter: RowMapping, now: datetime) -> str:
    """The page and its task wait; of an extraction that has ended, nothing is fetched any more."""
    return _revive(connection, letter, PageStatus.WAITING, now)


def revive_reading(connection: Connection, letter: RowMapping, now: datetime) -> str:
    """The page waits to be read once more, as it is stored."""
    return _revive(connection, letter, PageStatus.DOWNLOADED, now)


def ended(extraction_id: int) -> str:
    """What is said of a page whose extraction is over, with the command that opens it again."""
    return (
        f"its extraction has ended; `ingest extractions retry {extraction_id}` tries all its failed"
        " pages again"
    )


def _revive(connection: Connection, letter: RowMapping, status: PageStatus, now: datetime) -> str:
    payload = letter["payload"]
    query = select(extractions.c.status).where(extractions.c.id == payload["extraction"])
    # Locked: it does not end meanwhile.
    if connection.execute(query.with_for_update()).scalar() not in CRAWLING_STATES:
        return ended(payload["extraction"])
    outcome = revive_task(connection, letter, now)
    if outcome == "queued":
        connection.execute(
            update(pages)
            .where(pages.c.id == payload["page"], pages.c.status == PageStatus.ERROR.value)
            .values(status=status.value, failure=null())
        )
        afresh = update(tasks).where(tasks.c.id == letter["task_id"])
        connection.execute(afresh.values(state=null()))  # with all patience, too
    return outcome
