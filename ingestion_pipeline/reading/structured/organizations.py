"""Facts about organizations: what a page and its schema.org data state: name, place, size, year.

The values may be texts, numbers, lists or nested things; what is not stated is None. The caller
decides which organization a page belongs to, and what a fact is worth.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast
from urllib.parse import urlsplit

from ingestion_pipeline.reading.html.cleaning import remove_unseen, visible_text
from ingestion_pipeline.reading.html.head import language_of, title_of
from ingestion_pipeline.reading.html.parsing import parse_html
from ingestion_pipeline.reading.structured.embedded import EmbeddedData, Thing, embedded_of, types_of
from ingestion_pipeline.reading.text.business_names import MAX_NAME_CHARACTERS
from ingestion_pipeline.reading.text.decoding import clean_text, without_references
from ingestion_pipeline.reading.text.topics import guessed_language, stated_keywords

MAX_CHARACTERS = 200

# Types of schema.org that are organizations; those that name a trade are its industry.
_GENERAL_TYPES = """
Organization Corporation LocalBusiness OnlineBusiness OnlineStore Store NGO ProfessionalService
EducationalOrganization ResearchOrganization MedicalOrganization NewsMediaOrganization
GovernmentOrganization SoftwareCompany
"""
_TRADES = """
AccountingService AutoDealer AutoRepair Bakery BarOrPub BeautySalon BikeStore BookStore Brewery
CafeOrCoffeeShop ChildCare ClothingStore CollegeOrUniversity ComputerStore Dentist DaySpa
Electrician ElectronicsStore EmploymentAgency ExerciseGym FinancialService Florist FurnitureStore
GroceryStore HairSalon HardwareStore HealthClub HomeGoodsStore Hospital Hotel HousePainter
InsuranceAgency InternetCafe JewelryStore LegalService Library Locksmith LodgingBusiness
MedicalBusiness MedicalClinic MobilePhoneStore MovingCompany Museum MusicStore NightClub Notary
Optician PetStore Pharmacy Physician Plumber RealEstateAgent Restaurant RoofingContractor School
ShoeStore SportingGoodsStore SportsClub TireShop ToyStore TravelAgency VeterinaryCare Winery
BankOrCreditUnion AutomotiveBusiness HVACBusiness GeneralContractor TattooParlor Attorney
"""
_TRADE_TYPES = frozenset(_TRADES.split())
ORGANIZATION_TYPES = (*_GENERAL_TYPES.split(), *_TRADES.split())

# Where others write about an organization: an address there is no website of its own.
_PROFILES = """
linkedin.com facebook.com twitter.com x.com instagram.com youtube.com github.com gitlab.com
crunchbase.com glassdoor.com indeed.com wikipedia.org wikidata.org tiktok.com pinterest.com
medium.com xing.com vimeo.com threads.net bsky.app mastodon.social kununu.com yelp.com
trustpilot.com t.me telegram.me whatsapp.com wa.me google.com g.page apps.apple.com
producthunt.com angel.co wellfound.com f6s.com dribbble.com behance.net reddit.com discord.gg
discord.com slideshare.net vk.com weibo.com bloomberg.com dnb.com opencorporates.com g2.com
capterra.com clutch.co stackoverflow.com huggingface.co pitchbook.com zoominfo.com comparably.com
"""
_PROFILE_HOSTS = frozenset(_PROFILES.split())

_WORD_STARTS = re.compile(r"(?<=[a-z])(?=[A-Z])")
_YEAR = re.compile(r"(?<![0-9])(1[6-9][0-9]{2}|20[0-9]{2})(?![0-9])")
_ADDRESS = ("addressLocality", "addressRegion", "addressCountry")


def is_profile(url: str) -> bool:
    """Return whether the address is a page about an organization on a network or a directory."""
    try:
        host = (urlsplit(url).hostname or "").lower()
    except ValueError:
        return False
    labels = host.split(".")
    return any(".".join(labels[start:]) in _PROFILE_HOSTS for start in range(len(labels)))


def stated_name(thing: Thing) -> str | None:
    """Return its name; a name has a letter or a digit."""
    return _named(thing.get("name"))


def stated_legal_name(thing: Thing) -> str | None:
    """Return its legal name."""
    return _named(thing.get("legalName"))


def stated_description(thing: Thing) -> str | None:
    """Return its description as written, which may be markup."""
    description = thing.get("description")
    description = _inside(description).get("@value", description)
    return description if isinstance(description, str) and description.strip() else None


def stated_industry(thing: Thing) -> str | None:
    """Return its industry in words."""
    return stated_text(thing.get("industry"))


def trade_of(thing: Thing) -> str | None:
    """Return its trade, if its type names one: `RealEstateAgent` is "Real Estate Agent"."""
    types = types_of(thing) & _TRADE_TYPES
    return _WORD_STARTS.sub(" ", sorted(types)[0]) if types else None


def stated_seat(thing: Thing) -> str | None:
    """Return its location."""
    return place_of(thing.get("address")) or place_of(thing.get("location"))


def stated_places(thing: Thing) -> list[str]:
    """Return its locations and those of its parts."""
    names = ("address", "location", "subOrganization", "department")
    return [place for name in names for value in listed(thing.get(name)) if (place := place_of(value))]


def place_of(address: object) -> str | None:
    """Return a town with its region and country, as one line; of several the first."""
    if isinstance(address, list):
        return next(filter(None, map(place_of, cast("list[object]", address))), None)
    if isinstance(address, str):
        return address_line(address)
    stated = _inside(address)
    if (inner := stated.get("address")) is not None:
        return place_of(inner)
    parts = [stated_text(stated.get(name)) for name in _ADDRESS]
    return ", ".join(dict.fromkeys(filter(None, parts))) or stated_text(stated.get("name"))


def address_line(text: str | None) -> str | None:
    """Return an address of several lines as one."""
    line = ", ".join(part.strip(" ,") for part in (text or "").splitlines() if part.strip(" ,"))
    return line[:MAX_CHARACTERS] or None


def stated_head_count(thing: Thing) -> str | None:
    """Return the number of employees: a number, a range such as `51-200` or `500+`, or words."""
    for value in listed(thing.get("numberOfEmployees")):
        inside = _inside(value)
        low, high = stated_text(inside.get("minValue")), stated_text(inside.get("maxValue"))
        head_count = stated_text(inside.get("value")) if inside else stated_text(value)
        if head_count is None and (low or high):
            head_count = f"{low or 1}-{high}" if high else f"{low}+"
        if head_count is not None:
            return head_count
    return None


def founding_year(thing: Thing) -> int | None:
    """Return the year in which it was founded."""
    match = _YEAR.search(stated_text(thing.get("foundingDate")) or "")
    return int(match[1]) if match else None


def stated_text(value: object) -> str | None:
    """Return text or number as one line; of a list the first, of a thing its value or name."""
    if isinstance(value, list):
        return next(filter(None, map(stated_text, cast("list[object]", value))), None)
    if isinstance(value, Mapping):
        inside = _inside(cast("object", value))
        return stated_text(inside.get("@value")) or stated_text(inside.get("name"))
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = _written(value)
    text = clean_text(without_references(value)) if isinstance(value, str) else None
    return text[:MAX_CHARACTERS] if text else None


def listed(value: object) -> list[object]:
    """Return the values of a list, or the single value as a list."""
    return cast("list[object]", value) if isinstance(value, list) else [value]


def _written(number: float) -> str | None:
    try:
        return str(int(number)) if number == int(number) else str(number)
    except (ValueError, OverflowError):  # no number, or more digits than Python writes
        return None


def _named(value: object) -> str | None:
    name = stated_text(value)
    return name if name and any(character.isalnum() for character in name) else None


def _inside(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


# ruff: noqa: RUF001 - the signs that part titles are meant


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
    """Where a fact was stated, the most trustworthy first."""

    JSON_LD = "json_ld"
    MICRODATA = "microdata"
    META = "meta"
    TITLE = "title"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrganizationFacts:
    """The facts of one page; `stated` says where, by the field's name."""

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
    """Return all the page states about its organization; a bomb is `Permanent` (see `parse_html`)."""
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
    headings = tree.css("h1, h2, h3")[:MAX_HEADINGS]
    address = tree.css_first("address, [itemprop='address'], .footer-address")
    if address is not None:
        gathered.take("location", address_line(clean_text(address.text(separator=", "))), Stated.TEXT)
    paragraphs = (clean_text(node.text()) for node in tree.css("main p, article p, body p")[:20])
    long_one = next((text for text in paragraphs if text and len(text) >= 2 * _LEAST_DESCRIPTION), None)
    gathered.take("description", _description(long_one), Stated.TEXT)
    return OrganizationFacts(
        **gathered.texts,
        other_names=tuple(dict.fromkeys(gathered.other_names)),
        keywords=tuple(gathered.keywords),
        language=claimed or guessed_language(text),
        same_as=tuple(dict.fromkeys(gathered.same_as))[:MAX_LINKS],
        title_parts=title_parts(title),
        copyright_name=copyright_name(text),
        headings=tuple(filter(None, ((clean_text(node.text()) or "")[:200] for node in headings))),
        text=text,
        stated=gathered.stated,
    )


