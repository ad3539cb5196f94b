"""Mail and the operator's own services, by Apprise.

`notify:` goes to every service of INGESTION_NOTIFY_URLS, `mailto:` to the addressee through the
mail service among them. The services are the operator's, so the address guard does not apply; no
part of their URLs is ever shown.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from ingestion_pipeline.notices.message import Message
from ingestion_pipeline.notices.rows import Addressee
from ingestion_pipeline.pages.http.guard import Guard
from ingestion_pipeline.pages.http.status import DEFAULT_WAITS, Waits, verdict
from ingestion_pipeline.sources.recipients import OWN_SERVICES, is_webhook
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError
from ingestion_pipeline.urls import BadUrl, has_credentials, request_url, without_credentials

if TYPE_CHECKING:
    from ingestion_pipeline.pages.http.transport import RawAnswer


REACHED = "reached"  # in a task's state: the services that have the message already
_MAIL_SCHEMES = {"mailto", "mailtos"}
_ADDRESSED = {"to", "cc", "bcc"}


class PartlySent(Transient):
    """Some services took the message; the next attempt is for the others."""

    def __init__(self, message: str, *, reached: Sequence[str]) -> None:
        super().__init__(message, code="notify")
        self.state = {REACHED: sorted(reached)}


class AppriseChannel:
    """Sends through the operator's services, in threads: Apprise blocks."""

    def __init__(self, urls: Sequence[str], *, deadline_seconds: float = 30.0) -> None:
        self._urls = tuple(urls)
        self._deadline_seconds = deadline_seconds

    async def send(
        self,
        to: Addressee,
        message: Message,
        *,
        now: datetime,  # noqa: ARG002 - every channel takes it
        state: Mapping[str, object] | None = None,
    ) -> str:
        """How many services took it; those that have it from an earlier attempt are left out."""
        urls = self._urls_for(to.address)
        done = set(cast("Sequence[str]", (state or {}).get(REACHED, ())))
        said: list[str] = []
        for url in urls:
            if _fingerprint(url) in done:
                continue
            problem = await self._notify(url, message)
            if problem is None:
                done.add(_fingerprint(url))
            else:
                said.append(problem)
        if said:
            told = f"{len(said)} of {len(urls)} services did not take it: {'; '.join(said)}"
            raise PartlySent(told, reached=list(done))
        return f"taken by {len(urls)} of your services"

    def _urls_for(self, address: str) -> list[str]:
        if not self._urls:
            said = f"{address} needs a service: set INGESTION_NOTIFY_URLS to your Apprise URLs"
            raise Permanent(said, code="no_service")
        if address == OWN_SERVICES:
            return list(self._urls)
        mail = [url for url in self._urls if urlsplit(url).scheme.lower() in _MAIL_SCHEMES]
        if not mail:
            said = f"{address} needs a mail service: add mailto://... to INGESTION_NOTIFY_URLS"
            raise Permanent(said, code="no_service")
        return [_addressed(mail[0], address.partition(":")[2])]

    async def _notify(self, url: str, message: Message) -> str | None:
        """None if the service took it, else why not."""
        try:
            async with asyncio.timeout(self._deadline_seconds):
                return await asyncio.to_thread(_notify, url, message)
        except TimeoutError:
            return f"{_shown(url)}: no answer within {self._deadline_seconds:g} seconds"


def _notify(url: str, message: Message) -> str | None:
    import apprise

    _listen()
    _heard.set(lines := [])
    service: Any = apprise.Apprise()
    if not service.add(url):
        return f"{_shown(url)}: Apprise does not understand the URL"
    taken = service.notify(
        title=message.title, body=message.text, body_format=apprise.NotifyFormat.TEXT
    )
    return None if taken else f"{_shown(url)}: {_without_secrets(lines, url) or 'not taken'}"


# By context, which Apprise hands on to its threads: messages go to several services at a time.
_heard: ContextVar[list[str]] = ContextVar("heard")


class _Listener(logging.Handler):
    """Keeps what Apprise says for whoever asked it to do something."""

    def emit(self, record: logging.LogRecord) -> None:
        _heard.get([]).append(record.getMessage())


@cache
def _listen() -> None:
    """Apprise is heard by us alone: it writes URLs with their tokens into its log."""
    theirs = logging.getLogger("apprise")
    theirs.addHandler(_Listener(logging.WARNING))
    theirs.propagate = False


def _addressed(url: str, addressee: str) -> str:
    """The operator's mail URL, to this addressee alone."""
    parts = urlsplit(url)
    query = [(k, v) for k, v in parse_qsl(parts.query) if k.lower() not in _ADDRESSED]
    return urlunsplit(parts._replace(path="", query=urlencode([*query, ("to", addressee)])))


def _shown(url: str) -> str:
    return urlsplit(url).scheme + "://..."


