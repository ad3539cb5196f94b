"""What a page says of its company to machines: schema.org/Organization, and the page's head."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from ingestion_pipeline.companies.analysis.fact import Fact, Rung, SeenPage, stated
from ingestion_pipeline.companies.analysis.site import Role, is_same_site
from ingestion_pipeline.companies.platforms.fields import Fields, joined, one_line, one_or_more
from ingestion_pipeline.reading.embedded import Thing
from ingestion_pipeline.reading.markdown import to_markdown

TYPES = (
    "Organization",
    "Corporation",
    "LocalBusiness",
    "NGO",
    "OnlineBusiness",
    "ProfessionalService",
    "EducationalOrganization",
    "ResearchOrganization",
    "MedicalOrganization",
    "NewsMediaOrganization",
    "SoftwareCompany",
)
LEAST_DESCRIPTION = 40  # characters; a shorter one is a slogan
_YEAR = re.compile(r"(?<![0-9])(1[6-9][0-9]{2}|20[0-9]{2})(?![0-9])")
_ADDRESS = ("addressLocality", "addressRegion", "addressCountry")


def organizations(page: SeenPage, home: str) -> list[Thing]:
    """The organizations that the page speaks of as its own, the one with this website first."""
    found = [one for one in page.embedded.things(*TYPES) if _name(one)]
    own = [one for one in found if _is_own(one, home)]
    strange = {id(one) for one in found if _has_site(one) and not _is_own(one, home)}
    return own or [one for one in found if id(one) not in strange][:1]


def company_name(pages: list[SeenPage], home: str) -> tuple[str, str] | None:
    """What the company calls itself, and the page that says so."""
    for page in pages:
        for one in organizations(page, home):
            if name := _name(one):
                return name, page.url
    for page in pages:
        if name := one_line(
            page.embedded.meta_content("og:site_name", "application-name"), most=120
        ):
            return name, page.url
    return None


def embedded_facts(page: SeenPage, home: str) -> Iterator[tuple[str, Fact]]:
    """The fields that the page's own data state."""
    for one in organizations(page, home):
        for field, value in _values(one):
            if fact := stated(field, value, page=page, rung=Rung.EMBEDDED):
                yield field, fact


def head_facts(page: SeenPage) -> Iterator[tuple[str, Fact]]:
    """What an about page, or the home page, says of itself in its head."""
    if page.role not in {Role.ABOUT, Role.HOME}:
        return
    said = page.embedded.meta_content("description", "og:description", "twitter:description")
    if said and len(said) >= LEAST_DESCRIPTION:
        fact = stated("about", said, page=page, rung=Rung.META)
        if fact is not None:
            yield "about", fact


def places_of(page: SeenPage, home: str) -> list[str]:
    """Where the organization has its seat and its offices, as its data say."""
    found: list[str] = []
    for one in organizations(page, home):
        for name in ("address", "location", "subOrganization", "department"):
            found += filter(None, map(_place, one_or_more(one.get(name))))
    return found


def _values(one: Thing) -> Iterator[tuple[str, str | int]]:
    item = Fields(one)
    description = item.markup("description", "description.@value")
    if description and len(description) >= LEAST_DESCRIPTION:
        yield "about", to_markdown(description) if "<" in description else description
    if (size := _size(one)) is not None:
        yield "size", size
    place = next(filter(None, map(_place, one_or_more(one.get("address")))), None)
    place = place or next(filter(None, map(_place, one_or_more(one.get("location")))), None)
    if place:
        yield "headquarters", place
    if industry := item.text("industry", "industry.name"):
        yield "industry", industry
    if (year := _YEAR.search(item.text("foundingDate", "foundingDate.@value") or "")) is not None:
        yield "founded", int(year[1])


def _size(one: Thing) -> str | None:
    """The head count as the data have it: a number, a range, or words."""
    for value in one_or_more(one.get("numberOfEmployees")):
        item = Fields.of(value)
        if not item.values:
            if said := one_line(value):
                return said
            continue
        if said := item.text("value"):
            return said
        low, high = item.text("minValue"), item.text("maxValue")
        if low or high:
            return f"{low or 1}-{high}" if high else f"{low}+"
    return None


def _place(value: object) -> str | None:
    if isinstance(value, str):
        return one_line(value)
    item = Fields.of(value)
    address = item.value("address")
    if address is not None:
        return _place(next(iter(one_or_more(address)), None))
    return joined(*(_text(item, name) for name in _ADDRESS)) or item.text("name")


def _text(item: Fields, name: str) -> str | None:
    return item.text(name, f"{name}.name")


def _name(one: Thing) -> str | None:
    said = Fields(one).text("name", "name.@value", "legalName")
    return said[:120] if said else None


def _has_site(one: Thing) -> bool:
    return any(_is_address(value) for value in _sites(one))


def _is_own(one: Thing, home: str) -> bool:
    return any(_is_address(value) and is_same_site(value, home) for value in _sites(one))


def _sites(one: Mapping[str, object]) -> list[str]:
    values = [*one_or_more(one.get("url")), *one_or_more(one.get("@id"))]
    return [value for value in values if isinstance(value, str)]


def _is_address(value: str) -> bool:
    try:
        return urlsplit(value).scheme in {"http", "https"}
    except ValueError:
        return False
