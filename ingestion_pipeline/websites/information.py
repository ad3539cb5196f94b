"""Phase 1: what a website is the website of, from its home page and a few that tell more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from ingestion_pipeline.reading.evidence.grounding import ground
from ingestion_pipeline.reading.llm import (
    Answered,
    AnswerSchema,
    Billing,
    ModelClient,
    PageText,
    Prompt,
    Question,
)
from ingestion_pipeline.reading.structured.items import Problem
from ingestion_pipeline.reading.structured.organizations import organization_facts
from ingestion_pipeline.reading.text.business_names import bare_name
from ingestion_pipeline.settings import Website
from ingestion_pipeline.tasks.errors import Fatal, Permanent, WorkError
from ingestion_pipeline.urls import BadUrl
from ingestion_pipeline.websites.business import (
    MOST_COMPETITORS,
    MOST_KEYWORDS,
    Business,
    NamedBy,
    home_url,
)
from ingestion_pipeline.websites.facts import (
    SitePage,
    SiteReading,
    read_site,
    telling_links,
    with_confidence,
)
from ingestion_pipeline.websites.source_config import Given
from ingestion_pipeline.websites.states import (
    FetchedPage,
    InformationOutcome,
    Informed,
    PhaseFailed,
    Visit,
)

VERSION = "website 1"
CALL_SITE = "website_info"
_TEXT = {"type": ["string", "null"]}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_PROPERTIES: Mapping[str, Any] = {
    "name": _TEXT,
    "industry": _TEXT,
    "description": _TEXT,
    "location": _TEXT,
    "keywords": _TEXTS,
    "competitors": _TEXTS,
}
SCHEMA = AnswerSchema(
    name="business",
    schema={
        "type": "object",
        "properties": dict(_PROPERTIES),
        "required": list(_PROPERTIES),
        "additionalProperties": False,
    },
)
PROMPT = Prompt(
    name="website_info",
    version=1,
    instructions="""\
The text is from the home page of a business' website and a few of its other pages. Say what the
business is. name: as it calls itself, without article and legal form. industry: in a few words.
description: one sentence of the text that says what it does. location: town, region and country of
its seat. keywords: three to five words for what it offers. competitors: other businesses that the
text compares it with. Copy every value from the text, word for word.""",
)
# Whose word a model's may replace: a name that nobody stated.
_WEAK = frozenset({NamedBy.DOMAIN, NamedBy.TEXT})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReading:
    """The reading with what the model added, and what was wrong with its answer."""

    reading: SiteReading
    problems: tuple[Problem, ...] = ()


async def read_with_model(
    reading: SiteReading,
    pages: Sequence[SitePage],
    client: ModelClient,
    *,
    source_id: str | None,
    text_chars: int,
) -> ModelReading:
    """The reading, its gaps filled by the model as far as the text proves the answer.

    A model that cannot be asked now leaves the reading as it is, with a problem: the website has
    been read, and a confidence says how well.

    Raises:
        Fatal: the ground gives way.
    """
    if not _gaps(reading):
        return ModelReading(reading=reading)
    text = "\n".join(page.facts.text[:text_chars] for page in pages)
    question = Question(
        prompt=PROMPT, schema=SCHEMA, page=PageText(text=text), extractor_version=VERSION
    )
    try:
        answer = await client.ask(question, Billing(call_site=CALL_SITE, source_id=source_id))
    except Fatal:
        raise
    except WorkError as error:
        return ModelReading(reading=reading, problems=(_problem(error.text, error.code),))
    if not isinstance(answer, Answered):
        return ModelReading(reading=reading, problems=(_problem(str(answer), "model_unanswered"),))
    return filled(reading, answer.data, question.page.text)


def filled(reading: SiteReading, said: Mapping[str, object], text: str) -> ModelReading:
    """The reading with each gap filled that the answer fills and the text proves."""
    business, named_by = reading.business, reading.named_by
    evidence = dict(business.evidence)
    dropped: list[str] = []
    changes: dict[str, Any] = {}
    for name in _gaps(reading):
        proved = _proved(said.get(name), text)
        if proved is None:
            dropped += [name] if said.get(name) else []
            continue
        changes[name], proof = proved
        evidence[name] = proof
    if "name" in changes:
        named_by = NamedBy.MODEL
        changes["name"] = bare_name(changes["name"], language=business.language)
    for name, most in (("keywords", MOST_KEYWORDS), ("competitors", MOST_COMPETITORS)):
        if name in changes:
            changes[name] = tuple(dict.fromkeys((*getattr(business, name), *changes[name])))[:most]
    better = with_confidence(replace(business, **changes, evidence=evidence), named_by)
    problems = (
        [_problem(f"not proved by the text: {', '.join(dropped)}", "ungrounded")] if dropped else []
    )
    return ModelReading(
        reading=SiteReading(business=better, named_by=named_by), problems=tuple(problems)
    )


def _gaps(reading: SiteReading) -> list[str]:
    business = reading.business
    gaps = [name for name in ("industry", "description", "location") if not getattr(business, name)]
    gaps += ["name"] if reading.named_by in _WEAK else []
    gaps += ["keywords"] if len(business.keywords) < MOST_KEYWORDS else []
    return gaps + (["competitors"] if not business.competitors else [])


def _proved(value: object, text: str) -> tuple[Any, Mapping[str, Any]] | None:
    """The value and where it stands; of a list those that stand there; None if nothing does."""
    if isinstance(value, list):
        listed = [str(one).strip() for one in cast("list[object]", value)]
        kept = [one for one in listed if ground(one, text).is_proof]
        return (kept, {"rung": NamedBy.MODEL.value, "status": "exact"}) if kept else None
    if not isinstance(value, str) or not value.strip():
        return None
    found = ground(value, text)
    if not found.is_proof:
        return None
    proof = {
        "rung": NamedBy.MODEL.value,
        "status": found.status.value,
        "start": found.start,
        "end": found.end,
    }
    return value.strip(), proof


def _problem(message: str, code: str) -> Problem:
    return Problem(where="the model's reading of the website", message=message, code=code)


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
