"""What a reader makes of a body: records, problems, and whether the body was the whole listing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A part that could not be read; the rest of the body still counts."""

    where: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Generic[Record]):
    """Every record the body states, in its order; `is_complete` if what it lacks is not there."""

    records: Sequence[Record]
    problems: Sequence[Problem] = ()
    is_complete: bool = False
