"""What a page says of the organization behind it: name, trade, place, and how it is known.

Embedded data is believed before meta tags, these before the title and the text. Each fact says
where it was stated; what the page does not say is None.
"""

# ruff: noqa: RUF001 - the signs that part titles are meant

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, cast

from ingestion_pipeline.reading.business_names import MAX_NAME_CHARACTERS
from ingestion_pipeline.reading.cleaning import remove_unseen, visible_text
from ingestion_pipeline.reading.decode import clean_text
from ingestion_pipeline.reading.embedded import EmbeddedData, Thing, embedded_of, types_of
from ingestion_pipeline.reading.head import language_of, title_of
from ingestion_pipeline.reading.markup import parse_html
from ingestion_pipeline.reading.organization_things import (
    ORGANIZATION_TYPES,
    address_line,
    listed,
    stated_description,
    stated_industry,
    stated_legal_name,
    stated_name,
    stated_seat,
    stated_text,
    trade_of,
)
from ingestion_pipeline.reading.topics import guessed_language, stated_keywords

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

MAX_DESCRIPTION_CHARACTERS = 1_000
MAX_HEADINGS = 40
MAX_LINKS = 50
_LEAST_DESCRIPTION = 20
_FOOT = 20_000  # characters at the end of a page, where its owner is named

_SITES = ("WebSite", "SoftwareApplication", "WebApplication", "MobileApplication")
_TITLE_PARTS = re.compile(r"(?<!\s)\s++[|–—·•»:-]\s++|(?:(?<!\s)\s++)?+[|｜·•»]\s*+|:\s++")
_COPYRIGHT = re.compile(
    r"(?:©|\(c\)|copyright)\s*(?:©\s*)?(?:[12][0-9]{3}(?:\s*[-–—/]\s*[12][0-9]{3})?\s*,?\s*)?"
    r"(?:by\s+)?([^\n|·•©]{2,80})",
    re.IGNORECASE,
)
_AFTER_COPYRIGHT = re.compile(
    r"(?:[.,;]\s*+|(?<![\s.,;])\s++|(?<!\s))"
    r"(?:all rights reserved|alle rechte|tous droits|todos los derechos|tutti i diritti"
    r"|todos os direitos|wszelkie prawa|все права|[12][0-9]{3}\b)(?s:.*)",
    re.IGNORECASE,
)


class Stated(StrEnum):
    """Where a fact was stated, the most believable first."""

    JSON_LD = "json_ld"
    MICRODATA = "microdata"
    META = "meta"
    TITLE = "title"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrganizationFacts:
    """What one page states; `stated` says where, by the field's name."""

    name: str | None = None
    legal_name: str | None = None
    other_names: tuple[str, ...] = ()
    description: str | None = None
    location: str | None = None
    industry: str | None = None
    keywords: tuple[str, ...] = ()
    language: str | None = None
    same_as: tuple[str, ...] = ()
    title_parts: tuple[str, ...] = ()
    copyright_name: str | None = None
    headings: tuple[str, ...] = ()
    text: str = ""
    stated: Mapping[str, Stated] = field(default_factory=dict[str, Stated])


def organization_facts(html: str) -> OrganizationFacts:
    """Everything the page says of its organization.

    Raises:
        Permanent: the page is a bomb (see `parse_html`).
    """
    tree = parse_html(html)
    embedded = embedded_of(tree)
    title, claimed = title_of(tree), language_of(tree)
    remove_unseen(tree)
    text = visible_text(tree)
    gathered = _Gathered()
    for thing, place in _organizations(embedded):
        gathered.take_thing(thing, place)
    for thing in embedded.things(*_SITES):
        gathered.take("name", stated_text(thing.get("name")), Stated.JSON_LD)
        gathered.take("industry", stated_text(thing.get("applicationCategory")), Stated.JSON_LD)
        gathered.take("description", _description(stated_description(thing)), Stated.JSON_LD)
    _take_meta(gathered, embedded)
    address = tree.css_first("address, [itemprop='address'], .footer-address")
    if address is not None:
        gathered.take(
            "location", address_line(clean_text(address.text(separator=", "))), Stated.TEXT
        )
    gathered.take("description", _description(_first_paragraph(tree)), Stated.TEXT)
    return OrganizationFacts(
        **gathered.texts(),
        other_names=tuple(dict.fromkeys(gathered.other_names)),
        keywords=tuple(gathered.keywords),
        language=claimed or guessed_language(text),
        same_as=tuple(dict.fromkeys(gathered.same_as))[:MAX_LINKS],
        title_parts=title_parts(title),
        copyright_name=copyright_name(text),
        headings=tuple(_headings(tree)),
        text=text,
        stated=dict(gathered.stated),
    )


