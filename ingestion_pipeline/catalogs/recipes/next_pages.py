"""Which pages follow from a fetched page: pure, in the order pagination, DETAIL, links; endless lists are detected.

A step is the part of the recipe that a page belongs to: the root, the further pages of a list, or
the pages that a level's links lead to. Each page is followed once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from ingestion_pipeline.catalogs.recipes.patterns import LinkPattern, matched_links, simplified_markdown
from ingestion_pipeline.catalogs.recipes.recipe import Chained, Numbered, PageType, Recipe
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.links import (
    Clue,
    base_of,
    canonical_or_none,
    failure_notice,
    following_pages,
    linked_page,
)
from ingestion_pipeline.reading.structured.sitemaps import Sitemap, read_sitemap
from ingestion_pipeline.tasks.errors import Permanent, Transient
from ingestion_pipeline.urls import canonical_url, host_of

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

    @cached_property
    def document(self) -> Document:
        """The page as a document; most pages lead on by `links` alone, and need none."""
        return Document.of(self._body, self._content_type, url=self.url)

    def check_content(self, selector: str | None) -> None:
        """Raise if the element that holds the content is missing or empty."""
        if selector is not None and not self._is_restricted:
            content_of(self.document.tree, selector)

    def links(self, selector: str | None = None, *, within: str | None = None) -> Sequence[str]:
        """Return the canonical URLs that the page links to, in page order.

        With a selector only those of matching elements, or inside them; with `within` only those
        inside the first element that matches it.
        """
        within = None if self._is_restricted else within
        if selector is None and within is None:
            if self._links is None:
                self._links = tuple(self.document.links)
            return self._links
        content = content_of(self.document.tree, within) if within else self.document.tree.root
        return [] if content is None else self._targets(content.css(selector or _ANCHORS))

    def matched(self, pattern: LinkPattern, *, within: str | None = None) -> list[str]:
        """Return the canonical URLs that the pattern finds in the Markdown, in page order.

        Links that a browser's clicks discovered come last: they stand on no page.
        """
        within = None if self._is_restricted else within
        clicked = self._links if self._is_restricted and self._links else ()
        clicked = [pattern.find(link) for link in clicked if link not in self.document.links]
        # Hardly any page has a base.
        base = base_of(self.document.tree, self.url) if _BASE.search(self.document.html) else self.url
        urls = matched_links(simplified_markdown(self.document, within=within), pattern, base)
        urls += filter(None, (canonical_or_none(link) for link in clicked if link))
        return list(dict.fromkeys(urls))

    def text(self) -> str:
        """Return the text that a visitor reads on the page."""
        return self.document.visible_utf8.decode()

    def json(self) -> object:
        """Return the page parsed as an API response; invalid JSON is `Transient`: a server in trouble sends such."""
        try:
            return json.loads(self.document.html.lstrip("\ufeff"))
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
        body = self.document.tree.body
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
            return next(iter(self._targets(self.document.tree.css(selector))), None)
        number = (self.position or 1) + 1
        urls = (
            canonical_or_none(link.url)
            for link in following_pages(self.document.tree, self.url)  # the most certain first
            if link.clue <= Clue.NEXT_TEXT or (link.clue is Clue.NUMBERED and link.number == number)
        )
        return next(filter(None, urls), None)

    def _targets(self, chosen: Sequence[LexborNode]) -> list[str]:
        base = base_of(self.document.tree, self.url)
        hrefs: dict[str | None, None] = {}
        for node in chosen:
            anchors = [node] if "href" in node.attrs else node.css(_ANCHORS)
            hrefs |= dict.fromkeys(anchor.attrs.get("href") for anchor in anchors)
        addresses = dict.fromkeys(linked_page(base, href) for href in hrefs)
        urls = (canonical_or_none(address) for address in addresses if address)
        return list(dict.fromkeys(filter(None, urls)))


log = logging.getLogger(__name__)

ROOT = "root"  # the key of the step that has no parent
NOTHING_TO_DO = "nothing_to_do"  # the code of a page without a link that its recipe follows
LIST_PAGES = "/pages"  # key suffix of a step of a list's further pages
LEAST_NEW_LINES = 2  # of a page of records: one line may change with every request
_ANY_NUMBER = "9876543210"  # stands for the number while a pattern is made canonical


class StepKind(StrEnum):
    """How a step's pages are reached."""

    FETCH_ROOT = "FETCH_ROOT"
    FETCH_PAGINATED = "FETCH_PAGINATED"
    FETCH_LINKS = "FETCH_LINKS"
    FETCH_VIA_API = "FETCH_VIA_API"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A part of the recipe; `key` is the path to it, such as `root/pages/links`."""

    key: str
    kind: StepKind
    parent: str | None
    recipe: Recipe

    @property
    def pages_key(self) -> str:
        """The key of the step of its list's further pages."""
        return self.key if self.kind is StepKind.FETCH_PAGINATED else f"{self.key}{LIST_PAGES}"

    @property
    def links_key(self) -> str:
        """The key of the step that its links lead to; exploring stays in its step."""
        level = self.key.removesuffix(LIST_PAGES)
        if self.recipe.page_type is PageType.EXPLORATORY and self.kind is StepKind.FETCH_LINKS:
            return level
        return f"{level}/links"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedLink:
    """A page that follows: `key` is its identity, `position` its place in a list."""

    url: str
    key: str
    step: str
    position: int | None = None
    is_sibling: bool = False  # of the same list as the page it was found on, and no deeper
    changed_at: datetime | None = None  # according to the site
    memory: ListMemory | None = None  # what the pages of its list before it have shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The pages that follow from a page, which holds records if `is_detail`; `beyond` exceed a limit."""

    pages: tuple[FollowedLink, ...] = ()
    is_detail: bool = False
    beyond: int = 0