def _fingerprint(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def _without_secrets(lines: Sequence[str], url: str) -> str:
    """The last thing Apprise said, with every part of the URL struck out but a mail server's name.

    In tgram://TOKEN/..., slack://TOKEN/... and their like the host is a secret as well.
    """
    said = lines[-1] if lines else ""
    parts = urlsplit(url)
    secrets = [url, *re.split("[/@:]", parts.path), *parts.fragment.split("/")]
    secrets += [value for _, value in parse_qsl(parts.query)]
    where, _, host = parts.netloc.rpartition("@")
    is_mail = parts.scheme.lower() in _MAIL_SCHEMES
    secrets += re.split("[:@]", where if is_mail else parts.netloc)
    secrets += [] if is_mail else [host, parts.netloc]
    spelled = {each for one in secrets if one for each in (one, unquote(one))}
    for one in sorted(spelled, key=len, reverse=True):
        said = said.replace(one, "***")
    return said


SECRET_PREFIX = "whsec_"  # noqa: S105 - what every such secret begins with
_GONE = 410
_REFUSED = {403, 407}  # a site that blocks us may think better of it; a receiver's mind is made up
_REDIRECTS = range(300, 400)
_ANSWER_BYTES = 16_384  # read only to keep the connection; nobody needs what it says
_ANSWER_SECONDS = 2.0


def new_secret() -> str:
    """A fresh key of 32 random bytes."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """`v1,` and the base64 of HMAC-SHA256 over id, timestamp and body."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookLimits:
    """What one delivery may take."""

    deadline_seconds: float = 30.0
    connect_seconds: float = 10.0
    waits: Waits = DEFAULT_WAITS


class WebhookChannel:
    """Posts messages within one event loop; close it."""

    def __init__(
        self, user_agent: str, limits: WebhookLimits, guard: Guard, *, ca_file: Path | None = None
    ) -> None:
        from ingestion_pipeline.pages.http.transport import (
            Connections,  # httpx: only who sends pays
        )

        self._user_agent = user_agent
        self._limits = limits
        self._connections = Connections(
            guard, connect_seconds=limits.connect_seconds, ca_file=ca_file
        )

    async def aclose(self) -> None:
        """Close every connection that was kept."""
        await self._connections.aclose()

    async def send(
        self,
        to: Addressee,
        message: Message,
        *,
        now: datetime,
        state: Mapping[str, object] | None = None,  # noqa: ARG002 - one exchange: all or nothing
    ) -> str:
        """The status that came back; anything but a 2xx is an error of its class."""
        url = _wire_url(to.address)
        headers = self._headers(to, message, now)
        seconds = self._limits.deadline_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._post(url, headers, message.body, now)
        except TimeoutError as error:
            said = f"{without_credentials(url)} gave no answer within {seconds:g} seconds"
            raise Transient(said, code="timeout") from error

    async def _post(self, url: str, headers: dict[str, str], body: bytes, now: datetime) -> str:
        async with self._connections.post(url, headers, body) as raw:
            error = verdict(raw.status, raw.headers, url, now, self._limits.waits)
            await _drain(raw)
        if error is None:
            return f"answered {raw.status}"
        raise _delivery_error(error, raw.status, url)

    def _headers(self, to: Addressee, message: Message, now: datetime) -> dict[str, str]:
        timestamp = int(now.timestamp())
        headers = {
            "User-Agent": self._user_agent,
            "Accept": "*/*",
            "Content-Type": "application/json",
            "Idempotency-Key": message.id,
            "webhook-id": message.id,
            "webhook-timestamp": str(timestamp),
        }
        if to.secret:
            signed = signature(to.secret, message.id, timestamp, message.body)
            headers["webhook-signature"] = signed
        return headers


def _wire_url(address: str) -> str:
    shown = without_credentials(address)
    try:
        url = request_url(address)
    except BadUrl as error:
        raise Permanent(str(error), code="bad_url") from error
    if has_credentials(address):
        raise Permanent(f"{shown} has a user name or password; remove them", code="bad_url")
    return url


def _delivery_error(error: WorkError, status: int, url: str) -> WorkError:
    """The same verdict with the cure that fits a follower's address."""
    shown = without_credentials(url)
    if status in _REDIRECTS:
        said = f"{shown} answered {status}; redirects are not followed, give the final address"
        return Permanent(said, code=error.code)
    if status == _GONE:
        said = f"{shown} answered 410: nobody is there; `ingest recipients remove` ends it"
        return Permanent(said, code=error.code)
    if status in _REFUSED:
        said = f"{shown} answered {status}: it refuses us; does it know the secret?"
        return Permanent(said, code=error.code)
    return error


async def _drain(raw: RawAnswer) -> None:
    """A short answer is read to its end; a long or slow one costs its connection, nothing else."""
    read = 0
    with suppress(WorkError, TimeoutError):
        async with asyncio.timeout(_ANSWER_SECONDS):
            async for chunk in raw.chunks:
                read += len(chunk)
                if read > _ANSWER_BYTES:
                    return


class Channel(Protocol):
    """Sends a message; every failure is a `WorkError`, whose class says whether to come back."""

    async def send(
        self,
        to: Addressee,
        message: Message,
        *,
        now: datetime,
        state: Mapping[str, object] | None = None,
    ) -> str:
        """What the other side answered, for people."""
        ...


class Channels:
    """The ways there are; close it, or use it with `async with`."""

    def __init__(self, webhooks: WebhookChannel, services: AppriseChannel) -> None:
        self._webhooks = webhooks
        self._services = services

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._webhooks.aclose()

    async def send(
        self,
        to: Addressee,
        message: Message,
        *,
        now: datetime,
        state: Mapping[str, object] | None = None,
    ) -> str:
        """What the other side answered; `state` is what an earlier attempt left behind."""
        channel: Channel = self._webhooks if is_webhook(to.address) else self._services
        return await channel.send(to, message, now=now, state=state)
