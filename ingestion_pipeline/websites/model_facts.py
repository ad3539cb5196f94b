"""What a model reads of a website where rules found nothing; only what the pages prove is taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from ingestion_pipeline.reading.business_names import bare_name
from ingestion_pipeline.reading.grounding import ground
from ingestion_pipeline.reading.models import (
    Answered,
    AnswerSchema,
    Billing,
    ModelClient,
    PageText,
    Prompt,
    Question,
)
from ingestion_pipeline.reading.reading import Problem
from ingestion_pipeline.websites.business import MOST_COMPETITORS, MOST_KEYWORDS, NamedBy
from ingestion_pipeline.websites.site_reading import SitePage, SiteReading, with_confidence
from ingestion_pipeline.work.errors import Fatal, WorkError

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