def steps_of(recipe: Recipe) -> list[Step]:
    """Return every step of the recipe, parents first; an API has only one."""
    kind = StepKind.FETCH_ROOT if recipe.api is None else StepKind.FETCH_VIA_API
    return list(_steps(Step(key=ROOT, kind=kind, parent=None, recipe=recipe)))


def root_url(recipe: Recipe, source_url: str) -> str:
    """Return the URL where an extraction starts: the source's, or that of its API."""
    return source_url if recipe.api is None else recipe.api.first_url


def _steps(step: Step) -> Iterator[Step]:
    yield step
    level = step.recipe
    if level.pagination is not None:
        yield Step(key=step.pages_key, kind=StepKind.FETCH_PAGINATED, parent=step.key, recipe=level)
    if level.follows_links and step.links_key != step.key:
        links = Step(key=step.links_key, kind=StepKind.FETCH_LINKS, parent=step.key, recipe=level.target)
        yield from _steps(links)


def follow_page(step: Step, page: PageSource) -> Followed:
    """Return the pages that follow, each once, never the page itself.

    A page that is the first of its own list is followed as one of that list: no other page would do it.

    Raises:
        Permanent: `content_selector` if it matches nothing, `nothing_to_do` if nothing follows,
            `api_shape` or `api_empty` if an API's response is not as expected, or a code of
            `read_sitemap`.
        Transient: `not_json` for an API response that is none, `truncated` for a sitemap,
            `error_page` for a page of a list that reports a failure of its site.
    """
    level = step.recipe
    if level.api is not None:
        following = level.api.following(page.key, page.json())
        next_pages = [_link_to(canonical_url(url), step.key, position=at) for url, at in following]
        return Followed(pages=_each_once(page, next_pages), is_detail=True)
    if level.page_type is PageType.SITEMAP:
        named = _each_once(page, list(_named(step, page)))
        if not named and step.kind is StepKind.FETCH_ROOT and page.position is None:
            raise _nothing_to_do(level)
        return Followed(pages=named)
    page.check_content(level.rendering.content_selector)
    linked = _linked(step, page) if level.follows_links else []
    listed, beyond, is_in_list = _list_pages(step, page, linked)
    if not is_in_list:
        return Followed(pages=_each_once(page, listed), beyond=beyond)
    if not level.follows_links:
        return Followed(pages=_each_once(page, listed), is_detail=True, beyond=beyond)
    next_pages = _each_once(page, listed + linked)
    if not next_pages:
        _check_dead_end(step, page)
    # Any explored page may hold records: each is extracted.
    is_explored = level.page_type is PageType.EXPLORATORY
    return Followed(pages=next_pages, is_detail=is_explored, beyond=beyond)


def _check_dead_end(step: Step, page: PageSource) -> None:
    """Raise if a page without links should have some, or reports that its site is out of order."""
    if step.recipe.page_type is PageType.EXPLORATORY:  # it may hold records
        return
    if step.kind is not StepKind.FETCH_ROOT and (phrase := failure_notice(page.text())):
        raise Transient(f"{page.url} has no links and says {phrase!r}; it will be retried", code="error_page")
    if step.kind is not StepKind.FETCH_PAGINATED:  # the end of a list may have none
        raise _nothing_to_do(step.recipe)


def _named(step: Step, page: PageSource) -> Iterator[FollowedLink]:
    """Yield the pages that a sitemap names on its own host; for an index, its sitemaps."""
    sitemap, pattern = page.sitemap(), step.recipe.link_pattern
    for entry in sitemap.entries:
        url = canonical_or_none(entry.url)
        if url is None or host_of(url) != page.host:
            continue
        if sitemap.is_index:
            depth = (page.position or 0) + 1
            yield _link_to(url, step.key, position=depth, is_sibling=True)
        elif pattern is None or pattern.find(url) is not None:
            yield replace(_link_to(url, step.links_key), changed_at=entry.last_modified)


def _list_pages(step: Step, page: PageSource, linked: Sequence[FollowedLink]) -> tuple[list[FollowedLink], int, bool]:
    """Return the list's further pages, how many exceed its limit, and if this page is in it."""
    match step.recipe.pagination:
        case None:
            return [], 0, True
        case Numbered() as numbered:
            if step.kind is StepKind.FETCH_PAGINATED:
                return [], 0, True
            pages, beyond = _numbered_pages(numbered, step, page)
            return pages, beyond, any(link.key == page.key for link in pages)
        case Chained() as chained:
            return *_next_page(chained, step, page, linked), True


