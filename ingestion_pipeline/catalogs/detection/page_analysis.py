"""Analyze a page for detection: its links with their texts and shapes, its records, paging, platform and purpose.

URLs of one shape differ only in a number, a name or query values.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib import import_module, resources
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.pipeline import NoRules, read_records
from ingestion_pipeline.catalogs.extraction.rules.course_words import read_heading
from ingestion_pipeline.catalogs.recipes.next_pages import identity
from ingestion_pipeline.catalogs.recipes.patterns import LinkPattern, simplified_markdown
from ingestion_pipeline.catalogs.recipes.recipe import PageType
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.links import (
    Clue,
    PageLink,
    base_of,
    canonical_or_none,
    following_pages,
    linked_page,
)
from ingestion_pipeline.reading.html.markdown import to_markdown
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


@dataclass(frozen=True, kw_only=True)
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
    may_ask_models: bool = True

    def without(self, urls: Collection[str]) -> PageAnalysis:
        """Return the analysis without links to these: what two pages share is the site's menu."""
        anchors = tuple(anchor for anchor in self.anchors if identity(anchor.url) not in urls)
        return replace(self, anchors=anchors)

    @cached_property
    def link_markdown(self) -> str:
        """The text in which link patterns search; each of a page's patterns searches the same."""
        return simplified_markdown(Document(self.html))

    @cached_property
    def markdown(self) -> str:
        """The page as a model reads it."""
        return to_markdown(self.html, url=self.url)

    @property
    def targets(self) -> frozenset[str]:
        """The identities of the page and of every page it links to."""
        return frozenset([identity(self.url), *(identity(anchor.url) for anchor in self.anchors)])


def analyze_page(html: str, url: str, *, kind: EntityType, is_rendered: bool = False) -> PageAnalysis:
    """Return all signals that rules read from the page; a bomb is `Permanent`."""
    document = Document(html)
    tree = document.tree
    heads = [clean_text(node.text()) or "" for node in tree.css("title, h1")]
    return PageAnalysis(
        url=url,
        html=html,
        title=" | ".join(heads[:4]),
        anchors=tuple(_anchors(tree, url)),
        following=tuple(following_pages(tree, url)),
        has_form=tree.css_first("form select, form[method='post' i]") is not None,
        is_rendered=is_rendered,
        routes=tuple(dict.fromkeys(str(node.attrs.get("href")) for node in tree.css(_ROUTES)[:MAX_ANCHORS])),
        is_shell=_is_shell(tree),
        records=record_stats(document, kind),  # last: it takes the tree over
    )


def _is_shell(tree: LexborHTMLParser) -> bool:
    """Whether the page shows next to nothing before its script has run."""
    if tree.css_first("script") is None or tree.body is None:
        return False
    body = tree.body.clone()
    for node in body.css("script, style, noscript, template"):
        node.decompose()
    return len(body.text().split()) < LEAST_WORDS and body.css_first("a[href]") is None


def record_stats(document: Document, kind: EntityType) -> RecordStats | None:
    """Return what the rules of the entity find; None if it has no rules."""
    try:
        reading = read_records(kind, document)
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


LEAST_LINKS = 2
MOST_CLUSTERS = 6
MOST_JOINED = 4  # shapes in one pattern; a site with more of them has no shape at all
MAX_SEGMENTS = 12
COURSE_SHARE = 0.5
# A narrower shape outranks a wider one that has hardly more links.
_TRUST = {"number": 1.0, "query": 1.0, "name": 0.95, "names": 0.8, "wide": 0.6}
_VARIABLE_TRUST = 0.95  # for each further part of an address that differs between sibling pages
_NUMBER = re.compile(r"[0-9]+")
_NO_PAGE = re.compile(r"\.(?:pdf|docx?|xlsx?|zip|png|jpe?g|gif|svg|css|js|ics|xml|rss)$", re.I)
_VARIABLE = r"[^/?#]+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Links of one shape; `pattern` finds them, and `score` ranks them among the page's others."""

    pattern: str
    trust: float = 1.0  # the weight of the kind of shape
    anchors: tuple[Anchor, ...]
    reach: float = 1.0  # the share of sibling pages that have such links

    @property
    def course_share(self) -> float:
        """The share of links whose text names a course."""
        return sum(link.names_course for link in self.anchors) / len(self.anchors)

    @property
    def aside_share(self) -> float:
        """The share of links that stand in menus."""
        return sum(link.is_aside for link in self.anchors) / len(self.anchors)

    @property
    def score(self) -> float:
        """The rank: high for many links in the content that name courses, of a narrow shape."""
        named = sum(bool(link.text) for link in self.anchors) / len(self.anchors)
        quality = (1 + 4 * self.course_share) * (1.05 - self.aside_share) * (0.2 + named)
        # Words of courses prove a wide shape: it only has to lose where both have the same links.
        is_of_courses = self.course_share >= COURSE_SHARE
        trust = 1 - (1 - self.trust) / 100 if is_of_courses else self.trust
        return len(self.anchors) * quality * trust * self.reach

    def __str__(self) -> str:
        """Return the number of links and an example, for people."""
        return f"{len(self.anchors)} links such as {self.anchors[0].url}"


