"""What a page says of its company to machines: schema.org/Organization, and the page's head."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from ingestion_pipeline.companies.analysis.fact import CompanyPage, Fact, FactMethod, stated
from ingestion_pipeline.companies.analysis.site import Role, is_called_like, is_same_site
from ingestion_pipeline.companies.names import stated_company
from ingestion_pipeline.companies.platforms.fields import one_line
from ingestion_pipeline.reading.embedded import Thing
from ingestion_pipeline.reading.markdown import to_markdown
from ingestion_pipeline.reading.organization_things import (
    ORGANIZATION_TYPES,
    founding_year,
    is_profile,
    listed,
    stated_description,
    stated_head_count,
    stated_industry,
    stated_legal_name,
    stated_name,
    stated_places,
    stated_seat,
)

LEAST_DESCRIPTION = 40  # characters; a shorter one is a slogan


def organizations(page: CompanyPage, home: str) -> list[Thing]:
    """Return the organizations that the page speaks of as its own.

    They are those whose address is the home page, else another page of this site; without any, the
    first that names no site of its own elsewhere; those called like this site before others. An
    organization with a page or an id here and a site elsewhere is a partner, unless it is called
    like this site.
    """
    things = [thing for thing in page.embedded.things(*ORGANIZATION_TYPES) if _name(thing)]
    named = sorted(things, key=lambda thing: not is_called_like(_name(thing) or "", home))
    strange = {id(thing) for thing in named if _has_other_site(thing, home)}
    others = [thing for thing in named if id(thing) not in strange]
    at_home = [
        thing
        for thing in named
        if any(_is_home(site, home) for site in _addresses(thing, "url"))
        or (id(thing) not in strange and any(_is_home(site, home) for site in _sites(thing)))
    ]
    here = [thing for thing in others if any(is_same_site(site, home) for site in _sites(thing))]
    return at_home or here or others[:1]


def company_name(pages: list[CompanyPage], home: str) -> tuple[str, str] | None:
    """What the company calls itself, and the page that says so."""
    for page in pages:
        for one in organizations(page, home):
            if name := _name(one):
                return name, page.url
    for page in pages:
        said = page.embedded.meta_content("og:site_name", "application-name")
        if name := stated_company(one_line(said, most=120)):
            return name, page.url
    return None


def embedded_facts(page: CompanyPage, home: str) -> Iterator[tuple[str, Fact]]:
    """The fields that the page's own data state."""
    for one in organizations(page, home):
        for field, value in _values(one):
            if fact := stated(field, value, page=page, rung=FactMethod.EMBEDDED):
                yield field, fact


def head_facts(page: CompanyPage) -> Iterator[tuple[str, Fact]]:
    """What an about page, or the home page, says of itself in its head."""
    if page.role not in {Role.ABOUT, Role.HOME}:
        return
    said = page.embedded.meta_content("description", "og:description", "twitter:description")
    if said and len(said) >= LEAST_DESCRIPTION:
        fact = stated("about", said, page=page, rung=FactMethod.META)
        if fact is not None:
            yield "about", fact


def places_of(page: CompanyPage, home: str) -> list[str]:
    """Where the organization has its seat and its offices, as its data say."""
    return [place for one in organizations(page, home) for place in stated_places(one)]


def _values(one: Thing) -> Iterator[tuple[str, str | int]]:
    description = stated_description(one)
    if description and len(description) >= LEAST_DESCRIPTION:
        yield "about", to_markdown(description) if "<" in description else description
    values: dict[str, str | int | None] = {
        "size": stated_head_count(one),
        "headquarters": stated_seat(one),
        "industry": stated_industry(one),
        "founded": founding_year(one),
    }
    yield from ((name, value) for name, value in values.items() if value is not None)


def _name(one: Thing) -> str | None:
    name = stated_company(stated_name(one)) or stated_company(stated_legal_name(one))
    return name[:120] if name else None


def _has_other_site(thing: Thing, home: str) -> bool:
    """Return whether it has a site that is neither this one nor a profile on a network."""
    sites = _sites(thing)
    if sites and not any(is_same_site(site, home) for site in sites):
        return True
    if is_called_like(_name(thing) or "", home):
        return False
    same_as = [value for value in listed(thing.get("sameAs")) if isinstance(value, str)]
    return any(
        _is_address(site) and not is_same_site(site, home) and not is_profile(site)
        for site in same_as
    )


def _is_home(site: str, home: str) -> bool:
    path = urlsplit(site).path.strip("/")
    return is_same_site(site, home) and path in {"", urlsplit(home).path.strip("/")}


def _sites(thing: Thing) -> list[str]:
    return [*_addresses(thing, "url"), *_addresses(thing, "@id")]


def _addresses(thing: Thing, key: str) -> list[str]:
    values = listed(thing.get(key))
    return [value for value in values if isinstance(value, str) and _is_address(value)]


def _is_address(value: str) -> bool:
    try:
        return urlsplit(value).scheme in {"http", "https"}
    except ValueError:
        return False
