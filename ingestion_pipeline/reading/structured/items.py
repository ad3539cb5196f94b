"""Types that the readers of items share: problems, readings, pages of items, saved bodies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from ingestion_pipeline.tasks.errors import Permanent, WorkError

Record = TypeVar("Record")

# Of one feed; the largest real ones have some thousand. Readers stop after the first that is
# too many, and `ParsedFeed` keeps no more.
MAX_RECORDS = 50_000
TOO_MANY = "too_many_records"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A part that could not be read; the rest of the body still counts.

    `hides_record` unless the part was a detail of a record that was read all the same; `code` names
    those that programs distinguish.
    """

    where: str
    message: str
    code: str | None = None
    hides_record: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedFeed(Generic[Record]):
    """Every record of the body, in its order; `is_complete` if a record it lacks does not exist.

    `notes` are for people: how it was read, where the config did not say so.
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


MAX_PROBLEMS = 50  # enough for people; a wrong path makes one for every item

Item = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPage:
    """The items of one page, the base of its links, and the page that follows it."""

    reading: ParsedFeed[Item]
    base_url: str
    next_url: str | None


class ItemReader(Protocol):
    """A reader of a page's items by paths or selectors of a source's config."""

    def read(self, body: bytes, *, url: str, content_type: str | None = None) -> ItemPage:
        """Read every item of the page that came from `url`, in its order; anything else raises."""
        ...

    def next_url(self, body: bytes, *, url: str) -> str | None:
        """Return the address of the following page, without the cost of reading its items."""
        ...


def named_items(items: Sequence[Item], required: Sequence[str], *, cure: str) -> ParsedFeed[Item]:
    """Return the items with every required field, a problem for each other; if all lack some it is `no_fields`."""
    complete = [item for item in items if all(name in item for name in required)]
    if items and not complete:
        raise Permanent(f"none of {len(items)} items has {', '.join(required)}; {cure}", code="no_fields")
    lacking = [(position, [name for name in required if name not in item]) for position, item in enumerate(items)]
    problems = [
        Problem(where=f"item {position}", message=f"it has no {', '.join(names)}; the rest counts")
        for position, names in lacking
        if names
    ]
    return ParsedFeed(records=complete, problems=problems[:MAX_PROBLEMS])


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBody:
    """A body, where it came from, and when; relative links and dates need the last two."""

    body: bytes
    url: str
    fetched_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBodyResult:
    """A reading as plain values; a body that could not be read at all is one problem."""

    records: Sequence[Mapping[str, Any]]
    problems: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()

    @classmethod
    def of(
        cls, read: Callable[[], ParsedFeed[Record]], as_dict: Callable[[Record], Mapping[str, Any]]
    ) -> "SavedBodyResult":
        """Return the reader's result, or why it refused."""
        try:
            reading = read()
        except WorkError as error:
            return cls(records=[], problems=[_problem("body", error.text, code=error.code)])
        return cls(
            records=[as_dict(record) for record in reading.records],
            problems=[_problem(problem.where, problem.message, code=problem.code) for problem in reading.problems],
            notes=reading.notes,
        )


def _problem(where: str, message: str, *, code: str | None) -> Mapping[str, Any]:
    return {"where": where, "code": code, "message": message}
