"""A fetched page as recipes read it, and the memory that detects lists which never end."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingestion_pipeline.catalogs.recipes.patterns import LinkPattern, matched_links, simplified_markdown
from ingestion_pipeline.reading.html.cleaning import cleaned_text
from ingestion_pipeline.reading.html.links import (
    Clue,
    base_of,
    canonical_or_none,
    following_pages,
    linked_page,
    page_links,
)
from ingestion_pipeline.reading.html.parsing import parse_html
from ingestion_pipeline.reading.structured.sitemaps import Sitemap, read_sitemap
from ingestion_pipeline.reading.text.decoding import decode
from ingestion_pipeline.tasks.errors import Permanent, Transient
from ingestion_pipeline.urls import host_of

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode


MOST_PAGES_WITHOUT_NEWS = 3  # one may be empty or repeat another by mistake
MOST_REMEMBERED = 2_000  # the newest, four bytes each: a task's payload carries them to the next page
_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ListMemory:
    """Digests of what a list has shown, and how many pages in a row have added nothing new."""

    digests: tuple[bytes, ...] = ()
    pages_without_news: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the list continues without anything new."""
        return self.pages_without_news >= MOST_PAGES_WITHOUT_NEWS

    def after(self, content: Iterable[str], *, least_news: int = 1) -> ListMemory:
        """Return the memory after a page with this content; below `least_news` nothing is new."""
        digests = dict.fromkeys(map(_digest, content))
        earlier = set(self.digests)
        new = [digest for digest in digests if digest not in earlier]
        return ListMemory(
            digests=(*self.digests, *new)[-MOST_REMEMBERED:],
            pages_without_news=0 if len(new) >= least_news else self.pages_without_news + 1,
        )

    def to_payload(self) -> dict[str, Any]:
        """Return the form that is stored in a task's payload."""
        packed = b64encode(b"".join(self.digests)).decode()
        return {"digests": packed, "pages_without_news": self.pages_without_news}

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> ListMemory:
        """Return the memory from a task's payload."""
        packed = b64decode(payload["digests"])
        digests = (packed[at : at + _BYTES] for at in range(0, len(packed), _BYTES))
        return cls(digests=tuple(digests), pages_without_news=payload["pages_without_news"])


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=_BYTES).digest()


_PAGE_OF = re.compile(r"\bpage\s+[0-9]{1,5}\s+(?:of|/)\s+([0-9]{1,5})\b", re.IGNORECASE)
_DIGITS = re.compile(r"[0-9]+")
_BASE = re.compile(r"<base\s", re.IGNORECASE)
_ANCHORS = "a[href], area[href]"


def identity(url: str) -> str:
    """Return the identity of a page in a crawl: its canonical URL without a trailing slash.

    No catalogue shows two things under `/a` and `/a/`, and links write both.
    """
    if "/?" not in url and url[-1:] != "/":
        return url
    path, mark, query = url.partition("?")
    shorter = path.rstrip("/")
    return f"{path if shorter.endswith(':') else shorter}{mark}{query}"


