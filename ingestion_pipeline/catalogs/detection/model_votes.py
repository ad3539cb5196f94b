"""A model's votes on a page: asked several times, each answer checked against the page it is of.

What it names must stand on the page: an address that does not is dropped with the answer, and a
pattern that does not find its own examples is no vote.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any, cast

from ingestion_pipeline.catalogs.detection.detected import NotDetected, Tally, tally
from ingestion_pipeline.catalogs.detection.page_analysis import PageAnalysis
from ingestion_pipeline.catalogs.recipes.patterns import (
    BadPattern,
    LinkPattern,
    matched_links,
    simplified_markdown,
)
from ingestion_pipeline.catalogs.recipes.recipe import BadRecipe, PageType, recipe_of
from ingestion_pipeline.reading.html.markdown import to_markdown
from ingestion_pipeline.reading.llm import (
    Answered,
    AnswerSchema,
    Billing,
    ModelClient,
    OverBudget,
    PageText,
    Prompt,
    Question,
    Unanswered,
)
from ingestion_pipeline.settings.systems import Detection

VERSION = "detection 1"
MAX_CHARACTERS = 60_000  # a layout is told by the beginning of a page
MAX_EXAMPLES = 20
UNKNOWN = "UNKNOWN"
_KINDS = tuple(
    one.value for one in (PageType.DETAIL, PageType.DETAIL_LINKS, PageType.CATEGORY_LINKS)
)
_DIGITS = re.compile(r"[0-9]+")


def _object(**properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


PAGE_TYPE = AnswerSchema(
    name="page_type",
    schema=_object(page_type={"type": "string", "enum": [*_KINDS, UNKNOWN]}),
)
PAGINATION = AnswerSchema(
    name="pagination",
    schema=_object(
        second_page_url={"type": ["string", "null"]},
        counts={"type": "string", "enum": ["page_num", "offset", "none"]},
        first_number={"type": ["integer", "null"]},
        second_number={"type": ["integer", "null"]},
        total_pages={"type": ["integer", "null"]},
    ),
)
LINKS = AnswerSchema(
    name="links",
    schema=_object(
        pattern={"type": ["string", "null"]},
        examples={"type": "array", "items": {"type": "string"}},
    ),
)
_PAGE_TYPE_PROMPT = """\
The page belongs to a catalogue of records of the type: {entity}. Say what the page is for.
DETAIL: it states one or several records in full. DETAIL_LINKS: it lists links, each to the page of
one record. CATEGORY_LINKS: it lists links to further lists (departments, subjects, letters).
UNKNOWN: none of these."""
_PAGINATION_PROMPT = """\
The page is the first of a list in a catalogue. Say how the list goes on. second_page_url: the
address of its second page, exactly as the page links to it; null if it has only one page.
counts: page_num if a number in that address counts pages, offset if it counts records, else none.
first_number and second_number: what that number is for the first and the second page.
total_pages: how many pages there are, if the page says or shows it."""
_LINKS_PROMPT = """\
The page lists links of a catalogue of records of the type: {entity}. Say which of its links lead to
the records, or to further lists of them; not menus, not help, not further pages of this same list.
pattern: a regular expression of RE2 syntax, without look-ahead, that is found in the targets of
just these links. examples: some of these targets, exactly as they stand on the page."""


class ModelVoters:
    """Asks the configured model about the pages of one source."""

    def __init__(
        self, client: ModelClient, settings: Detection, *, source_id: str, entity: str
    ) -> None:
        self._client = client
        self._settings = settings
        self._source_id = source_id
        self._entity = entity

    async def page_type(self, page: PageAnalysis) -> Tally[str]:
        """What the page is for; an unknown type is nobody's vote."""
        prompt = _prompt("page_type", _PAGE_TYPE_PROMPT, self._entity)
        answers = await self._asked(page, prompt, PAGE_TYPE, self._settings.page_type_votes)
        given = [str(answer["page_type"]) if answer else UNKNOWN for answer in answers]
        return tally([None if one == UNKNOWN else one for one in given])

    async def pagination(self, page: PageAnalysis) -> Tally[str]:
        """How its list goes on, as JSON of a recipe's `pagination`."""
        prompt = _prompt("pagination", _PAGINATION_PROMPT, self._entity)
        answers = await self._asked(page, prompt, PAGINATION, self._settings.pagination_votes)
        checked = [checked_pagination(page, answer) if answer else None for answer in answers]
        return tally([json.dumps(found, sort_keys=True) if found else None for found in checked])

    async def link_pattern(self, page: PageAnalysis) -> Tally[str]:
        """Which of its links lead on; patterns that find the same links are the same vote."""
        prompt = _prompt("links", _LINKS_PROMPT, self._entity)
        answers = await self._asked(page, prompt, LINKS, self._settings.link_votes)
        markdown = simplified_markdown(page.html)
        first_of: dict[frozenset[str], str] = {}
        votes: list[str | None] = []
        for answer in answers:
            found = checked_pattern(page, markdown, answer) if answer else None
            votes.append(first_of.setdefault(found[1], found[0]) if found else None)
        return tally(votes)

    async def _asked(
        self, page: PageAnalysis, prompt: Prompt, schema: AnswerSchema, times: int
    ) -> list[Mapping[str, Any] | None]:
        """The answers, None for each that was not given; each is a question of its own."""
        text = to_markdown(page.html, url=page.url)[:MAX_CHARACTERS]
        links = tuple(one.url for one in page.anchors)
        billing = Billing(call_site=f"detect_{prompt.name}", source_id=self._source_id)
        questions = [
            Question(
                prompt=prompt,
                schema=schema,
                page=PageText(text=text, links=links),
                # Else the second would be answered with what the first kept.
                extractor_version=f"{VERSION}, answer {number}",
            )
            for number in range(1, times + 1)
        ]
        came = await asyncio.gather(*(self._client.ask(one, billing) for one in questions))
        answers: list[Mapping[str, Any] | None] = []
        for one in came:
            match one:
                case Answered():
                    answers.append(one.data)
                case Unanswered():
                    answers.append(None)
                case OverBudget():
                    raise NotDetected("a model's budget is used up", code="over_budget")
        return answers


