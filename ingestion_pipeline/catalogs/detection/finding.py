"""What detection comes to: a recipe with how it was found, or a reason for people."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ingestion_pipeline.catalogs.detection.looked import PageAnalysis
from ingestion_pipeline.catalogs.detection.votes import Tally
from ingestion_pipeline.work.errors import Permanent


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRecipe:
    """A recipe as `config.recipe` writes it, what is said of it, and what decided."""

    recipe: Mapping[str, Any]
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])


class NotDetected(Permanent):
    """No recipe was found; the message says what was seen, and the cure."""

    def __init__(self, message: str, *, code: str = "not_detected") -> None:
        super().__init__(message, code=code)


class FetchPage(Protocol):
    """A way to look at a page, politely; whatever goes wrong is a `WorkError`."""

    def page(self, url: str) -> Awaitable[PageAnalysis]:
        """The page as detection sees it."""
        ...

    def data(self, url: str) -> Awaitable[object]:
        """An API's answer."""
        ...


class Voters(Protocol):
    """A model that is asked several times."""

    def page_type(self, page: PageAnalysis) -> Awaitable[Tally[str]]:
        """What the page is for."""
        ...

    def pagination(self, page: PageAnalysis) -> Awaitable[Tally[str]]:
        """How its list goes on, as JSON of a recipe's `pagination`."""
        ...

    def link_pattern(self, page: PageAnalysis) -> Awaitable[Tally[str]]:
        """Which of its links lead on, as a pattern that was checked against the page."""
        ...


def spread(items: Sequence[str], count: int) -> list[str]:
    """At most so many of the items, from all over the list."""
    if len(items) <= count:
        return list(items)
    step = len(items) / count
    return [items[int(index * step)] for index in range(count)]
