"""The model's server: its client, one request in the format it supports, the classified reply, deadlines, retries.

The openai client is the only part that knows the transport; the body is read here and not by `.parse()`, whose errors
lose the usage. Its own retries are off: it would sleep past every lease. The address guard exempts this server.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sqlalchemy import Connection, select

from ingestion_pipeline.reading.llm.question import (
    Answered,
    AnswerSchema,
    Conversation,
    Fault,
    NoAnswer,
    NotJson,
    Usage,
    parsed_object,
)
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.statements import insert_into
from ingestion_pipeline.store.tables import model_endpoints
from ingestion_pipeline.tasks.ended_tasks import LONGEST, http_date, retry_after
from ingestion_pipeline.tasks.errors import Resource, Transient, WorkError
from ingestion_pipeline.urls import without_credentials

if TYPE_CHECKING:
    import httpx2
    import openai

Received = TypeVar("Received")
OPENAI = "https://api.openai.com/v1"
# An answer of a million tokens, the most that a setting allows, has some five million.
MAX_ANSWER_BYTES = 8_000_000
_FRAMING = frozenset({"content-encoding", "content-length", "transfer-encoding"})
MESSAGE_CHARS = 300  # a server may quote the page in its error; so much is enough to know it by
_BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_NO_MONEY = re.compile(r"insufficient_quota|billing|exceeded your current quota", re.IGNORECASE)
_KEY = re.compile(r"\b(sk|key|Bearer)[-_ ][\w*.-]{6,}")


CACHE_KEY_CHARS = 64  # OpenAI takes no longer one, and our ids may have 120
_IN_WORDS = "Answer with one JSON object and nothing else. Its JSON schema:"
# What servers say of a format they do not know; llama_cpp.server says it with a 500:
# "Input should be 'text' or 'json_object'".
_ABOUT_FORMAT = re.compile(
    r"response_format|json_schema|json_object|text\.format|structured[ _]output|guided", re.IGNORECASE
)
_ABOUT_ARGUMENT = re.compile(
    r"(unknown|unsupported|unrecognized|unexpected) (request )?(parameter|argument|field)"
    r"|extra (inputs|fields)|not permitted",
    re.IGNORECASE,
)
_BAD_SCHEMA = re.compile(r"invalid[ _](json_)?schema", re.IGNORECASE)
_NO_SUCH_WAY = frozenset({404, 405, 501})
_REFUSALS = frozenset({400, 404, 415, 422, 500, 501})


class AnswerFormat(StrEnum):
    """How a request states the form that the answer must have."""

    RESPONSES = "responses"
    CHAT_SCHEMA = "chat_schema"
    CHAT_OBJECT = "chat_object"
    CHAT_PLAIN = "chat_plain"

    @property
    def looser(self) -> AnswerFormat | None:
        """Return the next looser format, None after the last."""
        order = list(AnswerFormat)
        return next(iter(order[order.index(self) + 1 :]), None)


def arguments(
    answer_format: AnswerFormat,
    conversation: Conversation,
    schema: AnswerSchema,
    *,
    max_output_tokens: int,
    kept_apart_by: str | None,
) -> dict[str, Any]:
    """Return the arguments of the client's `create` but for the model: no tools, stream or storage.

    Questions with the same `kept_apart_by` share the provider's prompt cache.
    """
    turns = [{"role": turn.role, "content": turn.text} for turn in conversation.turns]
    strict = {"name": schema.name, "schema": dict(schema.schema), "strict": True}
    if answer_format is AnswerFormat.RESPONSES:
        cache_argument = {"prompt_cache_key": _short(kept_apart_by)} if kept_apart_by else {}
        return {
            "instructions": conversation.instructions,
            "input": turns,
            "text": {"format": {"type": "json_schema", **strict}},
            "max_output_tokens": max_output_tokens,
            "store": False,
            **cache_argument,
        }
    instructions = conversation.instructions
    if answer_format is not AnswerFormat.CHAT_SCHEMA:
        instructions = f"{instructions}\n\n{_IN_WORDS}\n{schema.as_text()}"
    messages = [{"role": "system", "content": instructions}, *turns]
    request: dict[str, Any] = {"messages": messages, "max_tokens": max_output_tokens}
    if answer_format is AnswerFormat.CHAT_SCHEMA:
        request["response_format"] = {"type": "json_schema", "json_schema": strict}
    if answer_format is AnswerFormat.CHAT_OBJECT:
        request["response_format"] = {"type": "json_object"}
    return request


def _short(name: str) -> str:
    if len(name) <= CACHE_KEY_CHARS:
        return name
    return hashlib.sha256(name.encode()).hexdigest()[:CACHE_KEY_CHARS]


def is_unsupported(answer_format: AnswerFormat, status: int, message: str) -> bool:
    """Return whether a refusal is about the format; not a busy server, nor a wrong schema."""
    if answer_format is AnswerFormat.CHAT_PLAIN or status not in _REFUSALS | _NO_SUCH_WAY:
        return False
    if _BAD_SCHEMA.search(message):
        return False
    if answer_format is AnswerFormat.RESPONSES:
        no_such_way = status in _NO_SUCH_WAY and "model" not in message.lower()
        if no_such_way or _ABOUT_ARGUMENT.search(message):
            return True
    return bool(_ABOUT_FORMAT.search(message))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReply:
    """A reply of the server; `usage` is None if it reports none."""

    text: str
    refusal: str | None
    is_cut: bool
    usage: Usage | None
    model: str | None = None  # as the server names what answered
    cited_urls: tuple[str, ...] = ()  # that it states as its sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """The server does not support this answer format."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerBusy:
    """A failure that may pass: another attempt is possible after `wait`, or our own pause."""

    code: str
    message: str
    wait: timedelta | None = None
    may_be_charged: bool = False
    is_shared: bool = True  # of all requests (busy, down), or perhaps of this one


