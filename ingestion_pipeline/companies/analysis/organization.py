"""What a page says of its company to machines: schema.org/Organization, and the page's head."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from ingestion_pipeline.companies.analysis.fact import Fact, Rung, SeenPage, stated
from ingestion_pipeline.companies.analysis.site import Role, is_same_site
from ingestion_pipeline.companies.platforms.fields import one_line
from ingestion_pipeline.reading.embedded import Thing
from ingestion_pipeline.reading.markdown import to_markdown
from ingestion_pipeline.reading.organization_things import (
    ORGANIZATION_TYPES,
    founding_year,
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


def organizations(page: SeenPage, home: str) -> list[Thing]:
    """The organizations that the page speaks of as its own, the one with this website first."""
    found = [one for one in page.embedded.things(*ORGANIZATION_TYPES) if _name(one)]
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
    said = stated_name(one) or stated_legal_name(one)
    return said[:120] if said else None


def _has_site(one: Thing) -> bool:
    return any(_is_address(value) for value in _sites(one))


def _is_own(one: Thing, home: str) -> bool:
    return any(_is_address(value) and is_same_site(value, home) for value in _sites(one))


def _sites(one: Thing) -> list[str]:
    values = [*listed(one.get("url")), *listed(one.get("@id"))]
    return [value for value in values if isinstance(value, str)]


def _is_address(value: str) -> bool:
    try:
        return urlsplit(value).scheme in {"http", "https"}
    except ValueError:
        return False
