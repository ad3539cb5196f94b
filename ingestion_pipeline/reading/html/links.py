"""Where a page leads and what its head states: links, further pages of its list, title, language, canonical address.

Of further pages the surest comes first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from ingestion_pipeline.reading.html.cleaning import parse_html
from ingestion_pipeline.reading.text.plain_text import clean_text, packaged_data, re2_pattern
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.urls import (
    MAX_URL_CHARS,
    BadUrl,
    canonical_url,
    host_of,
    selects_nothing,
    without_secret_pairs,
    without_session_ids,
)

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

LINK_SELECTOR = "a[href], area[href]"
_C0_AND_SPACE = "".join(map(chr, range(33)))
_LINE_ENDS_AND_TABS = re.compile(r"[\n\r\t]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_ORIGIN = re.compile(r"https?://[^/?#\\]+", re.IGNORECASE)
# Most links of most pages have a plain path: nothing to escape, no dots, no session id.
_PLAIN = re.compile(r"(https?://[^/?#\\]++)((?:/(?![.(])[\w~!$&'()*+,=:@.-]*+)++)(?:\?([\w~=&.-]*+))?", re.ASCII)

_WHOLE = re.compile(r"https?://[^/?#\\\s]")
_ROOTED = re.compile(  # the same as most pages write it
    r"(?!//)((?:/(?![.(])[\w~!$&'()*+,=:@.-]*+)++)(?:\?([\w~=&.-]*+))?(?:#.*)?", re.ASCII
)
# Most other links are a path beside or above a page with a plain one: `urljoin` takes ten times as
# long to say the same.
_BESIDE = re.compile(r"((?:\.\./)*+)([\w~-][\w~.-]*+(?:/[\w~-][\w~.-]*+)*+/?+(?:\?[\w~=&.-]++)?+)", re.ASCII)
_PLAIN_BASE = re.compile(r"(https?://[\w.:-]++)((?:/[\w~-][\w~.-]*+(?=/))*+)/[\w~.-]*+", re.ASCII)


def absolute_link(base: str | None, link: str | None) -> str | None:
    """Return the link as a web address, with its fragment.

    None for what a browser would not fetch (scripts, mail, data), and for a place on the same page.
    """
    page, _, fragment = (link or "").partition("#")
    address = linked_page(base, page)
    return f"{address}#{fragment}" if address and fragment else address


def linked_page(base: str | None, link: str | None) -> str | None:
    """Return the address of the linked page, without the fragment."""
    link = (link or "").partition("#")[0].strip(_C0_AND_SPACE)
    if not link or len(link) > MAX_URL_CHARS:
        return None
    if not link.isprintable():
        link = _LINE_ENDS_AND_TABS.sub("", link)
    # These two are most of all links; brackets and odd letters may make a host that is none.
    if link.startswith(("https://", "http://")) and link.isascii() and "[" not in link:
        return link
    if link[0] == "/" and link[1:2] not in {"/", "\\"} and (origin := _ORIGIN.match(base or "")):
        return origin[0] + link
    return _resolved(base or "", link)


def absolute_links(links: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], str | None]:
    """Return each (base, link) with its address; the fragment only if it distinguishes two."""
    whole = {pair: absolute_link(*pair) for pair in links}
    pages = {address: address.partition("#")[0] for address in whole.values() if address}
    shared = Counter(pages.values())
    return {
        pair: address and (address if shared[pages[address]] > 1 else pages[address]) for pair, address in whole.items()
    }


def stated_base(url: str | None, hrefs: Iterable[str | None]) -> str | None:
    """Return the base of links that the page at `url` states: its first usable `base`."""
    return next(filter(None, (linked_page(url, href) for href in hrefs)), None)


def base_of(tree: LexborHTMLParser, url: str | None) -> str | None:
    """Return the base of relative addresses: the page's `base`, else its own URL."""
    return stated_base(url, (node.attrs.get("href") for node in tree.css("base[href]"))) or url


