"""Delivery channels: signed webhooks, and mail or other services through Apprise.

`notify:` goes to every service of INGESTION_NOTIFY_URLS, `mailto:` to the addressee through the
mail service among them. The services are configured by the operator, so the address guard does
not apply to them; no part of their URLs is ever logged or shown.
"""

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
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from ingestion_pipeline.extras import how_to_install, is_installed
from ingestion_pipeline.notices.message import Message
from ingestion_pipeline.notices.queries import Addressee
from ingestion_pipeline.pages.http.guard import Guard
from ingestion_pipeline.pages.http.request import BLOCKED_FOR, status_error
from ingestion_pipeline.sources.source import OWN_SERVICES, SECRET_PREFIX, is_webhook
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError
from ingestion_pipeline.urls import BadUrl, has_credentials, request_url, without_credentials

if TYPE_CHECKING:
    from ingestion_pipeline.pages.http.transport import RawAnswer


REACHED = "reached"  # in a task's state: the services that have the message already
_MAIL_SCHEMES = {"mailto", "mailtos"}
_ADDRESSED = {"to", "cc", "bcc"}


class PartlySent(Transient):
    """Some services accepted the message; the next attempt is for the others."""

    def __init__(self, message: str, *, reached: Sequence[str]) -> None:
        super().__init__(message, code="notify")
        self.state = {REACHED: sorted(reached)}


class AppriseChannel:
    """Channel that sends through the operator's services, in threads since Apprise blocks."""

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
        """Send to each service that has not accepted the message yet; return a summary."""
        urls = self._urls_for(to.address)
        done = set(cast("Sequence[str]", (state or {}).get(REACHED, ())))
        problems: list[str] = []
        for url in urls:
            if _fingerprint(url) in done:
                continue
            problem = await self._notify(url, message)
            if problem is None:
                done.add(_fingerprint(url))
            else:
                problems.append(problem)
        if problems:
            summary = f"{len(problems)} of {len(urls)} services did not accept it: {'; '.join(problems)}"
            raise PartlySent(summary, reached=list(done))
        return f"accepted by {len(urls)} of your services"

    def _urls_for(self, address: str) -> list[str]:
        if not self._urls:
            message = f"{address} needs a service: set INGESTION_NOTIFY_URLS to your Apprise URLs"
            raise Permanent(message, code="no_service")
        if address == OWN_SERVICES:
            return list(self._urls)
        mail = [url for url in self._urls if urlsplit(url).scheme.lower() in _MAIL_SCHEMES]
        if not mail:
            message = f"{address} needs a mail service: add mailto://... to INGESTION_NOTIFY_URLS"
            raise Permanent(message, code="no_service")
        return [_addressed(mail[0], address.partition(":")[2])]

    async def _notify(self, url: str, message: Message) -> str | None:
        """Return None if the service accepted the message, else why not."""
        try:
            async with asyncio.timeout(self._deadline_seconds):
                return await asyncio.to_thread(_notify, url, message)
        except TimeoutError:
            return f"{_redacted(url)}: no answer within {self._deadline_seconds:g} seconds"


def _notify(url: str, message: Message) -> str | None:
    if not is_installed("apprise"):
        return how_to_install("apprise")
    import apprise

    _capture_log()
    _captured_lines.set(lines := [])
    service: Any = apprise.Apprise()
    if not service.add(url):
        return f"{_redacted(url)}: Apprise does not understand the URL"
    taken = service.notify(title=message.title, body=message.text, body_format=apprise.NotifyFormat.TEXT)
    return None if taken else f"{_redacted(url)}: {_without_secrets(lines, url) or 'not accepted'}"


# A context variable, which Apprise passes on to its threads: messages are sent concurrently.
_captured_lines: ContextVar[list[str]] = ContextVar("captured_lines")


class _LogCapture(logging.Handler):
    """Log handler that collects Apprise's messages for the current context."""

    def emit(self, record: logging.LogRecord) -> None:
        """Append the message to the lines of the current context."""
        _captured_lines.get([]).append(record.getMessage())


@cache
def _capture_log() -> None:
    """Keep Apprise's log from all other handlers: it contains URLs with their tokens."""
    theirs = logging.getLogger("apprise")
    theirs.addHandler(_LogCapture(logging.WARNING))
    theirs.propagate = False


def _addressed(url: str, addressee: str) -> str:
    """Return the operator's mail URL, addressed to this recipient only."""
    parts = urlsplit(url)
    query = [(k, v) for k, v in parse_qsl(parts.query) if k.lower() not in _ADDRESSED]
    return urlunsplit(parts._replace(path="", query=urlencode([*query, ("to", addressee)])))


def _redacted(url: str) -> str:
    return urlsplit(url).scheme + "://..."


