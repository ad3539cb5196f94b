"""Answers that were paid for: the same question has the same answer, and is not asked again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection, select

from ingestion_pipeline.store.insert import insert_into
from ingestion_pipeline.store.tables import model_answers


def kept_answers(connection: Connection, keys: Sequence[str]) -> dict[str, dict[str, object]]:
    """The answers under those keys, as the models gave them."""
    query = select(model_answers.c.cache_key, model_answers.c.answer)
    rows = connection.execute(query.where(model_answers.c.cache_key.in_(keys)))
    return {row.cache_key: row.answer for row in rows}


def keep_answer(
    connection: Connection,
    key: str,
    answer: Mapping[str, object],
    *,
    model: str,
    prompt_version: str,
    now: datetime,
) -> None:
    """The answer is there afterwards; of two at the same time the first stays."""
    statement = insert_into(connection, model_answers).values(
        cache_key=key,
        model=model,
        prompt_version=prompt_version,
        answer=dict(answer),
        created_at=now,
    )
    connection.execute(statement.on_conflict_do_nothing(index_elements=["cache_key"]))
