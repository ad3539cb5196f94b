"""What the platforms with a JSON API share: one list in an answer, a listing for each item."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ingestion_pipeline.companies.listing import Listing
from ingestion_pipeline.companies.platforms.fields import ListingFields, date_of, list_of
from ingestion_pipeline.companies.platforms.protocol import AddressPlace, JobPlatform, read_place
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.structured.items import MAX_PROBLEMS, MAX_RECORDS, Problem, Reading
from ingestion_pipeline.reading.structured.json_items import read_document
from ingestion_pipeline.reading.text.dates import DateReader
from ingestion_pipeline.sources.config_reader import BadConfig, ConfigReader
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError

ACCEPT = "application/json"

_ERROR_KEYS = ("error", "errors", "errorCode", "error_code", "errorMessage")
_STATUS_KEYS = ("status", "httpStatus", "statusCode", "code")
# Refusals that pass: blocked, time-out, too early, too many requests; the server's own.
_PASSING_STATUS = re.compile(r"403|408|425|429|5[0-9]{2}")
_PASSING_WORDS = re.compile(
    r"rate.?limit|too many|throttl|time[d ]*.?out|unavailable|temporar|maintenance|try again",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPage:
    """One answer: its items, how many there are in all if it says so, and the whole document."""

    document: ListingFields
    items: Sequence[object]
    total: int | None = None
    is_detail: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """What is known beside the item: whose board, what is said of all, how to read dates."""

    place: AddressPlace
    document: ListingFields
    url: str
    dates: DateReader

    def date(self, text: str | None) -> datetime | None:
        """The moment that a text of the answer states, if it has passed."""
        return date_of(text, self.dates)

    def deadline(self, text: str | None) -> datetime | None:
        """The moment that a text states, which may be still to come."""
        return date_of(text, DateReader(now=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonApi:
    """A platform's API: what is asked, where the answer has its items, what an item says.

    `page` gives None for an answer that is no listing; `listing` None for an item that is none.
    """

    wanted: str
    first: Callable[[AddressPlace], Request]
    page: Callable[[object], ApiPage | None]
    listing: Callable[[ListingFields, JobContext], Listing | None]
    next: Callable[[AddressPlace, Request, ApiPage], Request | None] | None = None
    detail: Callable[[AddressPlace, Listing], Request | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonBoard:
    """A board behind a JSON API."""

    place: AddressPlace
    api: JsonApi

    def first_request(self) -> Request:
        """The first page of the list."""
        return self.api.first(self.place)

    def next_request(self, body: bytes, *, asked: Request, url: str = "") -> Request | None:  # noqa: ARG002  pages are asked for by number
        """The page after this one; None at the end, and where all come at once."""
        if self.api.next is None:
            return None
        return self.api.next(self.place, asked, self._page(body, None))

    def detail_request(self, listing: Listing) -> Request | None:
        """The listing alone, where the list leaves something out."""
        return self.api.detail(self.place, listing) if self.api.detail else None

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),
        now: datetime | None = None,
    ) -> Reading[Listing]:
        """Every listing, in the order of the pages; what a later page repeats counts once.

        Complete if nothing was unreadable and as many came as the answers say there are.
        """
        pages = [self._page(*pair) for pair in zip(bodies, content_types, strict=True)]
        where = list(urls) or [self.place.url] * len(pages)
        dates = DateReader(now=now)
        listings: list[Listing] = []
        problems: list[Problem] = []
        for page, url in zip(pages, where, strict=True):
            known = JobContext(place=self.place, document=page.document, url=url, dates=dates)
            earlier = {one.external_id for one in listings if one.external_id}
            found = self._listings(page, known, problems)
            listings += [one for one in found if one.external_id not in earlier]
        total = max((page.total or 0 for page in pages), default=0)
        count = sum(len(page.items) for page in pages)
        is_list = bool(pages) and not any(page.is_detail for page in pages)
        return Reading(
            records=listings,
            problems=problems[:MAX_PROBLEMS],
            is_complete=is_list and not problems and count >= total and self._is_whole(pages),
            notes=[f"{count} of {total} jobs: a part of the list"] if count < total else [],
        )

    def _is_whole(self, pages: Sequence[ApiPage]) -> bool:
        """Whether nothing follows the last page: a total may lie, and pages may have been cut."""
        if self.api.next is None:
            return True
        try:
            asked: Request | None = self.first_request()
            for page in pages:
                asked = self.api.next(self.place, asked, page) if asked else None
        except BadConfig:  # a saved body, of nobody knows whose board
            return True
        return asked is None

    def _listings(self, page: ApiPage, known: JobContext, problems: list[Problem]) -> list[Listing]:
        found: list[Listing] = []
        for position, item in enumerate(page.items[: MAX_RECORDS + 1]):
            listing = self.api.listing(ListingFields.of(item), known)
            if listing is not None:
                found.append(listing)
            else:
                message = "no listing: it has no title or no id; the rest counts"
                problems.append(Problem(where=f"item {position}", message=message))
        if page.items and not found:
            raise self._unexpected(f"a list of {len(page.items)} that are no listings")
        return found

    def _page(self, body: bytes, content_type: str | None) -> ApiPage:
        document = read_document(body, content_type)
        page = self.api.page(document)
        error = api_error(ListingFields.of(document), self.place.platform)
        if page is None:
            raise error or self._unexpected(_described(document))
        if error is not None and not page.items:
            raise error
        return page

    def _unexpected(self, found: str) -> Permanent:
        return Permanent(
            f"not a list of {self.place.platform} but {found}; give the answer of"
            f" {self.api.wanted}, or check the source's address and api_base",
            code="unexpected_body",
        )


def api_platform(
    name: str, api: JsonApi, *, api_base: str = "", honours_robots: bool = False
) -> JobPlatform:
    """The platform whose boards are told apart by `board_token` or by their address."""

    def configure(url: str, config: Mapping[str, object]) -> JsonBoard:
        reader = ConfigReader(name, config)
        place = read_place(reader, url, platform=name, api_base=api_base)
        reader.finish()
        return JsonBoard(place=place, api=api)

    return JobPlatform(name=name, version=2, honours_robots=honours_robots, configure=configure)


def page_of(document: object, key: str, *, total: str | None = None) -> ApiPage | None:
    """The page whose items stand under the key."""
    fields = ListingFields.of(document)
    items = list_of(fields.value(key))
    if items is None:
        return None
    return ApiPage(document=fields, items=items, total=count_of(fields, total) if total else None)


def detail_of(item: object) -> ApiPage:
    """A page that is one listing."""
    return ApiPage(document=ListingFields.of(item), items=[item], is_detail=True)


def count_of(fields: ListingFields, path: str) -> int | None:
    """The number of things that stands at the path; None for what can be none."""
    text = fields.text(path) or ""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def api_error(document: ListingFields, platform: str) -> WorkError | None:
    """The error that an answer is, in its own words; None if it is none."""
    said = [document.value(key) for key in _ERROR_KEYS if document.value(key)]
    failed = document.value("ok") is False or document.value("success") is False
    status = next(filter(None, (document.text(key) for key in _STATUS_KEYS)), "")
    is_status = re.fullmatch("[45][0-9]{2}", status.removeprefix("HTTP_")) is not None
    if not said and not failed and not is_status:
        return None
    words = document.text("message", "error", "errorMessage", "detail", "error.message")
    detail = words or str(said[0] if said else "no detail given")[:200]
    message = f"{platform} answered with an error {status}: {detail}"
    may_pass = _PASSING_STATUS.search(status) or _PASSING_WORDS.search(detail)
    return (Transient if may_pass else Permanent)(message, code="api_error")


def _described(document: object) -> str:
    if (items := list_of(document)) is not None:
        return f"a JSON list of {len(items)}"
    keys = [key[:40] for key in list(ListingFields.of(document).values)[:10]]
    return f"JSON with the keys {keys}" if keys else f"JSON of type {type(document).__name__}"
