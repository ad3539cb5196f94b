"""Ashby: the public posting API (https://developers.ashbyhq.com/docs/public-job-posting-api)."""

from __future__ import annotations

from urllib.parse import quote

from ingestion_pipeline.companies.listing import Listing, Remote
from ingestion_pipeline.companies.platforms.fields import (
    MAX_TITLE_CHARACTERS,
    ListingFields,
    description_of,
    one_line,
    other_places,
    remote_in,
)
from ingestion_pipeline.companies.platforms.json_api import ACCEPT, ApiPage, JobContext, JsonApi, api_platform, page_of
from ingestion_pipeline.companies.platforms.protocol import BoardAddress
from ingestion_pipeline.companies.salary import Salary, salary_in, stated_salary
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.links import absolute_link

API_BASE = "https://api.ashbyhq.com"


def _first(board: BoardAddress) -> Request:
    token = quote(board.required_token(), safe="")
    address = f"{board.api_base}/posting-api/job-board/{token}?includeCompensation=true"
    return Request(url=address, accept=ACCEPT)


def _page(document: object) -> ApiPage | None:
    return page_of(document, "jobs")


def _listing(item: ListingFields, context: JobContext) -> Listing | None:
    title = one_line(item.value("title"), most=MAX_TITLE_CHARACTERS)
    url = absolute_link(context.url, item.text("jobUrl", "applyUrl"))
    external_id = item.text("id") or _id_in(url)
    if title is None or external_id is None:
        return None
    location = item.text("location")
    others = [place.text("location") for place in item.each("secondaryLocations")]
    return Listing(
        external_id=external_id,
        title=title,
        url=url,
        location=location,
        posted_at=context.date(item.text("publishedAt", "updatedAt")),
        description=description_of(item.markup("descriptionHtml", "descriptionPlain")),
        company=context.board.company,
        department=item.text("department", "team"),
        employment_type=item.text("employmentType"),
        remote=_remote(item, location),
        salary=_salary(item),
        other_locations=other_places(location, list(filter(None, others))),
    )


def _id_in(url: str | None) -> str | None:
    """Return the id at the end of a job's URL, for responses that state it nowhere else."""
    return (url or "").removesuffix("/application").rpartition("/")[2] or None


def _remote(item: ListingFields, location: str | None) -> Remote | None:
    stated = remote_in(item.text("workplaceType"))
    if stated is None and item.is_true("isRemote"):
        return Remote.REMOTE
    return stated or remote_in(location)


def _salary(item: ListingFields) -> Salary | None:
    """Return the salary among the parts of the compensation; equity and bonus are other parts."""
    for part in item.each("compensation.summaryComponents"):
        if part.text("compensationType") != "Salary":
            continue
        salary = stated_salary(
            part.text("minValue"),
            part.text("maxValue"),
            currency=part.text("currencyCode"),
            period=part.text("interval"),
        )
        if salary:
            return salary
    summary = item.text("compensation.scrapeableCompensationSalarySummary")
    return salary_in(summary) if summary else None


API = JsonApi(endpoint="/posting-api/job-board/<token>", first=_first, page=_page, listing=_listing)


PLATFORM = api_platform("ashby", API, api_base=API_BASE)
