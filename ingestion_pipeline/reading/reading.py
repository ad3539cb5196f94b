"""What a reader makes of a body: records, problems, and whether the body was the whole listing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Record = TypeVar("Record")

# Of one listing; the largest real ones have some thousand. Readers stop behind the first that is
# too many, and `Reading` keeps no more.
MAX_RECORDS = 50_000
TOO_MANY = "too_many_records"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A part that could not be read; the rest of the body still counts.

    `hides_record` unless the part was a detail of a record that was read all the same; `code` names
    those that are told apart by programs.
    """

    where: str
    message: str
    code: str | None = None
    hides_record: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Generic[Record]):
    """Every record the body states, in its order; `is_complete` if what it lacks is not there.

    `notes` are for people: how it was read, where that was not asked for.
    """

    records: Sequence[Record]
    problems: Sequence[Problem] = ()
    is_complete: bool = False
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Keep the first `MAX_RECORDS`: what is cut off makes the listing a part of itself."""
        if len(self.records) <= MAX_RECORDS:
            return
        message = f"it states more than {MAX_RECORDS} records; the first {MAX_RECORDS} are kept"
        problem = Problem(where="listing", message=message, code=TOO_MANY)
        object.__setattr__(self, "records", self.records[:MAX_RECORDS])
        object.__setattr__(self, "problems", (*self.problems, problem))
        object.__setattr__(self, "is_complete", False)
