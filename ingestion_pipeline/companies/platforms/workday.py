"""Workday: the API that its career sites use themselves, twenty jobs at a time.

The total is only right on the first page: later pages say 0, and none says more than 2,000. So a
full page always leads to another whatever its total, and an empty page is the last.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from urllib.parse import quote, unquote, urlsplit

from ingestion_pipeline.companies.listing import Listing
from ingestion_pipeline.companies.platforms.fields import (
    MAX_TITLE_CHARACTERS,
    ListingFields,
    description_of,
    is_relative,
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
from ingestion_pipeline.sources.config_reader import BadConfig

LIMIT = 20  # more is refused

_LOCALE = re.compile(r"[A-Za-z]{2}(?:[-_][A-Za-z]{2,4})?")
_COUNTED = re.compile(r"[0-9]+ \w+", re.IGNORECASE)  # "3 Locations" is no place
_JOB = "/job/"


def _site(url: str) -> str | None:
    """Return the career site that the URL names, after a locale or before a job."""
    segments = [unquote(segment) for segment in urlsplit(url).path.split("/") if segment]
    if segments[:2] == ["wday", "cxs"]:
        segments = segments[3:]
    if segments and _LOCALE.fullmatch(segments[0]) and len(segments) > 1:
        segments = segments[1:]
    if segments[:1] == ["recruiting"]:
        segments = segments[2:]
    return segments[0] if segments and segments[0] not in {"job", "jobs"} else None


def _board(board: BoardAddress) -> str:
    """Return the base URL of the site's pages, which job paths are relative to."""
    parts = urlsplit(board.url)
    origin = f"{parts.scheme}://{parts.netloc}"
    if parts.path.startswith(("/recruiting/", "/wday/")) or "/recruiting/" in parts.path:
        return f"{origin}/recruiting/{board.token}/{_site(board.url)}"
    return f"{origin}/{_site(board.url) or ''}".rstrip("/")


def _api(board: BoardAddress, path: str) -> str:
    site = _site(board.url) if board.url else None
    if site is None:
        raise BadConfig(
            "a workday source needs the address of its career site, such as"
            " https://<tenant>.wd5.myworkdayjobs.com/<site>"
        )
    base = board.api_base or "https://" + urlsplit(board.url).netloc
    return f"{base}/wday/cxs/{quote(board.required_token(), safe='')}/{quote(site, safe='')}{path}"


def _first(board: BoardAddress) -> Request:
    return _request(board, offset=0)


def _request(board: BoardAddress, *, offset: int) -> Request:
    query: dict[str, object] = {"appliedFacets": {}, "limit": LIMIT, "offset": offset, "searchText": ""}
    return Request(url=_api(board, "/jobs"), accept=ACCEPT, body=json.dumps(query).encode())


def _next(board: BoardAddress, request: Request, page: ApiPage) -> Request | None:
    end = _offset(request) + len(page.items)
    is_last = not page.items or (len(page.items) < LIMIT and end >= (page.total or 0))
    return None if page.is_detail or is_last else _request(board, offset=end)


def _offset(request: Request) -> int:
    offset: object = json.loads(request.body or b"{}").get("offset", 0)
    return offset if isinstance(offset, int) else 0


def _detail(board: BoardAddress, listing: Listing) -> Request | None:
    """Return the request for the job's own response: the list has no descriptions."""
    _, job, rest = (listing.url or "").partition(_JOB)
    return Request(url=_api(board, f"{job}{rest}"), accept=ACCEPT) if rest else None


def _page(document: object) -> ApiPage | None:
    fields = ListingFields.of(document)
    if isinstance(fields.value("jobPostingInfo"), dict):
        page = detail_of(fields.value("jobPostingInfo"))
        return replace(page, document=fields)
    return page_of(document, "jobPostings", total="total")


def _listing(item: ListingFields, context: JobContext) -> Listing | None:
    title = one_line(item.value("title"), most=MAX_TITLE_CHARACTERS)
    url = _url(item, context)
    external_id = _requisition(item)
    if title is None or external_id is None:
        return None
    location = item.text("locationsText", "location")
    location = None if location and _COUNTED.fullmatch(location) else location
    started, stated = context.date(item.text("startDate")), item.text("postedOn")
    return Listing(
        external_id=external_id,
        title=title,
        url=url,
        location=location,
        posted_at=started or context.date(stated),
        posted_is_relative=started is None and is_relative(stated),
        description=description_of(item.markup("jobDescription")),
        company=context.document.text("hiringOrganization.name") or context.board.company,
        employment_type=item.text("timeType"),
        remote=remote_in(item.text("remoteType"), location),
        other_locations=other_places(location, item.texts("additionalLocations")),
        valid_until=context.deadline(item.text("endDate")),
    )


def _url(item: ListingFields, context: JobContext) -> str | None:
    if stated := absolute_link(context.url, item.text("externalUrl")):
        return stated
    path = item.text("externalPath")
    if path is None or not context.board.url:
        return None
    return absolute_link(context.board.url, _board(context.board) + path)


def _requisition(item: ListingFields) -> str | None:
    """Return the number at the end of the job's URL: list and detail have it, and it is unique."""
    path = item.text("externalPath", "jobPostingId", "externalUrl") or ""
    _, mark, number = path.rpartition("_")
    fallback = item.text("jobReqId") or next(iter(item.texts("bulletFields")), None)
    return number if mark and number and "/" not in number else fallback or path or None


API = JsonApi(
    endpoint="/wday/cxs/<tenant>/<site>/jobs", first=_first, page=_page, listing=_listing, next=_next, detail=_detail
)


# The API of the site's own pages is undocumented: robots.txt applies.
PLATFORM = api_platform("workday", API, honours_robots=True)
