"""The platforms with an API of their own: what their responses and requests have of their own.

Where each states which field of a listing is in `api_boards.yaml`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Annotated
from urllib.parse import parse_qs, quote, unquote, urlsplit

from pydantic import StringConstraints, TypeAdapter

from ingestion_pipeline.companies.job_listing import Listing, Remote, Salary, salary_in, stated_salary
from ingestion_pipeline.companies.platforms.job_board import (
    ApiBoard,
    ApiBoardConfig,
    ApiPage,
    JobPlatform,
    ListingFields,
    ListingPaths,
    PagedApiBoard,
    count_of,
    date_of,
    description_of,
    detail_of,
    is_relative,
    joined,
    list_of,
    page_of,
    remote_in,
    salary_at,
)
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.structured.sitemaps import XmlElement, read_xml
from ingestion_pipeline.reading.text.plain_text import packaged_data
from ingestion_pipeline.reading.text.values import DateReader
from ingestion_pipeline.sources.platform_config import accepted
from ingestion_pipeline.sources.platforms import recognize_platform
from ingestion_pipeline.sources.source import BadConfig

_PATHS = TypeAdapter(dict[str, ListingPaths]).validate_python(
    packaged_data("ingestion_pipeline.companies.platforms", "api_boards.yaml")
)
_LOCALE = re.compile(r"[A-Za-z]{2}(?:[-_][A-Za-z]{2,4})?")
_COUNTED = re.compile(r"[0-9]+ \w+", re.IGNORECASE)  # "3 Locations" is no place
_JOB = "/job/"


class Greenhouse(ApiBoard):
    """The Job Board API (https://developers.greenhouse.io/job-board.html), all at once."""

    name = "greenhouse"
    api = "https://boards-api.greenhouse.io"
    endpoint = "/v1/boards/<token>/jobs?content=true&pay_transparency=true"
    total = "meta.total"
    detail_marks = ("absolute_url", "title")
    paths = _PATHS["greenhouse"]

    def employment_type(self, item: ListingFields) -> str | None:
        """Return the kind of employment as a field of the company's own states it."""
        return _metadata(item, "Employment Type", "Commitment", "Job Type")

    def remote(self, item: ListingFields, location: str | None) -> Remote | None:  # noqa: ARG002  not by an office
        """Return the work mode as a field of the company's own or the stated place says it."""
        stated = _metadata(item, "Location Type", "Workplace Type", "Remote", "Remote Status", "Work Model")
        return remote_in(stated, item.text("location.name"))

    def salary(self, item: ListingFields) -> Salary | None:
        """Return the first range, whose amounts are in cents."""
        for pay in item.each("pay_input_ranges")[:1]:
            low, high = (_whole(pay.text(name)) for name in ("min_cents", "max_cents"))
            return stated_salary(low, high, currency=pay.text("currency_type"), period=pay.text("title"))
        return None


def _metadata(item: ListingFields, *names: str) -> str | None:
    named = (entry for entry in item.each("metadata") if entry.text("name") in names)
    return next((next(iter(entry.texts("value")), None) for entry in named), None)


def _whole(cents: str | None) -> str | None:
    is_number = cents is not None and cents.isascii() and cents.isdigit()
    return str(Decimal(cents[:15]) / 100) if cents and is_number else None


class Lever(ApiBoard):
    """The Postings API (https://github.com/lever/postings-api), all at once."""

    name = "lever"
    endpoint = "/v0/postings/<token>?mode=json"
    paths = _PATHS["lever"]

    def default_api(self, url: str) -> str:
        """Return the base of the API; boards in the EU have one of their own."""
        is_european = (urlsplit(url).hostname or "").endswith(".eu.lever.co")
        return "https://api.eu.lever.co" if is_european else "https://api.lever.co"

    def page(self, document: object) -> ApiPage | None:
        """Return the items of the response, which is the list itself, or one posting."""
        if (items := list_of(document)) is not None:
            return ApiPage(document=ListingFields({}), items=items)
        fields = ListingFields.of(document)
        return detail_of(document) if fields.text("text") and fields.text("id") else None

    def description(self, item: ListingFields) -> str | None:
        """Return opening, body, lists with their headings, and closing text."""
        lists = (
            f"<h3>{section.markup('text') or ''}</h3><ul>{section.markup('content') or ''}</ul>"
            for section in item.each("lists")
        )
        body = item.markup("description", "descriptionBody", "descriptionPlain")
        return description_of(body, *lists, item.markup("additional", "additionalPlain"))


class Ashby(ApiBoard):
    """The public posting API (https://developers.ashbyhq.com/docs/public-job-posting-api)."""

    name = "ashby"
    api = "https://api.ashbyhq.com"
    endpoint = "/posting-api/job-board/<token>?includeCompensation=true"
    paths = _PATHS["ashby"]

    def external_id(self, item: ListingFields) -> str | None:
        """Return the id; some responses state it at the end of the job's URL only."""
        url = item.link(self.api, *self.paths.url)
        return super().external_id(item) or (url or "").removesuffix("/application").rpartition("/")[2] or None

    def page(self, document: object) -> ApiPage | None:
        """Return the listed items; unlisted ones are open by their URL only."""
        page = super().page(document)
        if page is None:
            return None
        return replace(
            page, items=[item for item in page.items if ListingFields.of(item).value("isListed") is not False]
        )

    def salary(self, item: ListingFields) -> Salary | None:
        """Return the salary among the parts of the compensation; equity and bonus are other parts."""
        parts = item.each("compensation.summaryComponents")
        salaries = (
            salary_at(part, ("minValue", "maxValue", "currencyCode", "interval"))
            for part in parts
            if part.text("compensationType") == "Salary"
        )
        summary = item.text("compensation.scrapeableCompensationSalarySummary")
        return next(filter(None, salaries), None) or (salary_in(summary) if summary else None)


class SmartRecruiters(PagedApiBoard):
    """The Posting API (developers.smartrecruiters.com), a hundred at a time, which is its maximum."""

    name = "smartrecruiters"
    api = "https://api.smartrecruiters.com"
    endpoint = "/v1/companies/<token>/postings"
    items = "content"
    total = "totalFound"
    paths = _PATHS["smartrecruiters"]

    def request_at(self, offset: int) -> Request:
        """Return the request for the page that begins at the offset."""
        return Request(url=f"{self.address()}?limit=100&offset={offset}", accept=self.accept)

    def following(self, previous: Request, page: ApiPage) -> Request | None:
        """Return the next request by what the response holds: an empty page is the last."""
        stated = count_of(page.document, "offset")
        requested = parse_qs(urlsplit(previous.url).query).get("offset", ["0"])[0]
        offset = stated if stated is not None else int(requested) if requested.isdigit() else 0
        end = offset + len(page.items)
        is_last = not page.items or page.is_detail or end >= (page.total or 0)
        return None if is_last else self.request_at(end)

    def detail_request(self, listing: Listing) -> Request | None:
        """Return the request for the posting itself: the list has no descriptions."""
        address = f"{self.address()}/{quote(listing.external_id or '', safe='')}"
        return Request(url=address, accept=self.accept) if listing.external_id else None

    def page(self, document: object) -> ApiPage | None:
        """Return the items of a list, or a posting, which alone has a text."""
        fields = ListingFields.of(document)
        return detail_of(document) if fields.value("jobAd") and fields.text("name") else super().page(document)

    def own_page(self, item: ListingFields) -> str | None:
        """Return the URL of the job's page by company and id."""
        company = item.text("company.identifier") or self.token
        external_id = quote(self.external_id(item) or "", safe="")
        return f"https://jobs.smartrecruiters.com/{quote(company, safe='')}/{external_id}" if company else None


class Recruitee(ApiBoard):
    """The Careers Site API (https://docs.recruitee.com/reference/offers), all at once."""

    name = "recruitee"
    endpoint = "/api/offers/"
    items = "offers"
    paths = _PATHS["recruitee"]

    def address(self) -> str:
        """Return the URL of the list, on the company's own domain if it has its Recruitee pages there."""
        base = self.api_base
        if not base and self.token is None:
            platform, parts = recognize_platform(self.url), urlsplit(self.url)
            base = f"{parts.scheme}://{parts.netloc}" if platform and platform.name == self.name else ""
        return (base or f"https://{self.required_token()}.recruitee.com") + self.endpoint

    def page(self, document: object) -> ApiPage | None:
        """Return the items of a list, or an offer."""
        offer = ListingFields.of(document).value("offer")
        return detail_of(offer) if ListingFields.of(offer).values else super().page(document)

    def own_page(self, item: ListingFields) -> str | None:
        """Return the path of the job's page by its slug."""
        slug = item.text("slug")
        return f"/o/{slug}" if slug else None

    def other_locations(self, item: ListingFields) -> Sequence[str]:
        """Return the places whose city the first does not name."""
        first = self.location(item) or ""
        places = (joined(place.text("city", "name"), place.text("country")) for place in item.each("locations"))
        return [place for place in filter(None, places) if place.partition(",")[0] not in first]


class Workable(ApiBoard):
    """The list of the widget for companies' own pages, all at once."""

    name = "workable"
    api = "https://apply.workable.com"
    endpoint = "/api/v1/widget/accounts/<token>?details=true"
    detail_marks = ("shortcode", "title")
    paths = _PATHS["workable"]

    def page(self, document: object) -> ApiPage | None:
        """Return the items of the widget's list, or of the API's, which states a total."""
        return super().page(document) or page_of(document, "results", total="total")

    def own_page(self, item: ListingFields) -> str | None:
        """Return the URL of the job's page by its id."""
        return f"{self.api}/j/{quote(self.external_id(item) or '', safe='')}"

    def location(self, item: ListingFields) -> str | None:
        """Return the place, which stands in the item or in an object of it."""
        inner = ListingFields.of(item.value("location"))
        return _workable_place(item) or item.text("location.location_str") or _workable_place(inner)

    def other_locations(self, item: ListingFields) -> Sequence[str]:
        """Return the places that are not hidden."""
        places = (_workable_place(place) for place in item.each("locations") if not place.is_true("hidden"))
        return list(filter(None, places))

    def department(self, item: ListingFields) -> str | None:
        """Return the department, the first if there are several."""
        return next(iter(item.texts("department")), None)


def _workable_place(item: ListingFields) -> str | None:
    return joined(item.text("city"), item.text("state", "region"), item.text("country"))


class Workday(PagedApiBoard):
    """The API that Workday's career sites use themselves, twenty jobs at a time; more are refused.

    The total is only right on the first page: later pages say 0, and none says more than 2,000. So a full page always
    leads to another whatever its total, and an empty page is the last.
    """

    name = "workday"
    endpoint = "/wday/cxs/<tenant>/<site>/jobs"
    items = "jobPostings"
    total = "total"
    limit = 20
    paths = _PATHS["workday"]

    def site(self) -> str | None:
        """Return the career site that the board's URL names, after a locale or before a job."""
        segments = [unquote(segment) for segment in urlsplit(self.url).path.split("/") if segment]
        if segments[:2] == ["wday", "cxs"]:
            segments = segments[3:]
        if segments and _LOCALE.fullmatch(segments[0]) and len(segments) > 1:
            segments = segments[1:]
        if segments[:1] == ["recruiting"]:
            segments = segments[2:]
        return segments[0] if segments and segments[0] not in {"job", "jobs"} else None

    @property
    def identity(self) -> str | None:
        """Return tenant and site: a tenant may have several."""
        site = self.site()
        return f"{self.token}/{site}" if self.token and site else self.token

    def site_address(self, path: str) -> str:
        """Return the URL of the site's API at the path."""
        site = self.site()
        if site is None:
            raise BadConfig(
                "a workday source needs the address of its career site, such as"
                " https://<tenant>.wd5.myworkdayjobs.com/<site>"
            )
        base = self.api_base or "https://" + urlsplit(self.url).netloc
        return f"{base}/wday/cxs/{quote(self.required_token(), safe='')}/{quote(site, safe='')}{path}"

    def request_at(self, offset: int) -> Request:
        """Return the request for the page that begins at the offset."""
        query: dict[str, object] = {"appliedFacets": {}, "limit": self.limit, "offset": offset, "searchText": ""}
        return Request(url=self.site_address("/jobs"), accept=self.accept, body=json.dumps(query).encode())

    def following(self, previous: Request, page: ApiPage) -> Request | None:
        """Return the next request; None after a page that is not full and reaches the total."""
        requested: object = json.loads(previous.body or b"{}").get("offset", 0)
        end = (requested if isinstance(requested, int) else 0) + len(page.items)
        is_last = not page.items or (len(page.items) < self.limit and end >= (page.total or 0))
        return None if page.is_detail or is_last else self.request_at(end)

    def detail_request(self, listing: Listing) -> Request | None:
        """Return the request for the job's own response: the list has no descriptions."""
        _, job, rest = (listing.url or "").partition(_JOB)
        return Request(url=self.site_address(f"{job}{rest}"), accept=self.accept) if rest else None

    def page(self, document: object) -> ApiPage | None:
        """Return the items of a list, or a posting, which stands beside its company."""
        fields = ListingFields.of(document)
        if isinstance(fields.value("jobPostingInfo"), dict):
            return replace(detail_of(fields.value("jobPostingInfo")), document=fields)
        return super().page(document)

    def external_id(self, item: ListingFields) -> str | None:
        """Return the number at the end of the job's URL: list and detail have it, and it is unique."""
        path = item.text("externalPath", "jobPostingId", "externalUrl") or ""
        _, mark, number = path.rpartition("_")
        fallback = item.text("jobReqId") or next(iter(item.texts("bulletFields")), None)
        return number if mark and number and "/" not in number else fallback or path or None

    def own_page(self, item: ListingFields) -> str | None:
        """Return the URL of the job's page, whose path is relative to the site."""
        path = item.text("externalPath")
        if path is None or not self.url:
            return None
        parts, site = urlsplit(self.url), self.site()
        is_shared_host = parts.path.startswith("/wday/") or "/recruiting/" in parts.path
        folder = f"recruiting/{self.token}/{site}" if is_shared_host else site or ""
        return f"{parts.scheme}://{parts.netloc}/{folder}".rstrip("/") + path

    def location(self, item: ListingFields) -> str | None:
        """Return the place, unless it is a number of places."""
        location = super().location(item)
        return None if location and _COUNTED.fullmatch(location) else location

    def posted(self, item: ListingFields, dates: DateReader) -> tuple[datetime | None, bool]:
        """Return the exact day of a posting, else the "3 days ago" of the list."""
        started, _ = super().posted(item, dates)
        if started is not None:
            return started, False
        stated = item.text("postedOn")
        return date_of(stated, dates), is_relative(stated)


class PersonioConfig(ApiBoardConfig):
    """The config of a board of Personio."""

    language: Annotated[str, StringConstraints(pattern="^[A-Za-z]+$"), accepted("letters such as en or de")] | None = (
        None
    )


class Personio(ApiBoard):
    """The XML feed of a career site (https://developer.personio.de/docs), all at once, in one `language`."""

    name = "personio"
    endpoint = "https://<token>.jobs.personio.de/xml"
    accept = "application/xml, text/xml;q=0.9, */*;q=0.5"
    item_word = "position"
    paths = _PATHS["personio"]

    def checked(self, url: str, config: Mapping[str, object]) -> ApiBoardConfig:
        """Return the checked config, and keep the language, of two letters."""
        entry = PersonioConfig.of(self.name, url, config)
        self.language = entry.language
        return entry

    def site(self) -> str:
        """Return the base URL of the career site."""
        if self.api_base:
            return self.api_base
        end = "com" if ".personio.com" in self.url else "de"
        return f"https://{self.required_token()}.jobs.personio.{end}"

    def address(self) -> str:
        """Return the URL of the whole feed."""
        return f"{self.site()}/xml" + (f"?language={self.language}" if self.language else "")

    def parse(self, body: bytes, content_type: str | None) -> ApiPage:
        """Return the positions of the feed."""
        root = read_xml(body, content_type)
        if root.name != "workzag-jobs":
            raise self.unexpected(f"a document of <{root.name[:60]}>")
        return ApiPage(document=ListingFields({}), items=[_position(element) for element in root.each("position")])

    def own_page(self, item: ListingFields) -> str | None:
        """Return the URL of the job's page."""
        if self.token is None and not self.url:
            return None
        base = urlsplit(self.url or self.site())
        return f"{base.scheme}://{base.netloc}/job/{self.external_id(item)}"

    def employment_type(self, item: ListingFields) -> str | None:
        """Return kind and extent of the employment."""
        return joined(item.text("employmentType"), item.text("schedule"))

    def description(self, item: ListingFields) -> str | None:
        """Return the parts with their headings."""
        parts = item.each("jobDescriptions")
        return description_of(*(f"<h3>{part.markup('name') or ''}</h3>{part.markup('value') or ''}" for part in parts))


def _position(element: XmlElement) -> Mapping[str, object]:
    """Return a position as an object: its texts, and the lists of its offices and descriptions."""
    descriptions = (part for list_ in element.each("jobDescriptions") for part in list_.children)
    return {name: element.text_of(name) for name in {child.name for child in element.children}} | {
        "additionalOffices": [office.text for list_ in element.each("additionalOffices") for office in list_.children],
        "jobDescriptions": [{name: part.text_of(name) for name in ("name", "value")} for part in descriptions],
    }


# The API of Workday's own pages is undocumented: robots.txt applies.
API_PLATFORMS = tuple(
    JobPlatform(name=board.name, version=3, honours_robots=board is Workday, configure=board)
    for board in (Greenhouse, Lever, Ashby, Workday, SmartRecruiters, Recruitee, Workable, Personio)
)