def content_of(tree: LexborHTMLParser, selector: str) -> LexborNode:
    """Return the element that holds the page's content; raise if it is missing or empty."""
    node = tree.css_first(selector)
    if node is None or not (node.text().strip() or node.css_first("a[href], img")):
        problem = "matches nothing" if node is None else "matches an empty element"
        raise Permanent(
            f"content_selector {selector!r} {problem} on the page: the layout changed, or the recipe is wrong",
            code="content_selector",
        )
    return node


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
        address = canonical_or_none(known_as or url) or url
        self.key = identity(address)
        self.host = host_of(address)
        self.position = position
        self.memory = memory or ListMemory()  # of the pages of its list before it
        self._body = body
        self._content_type = content_type
        self._links = links
        self._is_restricted = is_restricted  # a browser has already cut out the content
        self._parsed: LexborHTMLParser | None = None

    def check_content(self, selector: str | None) -> None:
        """Raise if the element that holds the content is missing or empty."""
        if selector is not None and not self._is_restricted:
            content_of(self._tree, selector)

    def links(self, selector: str | None = None, *, within: str | None = None) -> Sequence[str]:
        """Return the canonical URLs that the page links to, in page order.

        With a selector only those of matching elements, or inside them; with `within` only those
        inside the first element that matches it.
        """
        within = None if self._is_restricted else within
        if selector is None and within is None:
            if self._links is None:
                self._links = tuple(page_links(self._tree, self.url))
            return self._links
        content = content_of(self._tree, within) if within else self._tree.root
        return [] if content is None else self._targets(content.css(selector or _ANCHORS))

    def matched(self, pattern: LinkPattern, *, within: str | None = None) -> list[str]:
        """Return the canonical URLs that the pattern finds in the Markdown, in page order.

        Links that a browser's clicks discovered come last: they stand on no page.
        """
        within = None if self._is_restricted else within
        text = decode(self._body, self._content_type)
        # Hardly any page has a base, and finding it in the tree would need a second parse.
        base = base_of(self._tree, self.url) if _BASE.search(text) else self.url
        urls = matched_links(simplified_markdown(text, within=within), pattern, base)
        if self._is_restricted and self._links:
            on_page = page_links(self._tree, self.url)
            clicked = [pattern.find(link) for link in self._links if link not in on_page]
            urls += filter(None, (canonical_or_none(link) for link in clicked if link))
        return list(dict.fromkeys(urls))

    def text(self) -> str:
        """Return the text that a visitor reads on the page."""
        return cleaned_text(decode(self._body, self._content_type))

    def document(self) -> object:
        """Return the page parsed as an API response.

        Raises:
            Transient: it is not valid JSON, complete or not: a server in trouble sends such.
        """
        try:
            return json.loads(decode(self._body, self._content_type).lstrip("\ufeff"))
        except (ValueError, RecursionError) as error:
            message = f"{self.url} sent no JSON ({error}); it will be retried"
            raise Transient(message[:500], code="not_json") from None

    def sitemap(self) -> Sitemap:
        """Return the page parsed as a sitemap; its `position` is how many indexes led to it.

        Raises:
            Permanent: it is no sitemap, or exceeds the limits of size or depth.
            Transient: it is truncated.
        """
        return read_sitemap(self._body, url=self.url, content_type=self._content_type, depth=self.position or 0)

    def stated_pages(self) -> int | None:
        """Return how many pages the list has, if the page says so in words: page 1 of 24."""
        body = self._tree.body
        match = _PAGE_OF.search(body.text(separator=" ") if body is not None else "")
        return int(match[1]) if match else None

    def lines(self) -> set[str]:
        """Return the lines that a visitor sees, without their numbers: those of a clock change."""
        return {_DIGITS.sub("", line) for line in self.text().split("\n")}

    def next_url(self, selector: str | None) -> str | None:
        """Return the URL of the list's next page: by the selector, else by the page's own markup.

        A pager of mere numbers continues with the number after the page's own.
        """
        if selector is not None:
            return next(iter(self._targets(self._tree.css(selector))), None)
        number = (self.position or 1) + 1
        urls = (
            canonical_or_none(link.url)
            for link in following_pages(self._tree, self.url)  # the most certain first
            if link.clue <= Clue.NEXT_TEXT or (link.clue is Clue.NUMBERED and link.number == number)
        )
        return next(filter(None, urls), None)

    @property
    def _tree(self) -> LexborHTMLParser:
        if self._parsed is None:
            self._parsed = parse_html(decode(self._body, self._content_type))
        return self._parsed

    def _targets(self, chosen: Sequence[LexborNode]) -> list[str]:
        base = base_of(self._tree, self.url)
        hrefs: dict[str | None, None] = {}
        for node in chosen:
            anchors = [node] if "href" in node.attrs else node.css(_ANCHORS)
            hrefs |= dict.fromkeys(anchor.attrs.get("href") for anchor in anchors)
        addresses = dict.fromkeys(linked_page(base, href) for href in hrefs)
        urls = (canonical_or_none(address) for address in addresses if address)
        return list(dict.fromkeys(filter(None, urls)))
