"""The cheap model cuts a posting out of its page: it points at words, and the words are the page's.

It says with which words the description begins and ends; only if both stand on the page is it cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingestion_pipeline.companies.names import stated_company
from ingestion_pipeline.companies.salary import salary_as_dict, salary_in
from ingestion_pipeline.reading.grounding import ground
from ingestion_pipeline.reading.models import (
    Answered,
    AnswerSchema,
    Billing,
    ModelClient,
    ModelTier,
    PageText,
    Prompt,
    Question,
)

CALL_SITE = "scrape_listing"
LEAST_CHARACTERS = 100
_FIELDS = ("first_words", "last_words", "company", "location", "salary")
SCHEMA = AnswerSchema(
    name="listing_detail",
    schema={
        "type": "object",
        "properties": {name: {"type": ["string", "null"]} for name in _FIELDS},
        "required": list(_FIELDS),
        "additionalProperties": False,
    },
)
PROMPT = Prompt(
    name=CALL_SITE,
    version=1,
    instructions="""\
The page is the page of one job. first_words and last_words: the first and the last eight words of
the description of the job (tasks, requirements, benefits), exactly as they stand on the page; not
menus, other jobs or the form to apply. company, location, salary: as the page states them.""",
)


class DetailAsker:
    """Asks the cheap model where on a page the posting is."""

    def __init__(self, client: ModelClient) -> None:
        self._client = client

    async def columns(self, text: str, *, source_id: str | None) -> Mapping[str, Any]:
        """The columns of the listing that the page proves; the whole text if nothing helps."""
        question = Question(
            prompt=PROMPT, schema=SCHEMA, page=PageText(text=text), extractor_version="detail 1"
        )
        billing = Billing(call_site=CALL_SITE, source_id=source_id)
        answer = await self._client.ask(question, billing, rungs=[ModelTier.CHEAP])
        if not isinstance(answer, Answered):
            return {"description": text}
        return proved_columns(answer.data, text)


def proved_columns(answer: Mapping[str, Any], text: str) -> dict[str, Any]:
    """What of an answer stands in the text."""
    stated = {"company_name": stated_company(answer["company"]), "location": answer["location"]}
    found: dict[str, Any] = {
        column: value for column, value in stated.items() if value and ground(value, text).is_proof
    }
    found["description"] = _cut(answer, text)
    if answer["salary"] and ground(answer["salary"], text).is_proof:
        salary = salary_in(answer["salary"])
        found |= {"salary": dict(salary_as_dict(salary))} if salary else {}
    return found


def _cut(answer: Mapping[str, Any], text: str) -> str:
    first, last = (ground(answer[name], text) for name in ("first_words", "last_words"))
    if first.start is None or last.end is None or last.end - first.start < LEAST_CHARACTERS:
        return text
    return text[first.start : last.end]
