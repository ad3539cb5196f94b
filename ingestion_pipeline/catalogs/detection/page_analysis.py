"""Analyze a page for detection: its links with their texts, its records, and how its list continues."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.pipeline import NoRules, read_records
from ingestion_pipeline.catalogs.extraction.rules.course_words import read_heading
from ingestion_pipeline.catalogs.recipes.next_pages import identity
from ingestion_pipeline.reading.html.cleaning import parse_html
from ingestion_pipeline.reading.html.links import (
    Clue,
    PageLink,
    base_of,
    canonical_or_none,
    following_pages,
    linked_page,
)
from ingestion_pipeline.reading.text.plain_text import clean_text

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

MAX_ANCHORS = 20_000
LEAST_WORDS = 30  # that a page shows; one with fewer, and no link, waits for its script
# Links such as `#/courses?group=Welding`: to a server they are all the same page.
_ROUTES = "a[href^='#/'], a[href^='#!'], a[href*='/#/'], a[href*='/#!']"
_ASIDE_TAGS = frozenset({"nav", "header", "footer", "aside"})
_ASIDE_NAME = re.compile(
    r"\b(?:nav(?:bar|igation)?|menu|breadcrumbs?|footer|header|sidebar|skip|social|toolbar|login)\b"
)
_CODE_ALONE = re.compile(r"[A-Z][A-Z&]{1,7}[ -]?[0-9]{2,4}[A-Z]{0,2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A link by its canonical URL; `is_aside` if it stands in a menu, header, footer or sidebar."""

    url: str
    text: str
    is_aside: bool

    @property
    def names_course(self) -> bool:
        """Whether its text is that of a course: a code, alone or before a title."""
        return _CODE_ALONE.fullmatch(self.text) is not None or read_heading(self.text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStats:
    """What rules find on a page: records, how many are complete, length of descriptions."""

    count: int = 0
    complete: int = 0
    description_characters: float = 0.0
    names: tuple[str, ...] = ()
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAnalysis:
    """The signals of one fetched page; `records` is None if no rules exist for the entity."""

    url: str
    html: str
    title: str
    anchors: tuple[Anchor, ...]
    following: tuple[PageLink, ...]
    records: RecordStats | None
    has_form: bool = False
    is_rendered: bool = False
    routes: tuple[str, ...] = ()  # links to places within the page that only its script knows
    is_shell: bool = False  # it shows next to nothing before its script has run

    def without(self, urls: Collection[str]) -> PageAnalysis:
        """Return the analysis without links to these: what two pages share is the site's menu."""
        anchors = tuple(anchor for anchor in self.anchors if identity(anchor.url) not in urls)
        return replace(self, anchors=anchors)

    @property
    def targets(self) -> frozenset[str]:
        """The identities of the page and of every page it links to."""
        return frozenset([identity(self.url), *(identity(anchor.url) for anchor in self.anchors)])


def analyze_page(html: str, url: str, *, kind: EntityType, is_rendered: bool = False) -> PageAnalysis:
    """Return all signals that rules read from the page.

    Raises:
        Permanent: the page is a parser bomb (see `parse_html`).
    """
    tree = parse_html(html)
    heads = [clean_text(node.text()) or "" for node in tree.css("title, h1")]
    return PageAnalysis(
        url=url,
        html=html,
        title=" | ".join(heads[:4]),
        anchors=tuple(_anchors(tree, url)),
        following=tuple(following_pages(tree, url)),
        records=record_stats(html, kind),
        has_form=tree.css_first("form select, form[method='post' i]") is not None,
        is_rendered=is_rendered,
        routes=tuple(dict.fromkeys(str(node.attrs.get("href")) for node in tree.css(_ROUTES)[:MAX_ANCHORS])),
        is_shell=_is_shell(tree),
    )


def _is_shell(tree: LexborHTMLParser) -> bool:
    """Whether the page shows next to nothing before its script has run."""
    if tree.css_first("script") is None or tree.body is None:
        return False
    body = tree.body.clone()
    for node in body.css("script, style, noscript, template"):
        node.decompose()
    return len(body.text().split()) < LEAST_WORDS and body.css_first("a[href]") is None


def record_stats(html: str, kind: EntityType) -> RecordStats | None:
    """Return what the rules of the entity find; None if it has no rules."""
    try:
        reading = read_records(kind, html)
    except NoRules:
        return None
    lengths = [len(str(text)) for record in reading.records if (text := record.fields.get("course_description"))]
    return RecordStats(
        count=len(reading.records),
        complete=len(lengths),
        description_characters=sum(lengths) / len(lengths) if lengths else 0.0,
        names=tuple(str(record.fields.get("course_name") or "") for record in reading.records[:500]),
        by="; ".join(reading.notes),
    )


def _anchors(tree: LexborHTMLParser, url: str) -> list[Anchor]:
    base, own = base_of(tree, url), identity(canonical_or_none(url) or url)
    anchors: dict[str, Anchor] = {}
    asides: dict[int, bool] = {}
    for node in tree.css("a[href]")[:MAX_ANCHORS]:
        address = canonical_or_none(linked_page(base, node.attrs.get("href")) or "")
        if address is None or identity(address) == own:
            continue
        text = clean_text(node.text()) or ""
        existing = anchors.get(address)
        if existing is None or ((existing.is_aside or not existing.names_course) and text):
            is_aside = _stands_in_menu(node, asides)
            if existing is None or existing.is_aside >= is_aside:
                anchors[address] = Anchor(url=address, text=text[:200], is_aside=is_aside)
    return list(anchors.values())


def _stands_in_menu(node: LexborNode, asides: dict[int, bool]) -> bool:
    """Whether the node stands in a menu; `asides` remembers each element, so that it is examined once."""
    way: list[int] = []
    current, answer = node.parent, False
    while current is not None and current.is_element_node and current.tag != "body":
        if current.mem_id in asides:
            answer = asides[current.mem_id]
            break
        way.append(current.mem_id)
        names = f"{current.attrs.get('class') or ''} {current.attrs.get('id') or ''}".lower()
        if current.tag in _ASIDE_TAGS or _names_aside(names):
            answer = True
            break
        current = current.parent
    asides |= dict.fromkeys(way, answer)
    return answer


@lru_cache(maxsize=2_000)
def _names_aside(names: str) -> bool:
    return _ASIDE_NAME.search(names) is not None


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

    @property
    def page_count(self) -> float:
        """The number of pages; infinite where each only links to the next."""
        return self.pagination.get("total_pages", math.inf)


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
            values = sorted({link.value for link in links})
            # Without a gap before the last one, the numbers may be only the first of more.
            is_window = len({after - before for before, after in pairwise(values)}) <= 1
            return ListPaging(pagination=counted, is_open=has_next and is_window, last_url=last.url)
    return ListPaging(pagination=PAGE_BY_PAGE) if has_next else None


def _numbered_pages(page: PageAnalysis) -> list[tuple[str, _Numbered]]:
    """Return each numbered link with its URL template, in which `{}` replaces the number."""
    numbered: list[tuple[str, _Numbered]] = []
    links = [link for link in page.following if link.clue >= Clue.NUMBERED or link.pattern]
    # URLs that are equal except for one number: there the list counts its pages.
    varying = Counter(_template(link.url, part.span()) for link in links for part in _DIGITS.finditer(link.url))
    for link in links:
        place = _place(link, varying)
        if place is not None:
            label = link.number if link.clue is Clue.NUMBERED else None
            numbered.append((_template(link.url, place), _Numbered(link.url, label, int(link.url[slice(*place)]))))
    for anchor in page.anchors:
        page_match = _SAYS_PAGE.search(anchor.url)
        if page_match is not None:
            template = _template(anchor.url, page_match.span(1))
            label = int(anchor.text) if anchor.text.isdecimal() else None
            numbered.append((template, _Numbered(anchor.url, label, int(page_match[1]))))
    return numbered


def _template(url: str, place: tuple[int, int]) -> str:
    return f"{url[: place[0]]}{{}}{url[place[1] :]}"


def _place(link: PageLink, varying: Counter[str]) -> tuple[int, int] | None:
    """Return the span of the page number: by the link's pattern, else where other links differ."""
    if link.pattern is not None:
        start = min(at for at in map(link.pattern.find, ("{page_num}", "{offset}")) if at >= 0)
        digits = _DIGITS.match(link.url, start)
        return digits.span() if digits else None
    places = [(varying[_template(link.url, part.span())], part.span()) for part in _DIGITS.finditer(link.url)]
    best = max(places, default=(0, None))
    return best[1] if best[0] > 1 or (len(places) == 1 and link.number is not None) else None


def _numbered_paging(template: str, links: Sequence[_Numbered], labelled: Sequence[_Numbered]) -> dict[str, Any] | None:
    """Return a list by page numbers from 1 or 0, or by offsets; None if the numbers do not fit."""
    highest = max(link.value for link in links)
    differences = {link.value - (link.label or 0) for link in labelled}
    if not labelled and any(f"{name}=" in template for name in _OFFSETS):
        size = math.gcd(*(link.value for link in links))
        return _pagination(template, "offset", highest // size + 1 if size else 0, limit=size)
    if differences <= {0}:  # also if no link text has a number: then the URL decides
        return _pagination(template, "page_num", highest)
    if differences == {-1}:
        return _pagination(template, "page_num", highest + 1, start_page=0)
    sizes = {
        link.value // (link.label - 1)
        for link in labelled
        if link.label is not None and link.label > 1 and link.value % (link.label - 1) == 0
    }
    if len(sizes) == 1 and (size := sizes.pop()) > 1:
        return _pagination(template, "offset", highest // size + 1, limit=size)
    return None


_OFFSETS = ("offset", "start", "skip", "from", "startrow", "first", "startindex", "start_index")


def _pagination(template: str, counts: str, total: int, **more: int) -> dict[str, Any] | None:
    pattern = template.replace("{}", f"{{{counts}}}")
    return {"url_pattern": pattern, "total_pages": total, **more} if 1 < total <= MAX_PAGES else None
