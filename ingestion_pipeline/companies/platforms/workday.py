"""Workday: the answers that its career sites ask for themselves, twenty at a time.

The total is true on the first page at most: later ones say 0, and none says more than 2,000. So a
full page leads to another whatever its total, and an empty one is the last.
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
    apart,
    description_of,
    is_relative,
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
from ingestion_pipeline.companies.platforms.protocol import AddressPlace
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.links import absolute_link
from ingestion_pipeline.sources.config_reader import BadConfig

LIMIT = 20  # more is refused

_LOCALE = re.compile(r"[A-Za-z]{2}(?:[-_][A-Za-z]{2,4})?")
_COUNTED = re.compile(r"[0-9]+ \w+", re.IGNORECASE)  # "3 Locations" is no place
_JOB = "/job/"


def _site(url: str) -> str | None:
    """The career site that the address names, behind a locale or in front of a job."""
    segments = [unquote(one) for one in urlsplit(url).path.split("/") if one]
    if segments[:2] == ["wday", "cxs"]:
        segments = segments[3:]
    if segments and _LOCALE.fullmatch(segments[0]) and len(segments) > 1:
        segments = segments[1:]
    if segments[:1] == ["recruiting"]:
        segments = segments[2:]
    return segments[0] if segments and segments[0] not in {"job", "jobs"} else None


def _board(place: AddressPlace) -> str:
    """Where the site's pages are, which the paths of jobs are relative to."""
    parts = urlsplit(place.url)
    origin = f"{parts.scheme}://{parts.netloc}"
    if parts.path.startswith(("/recruiting/", "/wday/")) or "/recruiting/" in parts.path:
        return f"{origin}/recruiting/{place.token}/{_site(place.url)}"
    return f"{origin}/{_site(place.url) or ''}".rstrip("/")


def _api(place: AddressPlace, path: str) -> str:
    site = _site(place.url) if place.url else None
    if site is None:
        raise BadConfig(
            "a workday source needs the address of its career site, such as"
            " https://<tenant>.wd5.myworkdayjobs.com/<site>"
        )
    base = place.api_base or "https://" + urlsplit(place.url).netloc
    return f"{base}/wday/cxs/{quote(place.known_token(), safe='')}/{quote(site, safe='')}{path}"


def _first(place: AddressPlace) -> Request:
    return _request(place, offset=0)


def _request(place: AddressPlace, *, offset: int) -> Request:
    asked: dict[str, object] = {
        "appliedFacets": {},
        "limit": LIMIT,
        "offset": offset,
        "searchText": "",
    }
    return Request(url=_api(place, "/jobs"), accept=ACCEPT, body=json.dumps(asked).encode())


def _next(place: AddressPlace, asked: Request, page: ApiPage) -> Request | None:
    end = _offset(asked) + len(page.items)
    is_last = not page.items or (len(page.items) < LIMIT and end >= (page.total or 0))
    return None if page.is_detail or is_last else _request(place, offset=end)


def _offset(asked: Request) -> int:
    offset: object = json.loads(asked.body or b"{}").get("offset", 0)
    return offset if isinstance(offset, int) else 0


def _detail(place: AddressPlace, listing: Listing) -> Request | None:
    """The list has no descriptions; the job's own answer has."""
    _, job, rest = (listing.url or "").partition(_JOB)
    return Request(url=_api(place, f"{job}{rest}"), accept=ACCEPT) if rest else None


def _page(document: object) -> ApiPage | None:
    fields = ListingFields.of(document)
    if isinstance(fields.value("jobPostingInfo"), dict):
        page = detail_of(fields.value("jobPostingInfo"))
        return replace(page, document=fields)
    return page_of(document, "jobPostings", total="total")


def _listing(item: ListingFields, known: JobContext) -> Listing | None:
    title = one_line(item.value("title"), most=MAX_TITLE_CHARACTERS)
    url = _url(item, known)
    external_id = _requisition(item)
    if title is None or external_id is None:
        return None
    location = item.text("locationsText", "location")
    location = None if location and _COUNTED.fullmatch(location) else location
    started, stated = known.date(item.text("startDate")), item.text("postedOn")
    return Listing(
        external_id=external_id,
        title=title,
        url=url,
        location=location,
        posted_at=started or known.date(stated),
        posted_is_relative=started is None and is_relative(stated),
        description=description_of(item.markup("jobDescription")),
        company=known.document.text("hiringOrganization.name") or known.place.company,
        employment_type=item.text("timeType"),
        remote=remote_in(item.text("remoteType"), location),
        other_locations=apart(location, item.texts("additionalLocations")),
        valid_until=known.deadline(item.text("endDate")),
    )


def _url(item: ListingFields, known: JobContext) -> str | None:
    if stated := absolute_link(known.url, item.text("externalUrl")):
        return stated
    path = item.text("externalPath")
    if path is None or not known.place.url:
        return None
    return absolute_link(known.place.url, _board(known.place) + path)


def _requisition(item: ListingFields) -> str | None:
    """The number at the end of the job's address: list and detail have it, and it is unique."""
    path = item.text("externalPath", "jobPostingId", "externalUrl") or ""
    _, mark, number = path.rpartition("_")
    fallback = item.text("jobReqId") or next(iter(item.texts("bulletFields")), None)
    return number if mark and number and "/" not in number else fallback or path or None


API = JsonApi(
    wanted="/wday/cxs/<tenant>/<site>/jobs",
    first=_first,
    page=_page,
    listing=_listing,
    next=_next,
    detail=_detail,
)


# The answers are what the site's own pages ask for, not a documented API: robots.txt governs them.
PLATFORM = api_platform("workday", API, honours_robots=True)