def _fingerprint(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def _without_secrets(lines: Sequence[str], url: str) -> str:
    """Return Apprise's last log line with every part of the URL masked but a mail host.

    In tgram://TOKEN/..., slack://TOKEN/... and similar URLs the host is a secret as well.
    """
    line = lines[-1] if lines else ""
    parts = urlsplit(url)
    secrets = [url, *re.split("[/@:]", parts.path), *parts.fragment.split("/")]
    secrets += [value for _, value in parse_qsl(parts.query)]
    where, _, host = parts.netloc.rpartition("@")
    is_mail = parts.scheme.lower() in _MAIL_SCHEMES
    secrets += re.split("[:@]", where if is_mail else parts.netloc)
    secrets += [] if is_mail else [host, parts.netloc]
    spelled = {spelling for secret in secrets if secret for spelling in (secret, unquote(secret))}
    for secret in sorted(spelled, key=len, reverse=True):
        line = line.replace(secret, "***")
    return line


_GONE = 410
_REFUSED = {403, 407}  # transient for a crawled site, permanent for a receiver
_REDIRECTS = range(300, 400)
_ANSWER_BYTES = 16_384  # read only to reuse the connection; the content is not used
_ANSWER_SECONDS = 2.0


def new_secret() -> str:
    """Return a new key of 32 random bytes."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return `v1,` and the base64 of HMAC-SHA256 over id, timestamp and body."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookLimits:
    """Time limits of one delivery."""

    deadline_seconds: float = 30.0
    connect_seconds: float = 10.0
    blocked_for: timedelta = BLOCKED_FOR


class WebhookChannel:
    """Channel that posts messages within one event loop; close it after use."""

    def __init__(self, user_agent: str, limits: WebhookLimits, guard: Guard, *, ca_file: Path | None = None) -> None:
        from ingestion_pipeline.pages.http.transport import Connections  # imported late: it imports httpx

        self._user_agent = user_agent
        self._limits = limits
        self._connections = Connections(guard, connect_seconds=limits.connect_seconds, ca_file=ca_file)

    async def aclose(self) -> None:
        """Close every open connection."""
        await self._connections.aclose()

    async def send(
        self,
        to: Addressee,
        message: Message,
        *,
        now: datetime,
        state: Mapping[str, object] | None = None,  # noqa: ARG002 - one exchange: all or nothing
    ) -> str:
        """Post the message; return the status. Anything but a 2xx raises a `WorkError`."""
        url = _wire_url(to.address)
        headers = self._headers(to, message, now)
        seconds = self._limits.deadline_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._post(url, headers, message.body, now)
        except TimeoutError as error:
            reason = f"{without_credentials(url)} gave no answer within {seconds:g} seconds"
            raise Transient(reason, code="timeout") from error

    async def _post(self, url: str, headers: dict[str, str], body: bytes, now: datetime) -> str:
        async with self._connections.exchange(url, headers, body) as raw:
            error = status_error(raw.status, raw.headers, url, now, blocked_for=self._limits.blocked_for)
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
    redacted_url = without_credentials(address)
    try:
        url = request_url(address)
    except BadUrl as error:
        raise Permanent(str(error), code="bad_url") from error
    if has_credentials(address):
        raise Permanent(f"{redacted_url} has a user name or password; remove them", code="bad_url")
    return url


def _delivery_error(error: WorkError, status: int, url: str) -> WorkError:
    """Return the error with the cure that fits a recipient's address."""
    if status in _REDIRECTS:
        problem = f"{status}; redirects are not followed, give the final address"
    elif status == _GONE:
        problem = "410 (gone); `ingest recipients remove` removes it"
    elif status in _REFUSED:
        problem = f"{status} (access refused); check that it has the secret"
    else:
        return error
    return Permanent(f"{without_credentials(url)} answered {problem}", code=error.code)


async def _drain(raw: "RawAnswer") -> None:
    """Read a short response to its end, so that the connection can be reused; drop a long one."""
    read = 0
    with suppress(WorkError, TimeoutError):
        async with asyncio.timeout(_ANSWER_SECONDS):
            async for chunk in raw.chunks:
                read += len(chunk)
                if read > _ANSWER_BYTES:
                    return


class Channel(Protocol):
    """Sends a message; every failure is a `WorkError`, whose class says whether to retry."""

    async def send(
        self, to: Addressee, message: Message, *, now: datetime, state: Mapping[str, object] | None = None
    ) -> str:
        """Send the message; return the receiver's response in words."""
        ...


class Channels:
    """All channels of a run; close it, or use it with `async with`."""

    def __init__(self, webhooks: WebhookChannel, services: AppriseChannel) -> None:
        self._webhooks = webhooks
        self._services = services

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._webhooks.aclose()

    async def send(
        self, to: Addressee, message: Message, *, now: datetime, state: Mapping[str, object] | None = None
    ) -> str:
        """Send by the channel of the address; `state` is what an earlier attempt left."""
        channel: Channel = self._webhooks if is_webhook(to.address) else self._services
        return await channel.send(to, message, now=now, state=state)