def _numbered_pages(numbered: Numbered, step: Step, page: PageSource) -> tuple[list[FollowedLink], int]:
    """Return the list by its pattern, as long as its first page says, and how many exceed it.

    The page may link to only a part of the list: then the recipe's own count is the minimum.
    """
    count = page.stated_pages() or max(numbered.total_pages, _highest(numbered, page))
    page_count = min(count, numbered.max_pages)
    pages: list[FollowedLink] = []
    for index in range(page_count):
        number = index + numbered.start_page if numbered.limit is None else index * numbered.limit
        url = canonical_or_none(linked_page(page.url, _filled(numbered, str(number))) or "")
        if url is not None:
            pages.append(_link_to(url, step.pages_key, position=index + 1))
    return pages, count - page_count


def _filled(numbered: Numbered, number: str) -> str:
    text = numbered.url_pattern.replace("{limit}", str(numbered.limit))
    return text.replace("{page_num}", number).replace("{offset}", number)


def _highest(numbered: Numbered, page: PageSource) -> int:
    """Return the list's length by the highest number that the page links to; 0 if there is none."""
    template = canonical_or_none(linked_page(page.url, _filled(numbered, _ANY_NUMBER)) or "")
    if template is None:
        return 0
    shape = re.compile(re.escape(template).replace(_ANY_NUMBER, "([0-9]{1,7})"))
    numbers = [int(match[1]) for link in page.links() if (match := shape.fullmatch(link))]
    if not numbers:
        return 0
    count = max(numbers) - numbered.start_page if numbered.limit is None else max(numbers) // numbered.limit
    return count + 1


def _next_page(
    chained: Chained, step: Step, page: PageSource, linked: Sequence[FollowedLink]
) -> tuple[list[FollowedLink], int]:
    """Return the next page, unless the list has reached its limit or shows nothing new.

    New is what no page of the list has shown: its links, or the lines of a page of records.
    """
    url = page.next_url(chained.selector)
    if url is None:
        return [], 0
    if step.recipe.follows_links:
        memory = page.memory.after({link.key for link in linked})
    else:
        memory = page.memory.after(page.lines(), least_news=LEAST_NEW_LINES)
    if memory.is_over:
        log.info("list ended url=%s pages_without_news=%d", page.url, memory.pages_without_news)
        return [], 0
    position = (page.position or 1) + 1
    if position > chained.max_pages:
        return [], 1
    is_sibling = step.kind is StepKind.FETCH_PAGINATED
    following = _link_to(url, step.pages_key, position=position, is_sibling=is_sibling)
    return [replace(following, memory=memory)], 0


def _linked(step: Step, page: PageSource) -> list[FollowedLink]:
    """Return the pages that the level's selector and pattern find on the page."""
    level, key = step.recipe, step.links_key
    within = level.rendering.content_selector
    if level.link_pattern is not None and level.link_selector is None:
        links: Sequence[str] = page.matched(level.link_pattern, within=within)
    else:
        links = page.links(level.link_selector, within=within)
        if level.link_pattern is not None:
            links = list(_matching(level.link_pattern, links, page))
    if level.page_type is PageType.EXPLORATORY:  # not the host that a redirect led to; all links are canonical
        ours = (f"http://{page.host}/", f"https://{page.host}/")
        links = [link for link in links if link.startswith(ours)]
    return [_linked_page(link, key) for link in links]


def _matching(pattern: LinkPattern, links: Sequence[str], page: PageSource) -> Iterator[str]:
    """Yield those of the selected links that the pattern finds as well."""
    for link in links:
        part = pattern.find(link)
        if part is not None:
            url = link if part == link else canonical_or_none(linked_page(page.url, part) or "")
            if url is not None:
                yield url


def _link_to(url: str, step: str, *, position: int | None = None, is_sibling: bool = False) -> FollowedLink:
    return FollowedLink(url=url, key=identity(url), step=step, position=position, is_sibling=is_sibling)


@lru_cache(maxsize=4_096)  # the pages of a site link to the same pages
def _linked_page(url: str, step: str) -> FollowedLink:
    return _link_to(url, step)


def _each_once(page: PageSource, links: Sequence[FollowedLink]) -> tuple[FollowedLink, ...]:
    by_key: dict[str, FollowedLink] = {}
    for link in links:
        by_key.setdefault(link.key, link)
    by_key.pop(page.key, None)
    return tuple(by_key.values())


def _nothing_to_do(level: Recipe) -> Permanent:
    rules = [level.link_selector, level.link_pattern and level.link_pattern.text]
    rule_text = " and ".join(repr(rule) for rule in rules if rule) or "a page of its host"
    return Permanent(
        f"nothing to do: no link of the page matches {rule_text}; the layout changed, or the"
        f" recipe's rule for {level.page_type} is wrong",
        code=NOTHING_TO_DO,
    )