class _Gathered:
    """The first value of each fact, and where it was stated."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.stated: dict[str, Stated] = {}
        self.other_names: list[str] = []
        self.keywords: list[str] = []
        self.same_as: list[str] = []

    def take(self, name: str, value: str | None, place: Stated) -> None:
        if value and name not in self.texts:
            self.texts[name] = value
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
        keywords = thing.get("keywords")
        stated = stated_keywords(keywords) if isinstance(keywords, str) else _texts(keywords)
        self.take_keywords(_texts(thing.get("knowsAbout")) or stated, place)
        self.other_names += _texts(thing.get("alternateName"))
        self.same_as += [link for link in _texts(thing.get("sameAs")) if "://" in link]


def title_parts(title: str | None) -> tuple[str, ...]:
    """Split a title where titles put a site's name: `Acme | Tools` is two parts."""
    parts = (part.strip() for part in _TITLE_PARTS.split(title or ""))
    return tuple(part[:MAX_NAME_CHARACTERS] for part in parts if part)


def copyright_name(text: str) -> str | None:
    """Return the name in the copyright notice at the foot of the page."""
    matches = list(_COPYRIGHT.finditer(text[-_FOOT:]))
    if not matches:
        return None
    name = _AFTER_COPYRIGHT.sub("", matches[-1][1]).strip(" .,;:-–—")
    return name if any(character.isalpha() for character in name) else None


