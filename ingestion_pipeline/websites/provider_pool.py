"""Asks providers in plain words, each under its own limits; one's trouble never touches another.

Every request is booked before it is sent, as `reading.models` does it. A provider that refuses our
key, asks us to wait longer than an answer may take, or has no budget left is not asked again until
that may have changed: what is wanted of it meanwhile fails at once, with the same reason.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ingestion_pipeline.reading.models import wire
from ingestion_pipeline.reading.models.budgets import Billing
from ingestion_pipeline.reading.models.formats import AnswerFormat, known_format, remember_format
from ingestion_pipeline.reading.models.ledger import Ledger, NewCall, Reserved
from ingestion_pipeline.reading.models.outcomes import OverBudget, Usage
from ingestion_pipeline.reading.models.prices import cost_usd, estimated_usage
from ingestion_pipeline.reading.models.server import Deadline, Patience
from ingestion_pipeline.reading.models.wire import Bad, Busy, Denied, Exchange, Said, Unsupported
from ingestion_pipeline.settings import Provider, Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.urls import without_credentials
from ingestion_pipeline.websites.providers import provider_key
from ingestion_pipeline.work.errors import Resource

if TYPE_CHECKING:
    import openai

CALL_SITE = "website_answer"
PROMPT_VERSION = "website_answer@1"
CLOSING_SECONDS = 0.2  # kept back from the deadline, to write down how it ended
DENIED_SECONDS = 60.0  # a key is not mended sooner


@dataclass(frozen=True, slots=True, kw_only=True)
class Replied:
    """What a provider said, and what that took; `cost_usd` is None where no price is known."""

    text: str
    model: str
    model_version: str | None
    usage: Usage
    cost_usd: Decimal | None
    latency_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoReply:
    """Why a provider said nothing: `is_lasting` if an operator has to act, `wait` if it says so."""

    code: str
    message: str
    is_lasting: bool = False
    wait: timedelta | None = None


Reply = Replied | NoReply


@dataclass(frozen=True, slots=True)
class _Pause:
    """Until when a provider is not asked, and what is said instead."""

    until: float  # by the monotonic clock
    why: NoReply


class ProviderPool:
    """Open for a run: `async with`; many analyses share it, so that limits hold for all of them."""

    def __init__(self, store: Store, settings: Settings, providers: Sequence[Provider]) -> None:
        self._members = {one.name: _Member(store, settings, one) for one in providers}
        self.providers = tuple(providers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await asyncio.gather(*(member.close() for member in self._members.values()))

    async def ask(self, provider: str, prompt: str, *, source_id: str | None = None) -> Reply:
        """What that provider answers, within its deadline; only a lost database is raised."""
        return await self._members[provider].ask(prompt, source_id)


class _Member:
    """One provider: its client, its turns, its budget, and whether it is given a rest."""

    def __init__(self, store: Store, settings: Settings, provider: Provider) -> None:
        self._store = store
        self._settings = settings
        self._provider = provider
        self._ledger = Ledger(store, settings)
        self._turns = asyncio.Semaphore(provider.concurrency)
        self._base_url = without_credentials(provider.base_url).rstrip("/")
        self._client: openai.AsyncOpenAI | None = None
        self._format: AnswerFormat | None = None
        self._pause: _Pause | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def ask(self, prompt: str, source_id: str | None) -> Reply:
        async with self._turns:
            if self._pause is not None and time.monotonic() < self._pause.until:
                return self._pause.why
            reply = await self._asked(prompt, source_id)
            self._pause = self._pause_after(reply)
            return reply

    def _pause_after(self, reply: Reply) -> _Pause | None:
        """A rest, where the reason holds for every other question, too."""
        if isinstance(reply, Replied):
            return None
        seconds = DENIED_SECONDS if reply.is_lasting else 0.0
        seconds = reply.wait.total_seconds() if reply.wait is not None else seconds
        return _Pause(time.monotonic() + seconds, reply) if seconds else None

    async def _asked(self, prompt: str, source_id: str | None) -> Reply:
        until = Deadline(at=time.monotonic() + self._settings.website.answer_seconds)
        patience = Patience(self._settings, until)
        asked = await self._way()
        while True:
            try:
                came, booked = await self._call(prompt, source_id, asked, until)
            except Resource as error:
                wait = error.until - self._store.now()
                return NoReply(code=error.code, message=error.text, wait=wait)
            match came:
                case Said():
                    return self._said(came, booked)
                case Busy():
                    if await patience.wait(came):
                        continue
                    return self._busy(came)
                case Unsupported() if asked is AnswerFormat.RESPONSES:
                    asked = await self._learn(came.message)
                case Denied():
                    return self._no(came, is_lasting=True)
                case _:
                    return self._no(came)

    async def _call(
        self, prompt: str, source_id: str | None, asked: AnswerFormat, until: Deadline
    ) -> tuple[Exchange, _Booked]:
        """One request: booked, sent, settled."""
        limits = self._settings.website
        seconds = max(until.seconds_left - CLOSING_SECONDS, 0.05)
        call = self._new_call(prompt, source_id, asked)
        reserved = await asyncio.to_thread(self._ledger.reserve, call)
        if isinstance(reserved, OverBudget):  # of an extraction; these calls belong to none
            raise TypeError("a provider's call is billed to no extraction")
        began = time.monotonic()
        came = await wire.exchange(
            self._open(),
            asked,
            _request(asked, self._provider.model, prompt, limits.answer_tokens),
            seconds,
            max_bytes=limits.answer_bytes,
        )
        latency_ms = round((time.monotonic() - began) * 1000)
        return came, await asyncio.to_thread(self._book, reserved, came, latency_ms)

    def _new_call(self, prompt: str, source_id: str | None, asked: AnswerFormat) -> NewCall:
        provider = self._provider
        parts = (provider.name, provider.model, prompt)
        return NewCall(
            billing=Billing(
                call_site=CALL_SITE,
                source_id=source_id,
                provider=provider.name,
                provider_budget_usd=provider.budget_usd,
            ),
            provider=self._base_url,
            model=provider.model,
            format=asked.value,
            cache_key=hashlib.sha256("\n".join(parts).encode()).hexdigest(),
            prompt_version=PROMPT_VERSION,
            estimate=estimated_usage(
                input_bytes=len(prompt.encode()),
                output_tokens=self._settings.website.answer_tokens,
            ),
        )

    def _book(self, reserved: Reserved, came: Exchange, latency_ms: int) -> _Booked:
        if not isinstance(came, Said):
            is_charged = isinstance(came, Busy | Bad) and came.may_be_charged
            self._ledger.fail(reserved, came.code, may_be_charged=is_charged, latency_ms=latency_ms)
            return _Booked(usage=Usage(), cost_usd=None, latency_ms=latency_ms)
        usage = came.usage or _guessed(reserved.estimate, came.text)
        self._ledger.settle(reserved, usage, _verdict(came), latency_ms=latency_ms)
        cost = None if reserved.price is None else cost_usd(usage, reserved.price)
        return _Booked(usage=usage, cost_usd=cost, latency_ms=latency_ms)

    def _said(self, said: Said, booked: _Booked) -> Reply:
        """An answer that was cut off at its end is one: what comes first counts most."""
        verdict = _verdict(said)
        if verdict not in {"answered", "cut_off"}:
            shown = said.refusal or "it has no words"
            return NoReply(code=verdict, message=f"{self._base_url}: {shown}")
        return Replied(
            text=said.text,
            model=self._provider.model,
            model_version=said.model,
            usage=booked.usage,
            cost_usd=booked.cost_usd,
            latency_ms=booked.latency_ms,
        )

    def _busy(self, trouble: Busy) -> NoReply:
        wait = trouble.wait if trouble.is_shared else None
        return replace(self._no(trouble), wait=wait)

    def _no(self, came: Busy | Bad | Denied | Unsupported, *, is_lasting: bool = False) -> NoReply:
        message = f"{self._base_url}: {came.message}"
        return NoReply(code=came.code, message=message, is_lasting=is_lasting)

    def _open(self) -> openai.AsyncOpenAI:
        if self._client is None:
            key = provider_key(self._provider, self._settings)
            self._client = wire.open_client(key, self._provider.base_url)
        return self._client

    async def _way(self) -> AnswerFormat:
        """How the server wants to be asked in plain words: the newer way unless it is refused."""
        if self._format is None:
            known = await asyncio.to_thread(self._known_way)
            is_new = known is AnswerFormat.RESPONSES
            self._format = AnswerFormat.RESPONSES if is_new else AnswerFormat.CHAT_PLAIN
        return self._format

    def _known_way(self) -> AnswerFormat:
        with self._store.read() as connection:
            now = self._store.clock.now(connection)
            return known_format(connection, self._base_url, now=now)

    async def _learn(self, reason: str) -> AnswerFormat:
        """The older way from now on; how strictly it takes a schema is not known by that."""
        if self._format is not AnswerFormat.CHAT_PLAIN:
            self._format = AnswerFormat.CHAT_PLAIN
            await asyncio.to_thread(self._remember, reason)
        return AnswerFormat.CHAT_PLAIN

    def _remember(self, reason: str) -> None:
        with self._store.begin() as connection:
            now = self._store.clock.now(connection)
            remember_format(
                connection, self._base_url, AnswerFormat.CHAT_SCHEMA, reason=reason, now=now
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Booked:
    """What a call took."""

    usage: Usage
    cost_usd: Decimal | None
    latency_ms: int


def _request(asked: AnswerFormat, model: str, prompt: str, tokens: int) -> Mapping[str, Any]:
    """The prompt as a customer would type it: no instructions, no tools, nothing stored."""
    turns = [{"role": "user", "content": prompt}]
    if asked is AnswerFormat.RESPONSES:
        return {"model": model, "input": turns, "max_output_tokens": tokens, "store": False}
    return {"model": model, "messages": turns, "max_tokens": tokens}


def _verdict(said: Said) -> str:
    if said.refusal is not None:
        return "refused"
    if not said.text.strip():
        return "empty"
    return "cut_off" if said.is_cut else "answered"


def _guessed(estimate: Usage, text: str) -> Usage:
    """The tokens of an answer whose server does not count them."""
    written = estimated_usage(input_bytes=len(text.encode()), output_tokens=0).input_tokens
    return replace(estimate, output_tokens=max(written, 1))
