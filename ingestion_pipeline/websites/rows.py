"""Rows that an analysis writes: its business, its answers, and the ranking of the day.

Each has a natural key, so that writing it twice has the effect of writing it once. The caller's
transaction checks the claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from sqlalchemy import Connection, bindparam, null, select, update

from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import businesses, website_answers, website_rankings
from ingestion_pipeline.store.types import Json, Moment
from ingestion_pipeline.tasks.errors import storable
from ingestion_pipeline.websites.analysis import ProviderAnswer, WebsiteAnalysed
from ingestion_pipeline.websites.business import Business
from ingestion_pipeline.websites.naming import Mentions
from ingestion_pipeline.websites.states import AnswerStatus

_ANSWER = "prompt model model_version status answer error input_tokens output_tokens cost_usd mentions"
_ANSWER_COLUMNS = _ANSWER.split()


def upsert_business(connection: Connection, business: Business, *, now: datetime) -> int:
    """Insert or update the business at this address; return its id."""
    values = business.as_json()
    facts = {name: values[name] for name in values if name not in {"url"}} | {"updated_at": now}
    statement = insert_into(connection, businesses).values(
        url=business.url, url_key=business.key, created_at=now, **facts
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
    rows = [_answer_row(analysis_id, answer, now) | {"run_id": run_id} for answer in answers]
    statement = insert_into(connection, website_answers).values(rows)
    excluded = statement.excluded
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["analysis_id", "prompt_index", "provider"],
            set_={name: excluded[name] for name in (*_ANSWER_COLUMNS, "created_at", "run_id")}
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
            prompt_index=row.prompt_index,
            prompt=row.prompt,
            provider=row.provider,
            model=row.model,
            status=AnswerStatus(row.status),
            is_direct=row.prompt_index in direct,
            model_version=row.model_version,
            answer=row.answer,
            error=row.error,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            cost_usd=row.cost_usd,
            sentiment=_sentiment(row.mentions),
        )
        for row in connection.execute(query)
    ]


def _sentiment(mentions: object) -> str | None:
    if not isinstance(mentions, Mapping):
        return None
    return cast("Mapping[str, str | None]", mentions).get("sentiment")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedAnalysis:
    """The business of a ranking, and its analysis."""

    business_id: int
    analysis_id: int


def upsert_ranking(connection: Connection, ranked: RankedAnalysis, analysed: WebsiteAnalysed, *, now: datetime) -> None:
    """Upsert the ranking of business and day (UTC): a later analysis replaces an earlier one."""
    ranking = analysed.ranking
    values: dict[str, Any] = {
        "analysis_id": ranked.analysis_id,
        "visibility": ranking.overall.visibility,
        "score": ranking.overall.score,
        "mentions": ranking.overall.mentions,
        "prompts": len({answer.prompt_index for answer in analysed.answers}),
        "by_provider": ranking.providers_as_json(),
        "competitors": ranking.competitors_as_json(),
        "cost_usd": ranking.cost_usd,
        "updated_at": now,
    }
    statement = insert_into(connection, website_rankings).values(
        business_id=ranked.business_id, day=now.astimezone(UTC).date(), created_at=now, **values
    )
    connection.execute(
        statement.on_conflict_do_update(index_elements=["business_id", "day"], set_=values | {"modified_at": Moment()})
    )


def _answer_row(analysis_id: int, answer: ProviderAnswer, now: datetime) -> dict[str, Any]:
    mentions = null() if answer.sentiment is None else {"sentiment": answer.sentiment}
    return {
        "analysis_id": analysis_id,
        "prompt_index": answer.prompt_index,
        "prompt": storable(answer.prompt),
        "provider": answer.provider,
        "model": answer.model,
        "model_version": answer.model_version,
        "status": answer.status.value,
        "answer": None if answer.answer is None else storable(answer.answer),
        "error": None if answer.error is None else storable(answer.error),
        "input_tokens": answer.input_tokens,
        "output_tokens": answer.output_tokens,
        "cost_usd": answer.cost_usd,
        "mentions": mentions,
        "created_at": now,
    }
