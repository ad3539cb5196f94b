"""Clients of the answer providers, each with its own limits; a failing one affects no other.

Every request is reserved in the ledger before it is sent, as `reading.llm` does it. A provider
that refuses our key, asks us to wait longer than an answer may take, or has no budget left is
paused: meanwhile its requests fail at once, with the same reason.
"""

import asyncio
import hashlib
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import Connection

from ingestion_pipeline.reading.llm import wire
from ingestion_pipeline.reading.llm.ledger import (
    Billing,
    Ledger,
    NewCall,
    Precondition,
    Reserved,
    cost_usd,
    estimated_usage,
    finish_in_thread,
)
from ingestion_pipeline.reading.llm.question import OverBudget, Usage
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
from ingestion_pipeline.urls import BadUrl, canonical_url, host_of, without_credentials, without_secrets

if TYPE_CHECKING:
    import openai


DEFAULT = "default"
DEFAULT_CONCURRENCY = 4


def configured_providers(settings: Settings) -> tuple[Provider, ...]:
    """Return the providers of the setting or its file; else the model's server; else none.

    Raises:
        BadSetting: the file cannot be read or is invalid; all problems are named.
    """
    setting = settings.website.providers.strip()
    if settings.shadow or (not setting and not settings.has_model):
        return ()
    if not setting:
        url = settings.openai_base_url or wire.OPENAI
        return (Provider(name=DEFAULT, base_url=url, model=settings.model_cheap, concurrency=DEFAULT_CONCURRENCY),)
    if is_provider_list(setting):
        return provider_list(setting)
    import yaml

    try:
        return providers_of(yaml.safe_load(Path(setting).read_text(encoding="utf-8")))  # JSON is YAML, too
    except yaml.YAMLError as error:
        raise _bad_file(setting, f"it is neither YAML nor JSON: {error}") from None
    except (OSError, ValueError) as error:
        raise _bad_file(setting, str(error)) from None


def _bad_file(path: str, problem: str) -> BadSetting:
    cure = "fix the file, or give the list itself as JSON"
    return BadSetting(f"setting website.providers names the file {path}: {problem}; {cure}")


def providers_for(providers: Sequence[Provider], url: str) -> tuple[Provider, ...]:
    """Return the providers to ask about the website at `url`: not those for other hosts."""
    host = f".{host_of(url)}"
    return tuple(provider for provider in providers if not provider.host or host.endswith(f".{provider.host}"))


