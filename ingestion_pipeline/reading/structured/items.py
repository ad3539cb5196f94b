"""What the generic readers share: an item is fields as text, and at least one of them names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from ingestion_pipeline.tasks.errors import Permanent, WorkError

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


MAX_PROBLEMS = 50  # as many as anyone reads; a wrong path makes one for every item

Item = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPage:
    """The items of one page, what its links are relative to, and the page that follows it."""

    reading: Reading[Item]
    base_url: str
    next_url: str | None


class ItemReader(Protocol):
    """Reads the items of a page by paths or selectors that a source's config gives."""

    def read(self, body: bytes, *, url: str, content_type: str | None = None) -> ItemPage:
        """Every item of the page that came from `url`, in its order; anything else raises."""
        ...

    def next_url(self, body: bytes, *, url: str) -> str | None:
        """The address of the page after this one, without the cost of reading its items."""
        ...


def named_items(items: Sequence[Item], required: Sequence[str], *, cure: str) -> Reading[Item]:
    """The items that have every required field, and a problem for each that has not.

    Raises:
        Permanent: `no_fields`; not one item has them, so the fields are looked for in vain.
    """
    kept = [item for item in items if all(name in item for name in required)]
    if items and not kept:
        wanted = ", ".join(required)
        raise Permanent(f"none of {len(items)} items has {wanted}; {cure}", code="no_fields")
    lacking = [
        (position, [name for name in required if name not in item])
        for position, item in enumerate(items)
    ]
    problems = [
        Problem(where=f"item {position}", message=f"it has no {', '.join(names)}; the rest counts")
        for position, names in lacking
        if names
    ]
    return Reading(records=kept, problems=problems[:MAX_PROBLEMS])


SavedRecord = TypeVar("SavedRecord")


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
        cls,
        read: Callable[[], Reading[SavedRecord]],
        as_dict: Callable[[SavedRecord], Mapping[str, Any]],
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
