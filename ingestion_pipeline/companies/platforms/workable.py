"""Workable: the list of the widget for companies' own pages, all at once."""

from __future__ import annotations

from urllib.parse import quote

from ingestion_pipeline.companies.listing import Listing, Remote
from ingestion_pipeline.companies.platforms.fields import (
    MAX_TITLE_CHARACTERS,
    ListingFields,
    description_of,
    joined,
    one_line,
    other_places,
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
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.links import absolute_link

API_BASE = "https://apply.workable.com"


def _first(board: BoardAddress) -> Request:
    token = quote(board.required_token(), safe="")
    address = f"{board.api_base}/api/v1/widget/accounts/{token}?details=true"
    return Request(url=address, accept=ACCEPT)


def _page(document: object) -> ApiPage | None:
    fields = ListingFields.of(document)
    if fields.text("shortcode") and fields.text("title"):
        return detail_of(document)
    return page_of(document, "jobs") or page_of(document, "results", total="total")


def _listing(item: ListingFields, context: JobContext) -> Listing | None:
    title = one_line(item.value("title"), most=MAX_TITLE_CHARACTERS)
    external_id = item.text("shortcode", "id", "code")
    if title is None or external_id is None:
        return None
    location = _place(item) or item.text("location.location_str") or _place(ListingFields.of(item.value("location")))
    others = [_place(place) for place in item.each("locations") if not place.is_true("hidden")]
    stated = absolute_link(context.url, item.text("url", "shortlink", "application_url"))
    return Listing(
        external_id=external_id,
        title=title,
        url=stated or f"{API_BASE}/j/{quote(external_id, safe='')}",
        location=location,
        posted_at=context.date(item.text("published_on", "published", "created_at")),
        description=description_of(item.markup("description"), item.markup("requirements"), item.markup("benefits")),
        company=context.document.text("name") or context.board.company,
        department=item.text("department") or next(iter(item.texts("department")), None),
        employment_type=item.text("employment_type", "type"),
        remote=_remote(item, location),
        other_locations=other_places(location, list(filter(None, others))),
    )


def _place(item: ListingFields) -> str | None:
    return joined(item.text("city"), item.text("state", "region"), item.text("country"))


def _remote(item: ListingFields, location: str | None) -> Remote | None:
    stated = remote_in(item.text("workplace_type", "workplace"))
    is_remote = item.is_true("telecommuting") or item.is_true("remote")
    return stated or (Remote.REMOTE if is_remote else remote_in(location))


API = JsonApi(endpoint="/api/v1/widget/accounts/<token>", first=_first, page=_page, listing=_listing)


PLATFORM = api_platform("workable", API, api_base=API_BASE)
