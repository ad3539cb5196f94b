"""The quality gates: findings against publishing a new dataset over the last good one. Pure.

A gate never changes data: its finding holds the new dataset back, and the old one stays published.
"""

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
    """How many pages should state records, and how many failed or stated none; how many `lists` lead to such pages."""

    total: int
    without: int
    lists: int = 0
    failed_lists: int = 0


@dataclass(frozen=True, slots=True)
class GateFinding:
    """Why a dataset is held back: a code, and a message for people."""

    code: str
    message: str


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
    findings: list[GateFinding] = []
    if newer is not None:
        message = f"its pages are older than those of version {newer}, which stays published"
        findings.append(GateFinding("outdated", message))
    if before is None and pages is not None:
        findings += _first(new, pages)
    if before is not None and before.items:
        if not new.items:
            return [GateFinding("empty_after_full", f"no items, previously {before.items}"), *findings]
        if is_drop(new.items, before.items, limits):
            findings.append(GateFinding("dropped", f"{new.items} items, previously {before.items}"))
        elif is_drop(before.items - failed, before.items, limits):  # new items may hide it
            message = f"pages failed that stated {failed} of the {before.items} previous items"
            findings.append(GateFinding("failed_pages", message))
        findings += _lost_fields(new, before, required)
    if new.items and new.flagged > FLAGGED_SHARE * new.items:
        message = f"{new.flagged} of {new.items} items have a required field that is not proved"
        findings.append(GateFinding("unproved", message))
    return findings


def _first(new: DatasetNumbers, pages: RecordPages) -> Iterator[GateFinding]:
    if not new.items:
        yield GateFinding("empty_first", f"no items on {pages.total} pages, and none were ever found")
    elif pages.without > MOSTLY * pages.total:
        yield GateFinding("mostly_failed", f"{pages.without} of {pages.total} pages failed or gave no item")
    elif pages.failed_lists > MOSTLY * pages.lists:
        message = f"{pages.failed_lists} of {pages.lists} lists failed, and what they lead to is missing"
        yield GateFinding("failed_lists", message)


def is_drop(items: int, before: int, limits: Extraction) -> bool:
    """Whether `items` are far fewer than before: by share, and by an absolute minimum."""
    lost = before - items
    return lost >= DROP_FLOOR and lost > limits.drop_share * before


def _lost_fields(new: DatasetNumbers, before: DatasetNumbers, required: Collection[str]) -> Iterator[GateFinding]:
    for name in sorted(before.fields):
        share_before, share = before.share_with(name), new.share_with(name)
        is_missed = name in required or share_before >= NEARLY_ALL
        if is_missed and share_before and share_before - share > LOST_FIELD_SHARE * share_before:
            message = f"{name} is stated by {share:.0%} of the items, previously {share_before:.0%}"
            yield GateFinding("lost_field", message)
