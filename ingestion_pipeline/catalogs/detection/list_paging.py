"""Find by rules how a list continues, from the numbers in its links' texts and URLs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ingestion_pipeline.catalogs.detection.page_analysis import PageAnalysis
from ingestion_pipeline.reading.html.links import Clue, PageLink

MAX_PAGES = 10_000
PAGE_BY_PAGE: Mapping[str, Any] = {"next": "rel"}  # from each page to the next; needs no end
_DIGITS = re.compile(r"[0-9]{1,7}")
# URLs that are pages of a list by their parameter, whatever the link's text (Acalog's are such).
_SAYS_PAGE = re.compile(r"(?<=[?&])(?:filter%5Bcpage%5D|filter\[cpage\]|cpage)=([0-9]{1,5})(?=&|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPaging:
    """A list's further pages in the form of a recipe; `is_open` if its end was not seen."""

    pagination: Mapping[str, Any]
    is_open: bool = False
    last_url: str | None = None


@dataclass(frozen=True, slots=True)
class _Numbered:
    url: str
    label: int | None  # the number that the link's text shows
    value: int  # the number in its URL


def find_paging(page: PageAnalysis) -> ListPaging | None:
    """Return how the page's list continues; None if the rules see only one page."""
    by_template: dict[str, list[_Numbered]] = {}
    for template, link in _numbered_pages(page):
        by_template.setdefault(template, []).append(link)
    has_next = any(link.clue <= Clue.NEXT_TEXT for link in page.following)
    for template, links in sorted(by_template.items(), key=lambda item: -len(item[1])):
        labelled = [link for link in links if link.label is not None]
        counted = _numbered_paging(template, links, labelled)
        if counted is not None:
            last = max(links, key=lambda link: link.value)
            return ListPaging(pagination=counted, is_open=has_next and _is_window(links), last_url=last.url)
    return ListPaging(pagination=PAGE_BY_PAGE) if has_next else None


def _numbered_pages(page: PageAnalysis) -> list[tuple[str, _Numbered]]:
    """Return each numbered link with its URL template, in which `{}` replaces the number."""
    numbered: list[tuple[str, _Numbered]] = []
    links = [link for link in page.following if link.clue >= Clue.NUMBERED or link.pattern]
    varying = _varying(links)
    for link in links:
        place = _place(link, varying)
        if place is not None:
            start, end = place
            template = f"{link.url[:start]}{{}}{link.url[end:]}"
            label = link.number if link.clue is Clue.NUMBERED else None
            numbered.append((template, _Numbered(link.url, label, int(link.url[start:end]))))
    for anchor in page.anchors:
        page_match = _SAYS_PAGE.search(anchor.url)
        if page_match is not None:
            start, end = page_match.span(1)
            template = f"{anchor.url[:start]}{{}}{anchor.url[end:]}"
            label = int(anchor.text) if anchor.text.isdecimal() else None
            numbered.append((template, _Numbered(anchor.url, label, int(page_match[1]))))
    return numbered


def _varying(links: Sequence[PageLink]) -> Counter[str]:
    """Count the URLs that are equal except for one number: there the list counts its pages."""
    return Counter(
        link.url[: part.start()] + "{}" + link.url[part.end() :]
        for link in links
        for part in _DIGITS.finditer(link.url)
    )


def _place(link: PageLink, varying: Counter[str]) -> tuple[int, int] | None:
    """Return the span of the page number: by the link's pattern, else where other links differ."""
    if link.pattern is not None:
        start = min(at for at in map(link.pattern.find, ("{page_num}", "{offset}")) if at >= 0)
        digits = _DIGITS.match(link.url, start)
        return digits.span() if digits else None
    places = [
        (varying[link.url[: part.start()] + "{}" + link.url[part.end() :]], part.span())
        for part in _DIGITS.finditer(link.url)
    ]
    best = max(places, default=(0, None))
    return best[1] if best[0] > 1 or (len(places) == 1 and link.number is not None) else None


def _numbered_paging(template: str, links: Sequence[_Numbered], labelled: Sequence[_Numbered]) -> dict[str, Any] | None:
    """Return a list by page numbers from 1 or 0, or by offsets; None if the numbers do not fit."""
    highest = max(link.value for link in links)
    differences = {link.value - (link.label or 0) for link in labelled}
    if not labelled and any(f"{name}=" in template for name in _OFFSETS):
        return _by_offset(template, [link.value for link in links])
    if differences <= {0}:  # also if no link text has a number: then the URL decides
        return _by_number(template, highest, start=1)
    if differences == {-1}:
        return _by_number(template, highest + 1, start=0)
    sizes = {
        link.value // (link.label - 1)
        for link in labelled
        if link.label is not None and link.label > 1 and link.value % (link.label - 1) == 0
    }
    if len(sizes) == 1 and (size := next(iter(sizes))) > 1:
        return _by_offset(template, [link.value for link in links], limit=size)
    return None


_OFFSETS = ("offset", "start", "skip", "from", "startrow", "first", "startindex", "start_index")


def _by_number(template: str, total: int, *, start: int) -> dict[str, Any] | None:
    if not 1 < total <= MAX_PAGES:
        return None
    pagination: dict[str, Any] = {"url_pattern": template.replace("{}", "{page_num}"), "total_pages": total}
    return pagination | ({"start_page": 0} if start == 0 else {})


def _by_offset(template: str, values: Sequence[int], *, limit: int | None = None) -> dict[str, Any] | None:
    size = limit or math.gcd(*values)
    total = max(values) // size + 1 if size else 0
    if not 1 < total <= MAX_PAGES:
        return None
    return {"url_pattern": template.replace("{}", "{offset}"), "total_pages": total, "limit": size}


def _is_window(links: Sequence[_Numbered]) -> bool:
    """Whether the numbers may be only the first of more: there is no gap before the last one."""
    values = sorted({link.value for link in links})
    return len({after - before for before, after in pairwise(values)}) <= 1