def clusters_of(*pages: PageAnalysis) -> list[Cluster]:
    """Return the link shapes of a page and its siblings, the most promising first.

    No shape lies within a better one. A shape that few siblings have ranks low: it belongs to one
    category. Only links to the pages' own host count, and none to further pages of the same list.
    """
    by_page = [usable_anchors(page) for page in pages]
    usable = list({link.url: link for links in by_page for link in links}.values())
    by_shape: dict[str, tuple[float, list[Anchor]]] = {}
    for anchor in usable:
        for trust, pattern in _shapes(anchor.url):
            by_shape.setdefault(pattern, (trust, []))[1].append(anchor)
    for trust, pattern, anchors in _generalised(usable, has_siblings=len(pages) > 1):
        by_shape.setdefault(pattern, (trust, anchors))
    places = [{link.url for link in links} for links in by_page if links]
    clusters = [
        _with_reach(Cluster(pattern=pattern, trust=trust, anchors=tuple(anchors)), places)
        for pattern, (trust, anchors) in by_shape.items()
        if len(anchors) >= LEAST_LINKS
    ]
    ranked = _distinct(sorted(clusters, key=lambda cluster: (-cluster.score, cluster.pattern)))
    return [*_join_siblings(ranked, places), *ranked]


def usable_anchors(page: PageAnalysis) -> list[Anchor]:
    """Return the page's links to other pages of its host, except further pages of its list."""
    host = urlsplit(page.url).netloc
    further = {canonical_or_none(link.url) for link in page.following}
    return [
        anchor
        for anchor in page.anchors
        if anchor.url not in further
        and urlsplit(anchor.url).netloc == host
        and not _NO_PAGE.search(urlsplit(anchor.url).path)
    ]


def _with_reach(cluster: Cluster, places: Sequence[set[str]]) -> Cluster:
    urls = {anchor.url for anchor in cluster.anchors}
    return replace(cluster, reach=sum(bool(urls & place) for place in places) / len(places))


def _join_siblings(ranked: Sequence[Cluster], places: Sequence[set[str]]) -> list[Cluster]:
    """Return the best shape joined with shapes of the siblings that have none of its links."""
    if not ranked or ranked[0].reach == 1:
        return []
    best = ranked[0]
    parts = [best]
    missing = [place for place in places if not place & {anchor.url for anchor in best.anchors}]
    for other in ranked[1:]:
        urls = {anchor.url for anchor in other.anchors}
        is_alike = (other.course_share >= COURSE_SHARE) == (best.course_share >= COURSE_SHARE)
        if is_alike and other.aside_share < COURSE_SHARE and any(place & urls for place in missing):
            parts.append(other)
            missing = [place for place in missing if not place & urls]
    if len(parts) == 1 or len(parts) > MOST_JOINED:
        return []
    anchors = {anchor.url: anchor for part in parts for anchor in part.anchors}
    pattern = "|".join(part.pattern for part in parts)
    return [_with_reach(replace(best, pattern=pattern, anchors=tuple(anchors.values())), places)]


def widen_cluster(cluster: Cluster, links: Sequence[str], page: PageAnalysis) -> Cluster:
    """Return the shape joined with those of further links, such as categories in other folders."""
    narrow = (_TRUST["name"], _TRUST["query"])  # other URLs differ in the last segment or in the query
    shapes = [next((shape for trust, shape in reversed([*_shapes(url)]) if trust in narrow), None) for url in links]
    pattern = "|".join(dict.fromkeys(filter(None, [cluster.pattern, *shapes])))
    finds = LinkPattern(pattern).find
    anchors = tuple(anchor for anchor in usable_anchors(page) if finds(anchor.url) is not None)
    return replace(cluster, pattern=pattern, anchors=anchors)


