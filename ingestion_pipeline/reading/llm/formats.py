"""Answer formats, from the strictest down, and which one a server supports."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, select

from ingestion_pipeline.reading.llm.question import Conversation
from ingestion_pipeline.reading.llm.schema import AnswerSchema
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import model_endpoints

FORGOTTEN_AFTER = timedelta(days=30)  # a server may have learnt more since; asking costs one refusal
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
    """How the server is told what form the answer must have."""

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
        return no_such_way or bool(_ABOUT_FORMAT.search(message) or _ABOUT_ARGUMENT.search(message))
    return bool(_ABOUT_FORMAT.search(message))


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
