"""A dead letter of a phase, replayed: the analysis goes on where it failed."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, RowMapping, select, update

from ingestion_pipeline.store.locking import lock_rows
from ingestion_pipeline.store.tables import UNFINISHED, tasks, website_analyses
from ingestion_pipeline.websites.states import BY_KIND, AnalysisStatus
from ingestion_pipeline.work.dead_letters import requeue_task

GONE = "its analysis is no longer kept"
NEWER = "a newer analysis of the website is under way"


def requeue_phase(connection: Connection, letter: RowMapping, now: datetime) -> str:
    """Analysis and task wait again; not if another analysis of the source is under way."""
    phase, id_ = BY_KIND[letter["task_kind"]], letter["payload"].get("analysis", 0)
    lock_rows(connection, tasks.c.id, [letter["task_id"]])  # before the analysis, as its worker
    query = select(website_analyses.c.source_id, website_analyses.c.status)
    row = connection.execute(
        query.where(website_analyses.c.id == id_).with_for_update()
    ).one_or_none()
    if row is None:
        return GONE
    others = select(website_analyses.c.id).where(
        UNFINISHED, website_analyses.c.source_id == row.source_id, website_analyses.c.id != id_
    )
    if connection.execute(others).first() is not None:
        return NEWER
    if row.status not in {AnalysisStatus.FAILED.value, phase.status.value}:
        return f"its analysis is {row.status}"
    outcome = requeue_task(connection, letter, now)
    if outcome == "queued":
        connection.execute(
            update(website_analyses)
            .where(website_analyses.c.id == id_)
            .values(
                status=phase.status.value,
                current_step=phase.step,
                failure=None,
                finished_at=None,
                progress_message="waits",
                updated_at=now,
            )
        )
    return outcome
