"""Asks the cheap model for fields that rules did not find; accepts only grounded answers."""

from collections.abc import Sequence

from ingestion_pipeline.companies.analysis.company_facts import FIELDS, CompanyPage, Fact, FactMethod, Facts, make_fact
from ingestion_pipeline.reading.llm import (
    Answered,
    AnswerSchema,
    Billing,
    ModelClient,
    ModelTier,
    PageText,
    Prompt,
    Question,
)
from ingestion_pipeline.tasks.errors import Resource, Transient

CALL_SITE = "company"
VERSION = "companies 1"
MAX_CHARACTERS = 40_000
MIN_CHARACTERS = 200  # of all pages together; with less a model is not asked
_TYPES = {name: {"type": ["string", "null"]} for name in FIELDS} | {"founded": {"type": ["integer", "null"]}}
SCHEMA = AnswerSchema(
    name="company",
    schema={"type": "object", "properties": _TYPES, "required": list(FIELDS), "additionalProperties": False},
)
PROMPT = Prompt(
    name="company",
    version=1,
    instructions="""\
The text is of several pages of one company's website. State what it says of that company itself,
word for word as it stands there, not of its customers, products or partners.
about: what the company does, one to four sentences. culture: how it is to work there, its values.
mission: its mission. size: how many people work there, as written. headquarters: the place of its
head office. industry: its industry. founded: the year of its founding.
What the text does not say is null.""",
)


async def ask(
    client: ModelClient, pages: Sequence[CompanyPage], missing: Sequence[str], *, source_id: str | None
) -> tuple[Facts, list[str]]:
    """Return grounded facts for the missing fields, and notes on unanswered or ungrounded ones.

    If no model is available now, that is a note: the findings of the rules do not wait for it.
    """
    text = "\n\n".join(page.text for page in pages)[:MAX_CHARACTERS]
    if len(text) < MIN_CHARACTERS or not missing:
        return {}, []
    question = Question(prompt=PROMPT, schema=SCHEMA, page=PageText(text=text), extractor_version=VERSION)
    billing = Billing(call_site=CALL_SITE, source_id=source_id)
    try:
        answer = await client.ask(question, billing, tiers=(ModelTier.CHEAP,))
    except (Resource, Transient) as error:
        return {}, [f"no model: {error.code}"]
    if not isinstance(answer, Answered):
        return {}, ["the model gave no answer"]
    return _proved(answer, pages, missing)


def _proved(answer: Answered, pages: Sequence[CompanyPage], missing: Sequence[str]) -> tuple[Facts, list[str]]:
    facts: dict[str, Fact] = {}
    notes: list[str] = []
    for name in missing:
        value = answer.data.get(name)
        if not isinstance(value, str | int) or isinstance(value, bool):
            continue
        candidates = [make_fact(name, value, page=page, method=FactMethod.MODEL) for page in pages]
        proved = next((fact for fact in candidates if fact is not None and fact.grounding.is_proof), None)
        if proved is not None:
            facts[name] = proved
        else:
            notes.append(f"unproved: {name}")
    return facts, notes
