"""Read a page's head: title, language, canonical address, feeds, refresh, and phrases about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ingestion_pipeline.reading.html.links import base_of, canonical_or_none, linked_page, stated_base
from ingestion_pipeline.reading.html.parsing import parse_html
from ingestion_pipeline.reading.text.decoding import clean_text
from ingestion_pipeline.reading.text.fingerprint import re2_pattern
from ingestion_pipeline.tasks.errors import Permanent

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode


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
    media_type: str


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
        media_type = _media_type(node)
        address = linked_page(base, node.attrs.get("href"))
        if media_type in _FEED_TYPES and address:
            title = clean_text(node.attrs.get("title"))
            feeds.setdefault(address, FeedLink(url=address, title=title, media_type=media_type))
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


# Whole phrases: single words such as "maintenance" or "error" are taught in courses.
_PHRASES = (
    r"something (?:went|has gone) wrong|(?:an?|some|unexpected|unknown|internal|technical|database"
    r"|application|fatal|server) error(?: (?:has|have))? (?:occurr?ed|happened|prevented)"
    r"|(?:unexpected|unknown|internal|internal server|fatal|database|application) error\b"
    r"|error establishing a|(?:under|(?:down|offline|closed|unavailable) for|scheduled|undergoing)"
    r" maintenance|maintenance (?:mode|page|window|in progress)"
    r"|(?:is|are|be) (?:currently|momentarily) (?:unavailable|offline|down|out of service)"
    r"|temporarily (?:unavailable|out of (?:service|order)|offline|down)"
    r"|service (?:is )?(?:temporarily |currently )?unavailable|bad gateway|gateway time-?out"
    r"|(?:not |un)available (?:right now|at (?:this|the) (?:time|moment))"
    r"|server (?:is )?(?:too )?busy"
    r"|(?:unable to|could not|cannot|can't|couldn't) (?:load|process|connect|complete your)"
    r"|(?:uncaught|unhandled) exception|traceback \(most recent call last\)"
    r"|encountered an? (?:(?:unexpected|unknown|internal) )?(?:problem|error)"
    r"|for the inconvenience|^w?h?oops\b|connection (?:failed|refused|timed out)|request timed out"
    r"|technical (?:difficult(?:y|ies)|problems?|issues?)|too many requests"
    r"|(?:try|check|come) (?:again|back) (?:later|soon|shortly|in a)"
    r"|(?:will|'ll|’ll) be (?:right )?back|(?:could not|cannot|can't) be (?:loaded|displayed)"  # noqa: RUF001
    r"|wartungsarbeiten|wartungsmodus|wegen wartung|fehler (?:ist )?aufgetreten|ging etwas schief"
    r"|etwas ist schiefgelaufen|vorübergehend nicht|(?:zur ?zeit|derzeit|momentan) nicht"
    r" (?:verfügbar|erreichbar)|später (?:noch ?einmal|erneut|wieder)"
    r"|en maintenance|erreur (?:est survenue|s'est produite|interne)"
    r"|(?:momentanément|temporairement|actuellement) indisponible|réessayer plus tard"
    r"|en mantenimiento|(?:ha ocurrido|se ha producido|se produjo) un error"
    r"|algo (?:salió|ha ido) mal"
    r"|temporalmente (?:no disponible|fuera de servicio)|int[ée]nt\w{1,6} (?:de nuevo|más tarde)"
    r"|in manutenzione|si è verificato un errore|temporaneamente non disponibile|riprova più tardi"
    r"|em manutenção|ocorreu um erro|temporariamente indisponível|algo deu errado"
    r"|in onderhoud|er is iets (?:mis|fout)gegaan|tijdelijk niet beschikbaar"
)
_MOST_CHARACTERS = 20_000  # such a notice stands at the top of a page with little other text


def failure_notice(text: str) -> str | None:
    """Return the phrase with which a page's text reports a failure of its site; None if none."""
    match = re2_pattern(_PHRASES).search(" ".join(text[:_MOST_CHARACTERS].lower().split()))
    return match[0] if match else None
