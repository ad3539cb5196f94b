"""Reads the rest of a listing from its own page or the platform's API.

Where the page has no structured data, the cheap model marks the first and last words of the
description; the text between is cut out only if both appear on the page.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ingestion_pipeline.companies.company_names import stated_company
from ingestion_pipeline.companies.job_listing import Listing, Remote, listing_as_dict
from ingestion_pipeline.companies.matching.match_rows import SCRAPED_COLUMNS
from ingestion_pipeline.companies.matching.tasks import ListingWork
from ingestion_pipeline.companies.platforms import jsonld, platform
from ingestion_pipeline.companies.salary import salary_as_dict, salary_in
from ingestion_pipeline.pages.visits.page import NewPage, PageVisit
from ingestion_pipeline.reading.evidence.grounding import ground
from ingestion_pipeline.reading.html.markdown import to_markdown
from ingestion_pipeline.reading.html.parsing import parse_html
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
from ingestion_pipeline.reading.text.decoding import decode
from ingestion_pipeline.sources import Source
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError

CALL_SITE = "scrape_listing"
MIN_CUT_CHARACTERS = 100
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


class DetailExtractor:
    """Extractor of a posting from its page with the cheap model."""

    def __init__(self, client: ModelClient) -> None:
        self._client = client

    async def columns(self, text: str, *, source_id: str | None) -> Mapping[str, Any]:
        """Return the listing's columns that the page proves; the whole text if nothing helps."""
        question = Question(prompt=PROMPT, schema=SCHEMA, page=PageText(text=text), extractor_version="detail 1")
        billing = Billing(call_site=CALL_SITE, source_id=source_id)
        answer = await self._client.ask(question, billing, tiers=[ModelTier.CHEAP])
        if not isinstance(answer, Answered):
            return {"description": text}
        return proved_columns(answer.data, text)


def proved_columns(answer: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the parts of an answer that appear in the text, as columns."""
    stated = {"company_name": stated_company(answer["company"]), "location": answer["location"]}
    columns: dict[str, Any] = {
        column: value for column, value in stated.items() if value and ground(value, text).is_proof
    }
    columns["description"] = _cut(answer, text)
    if answer["salary"] and ground(answer["salary"], text).is_proof:
        salary = salary_in(answer["salary"])
        columns |= {"salary": dict(salary_as_dict(salary))} if salary else {}
    return columns


def _cut(answer: Mapping[str, Any], text: str) -> str:
    first, last = (ground(answer[name], text) for name in ("first_words", "last_words"))
    if first.start is None or last.end is None or last.end - first.start < MIN_CUT_CHARACTERS:
        return text
    return text[first.start : last.end]


MIN_CHARACTERS = 100  # a shorter text is not a job description
MAX_CHARACTERS = 60_000
GONE = frozenset({"http_404", "http_410", "soft_not_found"})
FORBIDDEN = "blocked_by_robots"
_PARTS = ("main", "[role=main]", "article")
_SAME_NAMED = ("description", "employment_type", "salary", "posted_at", "valid_until")  # in a listing and its columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """Where the rest of a listing is, and whether its board's own adapter parses it."""

    visit: PageVisit
    honours_robots: bool
    is_from_platform: bool


def detail_of(work: ListingWork, source: Source, *, external_id: str | None) -> Detail | None:
    """Return the platform's API request for the listing, else its page; None if it has neither."""
    listing = work.listing
    request = None
    try:
        adapter = platform(source.platform or "")
        board = adapter.configure(source.url, source.config)
        stated = Listing(external_id=external_id, title=listing.title, url=listing.url)
        request = board.detail_request(stated)
        honours_robots = adapter.honours_robots and not source.ignores_robots
    except ValueError:  # a bad source config; the page can still be fetched
        honours_robots = True
    if request is not None and request.body is None:
        visit = PageVisit(url=request.url, is_data=True)
        return Detail(visit=visit, honours_robots=honours_robots, is_from_platform=True)
    if listing.url is None or not work.has_own_page:
        return None
    honours_robots = not source.ignores_robots
    return Detail(visit=PageVisit(url=listing.url), honours_robots=honours_robots, is_from_platform=False)


async def read_detail(
    answer: NewPage, detail: Detail, source: Source, *, now: datetime, extractor: DetailExtractor | None = None
) -> Mapping[str, Any]:
    """Return the columns that the response fills; fields it does not state are left out."""
    listing = _stated(answer, detail, source, now)
    if listing is not None:
        return _columns(listing)
    text = main_text(decode(answer.body, answer.content_type), url=answer.final_url)
    if len(text.strip()) < MIN_CHARACTERS:
        raise Transient(
            f"{answer.url} has {len(text.strip())} characters of text: no description; it may need"
            " a browser, or a board of another platform",
            code="no_description",
        )
    if extractor is not None:
        return await extractor.columns(text, source_id=source.id)
    return {"description": text}


def _stated(answer: NewPage, detail: Detail, source: Source, now: datetime) -> Listing | None:
    """Return the posting as the platform or embedded data states it; None if neither does."""
    if detail.is_from_platform:
        board = platform(source.platform or "").configure(source.url, source.config)
    else:
        board = jsonld.configure(answer.final_url, {})
    try:
        reading = board.read([answer.body], content_types=[answer.content_type], urls=[answer.final_url], now=now)
    except WorkError as error:
        if detail.is_from_platform or not isinstance(error, Permanent):
            raise
        return None
    if len(reading.records) != 1 and not detail.is_from_platform:
        return None  # several postings: it is unknown which one is meant
    return next((record for record in reading.records if record.description), None)


def _columns(listing: Listing) -> dict[str, Any]:
    stated = {**listing_as_dict(listing), "company_name": stated_company(listing.company)}
    stated |= {"posted_at": listing.posted_at, "valid_until": listing.valid_until}
    return {name: stated[name] for name in SCRAPED_COLUMNS if stated.get(name) is not None}


def main_text(html: str, *, url: str | None = None) -> str:
    """Return the main part of a page as Markdown, or the whole page if none is marked."""
    tree = parse_html(html)
    for selector in _PARTS:
        nodes = tree.css(selector)
        if len(nodes) == 1 and (part := nodes[0].html):
            text = to_markdown(part, url=url)
            if len(text.strip()) >= MIN_CHARACTERS:
                return text[:MAX_CHARACTERS]
    return to_markdown(html, url=url)[:MAX_CHARACTERS]


def with_detail(work: ListingWork, scraped: Mapping[str, Any]) -> ListingWork:
    """Return the work with the page's values where its list had none; it has its data now."""
    listing = work.listing
    remote = scraped.get("remote")
    location = scraped.get("location")
    merged = replace(
        listing,
        company=listing.company or scraped.get("company_name"),
        locations=listing.locations or ((location,) if location else ()),
        remote=listing.remote or (Remote(remote) if remote else None),
        **{name: getattr(listing, name) or scraped.get(name) for name in _SAME_NAMED},
    )
    return replace(work, listing=merged, scraped=dict(scraped), state=replace(work.state, has_data=True))
