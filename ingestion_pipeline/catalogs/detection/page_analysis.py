"""Analyze a page for detection: its links with their texts, and the records that rules find."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.rule_pipeline import NoRules, read_records
from ingestion_pipeline.catalogs.extraction.rules.course_code import read_heading
from ingestion_pipeline.catalogs.recipes.page_source import identity
from ingestion_pipeline.reading.html.links import PageLink, base_of, canonical_or_none, following_pages, linked_page
from ingestion_pipeline.reading.html.parsing import parse_html
from ingestion_pipeline.reading.text.decoding import clean_text

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode


MAX_ANCHORS = 20_000
LEAST_WORDS = 30  # that a page shows; one with fewer, and no link, waits for its script
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
        routes=_routes(tree),
        is_shell=_is_shell(tree),
    )


def _routes(tree: LexborHTMLParser) -> tuple[str, ...]:
    """Return links such as `#/courses?group=Welding`: to a server they are all the same page."""
    nodes = tree.css("a[href^='#/'], a[href^='#!'], a[href*='/#/'], a[href*='/#!']")[:MAX_ANCHORS]
    return tuple(dict.fromkeys(str(node.attrs.get("href")) for node in nodes))


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
    asides = _Asides()
    for node in tree.css("a[href]")[:MAX_ANCHORS]:
        address = canonical_or_none(linked_page(base, node.attrs.get("href")) or "")
        if address is None or identity(address) == own:
            continue
        text = clean_text(node.text()) or ""
        existing = anchors.get(address)
        if existing is None or ((existing.is_aside or not existing.names_course) and text):
            is_aside = asides.has(node)
            if existing is None or existing.is_aside >= is_aside:
                anchors[address] = Anchor(url=address, text=text[:200], is_aside=is_aside)
    return list(anchors.values())


class _Asides:
    """Cache of which elements are menus, so that each is examined once."""

    def __init__(self) -> None:
        self._cache: dict[int, bool] = {}

    def has(self, node: LexborNode) -> bool:
        """Whether the node stands in a menu."""
        way: list[int] = []
        current, answer = node.parent, False
        while current is not None and current.is_element_node and current.tag != "body":
            if current.mem_id in self._cache:
                answer = self._cache[current.mem_id]
                break
            way.append(current.mem_id)
            if _is_aside(current):
                answer = True
                break
            current = current.parent
        self._cache |= dict.fromkeys(way, answer)
        return answer


def _is_aside(node: LexborNode) -> bool:
    if node.tag in _ASIDE_TAGS:
        return True
    names = f"{node.attrs.get('class') or ''} {node.attrs.get('id') or ''}".lower()
    return bool(names.strip()) and _named_aside(names)


@lru_cache(maxsize=2_000)
def _named_aside(names: str) -> bool:
    return _ASIDE_NAME.search(names) is not None
