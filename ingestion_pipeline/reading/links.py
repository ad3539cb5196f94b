"""Where a page leads: every address once, absolute, in the order of the page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from ingestion_pipeline.urls import (
    MAX_URL_CHARS,
    TRACKING_PARAMETERS,
    TRACKING_PREFIX,
    BadUrl,
    canonical_url,
)

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

_C0_AND_SPACE = "".join(map(chr, range(33)))
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_ORIGIN = re.compile(r"https?://[^/?#\\]+", re.IGNORECASE)
# Most links of most pages are canonical as they stand, and the pattern is ten times quicker than
# the whole work: lower-case name with a letter in its last label, plain path, no dots to resolve,
# parameters in order and none of them for tracking.
_CANONICAL = re.compile(
    r"https?://[a-z0-9-]++(?:\.[a-z0-9-]++)*?\.[a-z][a-z0-9-]*+(?:/(?!\.)[\w~!$&'()*+,;=:@.-]*+)++"
    r"(?:\?([\w~=&.-]++))?",
    re.ASCII,
)


def page_links(tree: LexborHTMLParser, url: str | None) -> dict[str, str]:
    """Each page that is linked to: its canonical URL, and the address as the page gives it.

    Only http and https; fragments are no pages of their own. Without the page's own URL relative
    links lead nowhere.
    """
    base = base_of(tree, url)
    origin = _ORIGIN.match(base or "")
    prefix = origin[0] if origin else None
    hrefs = dict.fromkeys(node.attrs.get("href") or "" for node in tree.css("a[href], area[href]"))
    links: dict[str, str] = {}
    for address in dict.fromkeys(_joined(href, base, prefix) for href in hrefs):
        if address and (canonical := canonical_or_none(address)):
            links.setdefault(canonical, address)
    return links


def base_of(tree: LexborHTMLParser, url: str | None) -> str | None:
    """What relative addresses are relative to: the first usable `base`, else the page's own URL."""
    for node in tree.css("base[href]"):
        if found := absolute(node.attrs.get("href") or "", url):
            return found
    return url or None


def absolute(href: str, base: str | None) -> str | None:
    """The http(s) address that `href` means on a page, without fragment; None if it means none."""
    origin = _ORIGIN.match(base or "")
    return _joined(href, base, origin[0] if origin else None)


def canonical_or_none(address: str) -> str | None:
    """The canonical URL; None where the address is none."""
    if (found := _CANONICAL.fullmatch(address)) and _is_plain(found[1]):
        return address
    try:
        return canonical_url(address)
    except BadUrl:
        return None


def _is_plain(query: str | None) -> bool:
    if query is None:
        return True
    names = [pair.partition("=")[0] for pair in query.split("&")]
    return names == sorted(names) and not any(
        not name or name.lower() in TRACKING_PARAMETERS or name.lower().startswith(TRACKING_PREFIX)
        for name in names
    )


def _joined(href: str, base: str | None, origin: str | None) -> str | None:
    """`absolute` with the origin at hand: `https://...` and `/...` are most of all links."""
    href = href.strip(_C0_AND_SPACE).partition("#")[0]
    if not href or len(href) > MAX_URL_CHARS:
        return None
    if "\n" in href or "\t" in href or "\r" in href:
        href = href.replace("\n", "").replace("\t", "").replace("\r", "")
    if href.startswith(("https://", "http://")):
        return href
    if origin is None or base is None:
        return href if _ORIGIN.match(href) else None
    if href.startswith("/") and not href.startswith(("//", "/\\")):
        return origin + href
    return _resolved(href, base)


def _resolved(href: str, base: str) -> str | None:
    if (scheme := _SCHEME.match(href)) and scheme[0].lower() not in {"http:", "https:"}:
        return None
    try:
        address = urljoin(base, href.replace("\\", "/"))
    except ValueError:  # brackets that are no IPv6 address
        return None
    return address if _ORIGIN.match(address) else None
