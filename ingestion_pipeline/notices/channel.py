"""By which way a message goes: the address decides."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol, Self

from ingestion_pipeline.notices.apprise_channel import AppriseChannel
from ingestion_pipeline.notices.message import Message
from ingestion_pipeline.notices.rows import Addressee
from ingestion_pipeline.notices.webhook import WebhookChannel
from ingestion_pipeline.sources.recipient import is_webhook


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
