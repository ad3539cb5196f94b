"""Questions, ledger entries and settings for a model server on loopback, with sane defaults."""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Row, select

from ingestion_pipeline.demo.model_server import ModelRequest, Reply, Say, Script, blank
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


class _OneThread(ThreadPoolExecutor):
    """An executor of one thread, which tells when something is to be executed."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self.has_more = threading.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        submitted = super().submit(fn, *args, **kwargs)
        self.has_more.set()
        return submitted


class HeldReply:
    """A model's script that replies when it is released, and a caller that is cancelled before the reply is booked."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._is_requested, self._is_released = threading.Event(), threading.Event()

    def __call__(self, _: ModelRequest) -> Reply:
        self._is_requested.set()
        self._is_released.wait(20)
        return self._reply

    async def cancel_before_booking(self, asking: Coroutine[Any, Any, Any]) -> None:
        """Ask; cancel while the booking of the reply waits for a thread."""
        loop, executor, may_book = asyncio.get_running_loop(), _OneThread(), threading.Event()
        loop.set_default_executor(executor)
        task = asyncio.create_task(asking)
        await _wait_beside(self._is_requested)
        loop.run_in_executor(None, may_book.wait, 20)
        executor.has_more.clear()
        self._is_released.set()
        await _wait_beside(executor.has_more)
        task.cancel()
        loop.call_soon(may_book.set)
        with pytest.raises(asyncio.CancelledError):
            await task


async def _wait_beside(event: threading.Event) -> None:
    """Wait in a thread that is not of the executor."""
    with ThreadPoolExecutor(max_workers=1) as waiting:
        assert await asyncio.get_running_loop().run_in_executor(waiting, event.wait, 20)


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


def in_turn(*replies: Reply) -> Script:
    """Return a script that gives the replies one by one, the last one for ever."""
    left = list(replies)
    lock = threading.Lock()

    def reply(_: ModelRequest) -> Reply:
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    return reply


def by_page(answers: Mapping[str, Mapping[str, Any]]) -> Script:
    """Return a script that gives the answer whose key is in the request, else an empty one."""

    def reply(request: ModelRequest) -> Reply:
        matching = next((answer for key, answer in answers.items() if key in request.text), None)
        return Say(text=json.dumps(blank(request.schema) if matching is None else matching))

    return reply