def origin_of(base: str | None) -> str:
    """Return scheme and host of a web address as written; empty if it is none."""
    match = _ORIGIN.match(base or "")
    return match[0] if match else ""


def page_links(tree: LexborHTMLParser, url: str | None) -> dict[str, str]:
    """Return each linked page: its canonical URL, and the address as the page gives it.

    Only http and https; fragments are no pages of their own. Without the page's own URL relative
    links lead nowhere.
    """
    return links_from(tree, base_of(tree, url))


def links_from(tree: LexborHTMLParser, base: str | None) -> dict[str, str]:
    """Return the linked pages, with a known base."""
    hrefs = dict.fromkeys([node.attrs.get("href") for node in tree.css(LINK_SELECTOR)])
    origin = origin_of(base)
    canonical_origin = _canonical_origin(origin) if origin else None
    links: dict[str, str] = {}
    for href in hrefs:
        if canonical_origin and len(href := href or "") <= MAX_URL_CHARS and (rooted := _ROOTED.fullmatch(href)):
            path, query = rooted.groups()
            canonical = canonical_origin + path + (_plain_query(query) if query else "")
            if canonical not in links:
                links[canonical] = origin + href.partition("#")[0]
            continue
        address = linked_page(base, href)
        if address and (canonical_address := canonical_or_none(address)):
            links.setdefault(canonical_address, address)
    return links


def folder_of(base: str) -> str:
    """Return the part of the address that decides relative paths; empty if that is not certain."""
    has_path = "?" not in base and base.count("/") > 2  # noqa: PLR2004 - two are before the host
    return base[: base.rindex("/") + 1] if has_path else ""


def canonical_or_none(address: str) -> str | None:
    """Return the canonical URL; None if the address is none, or too long once escaped."""
    if match := _PLAIN.fullmatch(address):
        origin, path, query = match.groups()
        canonical = _canonical_origin(origin)
        return canonical and canonical + path + (_plain_query(query) if query else "")
    try:
        canonical = canonical_url(address)
    except BadUrl:
        return None
    return canonical if len(canonical) <= MAX_URL_CHARS else None


@lru_cache(maxsize=4096)  # a page links to few hosts, and the next page to the same ones
def _canonical_origin(origin: str) -> str | None:
    try:
        return canonical_url(f"{origin}/").removesuffix("/")  # a blank at its end is no host's
    except BadUrl:
        return None


def _plain_query(query: str) -> str:
    """Return the query as `canonical_url` does, for a query without anything to escape."""
    parts = without_secret_pairs(query).split("&")
    pairs = [pair for pair in parts if pair and not selects_nothing(pair)]
    return "?" + "&".join(sorted(pairs, key=lambda pair: pair.partition("=")[0])) if pairs else ""


def _resolved(base: str, link: str) -> str | None:
    if (beside := _BESIDE.fullmatch(link)) and (plain := _PLAIN_BASE.fullmatch(base)):
        folders = plain[2].split("/")
        up = len(beside[1]) // len("../")
        return "/".join([plain[1], *folders[1 : max(len(folders) - up, 1)], beside[2]])
    if (scheme := _SCHEME.match(link)) and scheme[0].lower() not in {"http:", "https:"}:
        return None
    try:
        # What is whole is so on every page, also on one whose own address is none.
        address = urljoin(link if _WHOLE.match(link) else base, link.replace("\\", "/"))
    except ValueError:  # brackets that are no IPv6 address
        return None
    return address if _ORIGIN.match(address) else None


_ARROWS = "›»→>"  # noqa: RUF001 - found on buttons
_ANCESTORS = 4  # from a link to the list it stands in

