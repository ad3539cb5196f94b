"""Resolve the links of a page: relative, with a base of the page's own, or no address at all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from ingestion_pipeline.urls import MAX_URL_CHARS, BadUrl, canonical_url, selects_nothing, without_secret_pairs

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser


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
    return "?" + "&".join(sorted(pairs, key=_name)) if pairs else ""


def _name(pair: str) -> str:
    return pair.partition("=")[0]


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
