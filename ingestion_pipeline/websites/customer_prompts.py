"""Phase 2: the questions a customer would ask without knowing the business, and a direct one.

The operator's own prompts are used as they are; else a model writes them, and templates fill up
what it does not write, or replace it where there is none.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import cast

import yaml
from pydantic import TypeAdapter

from ingestion_pipeline.reading.llm import Answered, AnswerSchema, Billing, ModelClient, PageText, Prompt, Question
from ingestion_pipeline.reading.llm.batch_lines import MODEL_BATCH
from ingestion_pipeline.reading.structured.organizations import TRADES
from ingestion_pipeline.settings import Website
from ingestion_pipeline.tasks.errors import Fatal, WorkError
from ingestion_pipeline.websites.business import AskedPrompt, Business, Prompted, PromptedBy
from ingestion_pipeline.websites.mentions import (
    Names,
    find_mentions,
    folded_name,
    is_transliterated,
    is_word_boundary,
    script_of,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Templates:
    """The questions of one language."""

    general: tuple[str, ...]
    local: tuple[str, ...]
    direct: str
    trade: tuple[str, ...] = ()

    @cached_property
    def scripts(self) -> frozenset[str]:
        """The scripts that its questions may have."""
        return frozenset({"", "digit", "latin", *map(script_of, "".join(self.general))})


_FILE = resources.files("ingestion_pipeline.websites") / "prompt_templates.yaml"
TEMPLATES = TypeAdapter(dict[str, Templates]).validate_python(yaml.safe_load(_FILE.read_text(encoding="utf-8")))


def templates_for(language: str | None) -> tuple[str, Templates]:
    """Return the language and its templates; English where there are none."""
    primary = (language or "").partition("-")[0].lower()
    return (primary, TEMPLATES[primary]) if primary in TEMPLATES else ("en", TEMPLATES["en"])


VERSION = "website prompts 1"
CALL_SITE = "website_prompts"
SAME = 92  # percent of likeness from which two prompts are the same
LEAST_CHARACTERS, MOST_CHARACTERS = 8, 400
MOST_TOPIC_CHARACTERS = 80
_PLACE_PARTS, _PLACE_WORDS = 3, 4
_NOT_IN_A_PLACE = re.compile(r"[^\w\s,.'’-]|[\d_]")  # noqa: RUF001
_SHORT_CODE = 3
_SIGNS = re.compile(r"[\W_]+")
SCHEMA = AnswerSchema.of("questions", {"questions": {"type": "array", "items": {"type": "string"}}})
_INSTRUCTIONS = """\
The text says what a business is. Write {count} different questions that somebody would ask an
assistant who needs what the business offers and has never heard of it. The questions are of your
own making, in the language {language!r}; none of them names the business. Some ask for
recommendations, some compare, some name the place if there is one."""


async def prompts_for(
    business: Business, *, settings: Website, model: ModelClient | None, own: Sequence[str], source_id: str | None
) -> Prompted:
    """Return the prompts to ask, the direct one last; there is always one."""
    if own:
        return Prompted(prompts=tuple(_operator_prompts(own, business.names)))
    count = max(settings.prompts - 1, 0)
    questions = await _ask_model(business, model, count, source_id) if model is not None and count else ()
    return Prompted(prompts=choose_prompts(business, questions, count=settings.prompts))


def choose_prompts(business: Business, questions: Sequence[str], *, count: int) -> tuple[AskedPrompt, ...]:
    """Return `count` prompts: suitable ones of the model, then templates, the direct one last."""
    offered = dict.fromkeys(map(_tidy, questions), PromptedBy.MODEL)
    for text in map(_tidy, templated(business)):
        offered.setdefault(text, PromptedBy.TEMPLATES)
    fit = [text for text in offered if is_fit(text, business.names, business.language)]
    prompts = [
        AskedPrompt(text=text, is_direct=False, by=offered[text]) for text in unique_prompts(fit)[: max(count - 1, 0)]
    ]
    _, templates = templates_for(business.language)
    direct = templates.direct.format(name=business.name)
    return (*prompts, AskedPrompt(text=direct, is_direct=True, by=PromptedBy.TEMPLATES))


def templated(business: Business) -> Iterator[str]:
    """Yield every template with every topic, each template once before any twice; none without a topic.

    A trade is a kind of business and nothing that one provides, so it has templates of its own.
    """
    _, templates = templates_for(business.language)
    topics, place = topics_of(business), place_of(business)
    if place and business.industry in TRADES:
        yield from (question.format(trade=business.industry.lower(), place=place) for question in templates.trade)
    if place and topics:
        yield templates.local[0].format(topic=topics[0], place=place)
    for turn in range(len(topics)):
        for number, question in enumerate(templates.general):
            yield question.format(topic=topics[(number + turn) % len(topics)])


def topics_of(business: Business) -> list[str]:
    """Return what the business surely offers, in a few words of the templates' script, without its name."""
    _, templates = templates_for(business.language)
    own = " ".join(folded_name(business.name).split()[:2])
    fit = [
        topic
        for topic in (business.industry, *business.keywords)
        if topic
        and len(topic) <= MOST_TOPIC_CHARACTERS
        and topic not in TRADES
        and topic not in business.unsure
        and templates.scripts.issuperset(map(script_of, topic))
        and not gives_away(topic, business.names, business.language)
        and (" " not in own or own not in folded_name(topic))  # the name cut short
    ]
    return list({topic.lower(): topic for topic in fit}.values())


