"""Lever: the Postings API (https://github.com/lever/postings-api), all at once."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from ingestion_pipeline.companies.listing import Listing
from ingestion_pipeline.companies.platforms.fields import (
    MAX_TITLE_CHARACTERS,
    ListingFields,
    description_of,
    list_of,
    one_line,
    other_places,
    remote_in,
)
from ingestion_pipeline.companies.platforms.json_api import ACCEPT, ApiPage, JobContext, JsonApi, JsonBoard, detail_of
from ingestion_pipeline.companies.platforms.protocol import BoardAddress, JobPlatform, read_board_address
from ingestion_pipeline.companies.salary import stated_salary
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.links import absolute_link
from ingestion_pipeline.sources.config_reader import ConfigReader

API_BASE = "https://api.lever.co"
EU_API_BASE = "https://api.eu.lever.co"


def _first(board: BoardAddress) -> Request:
    token = quote(board.required_token(), safe="")
    return Request(url=f"{board.api_base}/v0/postings/{token}?mode=json", accept=ACCEPT)


def _page(document: object) -> ApiPage | None:
    if (items := list_of(document)) is not None:
        return ApiPage(document=ListingFields({}), items=items)
    fields = ListingFields.of(document)
    return detail_of(document) if fields.text("text") and fields.text("id") else None


def _listing(item: ListingFields, context: JobContext) -> Listing | None:
    title = one_line(item.value("text"), most=MAX_TITLE_CHARACTERS)
    external_id = item.text("id")
    if title is None or external_id is None:
        return None
    location = item.text("categories.location")
    return Listing(
        external_id=external_id,
        title=title,
        url=absolute_link(context.url, item.text("hostedUrl", "applyUrl")),
        location=location,
        posted_at=context.date(item.text("createdAt")),
        description=_description(item),
        company=context.board.company,
        department=item.text("categories.department", "categories.team"),
        employment_type=item.text("categories.commitment"),
        remote=remote_in(item.text("workplaceType"), location),
        salary=stated_salary(
            item.text("salaryRange.min"),
            item.text("salaryRange.max"),
            currency=item.text("salaryRange.currency"),
            period=item.text("salaryRange.interval"),
        ),
        other_locations=other_places(location, item.texts("categories.allLocations")),
    )


def _description(item: ListingFields) -> str | None:
    """Return opening, body, lists with their headings, and closing text."""
    lists = (
        f"<h3>{section.markup('text') or ''}</h3><ul>{section.markup('content') or ''}</ul>"
        for section in item.each("lists")
    )
    body = item.markup("description", "descriptionBody", "descriptionPlain")
    return description_of(body, *lists, item.markup("additional", "additionalPlain"))


API = JsonApi(endpoint="/v0/postings/<token>?mode=json", first=_first, page=_page, listing=_listing)


def configure(url: str, config: Mapping[str, object]) -> JsonBoard:
    """Configure the board by its URL or `board_token`; EU boards have an API of their own."""
    reader = ConfigReader("lever", config)
    default = EU_API_BASE if (urlsplit(url).hostname or "").endswith(".eu.lever.co") else API_BASE
    board = read_board_address(reader, url, platform="lever", api_base=default)
    reader.finish()
    return JsonBoard(board=board, api=API)


PLATFORM = JobPlatform(name="lever", version=2, honours_robots=False, configure=configure)
