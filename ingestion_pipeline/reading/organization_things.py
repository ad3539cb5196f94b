"""What one schema.org/Organization states of itself, as text: name, place, trade, size, year.

The values may be texts, numbers, lists or things of their own; what is not stated is None. Which
organization a page is of, and what a fact is worth, is decided by who asks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

from ingestion_pipeline.reading.decode import clean_text, without_references
from ingestion_pipeline.reading.embedded import Thing, types_of

MAX_CHARACTERS = 200

# Types of schema.org that are organizations; those that name a trade are its industry.
GENERAL_TYPES = (
    "Organization",
    "Corporation",
    "LocalBusiness",
    "OnlineBusiness",
    "OnlineStore",
    "Store",
    "NGO",
    "ProfessionalService",
    "EducationalOrganization",
    "ResearchOrganization",
    "MedicalOrganization",
    "NewsMediaOrganization",
    "GovernmentOrganization",
    "SoftwareCompany",
)
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
TRADE_TYPES = tuple(_TRADES.split())
ORGANIZATION_TYPES = (*GENERAL_TYPES, *TRADE_TYPES)

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
    """What it is called; a name has a letter or a digit."""
    return _named(thing.get("name"))


def stated_legal_name(thing: Thing) -> str | None:
    """What it is called before the law."""
    return _named(thing.get("legalName"))


def stated_description(thing: Thing) -> str | None:
    """What it says of itself, as it is written, which may be markup."""
    said = thing.get("description")
    said = _inside(said).get("@value", said)
    return said if isinstance(said, str) and said.strip() else None


def stated_industry(thing: Thing) -> str | None:
    """Its industry in words."""
    return stated_text(thing.get("industry"))


def trade_of(thing: Thing) -> str | None:
    """Its trade, if its type names one: `RealEstateAgent` is "Real Estate Agent"."""
    types = types_of(thing) & set(TRADE_TYPES)
    return _WORD_STARTS.sub(" ", sorted(types)[0]) if types else None


def stated_seat(thing: Thing) -> str | None:
    """Where it is."""
    return place_of(thing.get("address")) or place_of(thing.get("location"))


def stated_places(thing: Thing) -> list[str]:
    """Where it and its parts are."""
    names = ("address", "location", "subOrganization", "department")
    return [place for name in names for one in listed(thing.get(name)) if (place := place_of(one))]


def place_of(address: object) -> str | None:
    """A town with its region and country, as one line; of several the first."""
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
    """An address of several lines as one."""
    line = ", ".join(part.strip(" ,") for part in (text or "").splitlines() if part.strip(" ,"))
    return line[:MAX_CHARACTERS] or None


def stated_head_count(thing: Thing) -> str | None:
    """How many work there: a number, a range such as `51-200` or `500+`, or words."""
    for value in listed(thing.get("numberOfEmployees")):
        inside = _inside(value)
        low, high = stated_text(inside.get("minValue")), stated_text(inside.get("maxValue"))
        said = stated_text(inside.get("value")) if inside else stated_text(value)
        if said is None and (low or high):
            said = f"{low or 1}-{high}" if high else f"{low}+"
        if said is not None:
            return said
    return None


def founding_year(thing: Thing) -> int | None:
    """The year in which it was founded."""
    found = _YEAR.search(stated_text(thing.get("foundingDate")) or "")
    return int(found[1]) if found else None


def stated_text(value: object) -> str | None:
    """Text or number as one line; of a list the first, of a thing its value or its name."""
    if isinstance(value, list):
        return next(filter(None, map(stated_text, cast("list[object]", value))), None)
    if isinstance(value, Mapping):
        inside = _inside(cast("object", value))
        return stated_text(inside.get("@value")) or stated_text(inside.get("name"))
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = _written(value)
    found = clean_text(without_references(value)) if isinstance(value, str) else None
    return found[:MAX_CHARACTERS] if found else None


def listed(value: object) -> list[object]:
    """The values of a list, or the one that stands there alone."""
    return cast("list[object]", value) if isinstance(value, list) else [value]


def _written(number: float) -> str | None:
    try:
        return str(int(number)) if number == int(number) else str(number)
    except (ValueError, OverflowError):  # no number, or more digits than Python writes
        return None


def _named(value: object) -> str | None:
    found = stated_text(value)
    return found if found and any(one.isalnum() for one in found) else None


def _inside(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}