def cited_urls(text: str, stated: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses that the provider states as sources and those in the text, each once, canonical."""
    urls: dict[str, None] = {}
    for url in (*stated, *(match[0].rstrip(".,;:!?*_") for match in _URL.finditer(text))):
        with suppress(BadUrl):
            urls[without_secrets(canonical_url(url))] = None
    return tuple(urls)[:MOST_CITED]


def provider_key(provider: Provider, settings: Settings, environment: Mapping[str, str] | None = None) -> str:
    """Return the provider's key; the model's own for the default one, empty if none is named."""
    if provider.name == DEFAULT and not provider.key_env:
        return settings.openai_api_key.get_secret_value()
    return secret_variable(provider.key_env, environment).get_secret_value()


_NotSaid = wire.ServerBusy | wire.BadModelRequest | wire.Denied | wire.Unsupported

CALL_SITE = "website_answer"
PROMPT_VERSION = "website_answer@1"
MOST_CITED = 100  # addresses of one answer
_URL = re.compile(r"https?://[^\s<>()\[\]\"'`|]{1,2000}", re.IGNORECASE)
ANSWER_TOKENS = 1_024  # an answer is cut there
ANSWER_BYTES = 1_000_000  # a longer answer is refused
CLOSING_SECONDS = 0.2  # reserved at the end of the deadline, to write the result
LEAST_SECONDS = 0.05  # minimum for a request that has waited for a slot
DENIED_SECONDS = 60.0  # a wrong key is not replaced sooner


@dataclass(frozen=True, slots=True, kw_only=True)
class Replied:
    """A provider's reply and its cost; `cost_usd` is None where no price is known."""

    text: str
    model: str
    model_version: str | None
    usage: Usage
    cost_usd: Decimal | None
    cited_urls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoReply:
    """Why a provider did not reply: `is_lasting` if an operator has to act, `wait` if it says so.

    A refusal or an empty reply has its cost, too.
    """

    code: str
    message: str
    usage: Usage | None = None
    cost_usd: Decimal | None = None
    is_lasting: bool = False
    wait: timedelta | None = None


Reply = Replied | NoReply
# Stores a reply in the transaction that settles its cost; raises if the claim was lost.
StoreReply = Callable[[Connection, Replied], None]


@dataclass(slots=True, kw_only=True)
class _ProviderRequest:
    """One prompt to one provider; `paid_usd` grows with each attempt that is charged."""

    prompt: str
    source_id: str | None
    store_reply: StoreReply | None
    check_claim: Precondition | None
    paid_usd: Decimal | None = None
    until: wire.Deadline = field(init=False)

    @property
    def seconds_left(self) -> float:
        return max(self.until.seconds_left - CLOSING_SECONDS, LEAST_SECONDS)

    def pay(self, cost: Decimal | None) -> None:
        self.paid_usd = add_costs(self.paid_usd, cost)


class ProviderPool:
    """The providers of a run: use it with `async with`; all analyses share its limits."""

    def __init__(self, store: Store, settings: Settings, providers: Sequence[Provider]) -> None:
        self._members = {provider.name: _Member(store, settings, provider) for provider in providers}
        self.providers = tuple(providers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(member.close() for member in self._members.values()))

    async def ask(
        self,
        provider: str,
        prompt: str,
        *,
        source_id: str | None = None,
        store_reply: StoreReply | None = None,
        check_claim: Precondition | None = None,
    ) -> Reply:
        """Return the provider's reply within its deadline; it is stored with its cost.

        Raises only what `store_reply` and `check_claim` raise, and a lost database. Nothing is
        sent, and nothing paid, for work that `check_claim` finds to be another worker's.
        """
        request = _ProviderRequest(prompt=prompt, source_id=source_id, store_reply=store_reply, check_claim=check_claim)
        return await self._members[provider].ask(request)


class _Member:
    """One provider: its client, its concurrency limit, its budget and its pause."""

    def __init__(self, store: Store, settings: Settings, provider: Provider) -> None:
        self._store = store
        self._settings = settings
        self._provider = provider
        self._ledger = Ledger(store, settings)
        self._turns = asyncio.Semaphore(provider.concurrency)
        self._base_url = without_credentials(provider.base_url).rstrip("/")
        self._client: openai.AsyncOpenAI | None = None
        self._format: wire.AnswerFormat | None = None
        self._paused_until = 0.0  # by the monotonic clock
        self._pause_reply: NoReply | None = None  # what is returned meanwhile

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def ask(self, request: _ProviderRequest) -> Reply:
        async with self._turns:
            if self._pause_reply is not None and time.monotonic() < self._paused_until:
                return self._pause_reply
            request.until = wire.Deadline(at=time.monotonic() + self._settings.website.answer_seconds)
            reply = await self._ask_with_retries(request)
            self._pause_after(reply)
            return reply

    def _pause_after(self, reply: Reply) -> None:
        """Pause if the reason holds for every other request, too."""
        self._pause_reply = None
        if isinstance(reply, Replied):
            return
        seconds = DENIED_SECONDS if reply.is_lasting else 0.0
        seconds = reply.wait.total_seconds() if reply.wait is not None else seconds
        if seconds:
            self._paused_until = time.monotonic() + seconds
            self._pause_reply = replace(reply, usage=None, cost_usd=None)  # a request that is not sent costs nothing

    async def _ask_with_retries(self, request: _ProviderRequest) -> Reply:
        patience = wire.RetryTimer(self._settings, request.until)
        answer_format = await self._answer_format()
        while True:
            try:
                outcome = await self._call(request, answer_format)
            except Resource as error:
                wait = error.until - self._store.now()
                return NoReply(code=error.code, message=error.text, wait=wait, cost_usd=request.paid_usd)
            match outcome:
                case Replied() | NoReply():
                    return outcome
                case wire.ServerBusy():
                    if await patience.wait(outcome):
                        continue
                    wait = outcome.wait if outcome.is_shared else None
                    return replace(self._no_reply(outcome, request), wait=wait)
                case wire.Unsupported() if answer_format is wire.AnswerFormat.RESPONSES:
                    answer_format = await self._fall_back_to_chat(outcome.message)
                case wire.Denied():
                    return replace(self._no_reply(outcome, request), is_lasting=True)
                case _:
                    return self._no_reply(outcome, request)

    async def _call(self, request: _ProviderRequest, answer_format: wire.AnswerFormat) -> Reply | _NotSaid:
        client = self._open()  # the first time it imports for seconds: do it before reserving
        reserved = await self._reserve(request, answer_format)
        began = time.monotonic()
        async with self._ledger.settling_if_cancelled(reserved):
            outcome = await wire.exchange(
                client,
                answer_format,
                _request(answer_format, self._provider.model, request.prompt, ANSWER_TOKENS),
                request.seconds_left,
            )
        latency_ms = round((time.monotonic() - began) * 1000)
        if not isinstance(outcome, wire.ServerReply):
            is_charged = isinstance(outcome, wire.ServerBusy | wire.BadModelRequest) and outcome.may_be_charged
            fail = partial(self._ledger.fail, may_be_charged=is_charged, latency_ms=latency_ms)
            request.pay(await finish_in_thread(fail, reserved, outcome.code))
            return outcome
        usage = outcome.usage or _estimated_tokens(reserved.estimate, outcome.text)
        request.pay(None if reserved.price is None else cost_usd(usage, reserved.price))
        reply = self._reply(outcome, usage, request.paid_usd)
        settle = partial(self._ledger.settle, reserved, usage, _reply_code(outcome), latency_ms=latency_ms)
        await finish_in_thread(_settle, settle, reply, request.store_reply)
        return reply

    async def _reserve(self, request: _ProviderRequest, answer_format: wire.AnswerFormat) -> Reserved:
        """Reserve the call's expected cost, however long others hold what is left of a budget.

        The wait ends: what others do not settle in time counts as spent. It does not count as time
        that the provider has for its answer.
        """
        provider, prompt = self._provider, request.prompt
        identity = "\n".join((provider.name, provider.model, prompt))
        call = NewCall(
            billing=Billing(
                call_site=CALL_SITE,
                source_id=request.source_id,
                provider=provider.name,
                provider_budget_usd=provider.budget_usd,
            ),
            provider=self._base_url,
            model=provider.model,
            format=answer_format.value,
            cache_key=hashlib.sha256(identity.encode()).hexdigest(),
            prompt_version=PROMPT_VERSION,
            precondition=request.check_claim,
            estimate=estimated_usage(input_bytes=len(prompt.encode()), output_tokens=ANSWER_TOKENS),
        )
        began = time.monotonic()
        reserved = await self._ledger.reserve_in_turn(call, seconds=math.inf)
        if isinstance(reserved, OverBudget):  # of an extraction; these calls belong to none
            raise TypeError("a provider's call is billed to no extraction")
        request.until = wire.Deadline(at=request.until.at + time.monotonic() - began)
        return reserved

    def _reply(self, answer: wire.ServerReply, usage: Usage, cost: Decimal | None) -> Reply:
        """Return the reply; an answer cut off at its end counts: what comes first matters most."""
        code = _reply_code(answer)
        if code not in {"answered", "cut_off"}:
            message = f"{self._base_url}: {answer.refusal or 'the reply is empty'}"
            return NoReply(code=code, message=message, usage=usage, cost_usd=cost)
        return Replied(
            text=answer.text,
            model=self._provider.model,
            model_version=answer.model,
            usage=usage,
            cost_usd=cost,
            cited_urls=cited_urls(answer.text, answer.cited_urls),
        )

    def _no_reply(self, outcome: _NotSaid, request: _ProviderRequest) -> NoReply:
        message = f"{self._base_url}: {outcome.message}"
        return NoReply(code=outcome.code, message=message, cost_usd=request.paid_usd)

    def _open(self) -> "openai.AsyncOpenAI":
        if self._client is None:
            key = provider_key(self._provider, self._settings)
            self._client = wire.open_client(key, self._provider.base_url, max_bytes=ANSWER_BYTES)
        return self._client

    async def _answer_format(self) -> wire.AnswerFormat:
        """Return the API format for plain prompts: the newer one unless the server refuses it."""
        if self._format is None:
            stored = await asyncio.to_thread(self._stored_format)
            is_new = stored is wire.AnswerFormat.RESPONSES
            self._format = wire.AnswerFormat.RESPONSES if is_new else wire.AnswerFormat.CHAT_PLAIN
        return self._format

    def _stored_format(self) -> wire.AnswerFormat:
        with self._store.read() as connection:
            return wire.known_format(connection, self._base_url, now=self._store.clock.now(connection))

    async def _fall_back_to_chat(self, reason: str) -> wire.AnswerFormat:
        """Switch to the older format and store it; its schema support stays unknown."""
        if self._format is not wire.AnswerFormat.CHAT_PLAIN:
            self._format = wire.AnswerFormat.CHAT_PLAIN
            await asyncio.to_thread(self._store_format, reason)
        return wire.AnswerFormat.CHAT_PLAIN

    def _store_format(self, reason: str) -> None:
        with self._store.begin() as connection:
            now = self._store.clock.now(connection)
            wire.remember_format(connection, self._base_url, wire.AnswerFormat.CHAT_SCHEMA, reason=reason, now=now)


def add_costs(paid: Decimal | None, cost: Decimal | None) -> Decimal | None:
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


def _request(answer_format: wire.AnswerFormat, model: str, prompt: str, tokens: int) -> Mapping[str, Any]:
    """Return the request as a customer would type it: no instructions, no tools, nothing stored."""
    turns = [{"role": "user", "content": prompt}]
    if answer_format is wire.AnswerFormat.RESPONSES:
        return {"model": model, "input": turns, "max_output_tokens": tokens, "store": False}
    return {"model": model, "messages": turns, "max_tokens": tokens}


def _reply_code(answer: wire.ServerReply) -> str:
    if answer.refusal is not None:
        return "refused"
    if not answer.text.strip():
        return "empty"
    return "cut_off" if answer.is_cut else "answered"


def _estimated_tokens(estimate: Usage, text: str) -> Usage:
    """Return the usage of an answer whose server does not report it."""
    written = estimated_usage(input_bytes=len(text.encode()), output_tokens=0).input_tokens
    return replace(estimate, output_tokens=max(written, 1))
