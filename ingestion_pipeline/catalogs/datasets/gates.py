"""The quality gates: findings against publishing a new dataset over the last good one. Pure.

A gate never changes data: its finding holds the new dataset back, and the old one stays published.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from ingestion_pipeline.settings.systems import Extraction

DROP_FLOOR = 5  # items; fewer lost ones are no drop
LOST_FIELD_SHARE = 0.5
FLAGGED_SHARE = 0.2  # of the items, with an unproved required field
MOSTLY = 0.5  # of the pages of a first dataset
NEARLY_ALL = 0.9  # a field that this share of the items had counts like a required one


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetNumbers:
    """The size of a dataset: items, how many are flagged, and how many have each field."""

    items: int
    flagged: int = 0
    fields: Mapping[str, int] = field(default_factory=dict[str, int])

    def share_with(self, name: str) -> float:
        """Return the share of the items that have the field."""
        return self.fields.get(name, 0) / self.items if self.items else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPages:
    """How many pages should state records, and how many of them failed or stated none.

    Also how many `lists` lead to such pages, and how many of them failed.
    """

    total: int
    without: int
    lists: int = 0
    failed_lists: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyFirst:
    """A first dataset without any item."""

    pages: int

    code = "empty_first"

    @property
    def message(self) -> str:
        """The finding as text for people."""
        return f"no items on {self.pages} pages, and none were ever found"


@dataclass(frozen=True, slots=True, kw_only=True)
class MostlyFailed:
    """A first dataset without items from most of its pages."""

    pages: int
    without: int

    code = "mostly_failed"

    @property
    def message(self) -> str:
        """The finding as text for people."""
        return f"{self.without} of {self.pages} pages failed or gave no item"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedLists:
    """A first dataset with mostly failed lists: what they lead to is unknown."""

    lists: int
    failed: int

    code = "failed_lists"

    @property
    def message(self) -> str:
        """The finding as text for people."""
        return f"{self.failed} of {self.lists} lists failed, and what they lead to is missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyAfterFull:
    """A dataset without items whose predecessor had some."""

    before: int

    code = "empty_after_full"

    @property
    def message(self) -> str:
        """The finding as text for people."""
        return f"no items, previously {self.before}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A dataset with far fewer items than its predecessor."""

    before: int
    items: int

    code = "dropped"

    @property
    def message(self) -> str:
        """The finding as text for people."""
        return f"{self.items} items, previously {self.before}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedPages:
    """Too many earlier items on pages that failed this time; new items may hide it."""

    before: int
    lost: int

    code = "failed_pages"

    @property
    def message(self) -> str:
        """The finding as text for people."""
        return f"pages failed that stated {self.lost} of the {self.before} previous items"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostField:
    """A field that most items have lost."""

    name: str
    before: float
    share: float

    code = "lost_field"

    @property
    def message(self) -> str:
        """The finding as text for people."""
        return f"{self.name} is stated by {self.share:.0%} of the items, previously {self.before:.0%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unproved:
    """Too many items with a required field that the page does not prove."""

    items: int
    flagged: int

    code = "unproved"

    @property
    def message(self) -> str:
        """The finding as text for people."""
        return f"{self.flagged} of {self.items} items have a required field that is not proved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outdated:
    """A dataset from pages that are older than the published ones."""

    newer: int

    code = "outdated"

    @property
    def message(self) -> str:
        """The finding as text for people."""
        return f"its pages are older than those of version {self.newer}, which stays published"


GateFinding = (
    EmptyFirst | MostlyFailed | FailedLists | EmptyAfterFull | Dropped | FailedPages | LostField | Unproved | Outdated
)


def evaluate_gates(
    new: DatasetNumbers,
    before: DatasetNumbers | None,
    *,
    required: Collection[str],
    limits: Extraction,
    failed: int = 0,
    pages: RecordPages | None = None,
    newer: int | None = None,
) -> list[GateFinding]:
    """Return all findings that hold the new dataset back; `before` is the last good one, if any.

    `failed` is the number of earlier items on pages that failed this time. A first dataset is
    evaluated by its own `pages`. `newer` is the published version of a newer crawl, if any.
    """
    findings: list[GateFinding] = [] if newer is None else [Outdated(newer=newer)]
    if before is None and pages is not None:
        findings += _first(new, pages)
    if before is not None and before.items:
        if not new.items:
            return [EmptyAfterFull(before=before.items), *findings]
        if is_drop(new.items, before.items, limits):
            findings.append(Dropped(before=before.items, items=new.items))
        elif is_drop(before.items - failed, before.items, limits):
            findings.append(FailedPages(before=before.items, lost=failed))
        findings += _lost_fields(new, before, required)
    if new.items and new.flagged > FLAGGED_SHARE * new.items:
        findings.append(Unproved(items=new.items, flagged=new.flagged))
    return findings


def _first(new: DatasetNumbers, pages: RecordPages) -> Iterator[GateFinding]:
    if not new.items:
        yield EmptyFirst(pages=pages.total)
    elif pages.without > MOSTLY * pages.total:
        yield MostlyFailed(pages=pages.total, without=pages.without)
    elif pages.failed_lists > MOSTLY * pages.lists:
        yield FailedLists(lists=pages.lists, failed=pages.failed_lists)


def is_drop(items: int, before: int, limits: Extraction) -> bool:
    """Whether `items` are far fewer than before: by share, and by an absolute minimum."""
    lost = before - items
    return lost >= DROP_FLOOR and lost > limits.drop_share * before


def _lost_fields(new: DatasetNumbers, before: DatasetNumbers, required: Collection[str]) -> Iterator[LostField]:
    for name in sorted(before.fields):
        share_before, share = before.share_with(name), new.share_with(name)
        is_missed = name in required or share_before >= NEARLY_ALL
        if is_missed and share_before and share_before - share > LOST_FIELD_SHARE * share_before:
            yield LostField(name=name, before=share_before, share=share)


def as_stored(findings: Collection[GateFinding]) -> list[dict[str, str]]:
    """Return the findings as the dataset's row stores them."""
    return [{"code": finding.code, "message": finding.message} for finding in findings]
