"""A webhook of our own: signed by the Standard Webhooks convention, through the guard, bounded.

The receiver verifies `webhook-signature`, and takes a message once by `webhook-id`, which is the
same on every repeat and stands in `Idempotency-Key` as well. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ingestion_pipeline.notices.message import Message
from ingestion_pipeline.notices.rows import Addressee
from ingestion_pipeline.pages.guard import Guard
from ingestion_pipeline.pages.verdict import DEFAULT_WAITS, Waits, verdict
from ingestion_pipeline.urls import BadUrl, has_credentials, request_url, without_credentials
from ingestion_pipeline.work.errors import Permanent, Transient, WorkError

if TYPE_CHECKING:
    from ingestion_pipeline.pages.transport import RawAnswer

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
        from ingestion_pipeline.pages.transport import Connections  # httpx: only who sends pays

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
