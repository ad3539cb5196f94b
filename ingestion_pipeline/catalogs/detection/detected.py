"""Results of detection: vote counts, the detected recipe, protocols, and messages for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ingestion_pipeline.catalogs.detection.link_shapes import Cluster
from ingestion_pipeline.catalogs.detection.list_paging import ListPaging
from ingestion_pipeline.catalogs.detection.page_analysis import PageAnalysis
from ingestion_pipeline.catalogs.detection.page_purpose import PagePurpose
from ingestion_pipeline.tasks.errors import Permanent

Choice = TypeVar("Choice", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally(Generic[Choice]):
    """The result of a vote; `winner` is None if no choice has a majority."""

    winner: Choice | None
    counts: tuple[tuple[Choice, int], ...]
    vote_count: int

    def __str__(self) -> str:
        """Return the counts as text for people."""
        breakdown = ", ".join(f"{choice} {count}" for choice, count in self.counts)
        return f"{breakdown or 'no answer'} of {self.vote_count}"


def tally(votes: Sequence[Choice | None]) -> Tally[Choice]:
    """Count the votes; the winner needs more than half of the answers, and a tie has no winner.

    None stands for a missing answer and is not counted as a vote.
    """
    counted = Counter(vote for vote in votes if vote is not None)
    counts = sorted(counted.items(), key=lambda item: (-item[1], str(item[0])))
    answered = sum(count for _, count in counts)
    winner = counts[0][0] if counts and counts[0][1] * 2 > answered else None
    return Tally(winner=winner, counts=tuple(counts), vote_count=len(votes))


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRecipe:
    """A recipe in the form of `config.recipe`, a message for people, and the evidence for it."""

    recipe: Mapping[str, Any]
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])


class NotDetected(Permanent):
    """No recipe was found; the message says what was seen, and the cure."""

    def __init__(self, message: str, *, code: str = "not_detected") -> None:
        super().__init__(message, code=code)


class FetchPage(Protocol):
    """A polite fetcher of pages; every failure is a `WorkError`."""

    def page(self, url: str) -> Awaitable[PageAnalysis]:
        """Fetch and analyze a page."""
        ...

    def data(self, url: str) -> Awaitable[object]:
        """Fetch an API response."""
        ...


class Voters(Protocol):
    """A model that answers each question several times."""

    def page_type(self, page: PageAnalysis) -> Awaitable[Tally[str]]:
        """Vote on the type of the page."""
        ...

    def pagination(self, page: PageAnalysis) -> Awaitable[Tally[str]]:
        """Vote on how the page's list continues, as JSON of a recipe's `pagination`."""
        ...

    def link_pattern(self, page: PageAnalysis) -> Awaitable[Tally[str]]:
        """Vote on the links to follow, as a pattern that was checked against the page."""
        ...


def spread_sample(items: Sequence[str], count: int) -> list[str]:
    """Return at most `count` of the items, evenly spread over the list."""
    if len(items) <= count:
        return list(items)
    step = len(items) / count
    return [items[int(index * step)] for index in range(count)]


CURE = (
    "write config.recipe by hand, or set OPENAI_API_KEY or OPENAI_BASE_URL so that a model can be"
    " asked, and detect again with `ingest sources update ID --detect`"
)

LEAST_ROUTES = 3
_OTHER_WAYS = (
    "give the source the addresses that the page's script asks for its data (of Kuali"
    " https://HOST/api/v1/catalog/courses/CATALOG for the list and .../course/CATALOG/COURSE for"
    " each course, which are read without a model), with page_type DETAIL in config.recipe; or"
    " another view of the catalogue whose links have no #, with `render: true` in config.recipe"
)


def level_name(depth: int) -> str:
    """Return the name of a recipe level for messages."""
    return "the page" if depth == 0 else f"level {depth + 1}"


def describe_paging(paging: ListPaging) -> str:
    """Describe how a list continues."""
    pagination = paging.pagination
    if "next" in pagination:
        return "its link to the next page"
    return f"{pagination['url_pattern']}, {pagination['total_pages']} pages"


def is_longer(further: ListPaging, current: ListPaging) -> bool:
    """Whether the paging seen on the last known page continues beyond it."""
    there, here = further.pagination, current.pagination
    if "next" in there or "next" in here:
        return "next" in there
    return int(there["total_pages"]) > int(here["total_pages"])


def mixed_pages_reason(
    cluster: Cluster, details: Sequence[PageAnalysis], lists: Sequence[PageAnalysis], kinds: Mapping[str, PagePurpose]
) -> str:
    """Explain that links of one shape lead to pages of several types."""
    return (
        f"{cluster} lead to pages of several types: {len(details)} hold records"
        f" (such as {details[0].url}: {kinds[details[0].url].why}), {len(lists)} lead on"
        f" (such as {lists[0].url}: {kinds[lists[0].url].why})"
    )


def unsure_reason(page: PageAnalysis, purpose: PagePurpose, tried: Sequence[str], depth: int) -> str:
    """Explain why the rules do not decide, and the cure."""
    seen = f"{level_name(depth)} {page.url} has {purpose.why}"
    also = f"; {'; '.join(tried[:4])}" if tried else ""
    if page.records is None:
        also += "; and records that no rules read, of this type"
    return f"rules cannot decide how to read it: {seen}{also}. The cure: {CURE}"


def script_only_reason(page: PageAnalysis) -> str | None:
    """Explain why a page that depends on its script cannot be followed, and the cure; else None."""
    if len(page.routes) >= LEAST_ROUTES:
        return (
            f"{len(page.routes)} links of {page.url} are routes within the page, such as"
            f" {page.routes[0]}: to a server they are all one address, so that none of them can be"
            f" fetched. The cure: {_OTHER_WAYS}"
        )
    if page.is_shell and not page.is_rendered:
        return (
            f"{page.url} shows nothing before its script has run. The cure: write config.recipe by"
            f" hand, with `render: true`; or {_OTHER_WAYS}"
        )
    return None


def recipe_summary(recipe: Mapping[str, Any]) -> str:
    """Return the page types of the recipe's levels in one line."""
    kinds = [str(recipe["page_type"])]
    inner = recipe.get("links")
    while inner:
        kinds.append(str(inner["page_type"]))
        inner = inner.get("links")
    return " > ".join(kinds)