class _Gathered:
    """The first of each fact that was found, and where."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self.stated: dict[str, Stated] = {}
        self.other_names: list[str] = []
        self.keywords: list[str] = []
        self.same_as: list[str] = []

    def take(self, name: str, value: str | None, place: Stated) -> None:
        if value and name not in self._texts:
            self._texts[name] = value
            self.stated[name] = place

    def take_keywords(self, keywords: Sequence[str], place: Stated) -> None:
        if keywords and not self.keywords:
            self.keywords = list(keywords)
            self.stated["keywords"] = place

    def take_thing(self, thing: Thing, place: Stated) -> None:
        self.take("name", stated_name(thing), place)
        self.take("legal_name", stated_legal_name(thing), place)
        self.take("description", _description(stated_description(thing)), place)
        self.take("location", stated_seat(thing), place)
        self.take("industry", stated_industry(thing) or trade_of(thing), place)
        self.take_keywords(_texts(thing.get("knowsAbout")) or _keywords(thing), place)
        self.other_names += _texts(thing.get("alternateName"))
        self.same_as += [one for one in _texts(thing.get("sameAs")) if "://" in one]

    def texts(self) -> dict[str, str]:
        return self._texts


def title_parts(title: str | None) -> tuple[str, ...]:
    """A title taken apart where titles put a site's name: `Acme | Tools` is two parts."""
    parts = (part.strip() for part in _TITLE_PARTS.split(title or ""))
    return tuple(part[:MAX_NAME_CHARACTERS] for part in parts if part)


def copyright_name(text: str) -> str | None:
    """Who says at the foot of the page that it is theirs."""
    found = list(_COPYRIGHT.finditer(text[-_FOOT:]))
    if not found:
        return None
    said = _AFTER_COPYRIGHT.sub("", found[-1][1]).strip(" .,;:-–—")
    return said if any(one.isalpha() for one in said) else None


def _organizations(embedded: EmbeddedData) -> Iterator[tuple[Thing, Stated]]:
    """The organizations that the page is of, before those that it only mentions."""
    wanted = {*ORGANIZATION_TYPES, "Brand"}
    for things, place in (
        (embedded.json_ld, Stated.JSON_LD),
        (embedded.microdata, Stated.MICRODATA),
    ):
        found = [thing for thing in _outer(things) if types_of(thing) & wanted]
        yield from ((thing, place) for thing in sorted(found, key=_is_vague))
    for site in embedded.things("WebSite", "WebPage"):
        publisher = site.get("publisher")
        if isinstance(publisher, Mapping):
            yield cast("Thing", publisher), Stated.JSON_LD


def _outer(things: Iterable[Thing]) -> Iterator[Thing]:
    """The things of the page, and those of its graph; what is inside an article is another's."""
    for thing in things:
        yield thing
        graph = thing.get("@graph")
        if isinstance(graph, list):
            yield from (
                cast("Thing", one) for one in cast("list[object]", graph) if isinstance(one, dict)
            )


def _is_vague(thing: Thing) -> bool:
    return stated_text(thing.get("name")) is None


def _take_meta(gathered: _Gathered, embedded: EmbeddedData) -> None:
    names = ("og:site_name", "application-name", "apple-mobile-web-app-title")
    said = stated_name({"name": embedded.meta_content(*names)})
    gathered.take("name", said, Stated.META)
    told = embedded.meta_content("description", "Description", "og:description")
    gathered.take("description", _description(told), Stated.META)
    place = embedded.meta_content("geo.placename", "og:locality", "business:contact_data:locality")
    gathered.take("location", stated_text(place), Stated.META)
    trade = embedded.meta_content("category", "classification", "industry")
    gathered.take("industry", stated_text(trade), Stated.META)
    words = embedded.meta_content("keywords", "Keywords", "news_keywords")
    gathered.take_keywords(stated_keywords(words), Stated.META)


def _keywords(thing: Thing) -> list[str]:
    said = thing.get("keywords")
    return stated_keywords(said) if isinstance(said, str) else _texts(said)


def _description(value: object) -> str | None:
    found = clean_text(value) if isinstance(value, str) else None
    if not found or len(found) < _LEAST_DESCRIPTION:
        return None
    return found[:MAX_DESCRIPTION_CHARACTERS]


def _texts(value: object) -> list[str]:
    return [found for one in listed(value) if (found := stated_text(one))][:MAX_LINKS]


def _first_paragraph(tree: LexborHTMLParser) -> str | None:
    for node in tree.css("main p, article p, body p")[:20]:
        text = clean_text(node.text())
        if text and len(text) >= 2 * _LEAST_DESCRIPTION:
            return text
    return None


def _headings(tree: LexborHTMLParser) -> Iterator[str]:
    for node in tree.css("h1, h2, h3")[:MAX_HEADINGS]:
        if text := clean_text(node.text()):
            yield text[:200]
