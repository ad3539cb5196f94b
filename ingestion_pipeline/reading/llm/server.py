"""The model's server: its client, the answer format it supports, deadlines and retries."""

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from ingestion_pipeline.reading.llm import wire
from ingestion_pipeline.reading.llm.wire import AnswerFormat, ServerBusy
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import model_endpoints
from ingestion_pipeline.tasks.errors import Resource, Transient, WorkError
from ingestion_pipeline.tasks.retry import LONGEST
from ingestion_pipeline.urls import without_credentials

if TYPE_CHECKING:
    import openai


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
    return without_credentials(settings.openai_base_url or wire.OPENAI).rstrip("/")


class ModelServer:
    """The configured server; the first request opens its client, `close` closes it."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._client: openai.AsyncOpenAI | None = None
        self._format: AnswerFormat | None = None
        self.base_url = shown_base_url(settings)

    def client(self) -> "openai.AsyncOpenAI":
        """Return the open client."""
        if self._client is None:
            key = self._settings.openai_api_key.get_secret_value()
            self._client = wire.open_client(key, self._settings.openai_base_url)
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
