"""How a list goes on, by rules: the numbers its links show and the numbers in their addresses."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ingestion_pipeline.catalogs.detection.page_analysis import PageAnalysis
from ingestion_pipeline.reading.html.pagination import Clue, PageLink

MAX_PAGES = 10_000
PAGE_BY_PAGE: Mapping[str, Any] = {"next": "rel"}  # from each page to the next; needs no end
_DIGITS = re.compile(r"[0-9]{1,7}")
# Addresses that say they are pages of a list, whatever words lead to them (Acalog's among them).
_SAYS_PAGE = re.compile(
    r"(?<=[?&])(?:filter%5Bcpage%5D|filter\[cpage\]|cpage)=([0-9]{1,5})(?=&|$)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundList:
    """A list's further pages as a recipe writes them; `is_open` if its end was not seen."""

    pagination: Mapping[str, Any]
    is_open: bool = False
    last_url: str | None = None


@dataclass(frozen=True, slots=True)
class _Numbered:
    url: str
    shown: int | None
    value: int


def found_list(page: PageAnalysis) -> FoundList | None:
    """How the page's list goes on; None if it has but one page, as far as rules can tell."""
    by_template: dict[str, list[_Numbered]] = {}
    for template, one in _numbered_pages(page):
        by_template.setdefault(template, []).append(one)
    has_next = any(one.clue <= Clue.NEXT_TEXT for one in page.following)
    for template, links in sorted(by_template.items(), key=lambda item: -len(item[1])):
        shown = [one for one in links if one.shown is not None]
        counted = _counted(template, links, shown)
        if counted is not None:
            last = max(links, key=lambda one: one.value)
            return FoundList(
                pagination=counted,
                is_open=has_next and _is_window(links),
                last_url=last.url,
            )
    return FoundList(pagination=PAGE_BY_PAGE) if has_next else None


def _numbered_pages(page: PageAnalysis) -> list[tuple[str, _Numbered]]:
    """Each numbered link with its address, in which the number has become a place."""
    found: list[tuple[str, _Numbered]] = []
    links = [one for one in page.following if one.clue >= Clue.NUMBERED or one.pattern]
    varying = _varying(links)
    for one in links:
        place = _place(one, varying)
        if place is not None:
            start, end = place
            template = f"{one.url[:start]}{{}}{one.url[end:]}"
            shown = one.number if one.clue is Clue.NUMBERED else None
            found.append((template, _Numbered(one.url, shown, int(one.url[start:end]))))
    for anchor in page.anchors:
        said = _SAYS_PAGE.search(anchor.url)
        if said is not None:
            start, end = said.span(1)
            template = f"{anchor.url[:start]}{{}}{anchor.url[end:]}"
            shown = int(anchor.text) if anchor.text.isdecimal() else None
            found.append((template, _Numbered(anchor.url, shown, int(said[1]))))
    return found


def _varying(links: Sequence[PageLink]) -> Counter[str]:
    """How often an address occurs when one of its numbers is left out: where lists count."""
    return Counter(
        one.url[: part.start()] + "{}" + one.url[part.end() :]
        for one in links
        for part in _DIGITS.finditer(one.url)
    )


def _place(link: PageLink, varying: Counter[str]) -> tuple[int, int] | None:
    """Where the number stands: as the address says itself, else where others have another one."""
    if link.pattern is not None:
        start = min(at for at in map(link.pattern.find, ("{page_num}", "{offset}")) if at >= 0)
        found = _DIGITS.match(link.url, start)
        return found.span() if found else None
    places = [
        (varying[link.url[: part.start()] + "{}" + link.url[part.end() :]], part.span())
        for part in _DIGITS.finditer(link.url)
    ]
    best = max(places, default=(0, None))
    return best[1] if best[0] > 1 or (len(places) == 1 and link.number is not None) else None


def _counted(
    template: str, links: Sequence[_Numbered], shown: Sequence[_Numbered]
) -> dict[str, Any] | None:
    """The list by page numbers from 1 or 0, or by offsets; None if the numbers make no sense."""
    highest = max(one.value for one in links)
    differences = {one.value - (one.shown or 0) for one in shown}
    if not shown and any(f"{name}=" in template for name in _OFFSETS):
        return _by_offset(template, [one.value for one in links])
    if differences <= {0}:  # also where no link shows a number: the address is believed
        return _by_number(template, highest, start=1)
    if differences == {-1}:
        return _by_number(template, highest + 1, start=0)
    sizes = {
        one.value // (one.shown - 1)
        for one in shown
        if one.shown is not None and one.shown > 1 and one.value % (one.shown - 1) == 0
    }
    if len(sizes) == 1 and (size := next(iter(sizes))) > 1:
        return _by_offset(template, [one.value for one in links], limit=size)
    return None


_OFFSETS = ("offset", "start", "skip", "from", "startrow", "first", "startindex", "start_index")


def _by_number(template: str, total: int, *, start: int) -> dict[str, Any] | None:
    if not 1 < total <= MAX_PAGES:
        return None
    found: dict[str, Any] = {
        "url_pattern": template.replace("{}", "{page_num}"),
        "total_pages": total,
    }
    return found | ({"start_page": 0} if start == 0 else {})


def _by_offset(
    template: str, values: Sequence[int], *, limit: int | None = None
) -> dict[str, Any] | None:
    size = limit or math.gcd(*values)
    total = max(values) // size + 1 if size else 0
    if not 1 < total <= MAX_PAGES:
        return None
    return {
        "url_pattern": template.replace("{}", "{offset}"),
        "total_pages": total,
        "limit": size,
    }


def _is_window(links: Sequence[_Numbered]) -> bool:
    """Whether the numbers shown may be but the beginning of more: no gap before the last one."""
    values = sorted({one.value for one in links})
    return len({after - before for before, after in pairwise(values)}) <= 1
