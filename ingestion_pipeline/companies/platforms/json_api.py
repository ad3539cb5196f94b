"""Boards with an API: one list per response, and a listing for each item by a table of paths.

A platform is a subclass of `ApiBoard` with its endpoint and paths; what these cannot express is an overridden method.
"""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar
from urllib.parse import quote

from ingestion_pipeline.companies.job_listing import Listing, Remote
from ingestion_pipeline.companies.platforms.fields import (
    MAX_TITLE_CHARACTERS,
    ListingFields,
    date_of,
    description_of,
    list_of,
    one_line,
    other_places,
    remote_in,
)
from ingestion_pipeline.companies.platforms.protocol import JobBoard
from ingestion_pipeline.companies.salary import Salary, stated_salary
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.links import absolute_link
from ingestion_pipeline.reading.structured.items import MAX_PROBLEMS, MAX_RECORDS, ParsedFeed, Problem
from ingestion_pipeline.reading.structured.json_items import read_document
from ingestion_pipeline.reading.text.dates import DateReader
from ingestion_pipeline.sources.config_reader import BadConfig, ConfigReader
from ingestion_pipeline.sources.platforms import recognize_platform
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError

_ERROR_KEYS = ("error", "errors", "errorCode", "error_code", "errorMessage")
_STATUS_KEYS = ("status", "httpStatus", "statusCode", "code")
# Transient errors: blocked, time-out, too early, too many requests, server errors.
_PASSING_STATUS = re.compile(r"403|408|425|429|5[0-9]{2}")
_PASSING_WORDS = re.compile(
    r"rate.?limit|too many|throttl|time[d ]*.?out|unavailable|temporar|maintenance|try again", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPage:
    """One response: its items, the total count if it states one, and the whole document."""

    document: ListingFields
    items: Sequence[object]
    total: int | None = None
    is_detail: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingPaths:
    """Where an item states the fields of a listing: paths, of which the first that is not blank counts.

    Each part of `description` has paths of its own. `remote_flags` count where no text of `work_mode` does; `salary`
    has the paths of minimum, maximum, currency and period.
    """

    title: str = "title"
    external_id: Sequence[str] = ("id",)
    url: Sequence[str] = ()
    location: Sequence[str] = ()
    other_locations: str = ""
    posted_at: Sequence[str] = ()
    valid_until: Sequence[str] = ()
    description: Sequence[Sequence[str]] = ()
    company: Sequence[str] = ()
    company_in_document: Sequence[str] = ()
    department: Sequence[str] = ()
    employment_type: Sequence[str] = ()
    work_mode: Sequence[str] = ()
    remote_flags: Sequence[tuple[str, Remote]] = ()
    salary: tuple[str, str, str, str] | None = None


class ApiBoard(JobBoard):
    """A board with an API, identified by its URL or `board_token`; its list is one response."""

    name: ClassVar[str]
    api: ClassVar[str] = ""
    endpoint: ClassVar[str]  # with `<token>` where the board's stands
    accept: ClassVar[str] = "application/json"
    items: ClassVar[str] = "jobs"
    item_word: ClassVar[str] = "item"
    total: ClassVar[str | None] = None
    detail_marks: ClassVar[Sequence[str]] = ()  # texts that a listing has and a list has not
    paths: ClassVar[ListingPaths]

    def __init__(self, url: str, config: Mapping[str, object]) -> None:
        reader = ConfigReader(self.name, config)
        if url:
            reader.checked_address("url", url)
        recognized = recognize_platform(url)
        named = recognized.token if recognized is not None and recognized.name == self.name else None
        self.url = url
        self.token = reader.text("board_token") or named
        self.api_base = (reader.address("api_base") or self.default_api(url)).rstrip("/")
        self.company = reader.text("company")
        self.read_options(reader)
        reader.finish()

    def default_api(self, url: str) -> str:  # noqa: ARG002
        """Return the base of the platform's API."""
        return self.api

    def read_options(self, reader: ConfigReader) -> None:
        """Read the keys that only this platform has."""

    def required_token(self) -> str:
        """Return the token; raise BadConfig if neither URL nor config names it."""
        if self.token is None:
            raise BadConfig(
                f"a {self.name} source needs the token of its board: in its address or as board_token in its config"
            )
        return self.token

    def address(self) -> str:
        """Return the URL of the list."""
        return self.api_base + self.endpoint.replace("<token>", quote(self.required_token(), safe=""))

    def first_request(self) -> Request:
        """Return the request for the first page of the list."""
        return Request(url=self.address(), accept=self.accept)

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),
        now: datetime | None = None,
    ) -> ParsedFeed[Listing]:
        """Return every listing, in page order; what a later page repeats counts once."""
        pages = [self.parse(*pair) for pair in zip(bodies, content_types, strict=True)]
        dates = DateReader(now=now)
        listings: list[Listing] = []
        problems: list[Problem] = []
        for page, url in zip(pages, list(urls) or [self.url] * len(pages), strict=True):
            earlier = {listing.external_id for listing in listings if listing.external_id}
            page_listings = self._listings(page, url, dates, problems)
            listings += [listing for listing in page_listings if listing.external_id not in earlier]
        total = max((page.total or 0 for page in pages), default=0)
        count = sum(len(page.items) for page in pages)
        is_list = bool(pages) and not any(page.is_detail for page in pages)
        return ParsedFeed(
            records=listings,
            problems=problems[:MAX_PROBLEMS],
            is_complete=is_list and not problems and count >= total and self.is_whole(pages),
            notes=[f"{count} of {total} jobs: a part of the list"] if count < total else [],
        )

    def is_whole(self, pages: Sequence[ApiPage]) -> bool:  # noqa: ARG002
        """Return whether no page follows these."""
        return True

    def _listings(self, page: ApiPage, url: str, dates: DateReader, problems: list[Problem]) -> list[Listing]:
        listings: list[Listing] = []
        for position, item in enumerate(page.items[: MAX_RECORDS + 1]):
            listing = self.listing(ListingFields.of(item), page.document, url, dates)
            if listing is not None:
                listings.append(listing)
            else:
                message = "no listing: it has no title or no id; the rest counts"
                problems.append(Problem(where=f"{self.item_word} {position}", message=message))
        if page.items and not listings:
            raise self.unexpected(f"a list of {len(page.items)} that are no listings")
        return listings

    def parse(self, body: bytes, content_type: str | None) -> ApiPage:
        """Return the page of a response; raise the error that it states, or for a response that is no list."""
        document = read_document(body, content_type)
        page = self.page(document)
        error = api_error(ListingFields.of(document), self.name)
        if page is None:
            raise error or self.unexpected(_described(document))
        if error is not None and not page.items:
            raise error
        return page

    def unexpected(self, description: str) -> Permanent:
        """Return the error for a response that is no list of this platform."""
        return Permanent(
            f"not a list of {self.name} but {description}; give the answer of"
            f" {self.endpoint}, or check the source's address and api_base",
            code="unexpected_body",
        )

    def page(self, document: object) -> ApiPage | None:
        """Return the items of a response; None if it is no list."""
        fields = ListingFields.of(document)
        if self.detail_marks and all(map(fields.text, self.detail_marks)):
            return detail_of(document)
        return page_of(document, self.items, total=self.total)

    def listing(self, item: ListingFields, document: ListingFields, url: str, dates: DateReader) -> Listing | None:
        """Return the listing of an item of the response from `url`; None if it has no title or no id."""
        paths = self.paths
        title = one_line(item.value(paths.title), most=MAX_TITLE_CHARACTERS)
        external_id = self.external_id(item)
        if title is None or external_id is None:
            return None
        location = self.location(item)
        posted_at, posted_is_relative = self.posted(item, dates)
        return Listing(
            external_id=external_id,
            title=title,
            url=item.link(url, *paths.url) or absolute_link(url, self.own_page(item)),
            location=location,
            posted_at=posted_at,
            posted_is_relative=posted_is_relative,
            description=self.description(item),
            company=item.text(*paths.company) or document.text(*paths.company_in_document) or self.company,
            department=self.department(item),
            employment_type=self.employment_type(item),
            remote=self.remote(item, location),
            salary=self.salary(item),
            other_locations=other_places(location, self.other_locations(item)),
            valid_until=date_of(item.text(*paths.valid_until), DateReader(now=None)),
        )

    def external_id(self, item: ListingFields) -> str | None:
        """Return the platform's own id of the job."""
        return item.text(*self.paths.external_id)

    def own_page(self, item: ListingFields) -> str | None:  # noqa: ARG002
        """Return the URL of the job's page where the item states none."""
        return None

    def location(self, item: ListingFields) -> str | None:
        """Return the job's first place."""
        return item.text(*self.paths.location)

    def other_locations(self, item: ListingFields) -> Sequence[str]:
        """Return the job's places; the first may be among them."""
        return item.texts(self.paths.other_locations)

    def posted(self, item: ListingFields, dates: DateReader) -> tuple[datetime | None, bool]:
        """Return when the job was posted, and whether that is relative to the time of fetching."""
        return date_of(item.text(*self.paths.posted_at), dates), False

    def description(self, item: ListingFields) -> str | None:
        """Return the job's text."""
        return description_of(*(item.markup(*part) for part in self.paths.description))

    def department(self, item: ListingFields) -> str | None:
        """Return the department in the board's words."""
        return item.text(*self.paths.department)

    def employment_type(self, item: ListingFields) -> str | None:
        """Return the kind of employment in the board's words."""
        return item.text(*self.paths.employment_type)

    def remote(self, item: ListingFields, location: str | None) -> Remote | None:
        """Return the work mode by its own field, by a flag, or by the words of the location."""
        stated = remote_in(item.text(*self.paths.work_mode))
        flagged = next((mode for flag, mode in self.paths.remote_flags if item.is_true(flag)), None)
        return stated or flagged or remote_in(location)

    def salary(self, item: ListingFields) -> Salary | None:
        """Return the pay."""
        return salary_at(item, self.paths.salary) if self.paths.salary else None


