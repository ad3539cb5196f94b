"""Logging: plain text, or JSON lines with the run and source of each line.

A line holds our own text and ids. An error is logged by its class and its frames, not by its
message, which may repeat what a server sent.
"""

import json
import logging
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from ingestion_pipeline.terminal import harmless_json

OURS = "ingestion_pipeline"
FRAMES = 8
_around: ContextVar[Mapping[str, str]] = ContextVar("around", default=MappingProxyType({}))


@contextmanager
def logging_for(**facts: str) -> Generator[None]:
    """Add these fields to every line of ours until the end, in tasks and threads too."""
    token = _around.set({**_around.get(), **facts})
    try:
        yield
    finally:
        _around.reset(token)


def about(**facts: object) -> dict[str, Any]:
    """Return the `extra` of one line: its own fields, beside those of the context."""
    return {"facts": {name: value for name, value in facts.items() if value is not None}}


def key_values(facts: Mapping[str, object]) -> str:
    """Return the facts as `key=value` pairs, for the end of a log line."""
    return " ".join(f"{name}={value}" for name, value in facts.items())


class JsonLines(logging.Formatter):
    """One JSON object a line: at, level, logger, message, and the fields of context and line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_around.get(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            line["stack"] = [
                f"{frame.filename}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_tb(record.exc_info[2])[-FRAMES:]
            ]
        return harmless_json(json.dumps(line, ensure_ascii=False, default=str))


class _Own(logging.StreamHandler[Any]):
    """Our handler, so that a second call recognises it."""


def configure(level: str, form: str) -> None:
    """Log our lines from this level on; as JSON they go to stderr and nowhere else."""
    ours = logging.getLogger(OURS)
    ours.setLevel(level)
    for handler in [candidate for candidate in ours.handlers if isinstance(candidate, _Own)]:
        ours.removeHandler(handler)
    ours.propagate = form != "json"
    if form == "json":
        handler = _Own()
        handler.setFormatter(JsonLines())
        ours.addHandler(handler)
