"""What rules did not find, asked of the cheap model; only what the pages prove is believed."""

from __future__ import annotations

from collections.abc import Sequence

from ingestion_pipeline.companies.analysis.facts import (
    FIELDS,
    CompanyPage,
    Fact,
    FactMethod,
    Facts,
    stated,
)
from ingestion_pipeline.reading.llm import (
    Answered,
    AnswerSchema,
    Billing,
    ModelClient,
    PageText,
    Prompt,
    Question,
)
from ingestion_pipeline.reading.llm import ModelTier as ModelRung
from ingestion_pipeline.tasks.errors import Resource, Transient

CALL_SITE = "company"
VERSION = "companies 1"
MAX_CHARACTERS = 40_000
LEAST_CHARACTERS = 200  # of all pages together; with less there is nothing to ask about
_TYPES = {name: {"type": ["string", "null"]} for name in FIELDS} | {
    "founded": {"type": ["integer", "null"]}
}
SCHEMA = AnswerSchema(
    name="company",
    schema={
        "type": "object",
        "properties": _TYPES,
        "required": list(FIELDS),
        "additionalProperties": False,
    },
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
    client: ModelClient,
    pages: Sequence[CompanyPage],
    missing: Sequence[str],
    *,
    source_id: str | None,
) -> tuple[Facts, list[str]]:
    """Proved facts for the missing fields, and notes on what was not answered or not proved.

    A model that cannot be had now is a note: what rules found is not kept waiting for it.
    """
    text = "\n\n".join(page.text for page in pages)[:MAX_CHARACTERS]
    if len(text) < LEAST_CHARACTERS or not missing:
        return {}, []
    question = Question(
        prompt=PROMPT, schema=SCHEMA, page=PageText(text=text), extractor_version=VERSION
    )
    billing = Billing(call_site=CALL_SITE, source_id=source_id)
    try:
        came = await client.ask(question, billing, rungs=(ModelRung.CHEAP,))
    except (Resource, Transient) as error:
        return {}, [f"no model: {error.code}"]
    if not isinstance(came, Answered):
        return {}, ["no answer of the model"]
    return _proved(came, pages, missing)


def _proved(
    answer: Answered, pages: Sequence[CompanyPage], missing: Sequence[str]
) -> tuple[Facts, list[str]]:
    facts: dict[str, Fact] = {}
    notes: list[str] = []
    for name in missing:
        value = answer.data.get(name)
        if not isinstance(value, str | int) or isinstance(value, bool):
            continue
        found = [stated(name, value, page=page, rung=FactMethod.MODEL) for page in pages]
        proved = next((one for one in found if one is not None and one.grounding.is_proof), None)
        if proved is not None:
            facts[name] = proved
        else:
            notes.append(f"unproved: {name}")
    return facts, notes