_NEXT = re.compile(
    r"(?:next(?: page)?|older(?: posts| entries)?|more results|weiter|n[äa]chste(?: seite)?"
    r"|suivante?|page suivante|siguiente|pr[óo]xim[ao]|successiv[ao]|volgende|далее|следующая|次へ"
    rf"|次のページ|下一页|下一頁|다음)?\s*[{_ARROWS}]{{0,2}}",
    re.IGNORECASE,
)
_MORE = re.compile(
    r"load more(?: [a-z]{1,20}){0,2}|mehr laden|mehr (?:jobs|stellen) (?:laden|anzeigen)"
    r"|(?:(?:show|view|see) )?more (?:jobs|roles|positions|openings|vacancies|results)"
    r"|(?:charger plus|voir plus|afficher plus) d'offres|cargar más(?: [a-z]{1,20}){0,2}",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?:(?:go to )?page )?([0-9]{1,4})", re.IGNORECASE)
_PAGER = re.compile(r"pag(?:e|er|es|ing|ination|inator)\b|\bpagi|pagenav|wp-pagenavi", re.IGNORECASE)
_PAGE_NUMBER = re.compile(
    r"(?:(?<=[?&])(?:p|pg|page|paged|page_?(?:no|num|number|id|index)|current_?page|pn|seite)=|/page[/=-]"
    r"|/p(?:g|age)?(?=[0-9]))([0-9]{1,6})(?=[&/]|$)",
    re.IGNORECASE,
)
_OFFSET = re.compile(
    r"(?<=[?&])(?:offset|start|skip|from|startrow|first|start_?index)=([0-9]{1,7})(?=&|$)", re.IGNORECASE
)


# The number at the end of a path: list_70_2.html, forum-3/, index2.html. Beside other clues it tells pages of a list.
_LAST_NUMBER = re.compile(r"(?:[-_/]|(?<=index))([0-9]{1,5})?(?:\.[a-z]{3,5})?/?$", re.IGNORECASE)
# A WordPress site's address of any page, not a page of a list.
_POST = re.compile(r"/\?p=[0-9]+$")
_DIGITS = re.compile(r"[0-9]+")


class Clue(IntEnum):
    """Why a link is taken for a further page; smaller is surer."""

    REL_NEXT = 1
    NEXT_TEXT = 2
    NUMBERED = 3
    QUERY = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLink:
    """A further page; `pattern` has {page_num} or {offset} in place of the number in its URL."""

    url: str
    clue: Clue
    number: int | None
    pattern: str | None


def following_pages(tree: LexborHTMLParser, url: str | None) -> list[PageLink]:
    """Return the further pages of the list, each once with its best clue, the surest first.

    Only on the page's own host, and never the page itself; without session ids. A calendar's days
    are numbers too: a numbered link counts if its address has a page number, or if it stands in a
    pager.
    """
    links: dict[str, PageLink] = {}
    own = without_session_ids((url or "").partition("#")[0])
    base = base_of(tree, url)
    for node, clue, number in _clued(tree):
        address = without_session_ids(linked_page(base, node.attrs.get("href")) or "")
        if not address or address == own or not _is_same_host(address, url):
            continue
        link = _page_link(address, clue, number)
        if link and (address not in links or link.clue < links[address].clue):
            links[address] = link
    return sorted(_repeated(links.values()), key=lambda link: (link.clue, link.number or 0))


def next_page(tree: LexborHTMLParser, url: str) -> str | None:
    """Return the page after this one, by a link to it or by its number; None on the last.

    It has a page number in its address, the address of this page with another query or number, or one that differs from
    those of numbered links only in digits: "next" may lead to any other page, too.
    """
    links = [link for link in following_pages(tree, url) if link.clue < Clue.QUERY]
    here, numbered = _value(url), {_DIGITS.sub("0", link.url) for link in links if link.clue is Clue.NUMBERED}
    for link in links:
        there = _value(link.url)
        is_later = here is None or there is None or there > here
        is_of_list = link.pattern is not None or _continues(link.url, url) or _DIGITS.sub("0", link.url) in numbered
        if link.clue < Clue.NUMBERED and is_of_list and is_later:
            return link.url
    # Without a number in its address this is the first, which a pager labels 1.
    values = ((link.number if here is None else _value(link.url), link.url) for link in links)
    first = 1 if here is None else here
    later = [(value, address) for value, address in values if value is not None and value > first]
    return min(later)[1] if later else _page_behind(tree, url)


