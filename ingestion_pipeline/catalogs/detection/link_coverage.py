"""How much of what a page lists a recipe follows: the proof that it is more than one category's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ingestion_pipeline.catalogs.detection.clusters import COURSE_SHARE, usable_anchors
from ingestion_pipeline.catalogs.detection.judging import MANY_LINKS, judged
from ingestion_pipeline.catalogs.detection.looked import Anchor, PageAnalysis
from ingestion_pipeline.catalogs.recipes.patterns import LinkPattern
from ingestion_pipeline.catalogs.recipes.recipe import PageType
from ingestion_pipeline.catalogs.recipes.seen import identity
from ingestion_pipeline.catalogs.recipes.simplified import matched_links, simplified_markdown

PROVING_PAGES = 3  # categories that a recipe is tried on, beyond those that it was made from


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCoverage:
    """The links of a page that look like those to records, and which of them are not followed."""

    page: PageAnalysis
    alike: int
    left_out: tuple[Anchor, ...]

    @property
    def is_small(self) -> bool:
        """Whether most of the links are left out."""
        return len(self.left_out) * 2 > self.alike

    def __str__(self) -> str:
        """Return the numbers, for people."""
        return (
            f"{self.page.url} has {self.alike} links such as {self.left_out[0].url}, and the recipe"
            f" follows {self.alike - len(self.left_out)} of them"
        )


def followed_links(page: PageAnalysis, level: Mapping[str, Any]) -> list[str]:
    """Return the links of the page that this level of a recipe follows; none where it has none."""
    pattern = level.get("link_pattern")
    if pattern is None:
        return []
    return matched_links(simplified_markdown(page.html), LinkPattern(pattern), page.url)


def coverages(pages: Sequence[PageAnalysis], level: Mapping[str, Any]) -> list[LinkCoverage]:
    """Return the coverage of each page by this level of a recipe, if something looks like a record.

    Where the links that are followed have the words of courses, links with such words look like
    them; else the links of each page's own best shape do. A page of records need not lead on.
    """
    followed = {page.url: set(map(identity, followed_links(page, level))) for page in pages}
    words = [
        anchor.names_course
        for page in pages
        for anchor in page.anchors
        if identity(anchor.url) in followed[page.url]
    ]
    has_words = not words or sum(words) / len(words) >= COURSE_SHARE
    results: list[LinkCoverage] = []
    for page in pages:
        if not followed[page.url] and page.records is not None and page.records.count:
            continue
        alike = _alike(page, has_words=has_words)
        left_out = tuple(link for link in alike if identity(link.url) not in followed[page.url])
        if alike:
            results.append(LinkCoverage(page=page, alike=len(alike), left_out=left_out))
    return results


def _alike(page: PageAnalysis, *, has_words: bool) -> list[Anchor]:
    if has_words:
        return [link for link in usable_anchors(page) if link.names_course and not link.is_aside]
    best = next(iter(judged(page).clusters), None)
    if best is None or len(best.anchors) < MANY_LINKS or best.aside_share >= COURSE_SHARE:
        return []
    return list(best.anchors)


def left_links(page: PageAnalysis, level: Mapping[str, Any]) -> list[str]:
    """Return the links in the page's content that this level of a recipe does not follow."""
    followed = set(map(identity, followed_links(page, level)))
    return [
        link.url
        for link in usable_anchors(page)
        if not link.is_aside and link.text and identity(link.url) not in followed
    ]


def is_target(page: PageAnalysis, level: Mapping[str, Any]) -> bool:
    """Whether the page is what the links of this level lead to, so that it is wrong to omit it."""
    kind = judged(page)
    target = level.get("links") or {"page_type": PageType.DETAIL.value}
    if target["page_type"] == PageType.DETAIL.value:
        return kind.page_type is PageType.DETAIL
    return kind.leads_on
