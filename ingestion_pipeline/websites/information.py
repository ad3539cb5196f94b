"""Phase 1: which business a website belongs to, from its home page and a few others."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ingestion_pipeline.reading.evidence.grounding import ground
from ingestion_pipeline.reading.llm import Answered, AnswerSchema, Billing, ModelClient, PageText, Prompt, Question
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
    WebsiteConfig,
    home_url,
)
from ingestion_pipeline.websites.site_facts import SitePage, SiteResult, informative_links, read_site, with_confidence
from ingestion_pipeline.websites.states import FetchedPage, Informed, Visit

VERSION = "website 1"
TEXT_CHARS = 2_000  # of each page that a model is shown
CALL_SITE = "website_info"
_TEXT = {"type": ["string", "null"]}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_PROPERTIES: Mapping[str, Any] = {
    **dict.fromkeys(("name", "industry", "description", "location"), _TEXT),
    **dict.fromkeys(("keywords", "competitors"), _TEXTS),
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
# Sources of a name that the model's may replace: it was not stated anywhere.
_WEAK = frozenset({NamedBy.DOMAIN, NamedBy.TEXT})


async def read_with_model(
    reading: SiteResult, pages: Sequence[SitePage], client: ModelClient, *, source_id: str | None
) -> tuple[SiteResult, list[Problem]]:
    """Fill gaps of the reading by the model, as far as the text proves the answer.

    If the model cannot be asked now, the reading is returned as it is, with a problem; its
    confidence says how good it is.

    Raises:
        Fatal: the environment fails (database, disk, memory).
    """
    if not _gaps(reading):
        return reading, []
    text = "\n".join(page.facts.text[:TEXT_CHARS] for page in pages)
    question = Question(prompt=PROMPT, schema=SCHEMA, page=PageText(text=text), extractor_version=VERSION)
    try:
        answer = await client.ask(question, Billing(call_site=CALL_SITE, source_id=source_id))
    except Fatal:
        raise
    except WorkError as error:
        return reading, [_problem(error.text, error.code)]
    if not isinstance(answer, Answered):
        return reading, [_problem(str(answer), "model_unanswered")]
    return filled(reading, answer.data, question.page.text)


def filled(reading: SiteResult, answer: Mapping[str, object], text: str) -> tuple[SiteResult, list[Problem]]:
    """Return the reading with each gap filled that the answer fills and the text proves."""
    business, named_by = reading.business, reading.named_by
    evidence = dict(business.evidence)
    dropped: list[str] = []
    changes: dict[str, Any] = {}
    for name in _gaps(reading):
        if proved := _proved(answer.get(name), text):
            changes[name], evidence[name] = proved
        elif answer.get(name):
            dropped.append(name)
    if "name" in changes:
        named_by = NamedBy.MODEL
        changes["name"] = bare_name(changes["name"], language=business.language)
    for name, most in (("keywords", MOST_KEYWORDS), ("competitors", MOST_COMPETITORS)):
        if name in changes:
            changes[name] = tuple(dict.fromkeys((*getattr(business, name), *changes[name])))[:most]
    better = with_confidence(replace(business, **changes, evidence=evidence), named_by)
    problems = [_problem(f"not proved by the text: {', '.join(dropped)}", "ungrounded")] if dropped else []
    return SiteResult(business=better, named_by=named_by), problems


def _gaps(reading: SiteResult) -> list[str]:
    business = reading.business
    gaps = [name for name in ("industry", "description", "location") if not getattr(business, name)]
    gaps += ["name"] if reading.named_by in _WEAK else []
    gaps += ["keywords"] if len(business.keywords) < MOST_KEYWORDS else []
    return gaps + (["competitors"] if not business.competitors else [])


def _proved(value: object, text: str) -> tuple[Any, Mapping[str, Any]] | None:
    """Return the value and its evidence; of a list the proved items; None if nothing is proved."""
    if isinstance(value, list):
        listed = [str(item).strip() for item in cast("list[object]", value)]
        grounded = [item for item in listed if ground(item, text).is_proof]
        return (grounded, {"method": NamedBy.MODEL.value, "status": "exact"}) if grounded else None
    if not isinstance(value, str) or not value.strip():
        return None
    grounding = ground(value, text)
    if not grounding.is_proof:
        return None
    proof = {
        "method": NamedBy.MODEL.value,
        "status": grounding.status.value,
        "start": grounding.start,
        "end": grounding.end,
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
    config: WebsiteConfig | None = None,
    source_id: str | None = None,
) -> Informed:
    """Return the business; nothing is fetched if the operator has configured its name.

    Pages but the home page may fail, with a problem. `model` is None where none is configured: then only
    rules are applied.

    Raises:
        WorkError: the home page cannot be fetched.
    """
    config = config or WebsiteConfig()
    try:
        home = home_url(url)
    except BadUrl as error:
        raise Permanent(str(error), code="bad_url") from error
    if config.is_manual:
        return Informed(business=_configured_business(home, config))
    problems: list[Problem] = []
    pages = await _fetch_pages(home, visit, settings.telling_pages, problems)
    reading, site_pages = await asyncio.to_thread(_read, home, pages)
    if model is not None:
        reading, more = await read_with_model(reading, site_pages, model, source_id=source_id)
        problems += more
    return Informed(
        business=_with_config(reading.business, config),
        pages=tuple(page.url for page in pages),
        problems=tuple(problems),
    )


async def _fetch_pages(home: str, visit: Visit, most: int, problems: list[Problem]) -> Sequence[FetchedPage]:
    """Fetch the home page and those of the informative pages that succeed."""
    first = await visit(home)
    pages = [first]
    for link in informative_links(first.links, first.url, most=most):
        try:
            pages.append(await visit(link))
        except Fatal:
            raise
        except WorkError as error:
            problems.append(Problem(where=link, message=error.text, code=error.code))
    return pages


def _read(home: str, pages: Sequence[FetchedPage]) -> tuple[SiteResult, Sequence[SitePage]]:
    read = [SitePage(url=page.url, links=page.links, facts=organization_facts(page.html)) for page in pages]
    return read_site(home, read), read


def _configured_business(home: str, config: WebsiteConfig) -> Business:
    business = Business(url=home, name=config.name or "", confidence=100)
    names = ("name", "aliases", "industry", "description", "location", "keywords", "competitors")
    evidence = {name: {"method": NamedBy.OPERATOR.value} for name in names if getattr(config, name)}
    return replace(_with_config(business, config), evidence=evidence)


def _with_config(business: Business, config: WebsiteConfig) -> Business:
    """Apply the operator's config: a text replaces, a list comes first."""
    return replace(
        business,
        aliases=tuple(dict.fromkeys((*config.aliases, *business.aliases))),
        industry=config.industry or business.industry,
        description=config.description or business.description,
        location=config.location or business.location,
        language=(config.language or business.language or "").lower() or None,
        keywords=tuple(dict.fromkeys((*config.keywords, *business.keywords)))[:MOST_KEYWORDS],
        competitors=tuple(dict.fromkeys((*config.competitors, *business.competitors)))[:MOST_COMPETITORS],
    )
