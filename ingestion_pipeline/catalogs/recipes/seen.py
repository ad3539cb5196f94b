"""A page whose content is at hand, asked for its links; parsed only if a question needs it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.recipes.list_memory import ListMemory
from ingestion_pipeline.catalogs.recipes.patterns import LinkPattern
from ingestion_pipeline.catalogs.recipes.simplified import matched_links, simplified_markdown
from ingestion_pipeline.reading.cleaning import cleaned_text
from ingestion_pipeline.reading.decode import decode
from ingestion_pipeline.reading.links import base_of, canonical_or_none, linked_page, page_links
from ingestion_pipeline.reading.markup import parse_html
from ingestion_pipeline.reading.pagination import Clue, following_pages
from ingestion_pipeline.reading.sitemaps import Sitemap, read_sitemap
from ingestion_pipeline.urls import host_of
from ingestion_pipeline.work.errors import Permanent, Transient

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

_PAGE_OF = re.compile(r"\bpage\s+[0-9]{1,5}\s+(?:of|/)\s+([0-9]{1,5})\b", re.IGNORECASE)
_DIGITS = re.compile(r"[0-9]+")
_BASE = re.compile(r"<base\s", re.IGNORECASE)
_ANCHORS = "a[href], area[href]"


def identity(url: str) -> str:
    """Under what a page is known in a crawl: its canonical URL without a slash at the path's end.

    No catalogue shows two things under `/a` and `/a/`, and links write both.
    """
    if "/?" not in url and url[-1:] != "/":
        return url
    path, mark, query = url.partition("?")
    shorter = path.rstrip("/")
    return f"{path if shorter.endswith(':') else shorter}{mark}{query}"


def content_of(tree: LexborHTMLParser, selector: str) -> LexborNode:
    """The part of the page that holds its content; an error, if it is not there or empty."""
    found = tree.css_first(selector)
    if found is None or not (found.text().strip() or found.css_first("a[href], img")):
        said = "matches nothing" if found is None else "matches an empty element"
        raise Permanent(
            f"content_selector {selector!r} {said} on the page: the layout changed, or the"
            " recipe is wrong",
            code="content_selector",
        )
    return found


class PageSource:
    """A page as it was fetched or stored; `url` is where its redirects led."""

    def __init__(
        self,
        *,
        url: str,
        body: bytes,
        content_type: str | None = None,
        known_as: str | None = None,
        position: int | None = None,
        memory: ListMemory | None = None,
        links: Sequence[str] | None = None,
        is_restricted: bool = False,
    ) -> None:
        self.url = url
        asked = canonical_or_none(known_as or url) or url
        self.key = identity(asked)
        self.host = host_of(asked)
        self.position = position
        self.memory = memory or ListMemory()  # of the pages of its list before it
        self._body = body
        self._content_type = content_type
        self._links = links
        self._is_restricted = is_restricted  # a browser has already cut out the content
        self._parsed: LexborHTMLParser | None = None

    def check_content(self, selector: str | None) -> None:
        """Raise if the part of the page that holds the content is not there, or empty."""
        if selector is not None and not self._is_restricted:
            self._content(selector)

    def links(self, selector: str | None = None, *, within: str | None = None) -> Sequence[str]:
        """The canonical URLs that the page links to, in page order.

        With a selector those of the elements that match, or of what is in them; `within` the first
        element that matches.
        """
        within = None if self._is_restricted else within
        if selector is None and within is None:
            if self._links is None:
                self._links = tuple(page_links(self._tree, self.url))
            return self._links
        content = self._content(within) if within else self._tree.root
        chosen = [] if content is None else content.css(selector or _ANCHORS)
        return self._targets(chosen)

    def matched(self, pattern: LinkPattern, *, within: str | None = None) -> list[str]:
        """The canonical URLs that the pattern finds in the simplified Markdown, in page order.

        Then those among what a browser's clicks have discovered, which stand on no page.
        """
        within = None if self._is_restricted else within
        text = decode(self._body, self._content_type)
        # Hardly any page has a base, and to look for it in the tree would be a second parse.
        base = base_of(self._tree, self.url) if _BASE.search(text) else self.url
        found = matched_links(simplified_markdown(text, within=within), pattern, base)
        if self._is_restricted and self._links:
            on_page = page_links(self._tree, self.url)
            clicked = [pattern.find(link) for link in self._links if link not in on_page]
            found += filter(None, (canonical_or_none(link) for link in clicked if link))
        return list(dict.fromkeys(found))

    def text(self) -> str:
        """Return what a visitor reads on the page."""
        return cleaned_text(decode(self._body, self._content_type))

    def document(self) -> object:
        """The page as an API's answer.

        Raises:
            Transient: it is no JSON, whole or not: a server in trouble answers so.
        """
        try:
            return json.loads(decode(self._body, self._content_type).lstrip("\ufeff"))
        except (ValueError, RecursionError) as error:
            said = f"{self.url} sent no JSON ({error}); it is asked again"
            raise Transient(said[:500], code="not_json") from None

    def sitemap(self) -> Sitemap:
        """The page as a sitemap; its `position` is how many indexes led to it.

        Raises:
            Permanent: it is none, or larger or deeper than any is.
            Transient: it stops early.
        """
        depth, kind = self.position or 0, self._content_type
        return read_sitemap(self._body, url=self.url, content_type=kind, depth=depth)

    def stated_pages(self) -> int | None:
        """How many pages the list has, if the page says so in words: page 1 of 24."""
        body = self._tree.body
        found = _PAGE_OF.search(body.text(separator=" ") if body is not None else "")
        return int(found[1]) if found else None

    def lines(self) -> set[str]:
        """Return the lines that a visitor sees, without their numbers: those of a clock change."""
        return {_DIGITS.sub("", line) for line in self.text().split("\n")}

    def next_url(self, selector: str | None) -> str | None:
        """Return where the list goes on: by the selector, else by what pages say themselves.

        A pager of mere numbers goes on with the number after the page's own.
        """
        if selector is not None:
            return next(iter(self._targets(self._tree.css(selector))), None)
        number = (self.position or 1) + 1
        urls = (
            canonical_or_none(one.url)
            for one in following_pages(self._tree, self.url)  # the surest first
            if one.clue <= Clue.NEXT_TEXT or (one.clue is Clue.NUMBERED and one.number == number)
        )
        return next(filter(None, urls), None)

    @property
    def _tree(self) -> LexborHTMLParser:
        if self._parsed is None:
            self._parsed = parse_html(decode(self._body, self._content_type))
        return self._parsed

    def _content(self, selector: str) -> LexborNode:
        return content_of(self._tree, selector)

    def _targets(self, chosen: Sequence[LexborNode]) -> list[str]:
        base = base_of(self._tree, self.url)
        hrefs: dict[str | None, None] = {}
        for node in chosen:
            anchors = [node] if "href" in node.attrs else node.css(_ANCHORS)
            hrefs |= dict.fromkeys(anchor.attrs.get("href") for anchor in anchors)
        addresses = dict.fromkeys(linked_page(base, href) for href in hrefs)
        found = (canonical_or_none(address) for address in addresses if address)
        return list(dict.fromkeys(filter(None, found)))