class PagedApiBoard(ApiBoard):
    """A board whose list is requested by offset."""

    @abstractmethod
    def request_at(self, offset: int) -> Request:
        """Return the request for the page that begins at the offset."""

    @abstractmethod
    def following(self, previous: Request, page: ApiPage) -> Request | None:
        """Return the request after this page; None at the end."""

    def first_request(self) -> Request:
        """Return the request for the first page."""
        return self.request_at(0)

    def next_request(self, body: bytes, *, previous: Request, url: str = "") -> Request | None:  # noqa: ARG002
        """Return the request for the next page; None at the end."""
        return self.following(previous, self.parse(body, None))

    def is_whole(self, pages: Sequence[ApiPage]) -> bool:
        """Return whether no page follows: totals may be wrong, and pages may have been cut."""
        try:
            request: Request | None = self.first_request()
            for page in pages:
                request = self.following(request, page) if request else None
        except BadConfig:  # a saved body of an unknown board
            return True
        return request is None


def salary_at(item: ListingFields, paths: tuple[str, str, str, str]) -> Salary | None:
    """Return the salary whose minimum, maximum, currency and period are at the paths."""
    minimum, maximum, currency, period = map(item.text, paths)
    return stated_salary(minimum, maximum, currency=currency, period=period)


def page_of(document: object, key: str, *, total: str | None = None) -> ApiPage | None:
    """Return the page whose items are under the key."""
    fields = ListingFields.of(document)
    items = list_of(fields.value(key))
    if items is None:
        return None
    return ApiPage(document=fields, items=items, total=count_of(fields, total) if total else None)


