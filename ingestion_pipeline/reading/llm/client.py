"""The model client: cached answers first, then the cheap model, then the strong one.

Each model is asked once, and once more with the problems if its answer breaks the schema. Every
request is recorded in the ledger before it is sent. What is nobody's fault is raised as `Resource`
(no model, no budget until a date, the server is busy), what may pass as `Transient`.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from types import TracebackType
from typing import Any, Self
from weakref import WeakValueDictionary

from sqlalchemy import Connection

from ingestion_pipeline.reading.llm import batch_lines, wire
from ingestion_pipeline.reading.llm.ledger import (
    CACHE,
    Billing,
    Ledger,
    NewCall,
    Reserved,
    cache_answer,
    cached_answers,
    counted_usage,
    estimated_usage,
    finish_in_thread,
)
from ingestion_pipeline.reading.llm.question import (
    Answer,
    Answered,
    Conversation,
    Fault,
    NoAnswer,
    OverBudget,
    Question,
    Unanswered,
    Usage,
    conversation,
    without_strange_urls,
)
from ingestion_pipeline.reading.llm.wire import (
    AnswerFormat,
    BadModelRequest,
    Deadline,
    Denied,
    Exchange,
    ModelServer,
    RetryTimer,
    ServerBusy,
    ServerReply,
    Unsupported,
    arguments,
    as_error,
    classify_reply,
    deadline,
)
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks.errors import Resource, Transient

UNCONFIGURED_WAIT = timedelta(hours=1)  # before what needs a model is tried again
ASKED_TIMES = 2  # per model: once, and once more with the problems
CLOSING_SECONDS = 0.2  # reserved before the deadline, to record the outcome
LEAST_SECONDS = 0.05  # for a request that has waited for its reserve


class ModelTier(StrEnum):
    """Which configured model is asked."""

    CHEAP = "cheap"
    STRONG = "strong"


BOTH = (ModelTier.CHEAP, ModelTier.STRONG)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """What stays the same while one question is asked of one model."""

    question: Question
    billing: Billing
    model: str
    until: Deadline


class _AnsweredMeanwhile(Exception):
    """Raised before a request whose answer another process has stored since the cache was read."""


class ModelClient:
    """A client of the configured model; use it with `async with`, for many questions at a time."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._ledger = Ledger(store, settings)
        self._server = ModelServer(store, settings)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._server.close()

    async def ask(self, question: Question, billing: Billing, *, tiers: Sequence[ModelTier] = BOTH) -> Answer:
        """Return the answer of the first tier that gives one; the same question costs once.

        Raises:
            Resource: no model is configured, a budget's period is used up, the server is busy.
            Transient: no answer in time, or one that is not of the protocol.
        """
        configured = {ModelTier.CHEAP: self._settings.model_cheap, ModelTier.STRONG: self._settings.model_strong}
        models = list(dict.fromkeys(configured[tier] for tier in tiers))
        until = deadline(self._settings)
        # A concurrent equal question waits, and finds the answer cached.
        async with self._turns.setdefault(question.cache_key(models[0]), asyncio.Lock()):
            return await self._ask(question, billing, models, until)

    async def _ask(self, question: Question, billing: Billing, models: Sequence[str], until: Deadline) -> Answer:
        if cached := await asyncio.to_thread(self._cached, question, billing, models):
            return cached
        if not self._settings.has_model:
            raise self._postponed("no model configured: set OPENAI_API_KEY or OPENAI_BASE_URL", "no_model")
        if self._settings.shadow:
            await asyncio.to_thread(self._note_unsent, question, billing, models[0])
            raise self._postponed("a shadow asks no model; `ingest shadow` counts what it would cost", "shadow")
        tries: list[NoAnswer] = []
        for model in models:
            asking = _Asking(question=question, billing=billing, model=model, until=until)
            try:
                outcome = await self._ask_model(asking, tries)
            except _AnsweredMeanwhile:
                outcome = await asyncio.to_thread(self._cached, question, billing, [model])
            if outcome is not None:
                return outcome
        return Unanswered(tries=tuple(tries))

    async def _ask_model(self, asking: _Asking, tries: list[NoAnswer]) -> Answered | OverBudget | None:
        """Return the model's answer, or None with its failed outcomes added to `tries`."""
        talk = conversation(asking.question)
        attempts = ASKED_TIMES
        if (failed := await self._by_batch(asking, talk)) is not None:
            tries.append(failed)
            attempts = ASKED_TIMES - 1 if failed.fault.is_repeatable else 0
            talk = talk.after(failed.text, failed.problems)
        for _ in range(attempts):
            outcome = await self._request(asking, talk)
            if isinstance(outcome, Answered):
                return _checked(outcome, asking.question, tries)
            if isinstance(outcome, OverBudget):
                return outcome
            tries.append(outcome)
            if not outcome.fault.is_repeatable:
                return None
            talk = talk.after(outcome.text, outcome.problems)
        return None

    async def _by_batch(self, asking: _Asking, talk: Conversation) -> NoAnswer | None:
        """Add the question to a batch if it may wait; return the failed answer that a batch gave, None if none did.

        Raises:
            Resource: the question waits in a batch.
            _AnsweredMeanwhile: the batch has answered.
        """
        may_wait = asking.billing.may_wait and self._settings.models.batch == "auto"
        answer_format = await self._server.format()
        if not may_wait or answer_format not in batch_lines.FORMATS:
            return None
        request = self._arguments(asking, talk, answer_format)
        call = self._entry(asking.question, asking.billing, asking.model, answer_format.value, Usage())
        line = await asyncio.to_thread(self._batch_line, call, request)
        return None if line is None else line.failed_answer(asking.model)

    def _batch_line(self, call: NewCall, request: Mapping[str, Any]) -> batch_lines.BatchLine | None:
        """Return the line with its outcome; None if the server has no batches."""
        with self._store.begin() as connection:
            now = self._store.clock.now(connection)
            if cached_answers(connection, [call.cache_key]):
                raise _AnsweredMeanwhile(call.cache_key)
            line = batch_lines.find_line(connection, call.cache_key)
            if line is None and batch_lines.is_refused(connection, call.provider, now=now):
                return None
            if line is None:
                wait = timedelta(seconds=self._settings.models.batch_seconds)
                batch_lines.add_line(connection, call, request, wait=wait, now=now)
        if line is None or line.outcome is None:
            raise batch_lines.waiting(now)
        return line

    def _arguments(self, asking: _Asking, talk: Conversation, answer_format: AnswerFormat) -> dict[str, Any]:
        return arguments(
            answer_format,
            talk,
            asking.question.schema,
            max_output_tokens=asking.question.max_output_tokens,
            kept_apart_by=asking.billing.source_id,
        )

    async def _request(self, asking: _Asking, talk: Conversation) -> Answered | NoAnswer | OverBudget:
        """Send the request, with as many attempts and answer formats as the server needs."""
        patience = RetryTimer(self._settings, asking.until)
        answer_format = await self._server.format()
        while True:
            response = await self._call(asking, talk, answer_format)
            match response:
                case ServerBusy():
                    if not await patience.wait(response):
                        base_url = self._server.base_url
                        raise await asyncio.to_thread(as_error, response, self._store, base_url)
                case Unsupported():
                    looser = await self._server.learn(answer_format, response.message)
                    if looser is None:
                        return _rejected(asking.model, response.message)
                    answer_format = looser
                case BadModelRequest():
                    return _rejected(asking.model, response.message)
                case Denied():
                    cure = "look at OPENAI_API_KEY, OPENAI_BASE_URL and the models' names"
                    raise self._postponed(f"{self._server.base_url}: {response.message}; {cure}", response.code)
                case _:
                    return response

    async def _call(
        self, asking: _Asking, talk: Conversation, answer_format: AnswerFormat
    ) -> Answered | NoAnswer | OverBudget | ServerBusy | Unsupported | BadModelRequest | Denied:
        """Reserve, send and settle one request; its answer is stored with its cost."""
        seconds = asking.until.seconds_left - CLOSING_SECONDS
        if seconds <= 0:
            raise Transient("no time is left to ask a model", code="model_timeout")
        question = asking.question
        request = self._arguments(asking, talk, answer_format)
        size = talk.size_bytes + len(question.schema.as_text().encode())
        estimate = estimated_usage(input_bytes=size, output_tokens=question.max_output_tokens)
        call = self._entry(question, asking.billing, asking.model, answer_format.value, estimate)
        call = replace(call, precondition=partial(self._check_unanswered, key=call.cache_key))
        # At most half of the time is spent on the wait: a call without time is paid for nothing.
        reserved = await self._ledger.reserve_in_turn(call, seconds=seconds / 2)
        if isinstance(reserved, OverBudget):
            return reserved
        began = time.monotonic()
        request |= {"model": asking.model}
        seconds = max(asking.until.seconds_left - CLOSING_SECONDS, LEAST_SECONDS)
        async with self._ledger.settling_if_cancelled(reserved):
            response = await wire.exchange(self._server.client(), answer_format, request, seconds)
        latency_ms = round((time.monotonic() - began) * 1000)
        return await finish_in_thread(self._book, asking, answer_format, reserved, response, latency_ms)

    def _book(
        self, asking: _Asking, answer_format: AnswerFormat, reserved: Reserved, response: Exchange, latency_ms: int
    ) -> Answered | NoAnswer | ServerBusy | Unsupported | BadModelRequest | Denied:
        if not isinstance(response, ServerReply):
            is_charged = isinstance(response, ServerBusy | BadModelRequest) and response.may_be_charged
            self._ledger.fail(reserved, response.code, may_be_charged=is_charged, latency_ms=latency_ms)
            return response
        words = response.text + (response.refusal or "")
        usage = counted_usage(response.usage, words, reserved.estimate)
        outcome = classify_reply(response, asking.question.schema, asking.model, answer_format, usage)

        def store_answer(connection: Connection) -> None:
            if isinstance(outcome, Answered):
                cache_answer(
                    connection,
                    asking.question.cache_key(asking.model),
                    outcome.data,
                    model=asking.model,
                    prompt_version=asking.question.prompt.label,
                    now=self._store.clock.now(connection),
                )

        code = outcome.fault if isinstance(outcome, NoAnswer) else "answered"
        self._ledger.settle(reserved, usage, code, latency_ms=latency_ms, store_answer=store_answer)
        return outcome

    def _entry(self, question: Question, billing: Billing, model: str, way: str, estimate: Usage) -> NewCall:
        return NewCall(
            billing=billing,
            provider=self._server.base_url,
            model=model,
            format=way,
            cache_key=question.cache_key(model),
            prompt_version=question.prompt.label,
            estimate=estimate,
        )

    def _note_unsent(self, question: Question, billing: Billing, model: str) -> None:
        size = conversation(question).size_bytes + len(question.schema.as_text().encode())
        estimate = estimated_usage(input_bytes=size, output_tokens=question.max_output_tokens)
        self._ledger.note_unsent(self._entry(question, billing, model, CACHE, estimate))

    def _cached(self, question: Question, billing: Billing, models: Sequence[str]) -> Answered | None:
        """Return a cached answer of one of the models, checked against the current page."""
        with self._store.read() as connection:
            stored = cached_answers(connection, [question.cache_key(model) for model in models])
        for model in models:
            if (answer := stored.get(question.cache_key(model))) is not None:
                self._ledger.note_cached(self._entry(question, billing, model, CACHE, Usage()))
                cached = Answered(model=model, usage=Usage(), data=answer, is_cached=True)
                return _checked(cached, question, ())
        return None

    def _check_unanswered(self, connection: Connection, key: str) -> None:
        """Raise if the answer is stored by now, or is paid for in a batch that was sent."""
        if cached_answers(connection, [key]):
            raise _AnsweredMeanwhile(key)
        line = batch_lines.find_line(connection, key)
        if line is not None and line.is_sent:
            raise batch_lines.waiting(self._store.clock.now(connection))

    def _postponed(self, message: str, code: str) -> Resource:
        return Resource(message, until=self._store.now() + UNCONFIGURED_WAIT, code=code)


def open_model(
    store: Store, settings: Settings, *, is_needed: bool = True
) -> AbstractAsyncContextManager[ModelClient | None]:
    """Return the client to enter with `async with`; it is None where no model is configured or needed."""
    return ModelClient(store, settings) if is_needed and settings.has_model else nullcontext()


def _rejected(model: str, message: str) -> NoAnswer:
    """Return the outcome of a request that the server did not accept: too long, say."""
    return NoAnswer(fault=Fault.REJECTED, model=model, usage=Usage(), problems=(message,))


def _checked(outcome: Answered, question: Question, tries: Sequence[NoAnswer]) -> Answered:
    data, dropped = without_strange_urls(dict(outcome.data), question.page)
    return replace(outcome, data=data, dropped=dropped, before=tuple(tries))