def _organizations(embedded: EmbeddedData) -> Iterator[tuple[Thing, Stated]]:
    """Yield the organizations that the page belongs to, before those that it only mentions."""
    accepted_types = {*ORGANIZATION_TYPES, "Brand"}
    for things, place in ((embedded.json_ld, Stated.JSON_LD), (embedded.microdata, Stated.MICRODATA)):
        organizations = [thing for thing in _outer(things) if types_of(thing) & accepted_types]
        yield from (
            (thing, place) for thing in sorted(organizations, key=lambda thing: stated_text(thing.get("name")) is None)
        )
    for site in embedded.things("WebSite", "WebPage"):
        publisher = site.get("publisher")
        if isinstance(publisher, Mapping):
            yield cast("Thing", publisher), Stated.JSON_LD


def _outer(things: Iterable[Thing]) -> Iterator[Thing]:
    """Yield the things of the page and of its graph; those inside an article belong to others."""
    for thing in things:
        yield thing
        graph = thing.get("@graph")
        if isinstance(graph, list):
            yield from (cast("Thing", node) for node in cast("list[object]", graph) if isinstance(node, dict))


def _take_meta(gathered: _Gathered, embedded: EmbeddedData) -> None:
    names = ("og:site_name", "application-name", "apple-mobile-web-app-title")
    name = stated_name({"name": embedded.meta_content(*names)})
    gathered.take("name", name, Stated.META)
    description = embedded.meta_content("description", "Description", "og:description")
    gathered.take("description", _description(description), Stated.META)
    place = embedded.meta_content("geo.placename", "og:locality", "business:contact_data:locality")
    gathered.take("location", stated_text(place), Stated.META)
    trade = embedded.meta_content("category", "classification", "industry")
    gathered.take("industry", stated_text(trade), Stated.META)
    words = embedded.meta_content("keywords", "Keywords", "news_keywords")
    gathered.take_keywords(stated_keywords(words), Stated.META)


def _description(value: object) -> str | None:
    text = clean_text(value) if isinstance(value, str) else None
    if not text or len(text) < _LEAST_DESCRIPTION:
        return None
    return text[:MAX_DESCRIPTION_CHARACTERS]


def _texts(value: object) -> list[str]:
    return [text for item in listed(value) if (text := stated_text(item))][:MAX_LINKS]
