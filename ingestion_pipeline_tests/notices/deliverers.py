"""Deliverers as processes of their own, which can be killed anywhere."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from datetime import timedelta
from random import Random
from typing import Any

from ingestion_pipeline.notices.channels import WebhookChannel, WebhookLimits
from ingestion_pipeline.notices.delivery import Deliverer
from ingestion_pipeline.notices.message import Message
from ingestion_pipeline.notices.rows import Addressee
from ingestion_pipeline.pages.http.guard import Guard
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.store import open_store
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline_tests.pollers import names_of
from ingestion_pipeline_tests.processes import stop_here


@dataclass(frozen=True, kw_only=True)
class Work:
    """Where the data are, where the web is, how long a lease is."""

    url: str
    port: int
    lease_seconds: float
    stops_after_the_answer: bool = False


class Stopping:
    """A channel that stands still between the receiver's answer and the deliverer's next word."""

    def __init__(self, inner: WebhookChannel) -> None:
        self._inner = inner

    async def send(self, to: Addressee, message: Message, **more: Any) -> str:
        said = await self._inner.send(to, message, **more)
        stop_here()
        return said


def deliver(work: Work) -> dict[str, Any]:
    """What one deliverer came to, by the real clock."""
    return asyncio.run(_deliver(work))


async def _deliver(work: Work) -> dict[str, Any]:
    store = open_store(work.url)
    settings = load_settings({"INGESTION_DATABASE_URL": work.url, "INGESTION_NOTICES__GROUPING_SECONDS": "0"})
    hooks = WebhookChannel("tests", WebhookLimits(), Guard(resolve=names_of(work.port)))
    channel = Stopping(hooks) if work.stops_after_the_answer else hooks
    worker = Worker(store, lease_seconds=work.lease_seconds)
    deliverer = Deliverer(store, settings, worker, channel, random=Random(7), patience=timedelta(seconds=5))
    try:
        return asdict(await deliverer.run())
    finally:
        await hooks.aclose()
        store.close()