def _shapes(url: str) -> Iterator[tuple[float, str]]:
    """Yield the shapes that the URL may be an example of, each as trust and pattern."""
    parts = urlsplit(url)
    origin = f"^{parts.scheme}://{_literal(parts.netloc)}"
    segments = parts.path.strip("/").split("/")
    if len(segments) > MAX_SEGMENTS:
        return
    folders = [f"/{_literal(part)}" for part in segments]
    if parts.query:
        path = "".join(folders) if segments != [""] else "/?"
        yield _TRUST["query"], rf"{origin}{path}/?{_query(parts.query)}$"
        return
    if segments == [""]:
        return
    numbered = "/".join(_numbered(part) for part in segments)
    if "[0-9]+" in numbered:
        yield _TRUST["number"], f"{origin}/{numbered}/?$"
    yield _TRUST["name"], f"{origin}{''.join(folders[:-1])}/{_suffix_pattern(segments[-1])}/?$"
    if len(segments) > 2:  # noqa: PLR2004 - else any page of the site would fit
        yield _TRUST["names"], f"{origin}{''.join(folders[:-2])}/{_VARIABLE}/{_suffix_pattern(segments[-1])}/?$"


def _generalised(anchors: Sequence[Anchor], *, has_siblings: bool) -> Iterator[tuple[float, str, list[Anchor]]]:
    """Yield what URLs of one length have in common, for each folder that some of them share.

    A segment that is the same in all of them stays as it is; one that differs only by its numbers
    matches any number, and every other segment any name.
    """
    frames: dict[tuple[str, ...], list[tuple[Anchor, list[str]]]] = {}
    for anchor in anchors:
        parts = urlsplit(anchor.url)
        segments = parts.path.strip("/").split("/")
        if len(segments) > MAX_SEGMENTS or segments == [""]:
            continue
        last = _suffix_pattern(segments[-1])
        for depth in range(len(segments)):
            frame = (parts.scheme, parts.netloc, _query(parts.query), last, str(len(segments)))
            frames.setdefault((*frame, *segments[:depth]), []).append((anchor, segments))
    for (scheme, netloc, query, last, *_), members in frames.items():
        texts: list[str] = []
        for column in zip(*(parts for _, parts in members), strict=True):
            numbered = {_numbered(part) for part in column}
            same = {_literal(column[0])} if len(set(column)) == 1 else numbered
            texts.append(same.pop() if len(same) == 1 else _VARIABLE)
        if texts[-1] == _VARIABLE:
            texts[-1] = last
        variable = sum(_VARIABLE in text for text in texts)
        end = rf"/?{query}$" if query else "/?$"
        pattern = f"^{scheme}://{_literal(netloc)}/{'/'.join(texts)}{end}"
        trust = _VARIABLE_TRUST ** max(variable - 1, 0) if has_siblings else _TRUST["wide"]
        yield trust, pattern, [anchor for anchor, _ in members]


def _query(query: str) -> str:
    """Return the pattern of a query with these parameter names and any values."""
    keys = [pair.partition("=")[0] for pair in query.split("&") if pair]
    return rf"\?{'&'.join(f'{_literal(key)}=[^&#]*' for key in keys)}" if keys else ""


def _literal(text: str) -> str:
    return re.sub(r"([.+*?()|\[\]{}^$\\])", r"\\\1", text)


def _numbered(segment: str) -> str:
    return "[0-9]+".join(_literal(part) for part in _NUMBER.split(segment))


def _suffix_pattern(segment: str) -> str:
    """Return a pattern for any name with the same file suffix."""
    _, dot, suffix = segment.rpartition(".")
    is_suffix = bool(dot) and suffix.isalpha() and len(suffix) <= 5  # noqa: PLR2004 - .xhtml
    return rf"[^/?#]+\.{suffix}" if is_suffix else _VARIABLE


def _distinct(ranked: Sequence[Cluster]) -> list[Cluster]:
    best: list[Cluster] = []
    taken: list[set[str]] = []
    for cluster in ranked:
        urls = {anchor.url for anchor in cluster.anchors}
        # A wider shape around a better one counts only if it has much that is its own.
        if any(len(urls - other) * 2 < len(urls) for other in taken):
            continue
        best.append(cluster)
        taken.append(urls)
        if len(best) == MOST_CLUSTERS:
            break
    return best


TEASER_CHARACTERS = 160  # a course's description in a list of links is a line, not a paragraph
MANY_LINKS = 3  # of one shape and in the content; fewer stand on any page
STRAY_LINKS = 5  # with so many course links beside one record the page may be a list


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePurpose:
    """The page type if rules are sure; None if the linked pages, or a model, must decide."""

    page_type: PageType | None
    why: str
    clusters: tuple[Cluster, ...] = ()

    @property
    def leads_on(self) -> bool:
        """Whether it is a page of links, by their texts or by their number."""
        if self.page_type is not None:
            return self.page_type is not PageType.DETAIL
        return any(
            len(cluster.anchors) >= MANY_LINKS and cluster.aside_share < COURSE_SHARE for cluster in self.clusters
        )


