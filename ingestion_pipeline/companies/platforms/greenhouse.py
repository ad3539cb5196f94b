"""Greenhouse: the Job Board API (https://developers.greenhouse.io/job-board.html), all at once."""

from __future__ import annotations

from decimal import Decimal
from urllib.parse import quote

from ingestion_pipeline.companies.listing import Listing
from ingestion_pipeline.companies.platforms.fields import (
    MAX_TITLE_CHARACTERS,
    ListingFields,
    description_of,
    one_line,
    remote_in,
)
from ingestion_pipeline.companies.platforms.json_api import (
    ACCEPT,
    ApiPage,
    JobContext,
    JsonApi,
    api_platform,
    detail_of,
    page_of,
)
from ingestion_pipeline.companies.platforms.protocol import BoardAddress
from ingestion_pipeline.companies.salary import Salary, stated_salary
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.links import absolute_link

API_BASE = "https://boards-api.greenhouse.io"
_PLACE_NAMES = ("Location Type", "Workplace Type", "Remote", "Remote Status", "Work Model")


def _first(board: BoardAddress) -> Request:
    token = quote(board.required_token(), safe="")
    address = f"{board.api_base}/v1/boards/{token}/jobs?content=true&pay_transparency=true"
    return Request(url=address, accept=ACCEPT)


def _page(document: object) -> ApiPage | None:
    fields = ListingFields.of(document)
    if fields.text("absolute_url") and fields.text("title"):
        return detail_of(document)
    return page_of(document, "jobs", total="meta.total")


def _listing(item: ListingFields, context: JobContext) -> Listing | None:
    title = one_line(item.value("title"), most=MAX_TITLE_CHARACTERS)
    external_id = item.text("id")
    if title is None or external_id is None:
        return None
    location = item.text("location.name")
    offices = [name for entry in item.each("offices") if (name := entry.text("location", "name"))]
    return Listing(
        external_id=external_id,
        title=title,
        url=absolute_link(context.url, item.text("absolute_url")),
        location=location or next(iter(offices), None),
        posted_at=context.date(item.text("first_published", "updated_at")),
        description=description_of(item.markup("content")),
        company=item.text("company_name") or context.board.company,
        department=next(filter(None, (entry.text("name") for entry in item.each("departments"))), None),
        employment_type=_metadata(item, "Employment Type", "Commitment", "Job Type"),
        remote=remote_in(_metadata(item, *_PLACE_NAMES), location),
        salary=_salary(item),
        valid_until=context.deadline(item.text("application_deadline")),
    )


def _metadata(item: ListingFields, *names: str) -> str | None:
    """Return the value of the company's own field with one of the names."""
    for entry in item.each("metadata"):
        if entry.text("name") in names:
            return next(iter(entry.texts("value")), None)
    return None


def _salary(item: ListingFields) -> Salary | None:
    ranges = item.each("pay_input_ranges")
    if not ranges:
        return None
    first = ranges[0]
    cents = [first.text("min_cents"), first.text("max_cents")]
    low, high = (_whole(amount) for amount in cents)
    return stated_salary(low, high, currency=first.text("currency_type"), period=first.text("title"))


def _whole(cents: str | None) -> str | None:
    is_number = cents is not None and cents.isascii() and cents.isdigit()
    return str(Decimal(cents[:15]) / 100) if cents and is_number else None


API = JsonApi(endpoint="/v1/boards/<token>/jobs", first=_first, page=_page, listing=_listing)


PLATFORM = api_platform("greenhouse", API, api_base=API_BASE)