def _continues(address: str, url: str) -> bool:
    """Return whether the address is the page's own with another query or a higher number at its end: list-2.html."""
    path, own = address.partition("?")[0], url.partition("?")[0]
    if path == own:
        return True
    before, after = _LAST_NUMBER.search(own), _LAST_NUMBER.search(path)
    if after is None or urlsplit(own).path in {"", "/"} or not path.startswith(_LAST_NUMBER.sub("", own)):
        return False
    return int(after[1] or 0) > int(before[1] or 0 if before else 0)


def _page_behind(tree: LexborHTMLParser, url: str) -> str | None:
    """Return where a link of any words leads: to this address with the number after its own.

    A page without a number is the first, and the one behind it has 1 or 2, or the least offset.
    """
    here, base, candidates = _value(url) or 0, base_of(tree, url), list[tuple[int, str]]()
    for node in tree.css("a[href]"):
        address = without_session_ids(linked_page(base, node.attrs.get("href")) or "")
        match = _numbered(address)
        if match is None or _POST.search(address) or not _is_same_host(address, url):
            continue
        value, steps = int(match[1]), {1} if _value(url) is not None else {1, 2}
        is_near = value - here in steps or (match.re is _OFFSET and value > here)
        if is_near and address != url and _without_number(address) == _without_number(url):
            candidates.append((value, address))
    return min(candidates)[1] if candidates else None


def _without_number(address: str) -> str:
    match = _numbered(address)
    if match is None:
        return address.rstrip("/?&")
    return (address[: match.start()] + address[match.end() :]).rstrip("/?&")


def shows_a_part(tree: LexborHTMLParser) -> bool:
    """Return whether a button or a link without an address offers more of the list."""
    nodes = tree.css("button, [role=button], a:not([href]), a[href^='#'], a[href^=javascript]")
    labels = (clean_text(node.text()) or clean_text(node.attrs.get("aria-label")) or "" for node in nodes)
    return any(map(_MORE.fullmatch, labels))


def _value(address: str) -> int | None:
    match = _numbered(address)
    return int(match[1]) if match else None


def _clued(tree: LexborHTMLParser) -> Iterator[tuple[LexborNode, Clue, int | None]]:
    for node in tree.css("link[rel~='next' i][href], a[rel~='next' i][href]"):
        yield node, Clue.REL_NEXT, None
    for node in tree.css("a[href]"):
        text = clean_text(node.text()) or ""
        label = clean_text(node.attrs.get("aria-label") or node.attrs.get("title")) or text
        if number := _NUMBER.fullmatch(text) or _NUMBER.fullmatch(label):
            if _is_in_pager(node) or _numbered(node.attrs.get("href") or ""):
                yield node, Clue.NUMBERED, int(number[1])
        elif (words := text or label) and _NEXT.fullmatch(words) and (words.strip(_ARROWS + " ") or _is_in_pager(node)):
            yield node, Clue.NEXT_TEXT, None
        elif _numbered(node.attrs.get("href") or ""):
            yield node, Clue.QUERY, None


def _numbered(address: str) -> re.Match[str] | None:
    return _PAGE_NUMBER.search(address) or _OFFSET.search(address)


def _page_link(address: str, clue: Clue, number: int | None) -> PageLink | None:
    match = _numbered(address)
    if match is None:
        return PageLink(url=address, clue=clue, number=number, pattern=None)
    is_page = match.re is _PAGE_NUMBER
    placeholder = "{page_num}" if is_page else "{offset}"
    pattern = address[: match.start(1)] + placeholder + address[match.end(1) :]
    page_number = int(match[1]) if number is None and is_page else number
    return PageLink(url=address, clue=clue, number=page_number, pattern=pattern)


def _repeated(links: Iterable[PageLink]) -> list[PageLink]:
    """Return the links without those whose only clue is their address, unless several agree."""
    candidates = list(links)
    patterns = Counter(link.pattern for link in candidates)
    return [link for link in candidates if link.clue < Clue.QUERY or patterns[link.pattern] > 1]


