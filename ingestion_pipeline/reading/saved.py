"""A body that somebody saved, and what a system's reader makes of it, ready to be shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from ingestion_pipeline.reading.reading import Reading
from ingestion_pipeline.work.errors import WorkError

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBody:
    """A body, where it came from, and when; relative links and dates need the last two."""

    body: bytes
    url: str
    fetched_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedReading:
    """A reading as plain values; a body that could not be read at all is one problem."""

    records: Sequence[Mapping[str, Any]]
    problems: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()

    @classmethod
    def of(
        cls, read: Callable[[], Reading[Record]], as_dict: Callable[[Record], Mapping[str, Any]]
    ) -> SavedReading:
        """What the reader says, or why it refused."""
        try:
            reading = read()
        except WorkError as error:
            return cls(records=[], problems=[_problem("body", error.text, code=error.code)])
        return cls(
            records=[as_dict(record) for record in reading.records],
            problems=[_problem(one.where, one.message, code=one.code) for one in reading.problems],
            notes=reading.notes,
        )


def _problem(where: str, message: str, *, code: str | None) -> Mapping[str, Any]:
    return {"where": where, "code": code, "message": message}