def purpose_of(page: PageAnalysis, *siblings: PageAnalysis) -> PagePurpose:
    """Return what the page is for; the link shapes are those of the page and its siblings."""
    clusters = tuple(clusters_of(page, *siblings))
    courses = next((cluster for cluster in clusters if cluster.course_share >= COURSE_SHARE), None)
    records = page.records
    if records is not None and records.count:
        if (why := _is_list_of(records, courses, page)) is None:
            summary = f"{records.count} records, {records.complete} of them whole"
            return PagePurpose(page_type=PageType.DETAIL, why=summary, clusters=clusters)
    elif courses is not None:
        why = f"{courses}, with the words of courses"
    else:
        seen = "; ".join(str(cluster) for cluster in clusters[:3]) or "no links of one shape"
        no_records = "no records" if records is not None else "records that no rules read"
        form = ", and a form to be filled in" if page.has_form else ""
        return PagePurpose(page_type=None, why=f"{no_records}, {seen}{form}", clusters=clusters)
    first = tuple(sorted(clusters, key=lambda cluster: cluster is not courses))
    return PagePurpose(page_type=PageType.DETAIL_LINKS, why=why, clusters=first)


def _is_list_of(records: RecordStats, courses: Cluster | None, page: PageAnalysis) -> str | None:
    """Explain why the records are only a list of linked ones; None if they are the records."""
    if courses is None:
        return None
    links = len(courses.anchors)
    if not records.complete:
        return f"{records.count} courses without descriptions, and {courses}"
    is_short = records.description_characters < TEASER_CHARACTERS
    if is_short and links >= 0.8 * records.count and records.count > 1:
        return f"{records.count} courses in a line each, and {courses}"
    is_about_it = any(name and name in page.title for name in records.names)
    if records.count == 1 and links >= STRAY_LINKS and not is_about_it:
        return f"one course among {courses}"
    return None


COURSEDOG = "coursedog"


class CatalogPlatform(BaseModel):
    """How a platform is recognised, and which of its links lead on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    marks: tuple[str, ...] = Field(min_length=1)
    urls: tuple[str, ...] = ()
    detail: str | None = None
    links: tuple[str, ...] = ()
    school_ids: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def platforms() -> tuple[CatalogPlatform, ...]:
    """Return the known platforms in the order in which they are tried."""
    file = resources.files("ingestion_pipeline.catalogs.detection") / "platforms.yaml"
    return TypeAdapter(tuple[CatalogPlatform, ...]).validate_python(yaml.safe_load(file.read_text()))


def platform_of(page: PageAnalysis) -> CatalogPlatform | None:
    """Return the first platform whose marks the page or its URL has."""
    for platform in platforms():
        if any(_compiled(mark).search(page.html) for mark in platform.marks):
            return platform
        if any(_compiled(mark).search(page.url) for mark in platform.urls):
            return platform
    return None


def school_ids(platform: CatalogPlatform, html: str) -> tuple[str, ...]:
    """Return the school ids that the page may mean, the most certain first."""
    matches = (match[1] for text in platform.school_ids for match in _compiled(text).finditer(html))
    return tuple(dict.fromkeys(matches))


def platform_clusters(platform: CatalogPlatform, pages: Sequence[PageAnalysis]) -> list[Cluster]:
    """Return the links of these sibling pages of the platform's own shapes, deepest level first.

    A shape below a page's own URL belongs to that page alone, and to none of its siblings.
    """
    address = pages[0].url.partition("?")[0].rstrip("/") + "/"
    hosts = {urlsplit(page.url).netloc for page in pages}
    anchors = list({link.url: link for page in pages for link in page.anchors}.values())
    clusters: list[Cluster] = []
    for text in platform.links:
        if "{own}" in text and len(pages) > 1:
            continue
        pattern = text.replace("{own}", _literal(address))
        matching = tuple(
            anchor
            for anchor in anchors
            if urlsplit(anchor.url).netloc in hosts and _compiled(pattern).search(anchor.url)
        )
        if matching:
            clusters.append(Cluster(pattern=pattern, anchors=matching))
    return clusters


@lru_cache(maxsize=200)
def _compiled(pattern: str) -> Any:  # noqa: ANN401 - re2 has no annotations
    re2: Any = import_module("re2")  # pages are searched: no page may make that slow
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    return re2.compile(pattern, options)
