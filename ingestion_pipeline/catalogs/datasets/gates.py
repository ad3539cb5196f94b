"""The quality gates: what speaks against showing a new dataset in place of the last good one. Pure.

A gate never changes data: its finding holds the new dataset back, and the old one stays shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from ingestion_pipeline.settings.systems import Extraction

MOSTLY = 0.5  # of the pages of a first dataset
NEARLY_ALL = 0.9  # a field that so many items had is missed like a required one


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetNumbers:
    """What a dataset holds: items, how many of them are flagged, and how many state each field."""

    items: int
    flagged: int = 0
    fields: Mapping[str, int] = field(default_factory=dict[str, int])

    def share_with(self, name: str) -> float:
        """The share of the items that state the field."""
        return self.fields.get(name, 0) / self.items if self.items else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPages:
    """How many pages should state records, and how many of them failed or stated none.

    And how many `lists` lead to such pages, and how many of them failed.
    """

    total: int
    without: int
    lists: int = 0
    failed_lists: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyFirst:
    """Not one item in a first dataset."""

    pages: int

    code = "empty_first"

    @property
    def message(self) -> str:
        """For people."""
        return f"no items on {self.pages} pages, and none were ever found"


@dataclass(frozen=True, slots=True, kw_only=True)
class MostlyFailed:
    """A first dataset to which most pages gave nothing."""

    pages: int
    without: int

    code = "mostly_failed"

    @property
    def message(self) -> str:
        """For people."""
        return f"{self.without} of {self.pages} pages failed or gave no item"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedLists:
    """A first dataset of which most lists failed: nobody knows what they lead to."""

    lists: int
    failed: int

    code = "failed_lists"

    @property
    def message(self) -> str:
        """For people."""
        return f"{self.failed} of {self.lists} lists failed, and what they lead to is missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyAfterFull:
    """Not one item, where there were some."""

    before: int

    code = "empty_after_full"

    @property
    def message(self) -> str:
        """For people."""
        return f"no items, and {self.before} the time before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Far fewer items than before."""

    before: int
    items: int

    code = "dropped"

    @property
    def message(self) -> str:
        """For people."""
        return f"{self.items} items, and {self.before} the time before"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedPages:
    """Too many items of before stood on pages that failed this time; new ones may hide it."""

    before: int
    lost: int

    code = "failed_pages"

    @property
    def message(self) -> str:
        """For people."""
        return f"pages failed that stated {self.lost} of {self.before} items the time before"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostField:
    """A field that most items have lost."""

    name: str
    before: float
    share: float

    code = "lost_field"

    @property
    def message(self) -> str:
        """For people."""
        return f"{self.name} is stated by {self.share:.0%} of the items, and {self.before:.0%} then"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unproved:
    """Too many items with a required field that the page does not prove."""

    items: int
    flagged: int

    code = "unproved"

    @property
    def message(self) -> str:
        """For people."""
        return f"{self.flagged} of {self.items} items have a required field that is not proved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outdated:
    """Read from pages that are older than what is shown."""

    newer: int

    code = "outdated"

    @property
    def message(self) -> str:
        """For people."""
        return f"its pages are older than those of version {self.newer}, which stays shown"


GateFinding = (
    EmptyFirst
    | MostlyFailed
    | FailedLists
    | EmptyAfterFull
    | Dropped
    | FailedPages
    | LostField
    | Unproved
    | Outdated
)


def judge(
    new: DatasetNumbers,
    before: DatasetNumbers | None,
    *,
    required: Collection[str],
    limits: Extraction,
    failed: int = 0,
    pages: RecordPages | None = None,
) -> list[GateFinding]:
    """All that speaks against the new dataset; `before` is the last good one, if there is one.

    So many items of before were on pages that `failed` this time. A first dataset is judged by its
    own `pages`.
    """
    found: list[GateFinding] = []
    if before is None and pages is not None:
        found += _first(new, pages)
    if before is not None and before.items:
        if not new.items:
            return [EmptyAfterFull(before=before.items)]
        if is_drop(new.items, before.items, limits):
            found.append(Dropped(before=before.items, items=new.items))
        elif is_drop(before.items - failed, before.items, limits):
            found.append(FailedPages(before=before.items, lost=failed))
        found += _lost_fields(new, before, required, limits)
    if new.items and new.flagged > limits.flagged_share * new.items:
        found.append(Unproved(items=new.items, flagged=new.flagged))
    return found


def _first(new: DatasetNumbers, pages: RecordPages) -> Iterator[GateFinding]:
    if not new.items:
        yield EmptyFirst(pages=pages.total)
    elif pages.without > MOSTLY * pages.total:
        yield MostlyFailed(pages=pages.total, without=pages.without)
    elif pages.failed_lists > MOSTLY * pages.lists:
        yield FailedLists(lists=pages.lists, failed=pages.failed_lists)


def is_drop(items: int, before: int, limits: Extraction) -> bool:
    """Whether so few items are far fewer: by share, and by a number that is no accident."""
    lost = before - items
    return lost >= limits.drop_floor and lost > limits.drop_share * before


def _lost_fields(
    new: DatasetNumbers,
    before: DatasetNumbers,
    required: Collection[str],
    limits: Extraction,
) -> Iterator[LostField]:
    for name in sorted(before.fields):
        had, has = before.share_with(name), new.share_with(name)
        is_missed = name in required or had >= NEARLY_ALL
        if is_missed and had and had - has > limits.lost_field_share * had:
            yield LostField(name=name, before=had, share=has)


def as_stored(findings: Collection[GateFinding]) -> list[dict[str, str]]:
    """The findings as the dataset's row keeps them."""
    return [{"code": one.code, "message": one.message} for one in findings]
