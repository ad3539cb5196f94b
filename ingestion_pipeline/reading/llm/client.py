"""Asking a model: kept answers first, then the cheap model, then the strong one.

Each rung is asked once, and once more with the problems if its answer breaks the schema. Every
request is booked before it is sent. What is nobody's fault is raised as `Resource` (no model, no
money until a date, the server is busy), what may pass as `Transient`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from types import TracebackType
from typing import Self, assert_never
from weakref import WeakValueDictionary

from sqlalchemy import Connection

from ingestion_pipeline.reading.llm import wire
from ingestion_pipeline.reading.llm.budgets import Billing, estimated_usage
from ingestion_pipeline.reading.llm.formats import AnswerFormat, arguments
from ingestion_pipeline.reading.llm.ledger import (
    CACHE,
    Ledger,
    NewCall,
    Reserved,
    keep_answer,
    kept_answers,
)
from ingestion_pipeline.reading.llm.outcomes import (
    Answer,
    Answered,
    AnswerRefused,
    CutOff,
    Empty,
    Malformed,
    NoAnswer,
    OverBudget,
    Rejected,
    Unanswered,
    Usage,
    Violated,
)
from ingestion_pipeline.reading.llm.question import (
    Conversation,
    Question,
    conversation,
    without_strange_urls,
)
from ingestion_pipeline.reading.llm.schema import NotJson, parsed_object
from ingestion_pipeline.reading.llm.server import (
    Deadline,
    ModelServer,
    Patience,
    as_error,
    deadline,
)
from ingestion_pipeline.reading.llm.wire import Bad, Denied, Exchange, Said, ServerBusy, Unsupported
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks.errors import Resource, Transient

ASKED_TIMES = 2  # of one model: once, and once more with what was wrong
CLOSING_SECONDS = 0.2  # kept back from the deadline, to write down how it ended
LEAST_SECONDS = 0.05  # for a request that has waited for its reserve


class ModelTier(StrEnum):
    """Which model is asked."""

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


class ModelClient:
    """Asks the configured model; use it with `async with`, one for many questions at a time."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._ledger = Ledger(store, settings)
        self._server = ModelServer(store, settings)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self._server.close()

    async def ask(
        self, question: Question, billing: Billing, *, rungs: Sequence[ModelTier] = BOTH
    ) -> Answer:
        """The answer of the first rung that gives one; the same question costs once.

        Raises:
            Resource: no model is configured, a budget's period is used up, the server is busy.
            Transient: no answer in time, or one that is not of the protocol.
        """
        models = list(dict.fromkeys(self._model(rung) for rung in rungs))
        until = deadline(self._settings)
        async with self._turn(question.cache_key(models[0])):
            return await self._ask(question, billing, models, until)

    async def _ask(
        self, question: Question, billing: Billing, models: Sequence[str], until: Deadline
    ) -> Answer:
        if kept := await asyncio.to_thread(self._kept, question, billing, models):
            return kept
        if not self._settings.has_model:
            raise self._postponed(
                "no model configured: set OPENAI_API_KEY or OPENAI_BASE_URL", "no_model"
            )
        tries: list[NoAnswer] = []
        for model in models:
            asking = _Asking(question=question, billing=billing, model=model, until=until)
            outcome = await self._ask_model(asking, tries)
            if outcome is not None:
                return outcome
        return Unanswered(tries=tuple(tries))

    async def _ask_model(
        self, asking: _Asking, tries: list[NoAnswer]
    ) -> Answered | OverBudget | None:
        """The model's answer, or None with what it said instead added to `tries`."""
        talk = conversation(asking.question)
        for _ in range(ASKED_TIMES):
            outcome = await self._request(asking, talk)
            match outcome:
                case Answered():
                    return _checked(outcome, asking.question, tries)
                case OverBudget():
                    return outcome
                case Empty() | Malformed() | Violated():
                    tries.append(outcome)
                    said = "" if isinstance(outcome, Empty) else outcome.text
                    talk = talk.after(said, outcome.problems)
                case AnswerRefused() | CutOff() | Rejected():
                    tries.append(outcome)
                    return None
                case _:
                    assert_never(outcome)
        return None

    async def _request(
        self, asking: _Asking, talk: Conversation
    ) -> Answered | NoAnswer | OverBudget:
        """What the model says, after as many attempts and ways of asking as the server needs."""
        patience = Patience(self._settings, asking.until)
        asked = await self._server.format()
        while True:
            came = await self._call(asking, talk, asked)
            match came:
                case ServerBusy():
                    if not await patience.wait(came):
                        base_url = self._server.base_url
                        raise await asyncio.to_thread(
                            as_error, came, self._store, self._settings, base_url
                        )
                case Unsupported():
                    looser = await self._server.learn(asked, came.message)
                    if looser is None:
                        return Rejected(model=asking.model, usage=Usage(), message=came.message)
                    asked = looser
                case Bad():
                    return Rejected(model=asking.model, usage=Usage(), message=came.message)
                case Denied():
                    cure = "look at OPENAI_API_KEY, OPENAI_BASE_URL and the models' names"
                    raise self._postponed(
                        f"{self._server.base_url}: {came.message}; {cure}", came.code
                    )
                case _:
                    return came

    async def _call(
        self, asking: _Asking, talk: Conversation, asked: AnswerFormat
    ) -> Answered | NoAnswer | OverBudget | ServerBusy | Unsupported | Bad | Denied:
        """Reserve, send and settle one request; its answer is stored with its cost."""
        seconds = asking.until.seconds_left - CLOSING_SECONDS
        if seconds <= 0:
            raise Transient("no time is left to ask a model", code="model_timeout")
        question = asking.question
        request = arguments(
            asked,
            talk,
            question.schema,
            max_output_tokens=self._max_output(question),
            kept_apart_by=asking.billing.source_id,
        )
        call = self._new_call(asking, talk, asked)
        # At most half of the time is spent on the wait: a call without time is paid for nothing.
        reserved = await self._ledger.reserve_in_turn(call, seconds=seconds / 2)
        if isinstance(reserved, OverBudget):
            return reserved
        began = time.monotonic()
        request |= {"model": asking.model}
        seconds = max(asking.until.seconds_left - CLOSING_SECONDS, LEAST_SECONDS)
        async with self._ledger.settling_if_cancelled(reserved):
            came = await wire.exchange(self._server.client(), asked, request, seconds)
        latency_ms = round((time.monotonic() - began) * 1000)
        return await asyncio.to_thread(self._book, asking, asked, reserved, came, latency_ms)

    def _book(
        self,
        asking: _Asking,
        asked: AnswerFormat,
        reserved: Reserved,
        came: Exchange,
        latency_ms: int,
    ) -> Answered | NoAnswer | ServerBusy | Unsupported | Bad | Denied:
        if not isinstance(came, Said):
            is_charged = isinstance(came, ServerBusy | Bad) and came.may_be_charged
            self._ledger.fail(reserved, came.code, may_be_charged=is_charged, latency_ms=latency_ms)
            return came
        usage = came.usage or _guessed(reserved.estimate, came)
        outcome = judged(came, asking.question, asking.model, asked, usage)

        def store_answer(connection: Connection) -> None:
            if isinstance(outcome, Answered):
                self._keep(connection, asking, outcome)

        self._ledger.settle(
            reserved, usage, outcome.code, latency_ms=latency_ms, store_answer=store_answer
        )
        return outcome

    def _turn(self, key: str) -> asyncio.Lock:
        """Who asks the same at the same time waits, and finds the answer kept."""
        return self._turns.setdefault(key, asyncio.Lock())

    def _new_call(self, asking: _Asking, talk: Conversation, asked: AnswerFormat) -> NewCall:
        schema_bytes = len(asking.question.schema.as_text().encode())
        estimate = estimated_usage(
            input_bytes=talk.size_bytes + schema_bytes,
            output_tokens=self._max_output(asking.question),
        )
        return self._entry(asking.question, asking.billing, asking.model, asked.value, estimate)

    def _entry(
        self, question: Question, billing: Billing, model: str, way: str, estimate: Usage
    ) -> NewCall:
        return NewCall(
            billing=billing,
            provider=self._server.base_url,
            model=model,
            format=way,
            cache_key=question.cache_key(model),
            prompt_version=question.prompt.label,
            estimate=estimate,
        )

    def _kept(self, question: Question, billing: Billing, models: Sequence[str]) -> Answered | None:
        """The answer that one of the models gave before, checked against the page as it is now."""
        with self._store.read() as connection:
            found = kept_answers(connection, [question.cache_key(model) for model in models])
        for model in models:
            answer = found.get(question.cache_key(model))
            if answer is not None:
                self._ledger.note_cached(self._entry(question, billing, model, CACHE, Usage()))
                kept = Answered(model=model, usage=Usage(), data=answer, is_cached=True)
                return _checked(kept, question, ())
        return None

    def _keep(self, connection: Connection, asking: _Asking, outcome: Answered) -> None:
        keep_answer(
            connection,
            asking.question.cache_key(asking.model),
            outcome.data,
            model=asking.model,
            prompt_version=asking.question.prompt.label,
            now=self._store.clock.now(connection),
        )

    def _model(self, rung: ModelTier) -> str:
        match rung:
            case ModelTier.CHEAP:
                return self._settings.model_cheap
            case ModelTier.STRONG:
                return self._settings.model_strong
            case _:
                assert_never(rung)

    def _max_output(self, question: Question) -> int:
        return question.max_output_tokens or self._settings.models.max_output_tokens

    def _postponed(self, message: str, code: str) -> Resource:
        pause = timedelta(seconds=self._settings.models.unconfigured_wait_seconds)
        return Resource(message, until=self._store.now() + pause, code=code)


