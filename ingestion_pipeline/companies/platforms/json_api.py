"""Shared parts of platforms with a JSON API: one list per response, a listing for each item."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ingestion_pipeline.companies.listing import Listing
from ingestion_pipeline.companies.platforms.fields import ListingFields, date_of, list_of
from ingestion_pipeline.companies.platforms.protocol import BoardAddress, JobPlatform, read_board_address
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.structured.items import MAX_PROBLEMS, MAX_RECORDS, ParsedFeed, Problem
from ingestion_pipeline.reading.structured.json_items import read_document
from ingestion_pipeline.reading.text.dates import DateReader
from ingestion_pipeline.sources.config_reader import BadConfig, ConfigReader
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError

ACCEPT = "application/json"

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
class JobContext:
    """Context of an item: its board, the response document, and how to parse dates."""

    board: BoardAddress
    document: ListingFields
    url: str
    dates: DateReader

    def date(self, text: str | None) -> datetime | None:
        """Return the moment that a text of the response states, if it has passed."""
        return date_of(text, self.dates)

    def deadline(self, text: str | None) -> datetime | None:
        """Return the moment that a text states, which may be in the future."""
        return date_of(text, DateReader(now=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonApi:
    """A platform's API: its requests, where a response has its items, how an item is parsed.

    `page` returns None for a response that is no list; `listing` None for an item that is no
    listing.
    """

    endpoint: str
    first: Callable[[BoardAddress], Request]
    page: Callable[[object], ApiPage | None]
    listing: Callable[[ListingFields, JobContext], Listing | None]
    next: Callable[[BoardAddress, Request, ApiPage], Request | None] | None = None
    detail: Callable[[BoardAddress, Listing], Request | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonBoard:
    """A board with a JSON API."""

    board: BoardAddress
    api: JsonApi

    def first_request(self) -> Request:
        """Return the request for the first page of the list."""
        return self.api.first(self.board)

    def next_request(self, body: bytes, *, previous: Request, url: str = "") -> Request | None:  # noqa: ARG002  pages are requested by number
        """Return the request for the next page; None at the end, or if there is one page only."""
        if self.api.next is None:
            return None
        return self.api.next(self.board, previous, self._page(body, None))

    def detail_request(self, listing: Listing) -> Request | None:
        """Return the request for one listing, if the list leaves something out."""
        return self.api.detail(self.board, listing) if self.api.detail else None

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),
        now: datetime | None = None,
    ) -> ParsedFeed[Listing]:
        """Return every listing, in page order; what a later page repeats counts once.

        Complete if nothing was unreadable and there are as many as the stated total.
        """
        pages = [self._page(*pair) for pair in zip(bodies, content_types, strict=True)]
        where = list(urls) or [self.board.url] * len(pages)
        dates = DateReader(now=now)
        listings: list[Listing] = []
        problems: list[Problem] = []
        for page, url in zip(pages, where, strict=True):
            context = JobContext(board=self.board, document=page.document, url=url, dates=dates)
            earlier = {listing.external_id for listing in listings if listing.external_id}
            page_listings = self._listings(page, context, problems)
            listings += [listing for listing in page_listings if listing.external_id not in earlier]
        total = max((page.total or 0 for page in pages), default=0)
        count = sum(len(page.items) for page in pages)
        is_list = bool(pages) and not any(page.is_detail for page in pages)
        return ParsedFeed(
            records=listings,
            problems=problems[:MAX_PROBLEMS],
            is_complete=is_list and not problems and count >= total and self._is_whole(pages),
            notes=[f"{count} of {total} jobs: a part of the list"] if count < total else [],
        )

    def _is_whole(self, pages: Sequence[ApiPage]) -> bool:
        """Return whether no page follows: totals may be wrong, and pages may have been cut."""
        if self.api.next is None:
            return True
        try:
            request: Request | None = self.first_request()
            for page in pages:
                request = self.api.next(self.board, request, page) if request else None
        except BadConfig:  # a saved body of an unknown board
            return True
        return request is None

    def _listings(self, page: ApiPage, context: JobContext, problems: list[Problem]) -> list[Listing]:
        listings: list[Listing] = []
        for position, item in enumerate(page.items[: MAX_RECORDS + 1]):
            listing = self.api.listing(ListingFields.of(item), context)
            if listing is not None:
                listings.append(listing)
            else:
                message = "no listing: it has no title or no id; the rest counts"
                problems.append(Problem(where=f"item {position}", message=message))
        if page.items and not listings:
            raise self._unexpected(f"a list of {len(page.items)} that are no listings")
        return listings

    def _page(self, body: bytes, content_type: str | None) -> ApiPage:
        document = read_document(body, content_type)
        page = self.api.page(document)
        error = api_error(ListingFields.of(document), self.board.platform)
        if page is None:
            raise error or self._unexpected(_described(document))
        if error is not None and not page.items:
            raise error
        return page

    def _unexpected(self, description: str) -> Permanent:
        return Permanent(
            f"not a list of {self.board.platform} but {description}; give the answer of"
            f" {self.api.endpoint}, or check the source's address and api_base",
            code="unexpected_body",
        )


def api_platform(name: str, api: JsonApi, *, api_base: str = "", honours_robots: bool = False) -> JobPlatform:
    """Return a platform whose boards are identified by `board_token` or by URL."""

    def configure(url: str, config: Mapping[str, object]) -> JsonBoard:
        reader = ConfigReader(name, config)
        board = read_board_address(reader, url, platform=name, api_base=api_base)
        reader.finish()
        return JsonBoard(board=board, api=api)

    return JobPlatform(name=name, version=2, honours_robots=honours_robots, configure=configure)


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
