"""Votes of a model on a page: asked several times, each answer checked against the page.

Whatever an answer names must stand on the page: an answer with another URL is dropped, and a
pattern that does not find its own examples is not counted as a vote.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from ingestion_pipeline.catalogs.detection.page_analysis import PageAnalysis
from ingestion_pipeline.catalogs.recipes.patterns import BadPattern, LinkPattern, matched_links
from ingestion_pipeline.catalogs.recipes.recipe import BadRecipe, PageType, recipe_of
from ingestion_pipeline.reading.llm import (
    Answered,
    AnswerSchema,
    Billing,
    ModelClient,
    OverBudget,
    PageText,
    Prompt,
    Question,
)
from ingestion_pipeline.tasks.errors import Permanent

VERSION = "detection 1"
MAX_CHARACTERS = 60_000  # the beginning of a page is enough to recognise its layout
MAX_EXAMPLES = 20
UNKNOWN = "UNKNOWN"
_KINDS = tuple(kind.value for kind in (PageType.DETAIL, PageType.DETAIL_LINKS, PageType.CATEGORY_LINKS))
_DIGITS = re.compile(r"[0-9]+")
Choice = TypeVar("Choice", bound=Hashable)


def _object(**properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


PAGE_TYPE = AnswerSchema(name="page_type", schema=_object(page_type={"type": "string", "enum": [*_KINDS, UNKNOWN]}))
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
    schema=_object(pattern={"type": ["string", "null"]}, examples={"type": "array", "items": {"type": "string"}}),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally(Generic[Choice]):
    """The result of a vote; `winner` is None if no choice has a majority."""

    winner: Choice | None
    counts: tuple[tuple[Choice, int], ...]
    vote_count: int

    def __str__(self) -> str:
        """Return the counts as text for people."""
        breakdown = ", ".join(f"{choice} {count}" for choice, count in self.counts)
        return f"{breakdown or 'no answer'} of {self.vote_count}"


def tally(votes: Sequence[Choice | None]) -> Tally[Choice]:
    """Count the votes; the winner needs more than half of the answers, and a tie has no winner.

    None stands for a missing answer and is not counted as a vote.
    """
    counted = Counter(vote for vote in votes if vote is not None)
    counts = sorted(counted.items(), key=lambda item: (-item[1], str(item[0])))
    answered = sum(count for _, count in counts)
    winner = counts[0][0] if counts and counts[0][1] * 2 > answered else None
    return Tally(winner=winner, counts=tuple(counts), vote_count=len(votes))


class NotDetected(Permanent):
    """No recipe was found; the message says what was seen, and the cure."""

    def __init__(self, message: str, *, code: str = "not_detected") -> None:
        super().__init__(message, code=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionLimits:
    """How many pages a detection fetches, and how often it asks a model."""

    samples: int = 5  # linked pages per level and URL pattern
    category_levels: int = 3  # of lists that lead to lists
    page_type_votes: int = 10
    pagination_votes: int = 10
    link_votes: int = 3


class ModelVoters:
    """Asks the configured model about the pages of one source."""

    def __init__(self, client: ModelClient, limits: DetectionLimits, *, source_id: str, entity: str) -> None:
        self._client = client
        self._limits = limits
        self._source_id = source_id
        self._entity = entity

    async def page_type(self, page: PageAnalysis) -> Tally[str]:
        """Vote on the type of the page; an unknown type is not counted."""
        prompt = _prompt("page_type", _PAGE_TYPE_PROMPT, self._entity)
        answers = await self._ask(page, prompt, PAGE_TYPE, self._limits.page_type_votes)
        types = [str(answer["page_type"]) if answer else UNKNOWN for answer in answers]
        return tally([None if name == UNKNOWN else name for name in types])

    async def pagination(self, page: PageAnalysis) -> Tally[str]:
        """Vote on how the page's list continues, as JSON of a recipe's `pagination`."""
        prompt = _prompt("pagination", _PAGINATION_PROMPT, self._entity)
        answers = await self._ask(page, prompt, PAGINATION, self._limits.pagination_votes)
        checked = [checked_pagination(page, answer) if answer else None for answer in answers]
        return tally([json.dumps(parsed, sort_keys=True) if parsed else None for parsed in checked])

    async def link_pattern(self, page: PageAnalysis) -> Tally[str]:
        """Vote on the links to follow; patterns that find the same links are the same vote."""
        prompt = _prompt("links", _LINKS_PROMPT, self._entity)
        answers = await self._ask(page, prompt, LINKS, self._limits.link_votes)
        first_of: dict[frozenset[str], str] = {}
        votes: list[str | None] = []
        for answer in answers:
            vote = checked_pattern(page, answer) if answer else None
            votes.append(first_of.setdefault(vote[1], vote[0]) if vote else None)
        return tally(votes)

    async def _ask(
        self, page: PageAnalysis, prompt: Prompt, schema: AnswerSchema, times: int
    ) -> list[Mapping[str, Any] | None]:
        """Ask the question `times` times; return the answers, None for each that is missing.

        About a page that reserves its text nothing is asked.
        """
        if not page.may_ask_models:
            return [None] * times
        text = page.markdown[:MAX_CHARACTERS]
        links = tuple(anchor.url for anchor in page.anchors)
        billing = Billing(call_site=f"detect_{prompt.name}", source_id=self._source_id)
        questions = [
            Question(
                prompt=prompt,
                schema=schema,
                page=PageText(text=text, links=links),
                # Else the second would be answered from the cache of the first.
                extractor_version=f"{VERSION}, answer {number}",
            )
            for number in range(1, times + 1)
        ]
        results = await asyncio.gather(*(self._client.ask(question, billing) for question in questions))
        if any(isinstance(result, OverBudget) for result in results):
            raise NotDetected("a model's budget is used up", code="over_budget")
        return [result.data if isinstance(result, Answered) else None for result in results]


def checked_pagination(page: PageAnalysis, answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the answer's pagination; None unless the page links to its second page."""
    url, second = answer.get("second_page_url"), answer.get("second_number")
    first, counts = answer.get("first_number") or 0, answer.get("counts")
    is_linked = isinstance(url, str) and any(url in (anchor.url, _path(anchor.url)) for anchor in page.anchors)
    if not is_linked or counts not in {"page_num", "offset"} or not isinstance(second, int):
        return None
    address = cast("str", url)
    places = [place for place in _DIGITS.finditer(address) if int(place[0]) == second]
    if not places:
        return None
    start, end = places[-1].span()
    pattern = f"{address[:start]}{{{counts}}}{address[end:]}"
    total = max(2, int(answer.get("total_pages") or 2))
    pagination: dict[str, Any] = {"url_pattern": pattern, "total_pages": total}
    pagination |= {"limit": second - first} if counts == "offset" else {"start_page": second - 1}
    try:
        recipe_of({"recipe": {"page_type": PageType.DETAIL.value, "pagination": pagination}})
    except BadRecipe:
        return None
    return pagination


def _path(url: str) -> str:
    return "/" + url.split("/", 3)[3] if url.count("/") > 2 else url  # noqa: PLR2004 - https://


def checked_pattern(page: PageAnalysis, answer: Mapping[str, Any]) -> tuple[str, frozenset[str]] | None:
    """Return the pattern and its matches; None unless it finds each of the answer's examples."""
    pattern, examples = answer.get("pattern"), list(answer.get("examples") or [])[:MAX_EXAMPLES]
    if not isinstance(pattern, str) or not pattern.strip() or not examples:
        return None
    try:
        links = LinkPattern(pattern).checked()
        matched = frozenset(matched_links(page.link_markdown, links, page.url))
    except BadPattern:
        return None
    is_theirs = all(
        any(anchor.url.endswith(example) for anchor in page.anchors) and links.find(example) is not None
        for example in examples
    )
    return (pattern, matched) if matched and is_theirs else None


def _prompt(name: str, text: str, entity: str) -> Prompt:
    return Prompt(name=f"{name}_{entity}", version=1, instructions=text.format(entity=entity))
