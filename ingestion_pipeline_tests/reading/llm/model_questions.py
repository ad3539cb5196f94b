"""Questions, ledger entries and settings for a model server on loopback, with sane defaults."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, select

from ingestion_pipeline.demo.model_server import Say
from ingestion_pipeline.reading.llm import (
    Answer,
    AnswerSchema,
    Billing,
    ModelClient,
    ModelTier,
    PageText,
    Prompt,
    Question,
)
from ingestion_pipeline.reading.llm.ledger import NewCall
from ingestion_pipeline.reading.llm.question import Usage
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import model_calls, model_spending

COURSE = AnswerSchema(
    name="course",
    schema={
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "credits": {"type": ["integer", "null"]},
            "kind": {"type": "string", "enum": ["lecture", "lab"]},
            "url": {"type": ["string", "null"]},
        },
        "required": ["title", "credits", "kind", "url"],
        "additionalProperties": False,
    },
)
PROMPT = Prompt(name="course", version=1, instructions="Find the course on the page.")
PAGE = "Biology 101\nA lecture of 3 credits. More at https://a.test/bio"
VALID_ANSWER = {"title": "Biology 101", "credits": 3, "kind": "lecture", "url": "https://a.test/bio"}
BILLING = Billing(call_site="extract", source_id="catalog:a", page_id=4, extraction_id=7)
PRICES = "cheap=1/0.1/2, strong=10/1/20"


def a_reply(answer: Any = None, **changes: Any) -> Say:
    """Return a model reply with this object, by default the valid answer."""
    return Say(text=json.dumps(VALID_ANSWER if answer is None else answer), **changes)


def a_question(text: str = PAGE, **changes: Any) -> Question:
    values: dict[str, Any] = {
        "prompt": PROMPT,
        "schema": COURSE,
        "page": PageText(text=text),
        "extractor_version": "1",
        "max_output_tokens": 100,
    }
    return Question(**(values | changes))


def settings_with_model(base_url: str, settings: Settings, **variables: str) -> Settings:
    """Return settings for the same database with a model at `base_url` and fast retries."""
    environment = {
        "INGESTION_HOME": str(settings.home),
        "INGESTION_DATABASE_URL": settings.database_url,
        "OPENAI_BASE_URL": base_url,
        "INGESTION_MODEL_CHEAP": "cheap",
        "INGESTION_MODEL_STRONG": "strong",
        "INGESTION_MODELS__PRICES": PRICES,
        "INGESTION_MODELS__BACKOFF_BASE_SECONDS": "0.06",
    }
    return load_settings(environment | variables)


def ask(
    store: Store,
    settings: Settings,
    question: Question | None = None,
    billing: Billing = BILLING,
    tiers: Sequence[ModelTier] = tuple(ModelTier),
) -> Answer:
    """Ask one question with a new client, as a run does."""

    async def run() -> Answer:
        async with ModelClient(store, settings) as client:
            return await client.ask(question or a_question(), billing, tiers=tiers)

    return asyncio.run(run())


def ask_in_a_process(database_url: str, home: str, base_url: str) -> None:
    """Ask in a separate process, which may be killed while it waits for the answer."""
    plain = {"INGESTION_DATABASE_URL": database_url, "INGESTION_HOME": home}
    ask(open_store(database_url), settings_with_model(base_url, load_settings(plain)))


def model_call_rows(store: Store) -> Sequence[Row[Any]]:
    """Return every recorded call, in order."""
    with store.read() as connection:
        return connection.execute(select(model_calls).order_by(model_calls.c.id)).all()


def held_by_scope(store: Store) -> dict[str, Any]:
    """Return the reserved amount of each budget scope."""
    with store.read() as connection:
        rows = connection.execute(select(model_spending.c.scope, model_spending.c.held_usd))
        return {row.scope: row.held_usd for row in rows}


def a_call(*, output_tokens: int = 100, model: str = "cheap", billing: Billing = BILLING) -> NewCall:
    """Return a call of the default extraction that reserves these tokens."""
    return NewCall(
        billing=billing,
        provider="http://127.0.0.1:1/v1",
        model=model,
        format="responses",
        cache_key="0" * 64,
        prompt_version="course@1.1",
        estimate=Usage(output_tokens=output_tokens, is_estimated=True),
    )