def detail_of(item: object) -> ApiPage:
    """Return a page of one listing."""
    return ApiPage(document=ListingFields.of(item), items=[item], is_detail=True)


def count_of(fields: ListingFields, path: str) -> int | None:
    """Return the count at the path; None if the value is no count."""
    text = fields.text(path) or ""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def api_error(document: ListingFields, platform: str) -> WorkError | None:
    """Return the error that a response states, in its own words; None if it states none."""
    errors = [document.value(key) for key in _ERROR_KEYS if document.value(key)]
    failed = document.value("ok") is False or document.value("success") is False
    status = next(filter(None, (document.text(key) for key in _STATUS_KEYS)), "")
    is_status = re.fullmatch("[45][0-9]{2}", status.removeprefix("HTTP_")) is not None
    if not errors and not failed and not is_status:
        return None
    words = document.text("message", "error", "errorMessage", "detail", "error.message")
    detail = words or str(errors[0] if errors else "no detail given")[:200]
    message = f"{platform} answered with an error {status}: {detail}"
    may_pass = _PASSING_STATUS.search(status) or _PASSING_WORDS.search(detail)
    return (Transient if may_pass else Permanent)(message, code="api_error")


def _described(document: object) -> str:
    if (items := list_of(document)) is not None:
        return f"a JSON list of {len(items)}"
    keys = [key[:40] for key in list(ListingFields.of(document).values)[:10]]
    return f"JSON with the keys {keys}" if keys else f"JSON of type {type(document).__name__}"
