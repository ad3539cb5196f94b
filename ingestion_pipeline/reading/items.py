"""What the generic readers share: an item is fields as text, and at least one of them names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ingestion_pipeline.reading.reading import Problem, Reading
from ingestion_pipeline.work.errors import Permanent

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
