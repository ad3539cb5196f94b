"""Checks for analyses that are wrong although runs succeed: no answers, doubt, lost visibility."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, func, select

from ingestion_pipeline.sources.status import Finding
from ingestion_pipeline.store.tables import businesses, website_analyses, website_answers, website_rankings
from ingestion_pipeline.websites.states import IS_COMPLETE, PHASES, AnalysisStatus, AnswerStatus, newest_analyses

ASKING = PHASES[-1].queue
_IS_LAST_ENDED = website_analyses.c.id.in_(newest_analyses(website_analyses.c.finished_at.is_not(None)))


def unanswered(connection: Connection) -> list[Finding]:
    """Return websites whose last analysis no provider, or one provider not at all, answered."""
    source_id, status = website_analyses.c.source_id, website_analyses.c.status
    failed = select(source_id, website_analyses.c.failure).where(
        _IS_LAST_ENDED, status == AnalysisStatus.FAILED.value, website_analyses.c.failure.startswith(ASKING)
    )
    is_answered = website_answers.c.status == AnswerStatus.ANSWERED.value
    unanswering = (
        select(source_id, website_answers.c.provider, func.count())
        .join(website_answers, website_answers.c.analysis_id == website_analyses.c.id)
        .where(_IS_LAST_ENDED, IS_COMPLETE)
        .group_by(source_id, website_answers.c.provider)
        .having(func.count().filter(is_answered) == 0)
        .order_by(source_id, website_answers.c.provider)
    )
    return [
        *(Finding(subject=id_, message=failure) for id_, failure in connection.execute(failed.order_by(source_id))),
        *(
            Finding(subject=id_, message=f"{provider} answered none of {count} prompts")
            for id_, provider, count in connection.execute(unanswering)
        ),
    ]


def giving_away(connection: Connection) -> list[Finding]:
    """Return websites whose every prompt names the business: being mentioned then says nothing."""
    query = (
        select(website_analyses.c.source_id, website_analyses.c.prompts)
        .where(_IS_LAST_ENDED)
        .order_by(website_analyses.c.source_id)
    )
    message = "every prompt names the business: add some to the source's config that do not"
    return [
        Finding(subject=source_id, message=message)
        for source_id, prompts in connection.execute(query)
        if prompts and all(prompt["is_direct"] for prompt in prompts)
    ]


def doubtful(connection: Connection, *, below: int) -> list[Finding]:
    """Return businesses whose information has a low confidence."""
    query = select(businesses.c.url, businesses.c.name, businesses.c.confidence).where(businesses.c.confidence < below)
    cure = "say in the source's config what the business is"
    return [
        Finding(subject=row.url, message=f"{row.name}: confidence {row.confidence}; {cure}")
        for row in connection.execute(query.order_by(businesses.c.url))
    ]


def dropped(connection: Connection, *, by: float) -> list[Finding]:
    """Return businesses whose visibility fell by that much or more since the day before."""
    order = website_rankings.c.day.desc()
    partition = website_rankings.c.business_id
    ranked = select(
        website_rankings.c.business_id,
        website_rankings.c.visibility,
        func.lead(website_rankings.c.visibility).over(partition_by=partition, order_by=order).label("before"),
        func.row_number().over(partition_by=partition, order_by=order).label("place"),
    ).subquery()
    query = (
        select(businesses.c.url, ranked.c.visibility, ranked.c.before)
        .join(businesses, businesses.c.id == ranked.c.business_id)
        .where(ranked.c.place == 1, ranked.c.before - ranked.c.visibility >= by)
        .order_by(businesses.c.url)
    )
    return [
        Finding(subject=url, message=f"visible in {now:.0%} of answers, {before:.0%} before")
        for url, now, before in connection.execute(query)
    ]


def coverage_query(ids: Sequence[str]) -> Select[Any, int, int]:
    """Select the answers of the last analysis, of all that were requested."""
    answered = func.count().filter(website_answers.c.status == AnswerStatus.ANSWERED.value)
    return (
        select(website_analyses.c.source_id, answered, func.count())
        .join(website_answers, website_answers.c.analysis_id == website_analyses.c.id)
        .where(website_analyses.c.id.in_(newest_analyses(website_analyses.c.source_id.in_(ids))))
        .group_by(website_analyses.c.source_id)
    )
