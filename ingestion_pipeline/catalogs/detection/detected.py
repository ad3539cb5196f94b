"""Votes of a model: each answer counts once, and only more than half of them decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ingestion_pipeline.catalogs.detection.link_shapes import Cluster
from ingestion_pipeline.catalogs.detection.list_paging import FoundList
from ingestion_pipeline.catalogs.detection.page_analysis import PageAnalysis
from ingestion_pipeline.catalogs.detection.page_purpose import PagePurpose
from ingestion_pipeline.tasks.errors import Permanent

Choice = TypeVar("Choice", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally(Generic[Choice]):
    """How a vote went; `winner` is None where it decided nothing."""

    winner: Choice | None
    counts: tuple[tuple[Choice, int], ...]
    asked: int

    def __str__(self) -> str:
        """For people."""
        said = ", ".join(f"{choice} {count}" for choice, count in self.counts)
        return f"{said or 'no answer'} of {self.asked}"


def tally(votes: Sequence[Choice | None]) -> Tally[Choice]:
    """The choice of more than half of those who answered; a tie decides nothing.

    None is an answer that was not given: it is nobody's vote.
    """
    counted = Counter(vote for vote in votes if vote is not None)
    counts = sorted(counted.items(), key=lambda one: (-one[1], str(one[0])))
    given = sum(count for _, count in counts)
    winner = counts[0][0] if counts and counts[0][1] * 2 > given else None
    return Tally(winner=winner, counts=tuple(counts), asked=len(votes))


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


CURE = (
    "write config.recipe by hand, or set OPENAI_API_KEY or OPENAI_BASE_URL so that a model can be"
    " asked, and look again with `ingest sources update ID --detect`"
)

LEAST_ROUTES = 3
_OTHER_WAYS = (
    "give the source the addresses that the page's script asks for its data (of Kuali"
    " https://HOST/api/v1/catalog/courses/CATALOG for the list and .../course/CATALOG/COURSE for"
    " each course, which are read without a model), with page_type DETAIL in config.recipe; or"
    " another view of the catalogue whose links have no #, with `render: true` in config.recipe"
)


def where(depth: int) -> str:
    """Which page is meant."""
    return "the page" if depth == 0 else f"level {depth + 1}"


def counting(found: FoundList) -> str:
    """How a list goes on."""
    pagination = found.pagination
    if "next" in pagination:
        return "its link to the next page"
    return f"{pagination['url_pattern']}, {pagination['total_pages']} pages"


def is_longer(further: FoundList, found: FoundList) -> bool:
    """Whether the last page that was known leads further still."""
    there, here = further.pagination, found.pagination
    if "next" in there or "next" in here:
        return "next" in there
    return int(there["total_pages"]) > int(here["total_pages"])


def mixed(
    cluster: Cluster,
    details: Sequence[PageAnalysis],
    lists: Sequence[PageAnalysis],
    kinds: Mapping[str, PagePurpose],
) -> str:
    """Links of one shape whose pages are of several types."""
    return (
        f"{cluster} lead to pages of several types: {len(details)} hold records"
        f" (such as {details[0].url}: {kinds[details[0].url].why}), {len(lists)} lead on"
        f" (such as {lists[0].url}: {kinds[lists[0].url].why})"
    )


def unsure(page: PageAnalysis, found: PagePurpose, tried: Sequence[str], depth: int) -> str:
    """Why rules do not decide, and the cure."""
    seen = f"{where(depth)} {page.url} has {found.why}"
    also = f"; {'; '.join(tried[:4])}" if tried else ""
    if page.records is None:
        also += "; and records that no rules read, of this type"
    return f"rules cannot tell how to read it: {seen}{also}. The cure: {CURE}"


def by_script(page: PageAnalysis) -> str | None:
    """Why neither rules nor a model can follow a page that lives by its script, and the cure."""
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


def summary(recipe: Mapping[str, Any]) -> str:
    """The page types of its levels, in a line."""
    kinds = [str(recipe["page_type"])]
    inner = recipe.get("links")
    while inner:
        kinds.append(str(inner["page_type"]))
        inner = inner.get("links")
    return " > ".join(kinds)