def place_of(business: Business) -> str | None:
    """Return where the business is if that is surely a place: up to three names of a few words, without signs."""
    _, templates = templates_for(business.language)
    place = business.location or ""
    parts = [part.split() for part in place.split(",")]
    is_place = (
        len(parts) <= _PLACE_PARTS
        and all(0 < len(words) <= _PLACE_WORDS for words in parts)
        and not _NOT_IN_A_PLACE.search(place)
        and not (len(place) <= _SHORT_CODE and place.isupper())  # the code of a country
        and place not in business.unsure
        and templates.scripts.issuperset(map(script_of, place))
    )
    return place if is_place and not gives_away(place, business.names, business.language) else None


def is_fit(prompt: str, names: Names, language: str | None = None) -> bool:
    """Return whether the prompt has a proper length and does not give the name away."""
    return LEAST_CHARACTERS <= len(prompt) <= MOST_CHARACTERS and not gives_away(prompt, names, language)


def gives_away(text: str, names: Names, language: str | None = None) -> bool:
    """Return whether the text has the name in any case, as plain words (`target` for Target), or in another script."""
    initials = "".join(word[0] for word in names.name.split() if word[0].isupper())
    if len(initials) >= _SHORT_CODE and initials in text.split():
        return True
    if find_mentions(text, names, language=language) or is_transliterated(text, names):
        return True
    folded = folded_name(text)
    return any(
        is_word_boundary(folded[match.start() - 1 : match.start()], match[0][:1])
        and is_word_boundary(match[0][-1:], folded[match.end() : match.end() + 1])
        for form in names.forms(language)
        for match in form.pattern.finditer(folded)
    )


def unique_prompts(prompts: Iterable[str]) -> list[str]:
    """Return the prompts without those that are the same but for spelling, or nearly the same."""
    from rapidfuzz import fuzz

    unique: dict[str, str] = {}
    for prompt in map(_tidy, prompts):
        form = _SIGNS.sub(" ", folded_name(prompt)).strip()
        if form and all(fuzz.ratio(form, other) < SAME for other in unique):
            unique[form] = prompt
    return list(unique.values())


def _operator_prompts(own: Sequence[str], names: Names) -> Iterator[AskedPrompt]:
    """Yield every prompt of the operator; "men" and "women", 5 and 50 differ."""
    different: dict[str, str] = {}
    for text in map(_tidy, own):
        different.setdefault(text.lower().rstrip(" .?!"), text)  # "Maße" is not "Masse"
    for text in different.values():
        yield AskedPrompt(text=text, is_direct=bool(find_mentions(text, names)), by=PromptedBy.OPERATOR)


def _tidy(text: str) -> str:
    return " ".join(text.split())


async def _ask_model(business: Business, model: ModelClient, count: int, source_id: str | None) -> Sequence[str]:
    """Return the model's questions; none, and log why, if it cannot be asked.

    Raises:
        Resource: the question waits in a batch.
    """
    # A model writes any language, templates exist for some only.
    language = business.language or templates_for(None)[0]
    question = Question(
        prompt=Prompt(
            name="website_prompts", version=1, instructions=_INSTRUCTIONS.format(count=count, language=language)
        ),
        schema=SCHEMA,
        page=PageText(text=_about(business)),
        extractor_version=f"{VERSION} {count} {language}",
    )
    try:
        answer = await model.ask(question, Billing(call_site=CALL_SITE, source_id=source_id, may_wait=True))
    except Fatal:
        raise
    except WorkError as error:
        if error.code == MODEL_BATCH:
            raise
        log.warning("model formed no prompts source=%s code=%s: %s", source_id, error.code, error.text)
        return ()
    if not isinstance(answer, Answered):
        log.warning("model formed no prompts source=%s code=model_unanswered: %s", source_id, answer)
        return ()
    return [str(text) for text in cast("list[object]", answer.data["questions"])]


def _about(business: Business) -> str:
    lines = {
        "Industry": business.industry,
        "What it does": business.description,
        "Where": business.location,
        "Keywords": ", ".join(business.keywords),
        "Name (not to be used)": business.name,
    }
    return "\n".join(f"{label}: {value}" for label, value in lines.items() if value)
