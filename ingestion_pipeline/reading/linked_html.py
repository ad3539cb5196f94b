"""A page's HTML taken apart at its links, each with where it leads: for its links and its Markdown.

The pages of a site have most of their links in common. What a link leads to is remembered, as long
as it leads to the same from everywhere, from every page of a site, or of a folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape, unescape
from typing import NamedTuple

from ingestion_pipeline.reading.links import (
    canonical_or_none,
    folder_of,
    linked_page,
    origin_of,
)

# As the parser serialises them: no `>` in an attribute, each value in quotation marks.
_LINK = re.compile(rb'(<a(?: (?!href=)[^ >][^ =>]*+="[^"]*+")*+) href="([^"]*+)"([^>]*+)')
_PLAIN_PLACE = re.compile(rb"[\w-]++", re.ASCII)
_KEPT_SCHEMES = ("mailto:", "tel:", "#")
_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:")

# Leads to the same page from everywhere, from every page of a site, or of a folder; nothing odd.
_WHOLE = re.compile(rb"https?://[^/?#\\\s]")
_ROOTED = re.compile(rb"/(?:\Z|[\w.~%?-])", re.ASCII)
_OF_FOLDER = re.compile(rb"(?!\.\.)[\w.-][^:\s]*+", re.ASCII)

_REMEMBERED_BYTES = 200
_MOST_REMEMBERED = 8_192  # some megabytes


class Lead(NamedTuple):
    """Where a link leads: the canonical URL of a page, and the attribute that says so to a reader.

    The first is None for what is no page of the web, the second empty for what leads nowhere.
    """

    page: str | None
    attribute: bytes


class _Memory:
    """What links lead to, by the site or folder whose pages they are written on."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._places: dict[str, dict[bytes, Lead]] = {}

    def of(self, place: str) -> dict[bytes, Lead]:
        """What is known; it may be forgotten, but is never wrong."""
        if (known := self._places.get(place)) is None:
            self._make_room()
            known = self._places[place] = {}
        return known

    def keep(self, place: str, written: bytes, lead: Lead) -> Lead:
        """Known from now on."""
        self._make_room()
        self.of(place)[written] = lead
        return lead

    def _make_room(self) -> None:
        """For one more. When it is full, all of it is let go: the next pages bring it back."""
        if self._count >= self._most:
            self._places, self._count = {}, 0
        self._count += 1


_FROM_EVERYWHERE = ""
_memory = _Memory(_MOST_REMEMBERED)


class LinkedHtml:
    """What `body_html` gave.

    `pieces` are by fours: what is before a link's tag, the tag up to its address, the address, the
    rest of the tag; the last one is what follows. `leads` are of the links, in that order.
    """

    __slots__ = ("_base", "_folder", "_known", "_origin", "_whole", "leads", "pieces")

    def __init__(self, html: bytes, base: str | None) -> None:
        self._base = base
        self._origin = f"{origin}/" if (origin := origin_of(base)) else _FROM_EVERYWHERE
        self._folder = folder_of(base or "")
        self._known, self._whole = _memory.of(self._origin), _memory.of(_FROM_EVERYWHERE)
        self.pieces = _LINK.split(html)
        self.leads = self._leads(self.pieces[2::4])

    def pages(self, others: Iterable[str | None] = ()) -> tuple[str, ...]:
        """The pages that it leads to, each once in the order of the page, then those of `others`.

        They are the addresses of links that are not in the HTML.
        """
        written = [(href or "").replace("&", "&amp;").encode() for href in others]
        leads = [*self.leads, *self._leads(written)]
        return tuple(filter(None, dict.fromkeys([lead.page for lead in leads])))

    def _leads(self, written: Iterable[bytes]) -> list[Lead]:
        known, whole = self._known, self._whole
        return [known.get(one) or whole.get(one) or self._lead(one) for one in written]

    def _lead(self, written: bytes) -> Lead:
        """What a page leads to is remembered without its places: they are many, and seldom met."""
        page, mark, place = written.partition(b"#")
        if page and mark and _PLAIN_PLACE.fullmatch(place):
            lead = self._known.get(page) or self._whole.get(page) or self._remembered(page)
            return Lead(lead.page, lead.attribute and b'%b#%b"' % (lead.attribute[:-1], place))
        return self._remembered(written)

    def _remembered(self, written: bytes) -> Lead:
        href = unescape(written.decode())
        if len(written) <= _REMEMBERED_BYTES:
            if self._origin and _ROOTED.match(written):
                return _memory.keep(self._origin, written, _new(self._origin, href))
            if _WHOLE.match(written):
                return _memory.keep(_FROM_EVERYWHERE, written, _new(None, href))
            if self._folder and _OF_FOLDER.fullmatch(written):
                # The root's folder is written like the site: what its pages lead to by such a
                # link is not what every page of the site does.
                place = f"folder {self._folder}"
                known = _memory.of(place).get(written)
                return known or _memory.keep(place, written, _new(self._folder, href))
        if written.startswith(b"../") and written.find(b"#") < 0:
            address = linked_page(self._base, href) or ""
            # Others are remembered by where they lead, since each page is at another place.
            path = address.encode()[len(self._origin) - 1 :]
            return self._known.get(path) or _new(self._base, href)
        return _new(self._base, href)


def _new(base: str | None, href: str) -> Lead:
    if (address := linked_page(base, href)) is None:
        return Lead(None, _attribute(_kept(href.replace("\xa0", " ").strip(), base)))
    place = href.partition("#")[2]
    target = f"{address}#{place}" if place else address
    return Lead(canonical_or_none(address), _attribute(target.replace("\xa0", " ").strip()))


def _attribute(target: str | None) -> bytes:
    return b"" if target is None else f' href="{escape(target)}"'.encode()


def _kept(href: str, base: str | None) -> str | None:
    """What leads to no page of the web, but somewhere; None for scripts, data and the like."""
    if href.lower().startswith(_KEPT_SCHEMES):
        return href
    return None if base or _SCHEME.match(href) else href
