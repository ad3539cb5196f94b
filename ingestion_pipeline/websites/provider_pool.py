"""Asks providers in plain words, each under its own limits; one's trouble never touches another.

Every request is booked before it is sent, as `reading.models` does it. A provider that refuses our
key, asks us to wait longer than an answer may take, or has no budget left is not asked again until
that may have changed: what is wanted of it meanwhile fails at once, with the same reason.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import Connection

from ingestion_pipeline.reading.llm import wire
from ingestion_pipeline.reading.llm.budgets import Billing, cost_usd, estimated_usage
from ingestion_pipeline.reading.llm.formats import AnswerFormat, known_format, remember_format
from ingestion_pipeline.reading.llm.ledger import CheckClaim, Ledger, NewCall, Reserved
from ingestion_pipeline.reading.llm.outcomes import OverBudget, Usage
from ingestion_pipeline.reading.llm.server import Deadline, Patience
from ingestion_pipeline.reading.llm.wire import OPENAI, Bad, Denied, Said, ServerBusy, Unsupported
from ingestion_pipeline.settings import (
    BadSetting,
    Provider,
    Settings,
    is_provider_list,
    provider_list,
    providers_of,
    secret_variable,
)
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks.claims import LostClaim
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline.urls import host_of, without_credentials

if TYPE_CHECKING:
    import openai


DEFAULT = "default"
DEFAULT_CONCURRENCY = 4


def configured_providers(settings: Settings) -> tuple[Provider, ...]:
    """Those of the setting or of the file it names; else the model's server; else none.

    Raises:
        BadSetting: the file cannot be read, or what it says is wrong; all of it is named.
    """
    given = settings.website.providers.strip()
    if not given:
        return _default(settings)
    if is_provider_list(given):
        return provider_list(given)
    try:
        return providers_of(_document(Path(given)))
    except (OSError, ValueError) as error:
        raise BadSetting(
            f"setting website.providers names the file {given}: {error};"
            " mend the file, or give the list itself as JSON"
        ) from None


def asked_about(providers: Sequence[Provider], url: str) -> tuple[Provider, ...]:
    """Those who are asked about the website at `url`: all but who answers for other hosts."""
    host = f".{host_of(url)}"
    return tuple(one for one in providers if not one.host or host.endswith(f".{one.host}"))


def provider_key(
    provider: Provider, settings: Settings, environment: Mapping[str, str] | None = None
) -> str:
    """The provider's key; the model's own for the default one, none where none is named."""
    if provider.name == DEFAULT and not provider.key_env:
        return settings.openai_api_key.get_secret_value()
    return secret_variable(provider.key_env, environment).get_secret_value()


def _default(settings: Settings) -> tuple[Provider, ...]:
    if not settings.has_model:
        return ()
    return (
        Provider(
            name=DEFAULT,
            base_url=settings.openai_base_url or OPENAI,
            model=settings.model_cheap,
            concurrency=DEFAULT_CONCURRENCY,
        ),
    )


def _document(path: Path) -> object:
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML, too
    except yaml.YAMLError as error:
        raise ValueError(f"it is neither YAML nor JSON: {error}") from None


_NotSaid = ServerBusy | Bad | Denied | Unsupported

CALL_SITE = "website_answer"
PROMPT_VERSION = "website_answer@1"
CLOSING_SECONDS = 0.2  # kept back from the deadline, to write down how it ended
LEAST_SECONDS = 0.05  # for a request that has waited for its turn
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
    """Why a provider said nothing: `is_lasting` if an operator has to act, `wait` if it says so.

    A refusal or an empty reply has its cost, too.
    """

    code: str
    message: str
    usage: Usage | None = None
    cost_usd: Decimal | None = None
    is_lasting: bool = False
    wait: timedelta | None = None


Reply = Replied | NoReply
# Stores a reply in the transaction that settles its cost; raises if the work is no longer ours.
StoreReply = Callable[[Connection, Replied], None]


@dataclass(frozen=True, slots=True)
class _Pause:
    """Until when a provider is not asked, and what is said instead."""

    until: float  # by the monotonic clock
    why: NoReply


@dataclass(slots=True, kw_only=True)
class _Asking:
    """One question to one provider; `paid_usd` grows with each attempt that is charged."""

    prompt: str
    source_id: str | None
    until: Deadline
    store_reply: StoreReply | None
    check_claim: CheckClaim | None = None
    paid_usd: Decimal | None = None

    @property
    def seconds_left(self) -> float:
        return max(self.until.seconds_left - CLOSING_SECONDS, LEAST_SECONDS)

    def pay(self, cost: Decimal | None) -> None:
        self.paid_usd = added(self.paid_usd, cost)


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

    async def ask(
        self,
        provider: str,
        prompt: str,
        *,
        source_id: str | None = None,
        store_reply: StoreReply | None = None,
        check_claim: CheckClaim | None = None,
    ) -> Reply:
        """Return what that provider answers within its deadline; it is stored when it is paid.

        Raised is only what `store_reply` and `check_claim` raise, and a lost database. Nothing is
        sent, and nothing paid, for work that `check_claim` finds to be another worker's.
        """
        return await self._members[provider].ask(prompt, source_id, store_reply, check_claim)


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

    async def ask(
        self,
        prompt: str,
        source_id: str | None,
        store_reply: StoreReply | None,
        check_claim: CheckClaim | None,
    ) -> Reply:
        async with self._turns:
            if self._pause is not None and time.monotonic() < self._pause.until:
                return self._pause.why
            until = Deadline(at=time.monotonic() + self._settings.website.answer_seconds)
            asking = _Asking(
                prompt=prompt,
                source_id=source_id,
                until=until,
                store_reply=store_reply,
                check_claim=check_claim,
            )
            reply = await self._asked(asking)
            self._pause = self._pause_after(reply)
            return reply

    def _pause_after(self, reply: Reply) -> _Pause | None:
        """A rest, where the reason holds for every other question, too."""
        if isinstance(reply, Replied):
            return None
        seconds = DENIED_SECONDS if reply.is_lasting else 0.0
        seconds = reply.wait.total_seconds() if reply.wait is not None else seconds
        if not seconds:
            return None
        unpaid = replace(reply, usage=None, cost_usd=None)  # who is not asked pays nothing
        return _Pause(time.monotonic() + seconds, unpaid)

    async def _asked(self, asking: _Asking) -> Reply:
        patience = Patience(self._settings, asking.until)
        asked = await self._way()
        while True:
            try:
                came = await self._call(asking, asked)
            except Resource as error:
                wait = error.until - self._store.now()
                paid = asking.paid_usd
                return NoReply(code=error.code, message=error.text, wait=wait, cost_usd=paid)
            match came:
                case Replied() | NoReply():
                    return came
                case ServerBusy():
                    if await patience.wait(came):
                        continue
                    wait = came.wait if came.is_shared else None
                    return replace(self._no(came, asking), wait=wait)
                case Unsupported() if asked is AnswerFormat.RESPONSES:
                    asked = await self._learn(came.message)
                case Denied():
                    return replace(self._no(came, asking), is_lasting=True)
                case _:
                    return self._no(came, asking)

    async def _call(self, asking: _Asking, asked: AnswerFormat) -> Reply | _NotSaid:
        """Reserve, send and settle one request."""
        limits = self._settings.website
        call = self._new_call(asking, asked)
        client = self._open()  # the first time an import of seconds: before anything is reserved
        reserved = await self._reserve(asking, call)
        began = time.monotonic()
        async with self._ledger.settling_if_cancelled(reserved):
            came = await wire.exchange(
                client,
                asked,
                _request(asked, self._provider.model, asking.prompt, limits.answer_tokens),
                asking.seconds_left,
            )
        latency_ms = round((time.monotonic() - began) * 1000)
        if not isinstance(came, Said):
            is_charged = isinstance(came, ServerBusy | Bad) and came.may_be_charged
            fail = partial(self._ledger.fail, may_be_charged=is_charged, latency_ms=latency_ms)
            asking.pay(await asyncio.to_thread(fail, reserved, came.code))
            return came
        usage = came.usage or _guessed(reserved.estimate, came.text)
        asking.pay(None if reserved.price is None else cost_usd(usage, reserved.price))
        reply = self._reply(came, usage, latency_ms, asking.paid_usd)
        settle = partial(
            self._ledger.settle, reserved, usage, _verdict(came), latency_ms=latency_ms
        )
        await asyncio.to_thread(_settle, settle, reply, asking.store_reply)
        return reply

    async def _reserve(self, asking: _Asking, call: NewCall) -> Reserved:
        """Reserve the call's expected cost, however long others hold what is left of a budget.

        The wait ends: what they do not settle in time counts as spent. It is no part of the time
        that the provider has for its answer.
        """
        began = time.monotonic()
        reserved = await self._ledger.reserve_in_turn(call, seconds=math.inf)
        if isinstance(reserved, OverBudget):  # of an extraction; these calls belong to none
            raise TypeError("a provider's call is billed to no extraction")
        asking.until = Deadline(at=asking.until.at + time.monotonic() - began)
        return reserved

    def _new_call(self, asking: _Asking, asked: AnswerFormat) -> NewCall:
        provider, prompt = self._provider, asking.prompt
        parts = (provider.name, provider.model, prompt)
        return NewCall(
            billing=Billing(
                call_site=CALL_SITE,
                source_id=asking.source_id,
                provider=provider.name,
                provider_budget_usd=provider.budget_usd,
            ),
            provider=self._base_url,
            model=provider.model,
            format=asked.value,
            cache_key=hashlib.sha256("\n".join(parts).encode()).hexdigest(),
            prompt_version=PROMPT_VERSION,
            check_claim=asking.check_claim,
            estimate=estimated_usage(
                input_bytes=len(prompt.encode()),
                output_tokens=self._settings.website.answer_tokens,
            ),
        )

    def _reply(self, said: Said, usage: Usage, latency_ms: int, cost: Decimal | None) -> Reply:
        """An answer that was cut off at its end is one: what comes first counts most."""
        verdict = _verdict(said)
        if verdict not in {"answered", "cut_off"}:
            message = f"{self._base_url}: {said.refusal or 'it has no words'}"
            return NoReply(code=verdict, message=message, usage=usage, cost_usd=cost)
        return Replied(
            text=said.text,
            model=self._provider.model,
            model_version=said.model,
            usage=usage,
            cost_usd=cost,
            latency_ms=latency_ms,
        )

    def _no(self, came: _NotSaid, asking: _Asking) -> NoReply:
        message = f"{self._base_url}: {came.message}"
        return NoReply(code=came.code, message=message, cost_usd=asking.paid_usd)

    def _open(self) -> openai.AsyncOpenAI:
        if self._client is None:
            key = provider_key(self._provider, self._settings)
            self._client = wire.open_client(
                key, self._provider.base_url, max_bytes=self._settings.website.answer_bytes
            )
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


def added(paid: Decimal | None, cost: Decimal | None) -> Decimal | None:
    """Add two costs; None is one that is not known."""
    return cost if paid is None else paid + (cost or 0)


def _settle(settle: Callable[..., None], reply: Reply, store_reply: StoreReply | None) -> None:
    """Store the reply with its cost; the cost alone, if the reply may not be stored."""
    if store_reply is None or not isinstance(reply, Replied):
        settle()
        return

    def store_answer(connection: Connection) -> None:
        store_reply(connection, reply)

    try:
        settle(store_answer=store_answer)
    except LostClaim:
        settle()
        raise


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