def _is_in_pager(node: LexborNode) -> bool:
    parent = node.parent
    for _ in range(_ANCESTORS):
        if parent is None or not parent.is_element_node:
            return False
        attributes, parent = parent.attrs, parent.parent
        names = f"{attributes.get('class')} {attributes.get('id')} {attributes.get('aria-label')}"
        if _PAGER.search(names):
            return True
    return False


def _is_same_host(address: str, url: str | None) -> bool:
    if not url:
        return True
    try:
        return host_of(address) == host_of(url)
    except BadUrl:
        return False


MAX_TITLE_CHARACTERS = 1_000

_FEED_TYPES = frozenset({"application/rss+xml", "application/atom+xml", "application/feed+json", "application/rdf+xml"})
_CANONICAL = "link[rel~='canonical' i][href]"
_REFRESHING = "meta[http-equiv='refresh' i][content]"
ADDRESS_SELECTOR = f"base[href], {_CANONICAL}, {_REFRESHING}"
_LANGUAGE = re.compile(r"([A-Za-z]{2,3})(?:[-_]([A-Za-z]{4}))?(?:[-_]([A-Za-z]{2}|[0-9]{3}))?\b")
_REFRESH = re.compile(
    r"\s*([0-9]{1,9})(?:\.[0-9.]*)?\s*(?:[;,\s]\s*(?:url\s*=\s*)?(?:\"([^\"]*)|'([^']*)|(.*)))?",
    re.IGNORECASE | re.DOTALL,
)
# Leftovers of templates that were not filled in.
_PLACEHOLDER = re.compile(r"\{\{|\$\{|\[%|<%|%7B%7B|%24%7B|\[\[|/(?:undefined|null|none|nan)(?:[/?]|$)", re.IGNORECASE)
_NOBODYS_HOST = re.compile(r"localhost|127\.[0-9.]+|(?:www\.)?(?:example|your-?(?:site|domain|website))\.[a-z]+")
_FRONT_PAGE = re.compile(r"/(?:[a-z]{2}(?:[-_][a-z]{2})?/?)?(?:(?:index|default|home)\b[^/]*)?", re.I)


@dataclass(frozen=True, slots=True)
class Refresh:
    """A redirect by `meta refresh` after some seconds; without URL the page reloads."""

    seconds: int
    url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAddresses:
    """The page's stated address, its redirect, and the base of its links."""

    base: str | None
    canonical_url: str | None
    refresh: Refresh | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedLink:
    """A feed that the page names in its head."""

    url: str
    title: str | None


def title_of(tree: LexborHTMLParser) -> str | None:
    """Return the title as a browser shows it, else the one for sharing the page."""
    for node in tree.css("title"):
        is_drawing = node.parent is not None and node.parent.tag == "svg"
        if not is_drawing and (title := clean_text(node.text())):
            return title[:MAX_TITLE_CHARACTERS]
    shared = tree.css_first("meta[property='og:title'][content]")
    title = clean_text(shared.attrs.get("content")) if shared else None
    return title[:MAX_TITLE_CHARACTERS] if title else None


def language_of(tree: LexborHTMLParser) -> str | None:
    """Return the language the page claims, as `en`, `pt-BR` or `zh-Hant-TW`."""
    return next((language for stated in _languages(tree) if (language := _language(stated))), None)


def page_addresses(elements: Iterable[LexborNode], url: str | None) -> PageAddresses:
    """Return the page's addresses from the elements that `ADDRESS_SELECTOR` matches."""
    nodes: dict[str | None, list[LexborNode]] = {}
    for node in elements:
        nodes.setdefault(node.tag, []).append(node)
    base = stated_base(url, (node.attrs.get("href") for node in nodes.get("base", ()))) or url
    return PageAddresses(
        base=base,
        canonical_url=_canonical(nodes.get("link", ()), base, url),
        refresh=_refresh(nodes.get("meta", ()), base),
    )


