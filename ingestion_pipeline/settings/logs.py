"""How our log is written: as everybody's, or as JSON lines that say of which run and source.

A line has our own words and ids. An error is told by its class and its frames, not by its message,
which may repeat what a server said.
"""

from __future__ import annotations

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
    """Every line of ours says these until the end, also from tasks and threads begun meanwhile."""
    token = _around.set({**_around.get(), **facts})
    try:
        yield
    finally:
        _around.reset(token)


def about(**facts: object) -> dict[str, Any]:
    """The `extra` of one line: what it is about, beside what is around it."""
    return {"facts": {name: value for name, value in facts.items() if value is not None}}


class JsonLines(logging.Formatter):
    """One object a line: at, level, logger, message, what is around and what it is about."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
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
    """Ours, so that a second call finds it."""


def configure(level: str, form: str) -> None:
    """Our lines from this level on; as JSON they go to stderr and nowhere else."""
    ours = logging.getLogger(OURS)
    ours.setLevel(level)
    for handler in [one for one in ours.handlers if isinstance(one, _Own)]:
        ours.removeHandler(handler)
    ours.propagate = form != "json"
    if form == "json":
        handler = _Own()
        handler.setFormatter(JsonLines())
        ours.addHandler(handler)
