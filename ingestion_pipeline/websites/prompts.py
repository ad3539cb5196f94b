"""Phase 2: what a customer would ask without knowing the business, and one question about it.

The operator's own prompts are taken as they are; else a model forms them, and templates make up
for what it does not, or for a model that is not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

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
from ingestion_pipeline.settings import Website
from ingestion_pipeline.websites.business import Business
from ingestion_pipeline.websites.naming import Names, find_mentions
from ingestion_pipeline.websites.naming.folding import folded_name
from ingestion_pipeline.websites.outcomes import (
    AskedPrompt,
    Prompted,
    PromptedBy,
    PromptsOutcome,
)
from ingestion_pipeline.websites.templates import templates_for
from ingestion_pipeline.work.errors import Fatal, WorkError

VERSION = "website prompts 1"
CALL_SITE = "website_prompts"
SAME = 92  # percent of likeness from which two prompts are the same
LEAST_CHARACTERS, MOST_CHARACTERS = 8, 400
MOST_TOPIC_CHARACTERS = 80
_SIGNS = re.compile(r"[\W_]+")
SCHEMA = AnswerSchema(
    name="questions",
    schema={
        "type": "object",
        "properties": {"questions": {"type": "array", "items": {"type": "string"}}},
        "required": ["questions"],
        "additionalProperties": False,
    },
)
_INSTRUCTIONS = """\
The text says what a business is. Write {count} different questions that somebody would ask an
assistant who needs what the business offers and has never heard of it. The questions are of your
own making, in the language {language!r}; none of them names the business. Some ask for
recommendations, some compare, some name the place if there is one."""


async def prompts_for(
    business: Business,
    *,
    settings: Website,
    model: ModelClient | None = None,
    own: Sequence[str] = (),
    source_id: str | None = None,
) -> PromptsOutcome:
    """The prompts to ask, at most one of each kind, the direct one last; never none."""
    language, _ = templates_for(business.language)
    if own:
        return Prompted(prompts=tuple(_own(own, business.names)), language=language)
    wanted = max(settings.prompts - 1, 0)
    problems: list[Problem] = []
    said: Sequence[str] = ()
    if model is not None and wanted:
        # A model writes any language; templates have some.
        spoken = business.language or language
        said = await _asked(business, model, wanted, spoken, source_id, problems)
    return Prompted(
        prompts=chosen(business, said, count=settings.prompts),
        language=language,
        problems=tuple(problems),
    )


def chosen(business: Business, said: Sequence[str], *, count: int) -> tuple[AskedPrompt, ...]:
    """`count` prompts: of the model's what is fit, templates for the rest, the direct one last."""
    offered = dict.fromkeys(map(_tidy, said), PromptedBy.MODEL)
    for text in map(_tidy, templated(business)):
        offered.setdefault(text, PromptedBy.TEMPLATES)
    fit = [text for text in offered if is_fit(text, business.names)]
    asked = [
        AskedPrompt(text=text, is_direct=False, by=offered[text])
        for text in unique_prompts(fit)[: max(count - 1, 0)]
    ]
    _, templates = templates_for(business.language)
    direct = templates.direct.format(name=business.name)
    return (*asked, AskedPrompt(text=direct, is_direct=True, by=PromptedBy.TEMPLATES))


def templated(business: Business) -> Iterator[str]:
    """Every question of the templates with every topic, each template once before any twice."""
    _, templates = templates_for(business.language)
    topics = topics_of(business) or [templates.anything]
    place = business.location if business.location else None
    if place and not find_mentions(place, business.names):
        yield templates.local[0].format(topic=topics[0], place=place)
    questions = templates.general
    for turn in range(len(topics)):
        for number, question in enumerate(questions):
            yield question.format(topic=topics[(number + turn) % len(topics)])


def topics_of(business: Business) -> list[str]:
    """What the business offers in a few words, without its name."""
    offered = [business.industry, *business.keywords]
    fit = [
        one
        for one in offered
        if one and len(one) <= MOST_TOPIC_CHARACTERS and not find_mentions(one, business.names)
    ]
    return list({one.lower(): one for one in fit}.values())


def is_fit(prompt: str, names: Names) -> bool:
    """Whether it can be asked without giving the name away, in any spelling."""
    is_sized = LEAST_CHARACTERS <= len(prompt) <= MOST_CHARACTERS
    if not is_sized or find_mentions(prompt, names):
        return False
    # A plain word may be the name to whoever knows it: `target` gives Target away.
    words = {folded_name(word) for word in _SIGNS.split(prompt)}
    return not any(form.folded in words for form in names.forms(None) if form.words == 1)


def unique_prompts(prompts: Iterable[str]) -> list[str]:
    """Each generated prompt once: the same words in another dress, or nearly the same, are one."""
    from rapidfuzz import fuzz

    unique: dict[str, str] = {}
    for prompt in map(_tidy, prompts):
        form = _SIGNS.sub(" ", folded_name(prompt)).strip()
        if form and all(fuzz.ratio(form, other) < SAME for other in unique):
            unique[form] = prompt
    return list(unique.values())


def _own(own: Sequence[str], names: Names) -> Iterator[AskedPrompt]:
    """Every prompt of the operator; "men" and "women", 5 and 50 are different questions."""
    different: dict[str, str] = {}
    for text in map(_tidy, own):
        different.setdefault(text.lower().rstrip(" .?!"), text)  # "Maße" is not "Masse"
    for text in different.values():
        is_direct = bool(find_mentions(text, names))
        yield AskedPrompt(text=text, is_direct=is_direct, by=PromptedBy.OPERATOR)


def _tidy(text: str) -> str:
    return " ".join(text.split())


async def _asked(
    business: Business,
    model: ModelClient,
    count: int,
    language: str,
    source_id: str | None,
    problems: list[Problem],
) -> Sequence[str]:
    """What the model wrote; a model that cannot be asked is a problem, and templates stand in."""
    question = Question(
        prompt=Prompt(
            name="website_prompts",
            version=1,
            instructions=_INSTRUCTIONS.format(count=count, language=language),
        ),
        schema=SCHEMA,
        page=PageText(text=_about(business)),
        extractor_version=f"{VERSION} {count} {language}",
    )
    try:
        answer = await model.ask(question, Billing(call_site=CALL_SITE, source_id=source_id))
    except Fatal:
        raise
    except WorkError as error:
        problems.append(_problem(error.text, error.code))
        return ()
    if not isinstance(answer, Answered):
        problems.append(_problem(str(answer), "model_unanswered"))
        return ()
    return [str(one) for one in cast("list[object]", answer.data["questions"])]


def _about(business: Business) -> str:
    lines = {
        "Industry": business.industry,
        "What it does": business.description,
        "Where": business.location,
        "Keywords": ", ".join(business.keywords),
        "Name (not to be used)": business.name,
    }
    return "\n".join(f"{label}: {said}" for label, said in lines.items() if said)


def _problem(message: str, code: str) -> Problem:
    return Problem(where="the model's prompts", message=message, code=code)
