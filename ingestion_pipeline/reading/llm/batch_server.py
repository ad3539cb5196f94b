"""The batches of a model's server: upload questions, submit, find, poll and read the replies.

Failures are raised as errors of work. The guard of addresses exempts this server, as for single questions.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from ingestion_pipeline.reading.llm.wire import (
    PAUSE,
    AnswerFormat,
    BadModelRequest,
    Denied,
    Exchange,
    Failure,
    Received,
    ServerBusy,
    Unsupported,
    attempt,
    open_client,
    read_document,
    shown_base_url,
)
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks.errors import Resource

if TYPE_CHECKING:
    from openai.types import Batch

MAX_FILE_BYTES = 200_000_000  # as providers limit it
SECONDS = 60.0  # for one request; a lease is longer
DENIED_WAIT = timedelta(hours=1)  # until an operator has looked at the key
FINAL = frozenset({"completed", "failed", "expired", "cancelled"})
_NOT_FOUND, _NOT_IMPLEMENTED = "http_404", "http_501"
_NAMED_KEY = "ingestion_key"  # in the metadata of a batch
_CLOCK_SLACK = timedelta(days=1)  # between the provider's clock and ours


class NoBatches(Exception):
    """The server has no batches, or refuses these questions in one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteBatch:
    """A batch as the server reports it; `files` have the replies."""

    id: str
    status: str
    files: tuple[str, ...]

    @property
    def is_final(self) -> bool:
        """Whether nothing more is answered."""
        return self.status in FINAL


class BatchServer:
    """The batches of the configured server; `close` closes its connections."""

    def __init__(self, store: Store, settings: Settings) -> None:
        key = settings.openai_api_key.get_secret_value()
        self._client = open_client(key, settings.openai_base_url, max_bytes=MAX_FILE_BYTES)
        self._store = store
        self.base_url = shown_base_url(settings)

    async def close(self) -> None:
        """Give the connections back."""
        await self._client.close()

    async def upload(self, key: str, requests: bytes) -> str:
        """Upload the requests; return the id of the file."""
        created = await self._send(self._client.files.create(file=(f"{key}.jsonl", requests), purpose="batch"))
        return created.id

    async def submit(self, key: str, file_id: str, answer_format: AnswerFormat) -> str:
        """Submit the file; return the id of the batch, which is found again by its key."""
        endpoint: Any = "/v1/responses" if answer_format is AnswerFormat.RESPONSES else "/v1/chat/completions"
        created = await self._send(
            self._client.batches.create(
                input_file_id=file_id,
                endpoint=endpoint,
                completion_window="24h",
                metadata={_NAMED_KEY: key},
                extra_headers={"Idempotency-Key": key},
            )
        )
        return created.id

    async def find(self, key: str, *, since: datetime) -> list[str]:
        """Return the ids of the batches that were submitted under the key, oldest first."""

        async def listed() -> list[Batch]:
            matches: list[Batch] = []
            async for batch in self._client.batches.list(limit=100):  # newest first
                if batch.created_at < (since - _CLOCK_SLACK).timestamp():
                    break
                if (batch.metadata or {}).get(_NAMED_KEY) == key:
                    matches.append(batch)
            return matches

        batches = await self._send(listed())
        return [batch.id for batch in sorted(batches, key=lambda batch: (batch.created_at, batch.id))]

    async def status(self, remote_id: str) -> RemoteBatch | None:
        """Return the batch; None if the server does not have it."""
        received = await self._attempt(self._client.batches.retrieve(remote_id))
        if isinstance(received, BadModelRequest | Denied) and received.code == _NOT_FOUND:
            return None
        batch = self._checked(received)
        files = tuple(filter(None, (batch.output_file_id, batch.error_file_id)))
        return RemoteBatch(id=batch.id, status=batch.status, files=files)

    async def replies(self, batch: RemoteBatch, answer_format: AnswerFormat) -> dict[str, Exchange]:
        """Return the replies of a batch by custom_id; the first of two with one id."""
        replies: dict[str, Exchange] = {}
        for file_id in batch.files:
            content = await self._send(self._client.files.content(file_id))
            for custom_id, reply in _read_lines(content.content, answer_format):
                replies.setdefault(custom_id, reply)
        return replies

    async def cancel(self, remote_id: str) -> None:
        """Cancel a batch that was submitted twice."""
        await self._attempt(self._client.batches.cancel(remote_id))

    async def delete_files(self, file_ids: list[str]) -> None:
        """Delete files that are not needed any more; one that cannot be deleted stays."""
        for file_id in file_ids:
            await self._attempt(self._client.files.delete(file_id))

    async def _attempt(self, sending: Awaitable[Received]) -> Received | Failure:
        # In plain chat no refusal is taken for one of a format.
        return await attempt(self._client, sending, SECONDS, answer_format=AnswerFormat.CHAT_PLAIN)

    async def _send(self, sending: Awaitable[Received]) -> Received:
        return self._checked(await self._attempt(sending))

    def _checked(self, received: Received | Failure) -> Received:
        """Return what was received.

        Raises:
            Resource: the server is busy, or refuses the key.
            NoBatches: it refuses batches.
        """
        match received:
            case ServerBusy() if received.code != _NOT_IMPLEMENTED:
                until = self._store.now() + (received.wait or PAUSE)
                raise Resource(f"{self.base_url}: {received.message}", until=until, code=f"model_{received.code}")
            case Denied() if received.code != _NOT_FOUND:
                message = f"{self.base_url}: {received.message}; look at OPENAI_API_KEY"
                raise Resource(message, until=self._store.now() + DENIED_WAIT, code=received.code)
            case ServerBusy() | Denied() | BadModelRequest() | Unsupported():
                raise NoBatches(received.message)
            case _:
                return received


def _read_lines(content: bytes, answer_format: AnswerFormat) -> Iterator[tuple[str, Exchange]]:
    """Yield custom_id and reply of each line; a line that cannot be read is none."""
    for text in content.split(b"\n"):
        try:
            entry: object = json.loads(text) if text.strip() else None
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            line = cast("dict[str, Any]", entry)
            yield str(line.get("custom_id")), _reply_of(line, answer_format)


def _reply_of(line: dict[str, Any], answer_format: AnswerFormat) -> Exchange:
    response: Any = line.get("response") or {}
    status = response.get("status_code")
    if status == 200:  # noqa: PLR2004
        return read_document(answer_format, response.get("body"), excerpt=str(response.get("body")))
    error: Any = line.get("error") or {}
    code = f"http_{status}" if status else str(error.get("code") or "no_reply")
    return BadModelRequest(code=code[:40], message=str(error.get("message")))