@dataclass(frozen=True, slots=True, kw_only=True)
class BadModelRequest:
    """A request that the server rejects, or a reply that is unusable; no repetition helps."""

    code: str
    message: str
    may_be_charged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """The key, the model's name or the account is refused: an operator has to act."""

    code: str
    message: str


Failure = Unsupported | ServerBusy | BadModelRequest | Denied
Exchange = ServerReply | Failure


def open_client(api_key: str, base_url: str, *, max_bytes: int = MAX_ANSWER_BYTES) -> openai.AsyncOpenAI:
    """Open a client for the server; a server of one's own may need no key, the client wants one.

    It follows no redirect, so that a page goes to the configured server alone, and reads no answer
    beyond `max_bytes`, an error's neither.
    """
    import openai

    http_client = _capped_client()(max_bytes, verify=_trusted(), follow_redirects=False)
    return openai.AsyncOpenAI(
        api_key=api_key or "none", base_url=base_url or OPENAI, max_retries=0, http_client=http_client
    )


@cache
def _capped_client() -> Callable[..., httpx2.AsyncClient]:
    """Return the class of the HTTP client; made when it is needed, as its base takes long."""
    import httpx2
    import openai

    class CappedClient(openai.DefaultAsyncHttpxClient):
        """A client that reads every decoded body up to a limit."""

        def __init__(self, max_bytes: int, **options: Any) -> None:  # noqa: ANN401
            super().__init__(**options)
            self._max_bytes = max_bytes

        async def send(
            self,
            request: httpx2.Request,
            *,
            stream: bool = False,
            **options: Any,  # noqa: ANN401
        ) -> httpx2.Response:
            del stream  # a reply is always read whole
            response = await super().send(request, stream=True, **options)
            body = bytearray()
            try:
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > self._max_bytes:
                        raise _TooLong(f"its answer has more than {self._max_bytes} bytes")
            finally:
                await response.aclose()
            headers = [pair for pair in response.headers.multi_items() if pair[0].lower() not in _FRAMING]
            return httpx2.Response(response.status_code, headers=headers, content=bytes(body), request=request)

    return CappedClient


@cache
def _trusted() -> ssl.SSLContext:
    """Return the certificates that the client trusts, cached: loading takes a tenth of a second."""
    import httpx2

    return httpx2.create_ssl_context()


class _TooLong(ValueError):
    """The reply has more bytes than allowed."""


async def exchange(
    client: openai.AsyncOpenAI, answer_format: AnswerFormat, request: Mapping[str, Any], seconds: float
) -> Exchange:
    """Send once and wait at most that long; every outcome is returned, and nothing is raised."""
    way = client.responses if answer_format is AnswerFormat.RESPONSES else client.chat.completions
    create = cast("Any", way.with_raw_response.create)

    async def body() -> str:
        return str((await create(**request, timeout=seconds)).text)

    received = await attempt(client, body(), seconds, answer_format=answer_format)
    return read_body(answer_format, received) if isinstance(received, str) else received


