"""What detection says to people: what was seen, what decided, and what the cure is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ingestion_pipeline.catalogs.detection.clusters import Cluster
from ingestion_pipeline.catalogs.detection.judging import PagePurpose
from ingestion_pipeline.catalogs.detection.lists import FoundList
from ingestion_pipeline.catalogs.detection.looked import PageAnalysis

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
