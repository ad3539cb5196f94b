"""SmartRecruiters: the Posting API (developers.smartrecruiters.com), a hundred at a time."""

from __future__ import annotations

from urllib.parse import parse_qs, quote, urlsplit

from ingestion_pipeline.companies.listing import Listing, Remote
from ingestion_pipeline.companies.platforms.fields import (
    MAX_TITLE_CHARACTERS,
    ListingFields,
    description_of,
    joined,
    one_line,
    remote_in,
)
from ingestion_pipeline.companies.platforms.json_api import (
    ACCEPT,
    ApiPage,
    JobContext,
    JsonApi,
    api_platform,
    count_of,
    detail_of,
    page_of,
)
from ingestion_pipeline.companies.platforms.protocol import BoardAddress
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.links import absolute_link

API_BASE = "https://api.smartrecruiters.com"
JOB_PAGE = "https://jobs.smartrecruiters.com"
LIMIT = 100  # the API's own maximum
_SECTIONS = ("companyDescription", "jobDescription", "qualifications", "additionalInformation")


def _first(board: BoardAddress) -> Request:
    return _request(board, offset=0)


def _request(board: BoardAddress, *, offset: int) -> Request:
    address = f"{_postings(board)}?limit={LIMIT}&offset={offset}"
    return Request(url=address, accept=ACCEPT)


def _postings(board: BoardAddress) -> str:
    return f"{board.api_base}/v1/companies/{quote(board.required_token(), safe='')}/postings"


def _next(board: BoardAddress, request: Request, page: ApiPage) -> Request | None:
    """Return the next request by what the response holds: an empty page is the last."""
    stated = count_of(page.document, "offset")
    requested = parse_qs(urlsplit(request.url).query).get("offset", ["0"])[0]
    offset = stated if stated is not None else int(requested) if requested.isdigit() else 0
    end = offset + len(page.items)
    if not page.items or page.is_detail or end >= (page.total or 0):
        return None
    return _request(board, offset=end)


def _detail(board: BoardAddress, listing: Listing) -> Request | None:
    """Return the request for the posting itself: the list has no descriptions."""
    address = f"{_postings(board)}/{quote(listing.external_id or '', safe='')}"
    return Request(url=address, accept=ACCEPT) if listing.external_id else None


def _page(document: object) -> ApiPage | None:
    fields = ListingFields.of(document)
    if fields.value("jobAd") and fields.text("name"):
        return detail_of(document)
    return page_of(document, "content", total="totalFound")


def _listing(item: ListingFields, context: JobContext) -> Listing | None:
    title = one_line(item.value("name"), most=MAX_TITLE_CHARACTERS)
    external_id = item.text("id", "uuid")
    if title is None or external_id is None:
        return None
    location = item.text("location.fullLocation") or joined(
        item.text("location.city"), item.text("location.region"), item.text("location.country")
    )
    return Listing(
        external_id=external_id,
        title=title,
        url=absolute_link(context.url, item.text("postingUrl")) or _job_page(item, context.board),
        location=location,
        posted_at=context.date(item.text("releasedDate", "createdOn")),
        description=description_of(*(item.markup(f"jobAd.sections.{name}.text") for name in _SECTIONS)),
        company=item.text("company.name") or context.board.company,
        department=item.text("department.label", "function.label"),
        employment_type=item.text("typeOfEmployment.label"),
        remote=_remote(item, location),
    )


def _job_page(item: ListingFields, board: BoardAddress) -> str | None:
    company = item.text("company.identifier") or board.token
    external_id = item.text("id", "uuid") or ""
    return f"{JOB_PAGE}/{quote(company, safe='')}/{quote(external_id, safe='')}" if company else None


def _remote(item: ListingFields, location: str | None) -> Remote | None:
    if item.is_true("location.hybrid"):
        return Remote.HYBRID
    return Remote.REMOTE if item.is_true("location.remote") else remote_in(location)


API = JsonApi(
    endpoint="/v1/companies/<token>/postings", first=_first, page=_page, listing=_listing, next=_next, detail=_detail
)


PLATFORM = api_platform("smartrecruiters", API, api_base=API_BASE)
