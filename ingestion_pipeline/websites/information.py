"""Phase 1: what a website is the website of, from its home page and a few that tell more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from ingestion_pipeline.reading.models import ModelClient
from ingestion_pipeline.reading.organization import organization_facts
from ingestion_pipeline.reading.reading import Problem
from ingestion_pipeline.settings import Website
from ingestion_pipeline.urls import BadUrl
from ingestion_pipeline.websites.business import (
    MOST_COMPETITORS,
    MOST_KEYWORDS,
    Business,
    NamedBy,
    home_url,
)
from ingestion_pipeline.websites.given import Given
from ingestion_pipeline.websites.model_facts import read_with_model
from ingestion_pipeline.websites.outcomes import (
    FetchedPage,
    InformationOutcome,
    Informed,
    PhaseFailed,
    Visit,
)
from ingestion_pipeline.websites.site_reading import SitePage, SiteReading, read_site
from ingestion_pipeline.websites.telling_pages import telling_links
from ingestion_pipeline.work.errors import Fatal, Permanent, WorkError


async def information(
    url: str,
    *,
    visit: Visit,
    settings: Website,
    model: ModelClient | None = None,
    given: Given | None = None,
    source_id: str | None = None,
) -> InformationOutcome:
    """The business; nothing is fetched if the operator says what it is.

    Without its home page the phase fails as the visit did; any other page may fail, with a problem.
    `model` is None where none is configured: then rules have the last word.
    """
    given = given or Given()
    try:
        home = home_url(url)
    except BadUrl as error:
        return PhaseFailed(error=Permanent(str(error), code="bad_url"))
    if given.is_manual:
        return Informed(business=_given_business(home, given))
    problems: list[Problem] = []
    try:
        pages = await _visited(home, visit, settings.telling_pages, problems)
        reading = await asyncio.to_thread(_read, home, pages)
        if model is not None:
            shown = reading[1]
            better = await read_with_model(
                reading[0], shown, model, source_id=source_id, text_chars=settings.text_chars
            )
            reading, problems = (better.reading, shown), [*problems, *better.problems]
    except Fatal:
        raise
    except WorkError as error:
        return PhaseFailed(error=error)
    return Informed(
        business=_with_given(reading[0].business, given),
        pages=tuple(page.url for page in pages),
        problems=tuple(problems),
    )


async def _visited(
    home: str, visit: Visit, most: int, problems: list[Problem]
) -> Sequence[FetchedPage]:
    """The home page, and those of the telling ones that could be had."""
    first = await visit(home)
    pages = [first]
    for link in telling_links(first.links, first.url, most=most):
        try:
            pages.append(await visit(link))
        except Fatal:
            raise
        except WorkError as error:
            problems.append(Problem(where=link, message=error.text, code=error.code))
    return pages


def _read(home: str, pages: Sequence[FetchedPage]) -> tuple[SiteReading, Sequence[SitePage]]:
    read = [
        SitePage(url=page.url, links=page.links, facts=organization_facts(page.html))
        for page in pages
    ]
    return read_site(home, read), read


def _given_business(home: str, given: Given) -> Business:
    business = Business(url=home, name=given.name or "", confidence=100)
    told = {name: {"rung": NamedBy.OPERATOR.value} for name in _stated(given)}
    return replace(_with_given(business, given), evidence=told)


def _with_given(business: Business, given: Given) -> Business:
    """The business as the operator corrects it: a text replaces, a list comes first."""
    return replace(
        business,
        aliases=tuple(dict.fromkeys((*given.aliases, *business.aliases))),
        industry=given.industry or business.industry,
        description=given.description or business.description,
        location=given.location or business.location,
        language=(given.language or business.language or "").lower() or None,
        keywords=tuple(dict.fromkeys((*given.keywords, *business.keywords)))[:MOST_KEYWORDS],
        competitors=tuple(dict.fromkeys((*given.competitors, *business.competitors)))[
            :MOST_COMPETITORS
        ],
    )


def _stated(given: Given) -> list[str]:
    names = ("name", "aliases", "industry", "description", "location", "keywords", "competitors")
    return [name for name in names if getattr(given, name)]
