"""Retention of analyses and answers; the rankings, which the history plots, are never deleted."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, Select, delete, exists, func, select

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.tables import OPEN, dead_letters, website_analyses, website_answers
from ingestion_pipeline.websites.metrics import KINDS
from ingestion_pipeline.websites.states import AnalysisStatus

ANSWERS_FOR = timedelta(days=180)
ANALYSES_FOR = timedelta(days=365)
SWEPT_AT_ONCE = 500  # analyses; the rest is deleted by the next run


def old_answers(connection: Connection, _settings: Settings, now: datetime) -> int:
    """Delete the texts of old answers; their results stay with the analysis.

    Never those of a website's last complete analysis, nor of one that may be resumed.
    """
    before = now - ANSWERS_FOR
    has_answers = exists().where(website_answers.c.analysis_id == website_analyses.c.id)
    ids = _locked(connection, _ended_before(before).where(has_answers))
    statement = delete(website_answers).where(website_answers.c.analysis_id.in_(ids))
    return connection.execute(statement).rowcount


def old_analyses(connection: Connection, _settings: Settings, now: datetime) -> int:
    """Delete old analyses with their remaining answers, except the last of each website."""
    before = now - ANALYSES_FOR
    last = select(func.max(website_analyses.c.id)).group_by(website_analyses.c.source_id)
    ids = _locked(connection, _ended_before(before).where(website_analyses.c.id.not_in(last)))
    connection.execute(delete(website_answers).where(website_answers.c.analysis_id.in_(ids)))
    statement = delete(website_analyses).where(website_analyses.c.id.in_(ids))
    return connection.execute(statement).rowcount


def _ended_before(before: datetime) -> Select[int]:
    """Select old analyses, without the last complete one and those a dead letter may requeue."""
    complete = (
        select(func.max(website_analyses.c.id))
        .where(website_analyses.c.status == AnalysisStatus.COMPLETED.value)
        .group_by(website_analyses.c.source_id)
    )
    may_go_on = exists().where(
        OPEN,
        dead_letters.c.task_kind.in_(KINDS),
        dead_letters.c.source_id == website_analyses.c.source_id,
        website_analyses.c.status == AnalysisStatus.FAILED.value,
    )
    return (
        select(website_analyses.c.id)
        .where(website_analyses.c.finished_at < before, website_analyses.c.id.not_in(complete), ~may_go_on)
        .order_by(website_analyses.c.id)
        .limit(SWEPT_AT_ONCE)
    )


def _locked(connection: Connection, query: Select[int]) -> list[int]:
    """Lock and return the ids that no other transaction deletes or requeues now."""
    return list(connection.execute(query.with_for_update(skip_locked=True)).scalars())
