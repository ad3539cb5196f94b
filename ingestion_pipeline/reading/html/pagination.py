"""Find the links of a page that lead to further pages of the same list, the surest first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from ingestion_pipeline.reading.html.links import base_of, linked_page
from ingestion_pipeline.reading.text.decoding import clean_text
from ingestion_pipeline.urls import BadUrl, host_of, without_session_ids

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode


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
    return sorted(_repeated(links.values()), key=_rank)


def next_page(tree: LexborHTMLParser, url: str) -> str | None:
    """Return the page after this one, by a link to it or by its number; None on the last.

    It has a page number in its address, or the address of this page with another query: "next" may
    lead to any other page, too.
    """
    links = [link for link in following_pages(tree, url) if link.clue < Clue.QUERY]
    here = _value(url)
    for link in links:
        there = _value(link.url)
        is_later = here is None or there is None or there > here
        is_of_list = link.pattern is not None or link.url.partition("?")[0] == url.partition("?")[0]
        if link.clue < Clue.NUMBERED and is_of_list and is_later:
            return link.url
    # Without a number in its address this is the first, which a pager labels 1.
    values = ((link.number if here is None else _value(link.url), link.url) for link in links)
    first = 1 if here is None else here
    later = [(value, address) for value, address in values if value is not None and value > first]
    return min(later)[1] if later else _page_behind(tree, url)


def _page_behind(tree: LexborHTMLParser, url: str) -> str | None:
    """Return where a link of any words leads: to this address with the number after its own.

    A page without a number is the first, and the one behind it has 1 or 2, or the least offset.
    """
    here, base, candidates = _value(url) or 0, base_of(tree, url), list[tuple[int, str]]()
    for node in tree.css("a[href]"):
        address = without_session_ids(linked_page(base, node.attrs.get("href")) or "")
        match = _numbered(address)
        if match is None or not _is_same_host(address, url):
            continue
        value, steps = int(match[1]), {1} if _value(url) is not None else {1, 2}
        is_near = value - here in steps or (match.re is _OFFSET and value > here)
        if is_near and address != url and _without_number(address) == _without_number(url):
            candidates.append((value, address))
    return min(candidates)[1] if candidates else None


def _without_number(address: str) -> str:
    """Return path and query without the number of the page."""
    match = _numbered(address)
    if match is None:
        return address.rstrip("/?&")
    return (address[: match.start()] + address[match.end() :]).rstrip("/?&")


def shows_a_part(tree: LexborHTMLParser) -> bool:
    """Return whether a button or a link without an address offers more of the list."""
    for node in tree.css("button, [role=button], a:not([href]), a[href^='#'], a[href^=javascript]"):
        words = clean_text(node.text()) or clean_text(node.attrs.get("aria-label")) or ""
        if _MORE.fullmatch(words):
            return True
    return False


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
        elif _is_next(text or label, node):
            yield node, Clue.NEXT_TEXT, None
        elif _numbered(node.attrs.get("href") or ""):
            yield node, Clue.QUERY, None


def _is_next(words: str, node: LexborNode) -> bool:
    is_word = bool(words.strip(_ARROWS + " "))
    return bool(words and _NEXT.fullmatch(words)) and (is_word or _is_in_pager(node))


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


def _rank(link: PageLink) -> tuple[int, int]:
    return link.clue, link.number or 0


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
