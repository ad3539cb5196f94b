"""Recruitee: the Careers Site API (https://docs.recruitee.com/reference/offers), all at once."""

from __future__ import annotations

from urllib.parse import urlsplit

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
from ingestion_pipeline.companies.salary import stated_salary
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.links import absolute_link
from ingestion_pipeline.sources.platforms import recognize_platform

_POLICIES = (("hybrid", Remote.HYBRID), ("remote", Remote.REMOTE), ("on_site", Remote.ON_SITE))


def _first(board: BoardAddress) -> Request:
    base = board.api_base or _own_site(board) or f"https://{board.required_token()}.recruitee.com"
    return Request(url=f"{base}/api/offers/", accept=ACCEPT)


def _own_site(board: BoardAddress) -> str | None:
    """Return the site of a company that has its Recruitee pages on its own domain."""
    platform = recognize_platform(board.url) if board.token is None else None
    if platform is None or platform.name != "recruitee":
        return None
    parts = urlsplit(board.url)
    return f"{parts.scheme}://{parts.netloc}"


def _page(document: object) -> ApiPage | None:
    offer = ListingFields.of(document).value("offer")
    return detail_of(offer) if ListingFields.of(offer).values else page_of(document, "offers")


def _listing(item: ListingFields, context: JobContext) -> Listing | None:
    title = one_line(item.value("title"), most=MAX_TITLE_CHARACTERS)
    external_id = item.text("id", "slug")
    if title is None or external_id is None:
        return None
    location = item.text("location") or joined(item.text("city"), item.text("country"))
    stated = [joined(o.text("city", "name"), o.text("country")) for o in item.each("locations")]
    others = [place for place in filter(None, stated) if place.partition(",")[0] not in (location or "")]
    return Listing(
        external_id=external_id,
        title=title,
        url=_url(item, context),
        location=location,
        posted_at=context.date(item.text("published_at", "created_at")),
        description=description_of(item.markup("description"), item.markup("requirements")),
        company=item.text("company_name") or context.board.company,
        department=item.text("department"),
        employment_type=item.text("employment_type_code", "employment_type"),
        remote=next((p for key, p in _POLICIES if item.is_true(key)), None) or remote_in(location),
        salary=stated_salary(
            item.text("salary.min"),
            item.text("salary.max"),
            currency=item.text("salary.currency"),
            period=item.text("salary.period"),
        ),
        other_locations=other_places(location, others),
        valid_until=context.deadline(item.text("close_at")),
    )


def _url(item: ListingFields, context: JobContext) -> str | None:
    slug = item.text("slug")
    stated = absolute_link(context.url, item.text("careers_url", "url"))
    return stated or (absolute_link(context.url, f"/o/{slug}") if slug else None)


API = JsonApi(endpoint="/api/offers/", first=_first, page=_page, listing=_listing)


PLATFORM = api_platform("recruitee", API)