def _canonical(nodes: Iterable[LexborNode], base: str | None, url: str | None) -> str | None:
    """Return the page's stated address: the first usable one, in canonical form.

    Placeholders are skipped, and so is the front page, which careless templates state as the
    address of every page.
    """
    for node in nodes:
        address = linked_page(base, node.attrs.get("href"))
        canonical = canonical_or_none(address) if address else None
        if canonical is None or _PLACEHOLDER.search(canonical):
            continue
        if canonical == url or not _is_careless(canonical, url):  # most pages name themselves
            return canonical
    return None


def _refresh(nodes: Iterable[LexborNode], base: str | None) -> Refresh | None:
    """Return where `meta refresh` redirects to; one inside `noscript` is ignored."""
    for node in nodes:
        match = _REFRESH.match(node.attrs.get("content") or "")
        if match is None or _is_inside(node, "noscript"):
            continue
        target = (match[2] or match[3] or match[4] or "").strip()
        if (address := linked_page(base, target)) or not target:
            return Refresh(int(match[1]), address)
    return None


def feeds_of(tree: LexborHTMLParser, url: str | None) -> list[FeedLink]:
    """Return the RSS, Atom and JSON feeds that the page names, each once."""
    base = base_of(tree, url)
    feeds: dict[str, FeedLink] = {}
    for node in tree.css("link[rel~='alternate' i][type][href]"):
        address = linked_page(base, node.attrs.get("href"))
        if _media_type(node) in _FEED_TYPES and address:
            feeds.setdefault(address, FeedLink(url=address, title=clean_text(node.attrs.get("title"))))
    return list(feeds.values())


def feeds_named(html: str) -> list[str]:
    """Return the addresses of the first three feeds that the page names, as written."""
    try:
        tree = parse_html(html)
    except Permanent:  # a decompression or nesting bomb: no page with feeds
        return []
    nodes = tree.css("link[rel~='alternate' i][type][href]")
    hrefs = [node.attrs.get("href") for node in nodes if _media_type(node) in _FEED_TYPES]
    return [clean_text(href[:200]) or "" for href in dict.fromkeys(hrefs) if href][:3]


def _media_type(node: LexborNode) -> str:
    return (node.attrs.get("type") or "").partition(";")[0].strip().lower()


def _languages(tree: LexborHTMLParser) -> Iterator[str]:
    root = tree.css_first("html")
    if root is not None:
        yield root.attrs.get("lang") or root.attrs.get("xml:lang") or ""
    for selector in ("meta[http-equiv='content-language' i]", "meta[property='og:locale']"):
        if node := tree.css_first(selector):
            yield node.attrs.get("content") or ""


def _language(stated: str) -> str | None:
    match = _LANGUAGE.match(stated.strip())
    if match is None:
        return None
    primary, script, region = match.groups()
    parts = [primary.lower(), (script or "").title(), (region or "").upper()]
    return "-".join(part for part in parts if part)


def _is_careless(canonical: str, url: str | None) -> bool:
    """Return whether the address is a template's leftover: no real host, or the front page's."""
    there = urlsplit(canonical)
    try:
        here = urlsplit(url or "")
    except ValueError:
        return False
    if _NOBODYS_HOST.fullmatch(there.hostname or "") and there.hostname != here.hostname:
        return True
    is_front_page = there.path == "/" and not there.query
    return bool(url) and is_front_page and not _FRONT_PAGE.fullmatch(here.path or "/")


def _is_inside(node: LexborNode, tag: str) -> bool:
    parent = node.parent
    while parent is not None and parent.tag != tag:
        parent = parent.parent
    return parent is not None


_MOST_CHARACTERS = 20_000  # such a notice stands at the top of a page with little other text


@cache
def _failure_notices() -> Any:  # noqa: ANN401 - re2 has no types
    return re2_pattern("|".join(packaged_data("ingestion_pipeline.reading.html", "failure_notices.yaml")))


def failure_notice(text: str) -> str | None:
    """Return the phrase with which a page's text reports a failure of its site; None if none."""
    match = _failure_notices().search(" ".join(text[:_MOST_CHARACTERS].lower().split()))
    return match[0] if match else None
