"""Rows that an analysis writes: its business, its answers, and the ranking of the day; and their retention.

Each has a natural key, so that writing it twice has the effect of writing it once. The caller's
transaction checks the claim. Rankings, which the history plots, are never deleted.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, exists, null, select, update

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import (
    OPEN,
    businesses,
    dead_letters,
    website_analyses,
    website_answers,
    website_rankings,
)
from ingestion_pipeline.store.types import Json, Moment
from ingestion_pipeline.tasks.errors import storable
from ingestion_pipeline.websites.business import Business, business_key
from ingestion_pipeline.websites.mentions import Mentions
from ingestion_pipeline.websites.provider_analysis import WebsiteAnalysed
from ingestion_pipeline.websites.states import (
    IS_COMPLETE,
    KINDS,
    AnalysisStatus,
    AnswerStatus,
    ProviderAnswer,
    newest_analyses,
)

# Of `website_answers`, as fields of a `ProviderAnswer`.
_FACTS = ("prompt", "model", "model_version", "answer", "error", "input_tokens", "output_tokens", "cost_usd")


def upsert_business(connection: Connection, business: Business, *, now: datetime) -> int:
    """Insert or update the business at this address; return its id."""
    values = business.as_json()
    facts = {name: values[name] for name in values if name not in {"url"}} | {"updated_at": now}
    statement = insert_into(connection, businesses).values(
        url=business.url, url_key=business_key(business.url), created_at=now, **facts
    )
    return connection.execute(
        statement.on_conflict_do_update(index_elements=["url_key"], set_=facts | {"modified_at": Moment()}).returning(
            businesses.c.id
        )
    ).scalar_one()


def store_answers(
    connection: Connection,
    analysis_id: int,
    answers: Sequence[ProviderAnswer],
    *,
    now: datetime,
    run_id: str | None = None,
) -> None:
    """Upsert one row per prompt and provider; an answer is final, a failure may be replaced."""
    if not answers:
        return
    rows = [_answer_row(analysis_id, answer) | {"created_at": now, "run_id": run_id} for answer in answers]
    statement = insert_into(connection, website_answers).values(rows)
    excluded = statement.excluded
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["analysis_id", "prompt_index", "provider"],
            set_={name: excluded[name] for name in (*_FACTS, "status", "mentions", "created_at", "run_id")}
            | {"modified_at": Moment()},
            where=website_answers.c.status == AnswerStatus.FAILED.value,
        )
    )


def store_mentions(connection: Connection, analysis_id: int, analysed: WebsiteAnalysed) -> None:
    """Store the mentions and the sentiment of each answer."""
    sentiments = {answer.pair: answer.sentiment for answer in analysed.answers}
    rows = [
        {
            "of_prompt": pair[0],
            "of_provider": pair[1],
            "found": {"names": _mentions_json(mentions), "sentiment": sentiments[pair]},
        }
        for pair, mentions in analysed.mentions.items()
    ]
    if rows:
        connection.execute(
            update(website_answers)
            .where(
                website_answers.c.analysis_id == analysis_id,
                website_answers.c.prompt_index == bindparam("of_prompt"),
                website_answers.c.provider == bindparam("of_provider"),
            )
            .values(mentions=bindparam("found", type_=Json)),
            rows,
        )


def _mentions_json(mentions: Mapping[str, Mentions]) -> dict[str, Any]:
    return {
        name: {
            "count": places.count,
            "rank": places.rank,
            "is_exact": places.is_exact,
            "places": [[place.start, place.end] for place in places.places],
        }
        for name, places in mentions.items()
        if places
    }


def answers_of(
    connection: Connection, analysis_id: int, *, direct: frozenset[int] = frozenset()
) -> list[ProviderAnswer]:
    """Return the stored answers; `direct` are the numbers of prompts that name the business."""
    query = (
        select(website_answers)
        .where(website_answers.c.analysis_id == analysis_id)
        .order_by(website_answers.c.prompt_index, website_answers.c.provider)
    )
    return [
        ProviderAnswer(
            prompt_index=row["prompt_index"],
            provider=row["provider"],
            status=AnswerStatus(row["status"]),
            is_direct=row["prompt_index"] in direct,
            sentiment=row["mentions"]["sentiment"] if row["mentions"] else None,
            **{name: row[name] for name in _FACTS},
        )
        for row in connection.execute(query).mappings()
    ]


def upsert_ranking(
    connection: Connection, business_id: int, analysis_id: int, analysed: WebsiteAnalysed, *, now: datetime
) -> None:
    """Upsert the ranking of business and day (UTC): a later analysis replaces an earlier one."""
    ranking, result = analysed.ranking, analysed.ranking.as_json()
    values: dict[str, Any] = {
        "analysis_id": analysis_id,
        "visibility": ranking.overall.visibility,
        "score": ranking.overall.score,
        "mentions": ranking.overall.mentions,
        "prompts": len({answer.prompt_index for answer in analysed.answers}),
        "by_provider": result["by_provider"],
        "competitors": result["competitors"],
        "cost_usd": ranking.cost_usd,
        "updated_at": now,
    }
    statement = insert_into(connection, website_rankings).values(
        business_id=business_id, day=now.astimezone(UTC).date(), created_at=now, **values
    )
    connection.execute(
        statement.on_conflict_do_update(index_elements=["business_id", "day"], set_=values | {"modified_at": Moment()})
    )


def _answer_row(analysis_id: int, answer: ProviderAnswer) -> dict[str, Any]:
    facts = {name: getattr(answer, name) for name in _FACTS}
    texts = {name: storable(facts[name]) for name in ("prompt", "answer", "error") if facts[name] is not None}
    return {
        "analysis_id": analysis_id,
        "prompt_index": answer.prompt_index,
        "provider": answer.provider,
        "status": answer.status.value,
        "mentions": null() if answer.sentiment is None else {"sentiment": answer.sentiment},
        **facts,
        **texts,
    }


ANSWERS_FOR = timedelta(days=180)
ANALYSES_FOR = timedelta(days=365)
SWEPT_AT_ONCE = 500  # analyses; the rest is deleted by the next run


def old_answers(connection: Connection, _settings: Settings, now: datetime) -> int:
    """Delete the texts of old answers; their results stay with the analysis.

    Never those of a website's last complete analysis, nor of one that may be resumed.
    """
    has_answers = exists().where(website_answers.c.analysis_id == website_analyses.c.id)
    ids = _lock_old(connection, now - ANSWERS_FOR, has_answers)
    statement = delete(website_answers).where(website_answers.c.analysis_id.in_(ids))
    return connection.execute(statement).rowcount


def old_analyses(connection: Connection, _settings: Settings, now: datetime) -> int:
    """Delete old analyses with their remaining answers, except the last of each website."""
    ids = _lock_old(connection, now - ANALYSES_FOR, website_analyses.c.id.not_in(newest_analyses()))
    connection.execute(delete(website_answers).where(website_answers.c.analysis_id.in_(ids)))
    statement = delete(website_analyses).where(website_analyses.c.id.in_(ids))
    return connection.execute(statement).rowcount


def _lock_old(connection: Connection, before: datetime, those: ColumnElement[bool]) -> list[int]:
    """Lock and return old analyses, without the last complete one and those a dead letter may requeue.

    Those that another transaction deletes or requeues now are left out.
    """
    may_go_on = exists().where(
        OPEN,
        dead_letters.c.task_kind.in_(KINDS),
        dead_letters.c.source_id == website_analyses.c.source_id,
        website_analyses.c.status == AnalysisStatus.FAILED.value,
    )
    query = (
        select(website_analyses.c.id)
        .where(
            website_analyses.c.finished_at < before,
            website_analyses.c.id.not_in(newest_analyses(IS_COMPLETE)),
            ~may_go_on,
            those,
        )
        .order_by(website_analyses.c.id)
        .limit(SWEPT_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    return list(connection.execute(query).scalars())