def judged(
    said: Said, question: Question, model: str, asked: AnswerFormat, usage: Usage
) -> Answered | NoAnswer:
    """What an answer of the server is worth."""
    if said.refusal is not None:
        return AnswerRefused(model=model, usage=usage, said=said.refusal)
    if said.is_cut:
        return CutOff(model=model, usage=usage)
    if not said.text.strip():
        return Empty(model=model, usage=usage)
    try:
        data = parsed_object(said.text, may_chat=asked is AnswerFormat.CHAT_PLAIN)
    except NotJson as error:
        return Malformed(model=model, usage=usage, text=said.text, problem=str(error))
    if problems := question.schema.problems(data):
        return Violated(model=model, usage=usage, text=said.text, problems=problems)
    return Answered(model=model, usage=usage, data=data)


def _checked(outcome: Answered, question: Question, tries: Sequence[NoAnswer]) -> Answered:
    data, dropped = without_strange_urls(dict(outcome.data), question.page)
    return replace(outcome, data=data, dropped=dropped, before=tuple(tries))


def _guessed(estimate: Usage, said: Said) -> Usage:
    """The tokens of an answer whose server does not count them."""
    words = said.text + (said.refusal or "")
    written = estimated_usage(input_bytes=len(words.encode()), output_tokens=0).input_tokens
    return replace(estimate, output_tokens=max(written, 1))