def checked_pagination(page: PageAnalysis, answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """The pagination that the answer means; None unless its second page is linked on the page."""
    url, second = answer.get("second_page_url"), answer.get("second_number")
    first, counts = answer.get("first_number") or 0, answer.get("counts")
    is_linked = isinstance(url, str) and any(
        url in (one.url, _path(one.url)) for one in page.anchors
    )
    if not is_linked or counts not in {"page_num", "offset"} or not isinstance(second, int):
        return None
    address = cast("str", url)
    places = [one for one in _DIGITS.finditer(address) if int(one[0]) == second]
    if not places:
        return None
    start, end = places[-1].span()
    pattern = f"{address[:start]}{{{counts}}}{address[end:]}"
    total = max(2, int(answer.get("total_pages") or 2))
    found: dict[str, Any] = {"url_pattern": pattern, "total_pages": total}
    found |= {"limit": second - first} if counts == "offset" else {"start_page": second - 1}
    try:
        recipe_of({"recipe": {"page_type": PageType.DETAIL.value, "pagination": found}})
    except BadRecipe:
        return None
    return found


def _path(url: str) -> str:
    return "/" + url.split("/", 3)[3] if url.count("/") > 2 else url  # noqa: PLR2004 - https://


def checked_pattern(
    page: PageAnalysis, markdown: str, answer: Mapping[str, Any]
) -> tuple[str, frozenset[str]] | None:
    """The pattern and what it finds; None unless it finds each of the answer's own examples."""
    pattern, examples = answer.get("pattern"), list(answer.get("examples") or [])[:MAX_EXAMPLES]
    if not isinstance(pattern, str) or not pattern.strip() or not examples:
        return None
    try:
        links = LinkPattern(pattern).checked()
        found = frozenset(matched_links(markdown, links, page.url))
    except BadPattern:
        return None
    is_theirs = all(_is_target(one, page, links) for one in examples)
    return (pattern, found) if found and is_theirs else None


def _is_target(example: str, page: PageAnalysis, pattern: LinkPattern) -> bool:
    """Whether the example is a link of the page, and the pattern finds it."""
    is_there = any(one.url == example or one.url.endswith(example) for one in page.anchors)
    return is_there and pattern.find(example) is not None


def _prompt(name: str, text: str, entity: str) -> Prompt:
    return Prompt(name=f"{name}_{entity}", version=1, instructions=text.format(entity=entity))