async def attempt(
    client: openai.AsyncOpenAI, sending: Awaitable[Received], seconds: float, *, answer_format: AnswerFormat
) -> Received | Failure:
    """Wait at most that long for a request of the client; its failures are returned, classified."""
    import httpx2
    import openai

    try:
        async with asyncio.timeout(seconds):
            return await sending
    except (TimeoutError, openai.APITimeoutError):
        return ServerBusy(
            code="timeout", message=f"no answer within {seconds:.0f} s", may_be_charged=True, is_shared=False
        )
    except openai.APIStatusError as error:
        return _refused(answer_format, error, client.api_key)
    except _TooLong as error:
        return BadModelRequest(code="too_long", message=str(error), may_be_charged=True)
    except (openai.OpenAIError, httpx2.HTTPError, ValueError) as error:
        is_unsent = isinstance(error.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout)
        message = _safe(f"{type(error).__name__}: {error}", client.api_key)
        return ServerBusy(code="unreachable", message=message, may_be_charged=not is_unsent)


def read_body(answer_format: AnswerFormat, body: str) -> Exchange:
    """Return the reply of a body with status 200."""
    try:
        parsed: object = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    return read_document(answer_format, parsed, excerpt=body)


def read_document(answer_format: AnswerFormat, parsed: object, *, excerpt: str) -> Exchange:
    """Return the reply of a parsed body with status 200."""
    if isinstance(parsed, dict):
        read = _read_response if answer_format is AnswerFormat.RESPONSES else _read_chat
        if (reply := read(cast("dict[str, Any]", parsed))) is not None:
            return reply
    message = f"its answer is not of the protocol: {excerpt[:80]!r}"
    return ServerBusy(code="garbled", message=message, may_be_charged=True, is_shared=False)


def classify_reply(
    reply: ServerReply, schema: AnswerSchema, model: str, answer_format: AnswerFormat, usage: Usage
) -> Answered | NoAnswer:
    """Return the outcome of a server's reply: answered, refused, cut off, malformed, ..."""

    def failed(fault: Fault, *problems: str) -> NoAnswer:
        return NoAnswer(fault=fault, model=model, usage=usage, problems=problems, text=reply.text)

    if reply.refusal is not None:
        return failed(Fault.REFUSED, f"it refused: {reply.refusal}")
    if reply.is_cut:
        return failed(Fault.CUT_OFF, f"it was cut off after {usage.output_tokens} tokens")
    if not reply.text.strip():
        return failed(Fault.EMPTY, "it was empty")
    try:
        data = parsed_object(reply.text, may_chat=answer_format is AnswerFormat.CHAT_PLAIN)
    except NotJson as error:
        return failed(Fault.MALFORMED, f"it is not JSON: {error}")
    if problems := schema.problems(data):
        return failed(Fault.VIOLATED, *problems)
    return Answered(model=model, usage=usage, data=data)


def _read_response(document: dict[str, Any]) -> Exchange | None:
    output = document.get("output")
    if document.get("status") == "failed":
        error = _mapping(document.get("error"))
        message = str(error.get("message"))[:MESSAGE_CHARS]
        return ServerBusy(code="failed", message=message, is_shared=False)
    if not isinstance(output, list):
        return None
    parts = [_mapping(part) for item in cast("list[object]", output) for part in _list(_mapping(item).get("content"))]
    refusals = [str(part.get("refusal")) for part in parts if part.get("type") == "refusal"]
    texts = [str(part.get("text") or "") for part in parts if part.get("type") == "output_text"]
    why = _mapping(document.get("incomplete_details")).get("reason")
    if why == "content_filter":
        refusals.append("content filter")
    text = "".join(texts)
    return ServerReply(
        text=text,
        refusal=refusals[0][:MESSAGE_CHARS] if refusals else None,
        is_cut=document.get("status") == "incomplete",
        usage=_usage(_mapping(document.get("usage")), text, "input", "output"),
        model=_named(document),
        cited_urls=_cited(document, parts),
    )


def _read_chat(document: dict[str, Any]) -> Exchange | None:
    choices = _list(document.get("choices"))
    if not choices:
        return None
    choice = _mapping(choices[0])
    message = _mapping(choice.get("message"))
    why, content = choice.get("finish_reason"), message.get("content")
    text = content if isinstance(content, str) else ""
    refusal = message.get("refusal") or ("content filter" if why == "content_filter" else None)
    return ServerReply(
        text=text,
        refusal=None if refusal is None else str(refusal)[:MESSAGE_CHARS],
        is_cut=why == "length",
        usage=_usage(_mapping(document.get("usage")), text, "prompt", "completion"),
        model=_named(document),
        cited_urls=_cited(document, [message]),
    )


def _named(document: Mapping[str, Any]) -> str | None:
    model = document.get("model")
    return model[:MESSAGE_CHARS] if isinstance(model, str) and model else None


def _cited(document: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the sources: annotations of the text (OpenAI), or lists beside it (Perplexity and others)."""
    notes = [_mapping(note) for part in parts for note in _list(part.get("annotations"))]
    stated = [_mapping(note.get("url_citation")).get("url") or note.get("url") for note in notes]
    stated += _list(document.get("citations"))
    stated += [_mapping(result).get("url") for result in _list(document.get("search_results"))]
    return tuple(dict.fromkeys(url for url in stated if isinstance(url, str)))


def _usage(counts: Mapping[str, Any], text: str, read: str, written: str) -> Usage | None:
    """Return the tokens that the server counted; None if it did not, or counted none for text."""
    counted = counts.get(f"{read}_tokens"), counts.get(f"{written}_tokens")
    cached = _mapping(counts.get(f"{read}_tokens_details")).get("cached_tokens")
    match counted:
        case (int(inputs), int(outputs)) if inputs >= 0 and (outputs > 0 or not text):
            saved = cached if isinstance(cached, int) and cached > 0 else 0
            return Usage(input_tokens=inputs, cached_input_tokens=min(saved, inputs), output_tokens=outputs)
        case _:
            return None


def _refused(answer_format: AnswerFormat, error: openai.APIStatusError, key: str) -> Failure:
    status = error.status_code
    # The message alone is shown; code, type and parameter help to tell refusals apart.
    words = _mapping(error.body).get("message") or error.message
    message = _safe(f"{status}: {words}", key)
    details = f"{message} {error.code or ''} {error.type or ''} {error.param or ''}"
    code = f"http_{status}"
    if 300 <= status < 400:  # noqa: PLR2004
        where = _safe(error.response.headers.get("location") or "nowhere", key)
        cure = "give the address where the server is"
        return Denied(code=code, message=f"{status}: it redirects to {where}; {cure}")
    if status == 429 and _NO_MONEY.search(details):  # noqa: PLR2004
        return Denied(code="model_quota", message=message)
    if is_unsupported(answer_format, status, details):
        return Unsupported(code=code, message=message)
    if status in {401, 403, 404}:
        return Denied(code=code, message=message)
    if status in _BUSY or status >= 500:  # noqa: PLR2004
        wait = wait_asked_for(error.response.headers)
        # A server that is down says so with 502 to 504; a 500 may be about this one question.
        return ServerBusy(code=code, message=message, wait=wait, is_shared=status != 500)  # noqa: PLR2004
    return BadModelRequest(code=code, message=message)


def wait_asked_for(headers: Mapping[str, str]) -> timedelta | None:
    """Return the wait that the server asks for, in milliseconds, seconds or as a date; or None."""
    finer = (headers.get("retry-after-ms") or "").strip()
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", finer):
        return timedelta(milliseconds=float(finer))
    here = http_date(headers.get("date") or "")
    return retry_after(headers.get("retry-after"), now=here)


def _safe(text: str, key: str) -> str:
    """Return the text without the key, which some servers repeat, and not too long."""
    without_key = text.replace(key, "...") if key not in {"", "none"} else text
    return _KEY.sub("...", without_key)[:MESSAGE_CHARS]


def _mapping(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


log = logging.getLogger(__name__)

LEASE_SHARE = 0.75  # a question ends before the lease of the work that asks it
FORGOTTEN_AFTER = timedelta(days=30)  # a server may have learnt more since; asking costs one refusal
PAUSE = timedelta(minutes=5)  # after failed attempts at a server that names no time


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A moment of the monotonic clock, which no change of the system clock moves."""

    at: float

    @property
    def seconds_left(self) -> float:
        """Return the seconds left; negative when it is over."""
        return self.at - time.monotonic()


def deadline(settings: Settings) -> Deadline:
    """Return when a question that starts now must be done."""
    lease = settings.work.lease_seconds * LEASE_SHARE
    return Deadline(at=time.monotonic() + min(settings.models.deadline_seconds, lease))


def shown_base_url(settings: Settings) -> str:
    """Return the server's address for the ledger and for messages."""
    return without_credentials(settings.openai_base_url or OPENAI).rstrip("/")


class ModelServer:
    """The configured server; the first request opens its client, `close` closes it."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._client: openai.AsyncOpenAI | None = None
        self._format: AnswerFormat | None = None
        self.base_url = shown_base_url(settings)

    def client(self) -> openai.AsyncOpenAI:
        """Return the open client."""
        if self._client is None:
            key = self._settings.openai_api_key.get_secret_value()
            self._client = open_client(key, self._settings.openai_base_url)
        return self._client

    async def close(self) -> None:
        """Give the connections back."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def format(self) -> AnswerFormat:
        """Return the strictest format that this server is not known to refuse."""
        if self._format is None:
            self._format = await asyncio.to_thread(self._known_format)
        return self._format

    async def learn(self, refused: AnswerFormat, reason: str) -> AnswerFormat | None:
        """Return the looser format, stored for this and the next run; None if there is none."""
        if (looser := refused.looser) is None:
            return None
        if self._format in {None, refused}:  # else another call has learnt more meanwhile
            self._format = looser
            log.info("answer format refused server=%s format=%s next_format=%s", self.base_url, refused, looser)
            await asyncio.to_thread(self._remember, looser, reason)
        return self._format

    def _known_format(self) -> AnswerFormat:
        with self._store.read() as connection:
            now = self._store.clock.now(connection)
            return known_format(connection, self.base_url, now=now)

    def _remember(self, taken: AnswerFormat, reason: str) -> None:
        with self._store.begin() as connection:
            now = self._store.clock.now(connection)
            remember_format(connection, self.base_url, taken, reason=reason, now=now)


def known_format(connection: Connection, base_url: str, *, now: datetime) -> AnswerFormat:
    """Return the strictest format that the server is not known to refuse."""
    query = select(model_endpoints.c.format).where(
        model_endpoints.c.base_url == base_url, model_endpoints.c.learned_at > now - FORGOTTEN_AFTER
    )
    stored = connection.execute(query).scalar()
    return AnswerFormat.RESPONSES if stored is None else AnswerFormat(stored)


def remember_format(connection: Connection, base_url: str, taken: AnswerFormat, *, reason: str, now: datetime) -> None:
    """Store that the next run starts with `taken` at this server."""
    row = {"format": taken.value, "reason": reason, "learned_at": now}
    statement = insert_into(connection, model_endpoints).values(base_url=base_url, **row)
    connection.execute(statement.on_conflict_do_update(index_elements=["base_url"], set_=row))


class RetryTimer:
    """The attempts at one request: how long to wait for the next, and when to stop."""

    def __init__(self, settings: Settings, until: Deadline) -> None:
        self._settings = settings
        self._until = until
        self._attempts = 0

    async def wait(self, trouble: ServerBusy) -> bool:
        """Wait for the next attempt; return False if there is none."""
        self._attempts += 1
        pause = self._pause(trouble)
        is_over = pause >= self._until.seconds_left
        if is_over or self._attempts >= self._settings.models.max_attempts:
            return False
        await asyncio.sleep(pause)
        return True

    def _pause(self, trouble: ServerBusy) -> float:
        if trouble.wait is not None:
            return trouble.wait.total_seconds()
        doubled = self._settings.models.backoff_base_seconds * 2 ** (self._attempts - 1)
        return doubled * (1 + random.random() / 4)  # noqa: S311 - spreads retries, guards nothing


def as_error(trouble: ServerBusy, store: Store, base_url: str) -> WorkError:
    """Return the error after the last attempt: shared trouble is `Resource`, else `Transient`."""
    text = f"{base_url}: {trouble.message}"
    if not trouble.is_shared:
        return Transient(text, code=f"model_{trouble.code}", retry_after=trouble.wait)
    pause = min(trouble.wait or PAUSE, LONGEST)
    return Resource(text, until=store.now() + pause, code=f"model_{trouble.code}")
