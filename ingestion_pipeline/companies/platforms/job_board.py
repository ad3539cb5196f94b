"""A job board without network access: its protocol, the fields of its responses, and boards with an API.

Fields may be of any type, blank or missing. A board with an API has one list per response, and a listing for each
item by a table of paths: a platform is a subclass of `ApiBoard` with its endpoint and paths; what these cannot
express is an overridden method.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from html import unescape
from typing import ClassVar, cast
from urllib.parse import quote

from ingestion_pipeline.companies.job_listing import Listing, Remote, Salary, stated_salary
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.cleaning import readable
from ingestion_pipeline.reading.html.links import absolute_link
from ingestion_pipeline.reading.html.markdown import to_markdown
from ingestion_pipeline.reading.structured.items import MAX_PROBLEMS, MAX_RECORDS, ParsedFeed, Problem, read_document
from ingestion_pipeline.reading.text.values import MAX_CHARACTERS, DateReader
from ingestion_pipeline.sources.platform_config import PlatformConfig, Text
from ingestion_pipeline.sources.platforms import recognize_platform
from ingestion_pipeline.sources.source import BadConfig
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError, storable


class JobBoard(ABC):
    """A configured board: it builds requests and parses responses."""

    @abstractmethod
    def first_request(self) -> Request:
        """Return the first request of a listing; raise BadConfig if the board is unknown."""

    def next_request(self, body: bytes, *, previous: Request, url: str = "") -> Request | None:  # noqa: ARG002
        """Return the request after `previous`, whose response came from `url`; None at the end."""
        return None

    def detail_request(self, listing: Listing) -> Request | None:  # noqa: ARG002
        """Return the request for a listing's details, for `read`; None if the list has all."""
        return None

    @abstractmethod
    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),
        now: datetime | None = None,
    ) -> ParsedFeed[Listing]:
        """Return every listing of the pages; raise for a body that is no listing.

        `now` is when they were fetched; without it relative dates are not parsed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlatform:
    """A kind of board; `version` changes when the same body would be parsed differently.

    Only a documented API, made for programs, may ignore robots.txt.
    """

    name: str
    version: int
    honours_robots: bool
    configure: Callable[[str, Mapping[str, object]], JobBoard]


MAX_TITLE_CHARACTERS = 500
MAX_TEXT_CHARACTERS = 2_000
MAX_PLACE_CHARACTERS = 500
MAX_DESCRIPTION_CHARACTERS = 200_000  # the longest of our samples has 20,000
MAX_MARKUP_CHARACTERS = 1_000_000  # of a description before parsing

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_MARKUP = re.compile(r"</?[a-z][a-z0-9]*(?:\s[^<>]*)?/?>", re.IGNORECASE)
_ESCAPED_MARKUP = re.compile(r"&(?:amp;)?lt;/?[a-z]", re.IGNORECASE)
MAX_ESCAPES = 2  # once by the board, once more by a proxy
# Line ends escaped once too often: a backslash and an n before markup or white space.
_WRITTEN_LINE_END = re.compile(r"(?:\\r)?\\n(?=\s|<|\\|$)")
_POSTED = re.compile(r"^(?:job )?posted(?: on)?:?\s+", re.IGNORECASE)
_AT_LEAST = re.compile(r"(?<=[0-9])\+(?=\s)")
_UTC = re.compile(r"\s?(?:UTC|Z)$")
_ZONE = re.compile(r"([+-][0-9]{2})([0-9]{2})$")

_REMOTE_WORDS = (
    (Remote.HYBRID, re.compile(r"\bhybrid\b", re.IGNORECASE)),
    (Remote.ON_SITE, re.compile(r"\b(?:on[\s_-]?site|in[\s_-](?:office|person))\b", re.IGNORECASE)),
    (Remote.REMOTE, re.compile(r"\b(?:remote|telecommute|work from home|wfh|home[\s-]?office)\b", re.IGNORECASE)),
)


@dataclass(frozen=True, slots=True)
class ListingFields:
    """A JSON object that may lack any field; names may be paths such as `location.name`.

    A path that leads through a list follows its first item.
    """

    values: Mapping[str, object]

    @classmethod
    def of(cls, value: object) -> "ListingFields":
        """Return the object's fields; empty if the value is no object."""
        return cls(cast("Mapping[str, object]", value) if isinstance(value, dict) else {})

    def value(self, path: str) -> object:
        """Return the value at the path."""
        *outer, last = path.split(".")
        fields = self
        for name in outer:
            inner = fields.values.get(name)
            fields = ListingFields.of(next(iter(inner), None) if isinstance(inner, list) else inner)  # pyright: ignore[reportUnknownArgumentType]
        return fields.values.get(last)

    def text(self, *paths: str) -> str | None:
        """Return the first text or number that is not blank, as one line."""
        return next(filter(None, (one_line(self.value(path)) for path in paths)), None)

    def markup(self, *paths: str) -> str | None:
        """Return the first text that is not blank, unchanged."""
        values = (self.value(path) for path in paths)
        return next((value for value in values if isinstance(value, str) and value.strip()), None)

    def link(self, base: str | None, *paths: str) -> str | None:
        """Return the first link that is not blank as a web address."""
        return absolute_link(base, self.text(*paths))

    def is_true(self, path: str) -> bool:
        """Return whether the value is true or "true"."""
        value = self.value(path)
        return value is True or value == "true"

    def each(self, path: str) -> "list[ListingFields]":
        """Return the objects of a list."""
        return [item for item in map(ListingFields.of, list_of(self.value(path)) or []) if item.values]

    def texts(self, path: str) -> list[str]:
        """Return the texts of a list, of each object of a list on the path, or a single text as a list."""
        first, _, rest = path.partition(".")
        if rest:
            return [text for item in as_list(self.values.get(first)) for text in ListingFields.of(item).texts(rest)]
        return list(filter(None, (one_line(item) for item in as_list(self.values.get(first)))))


def list_of(value: object) -> list[object] | None:
    """Return the items of a list; None if it is no list."""
    return cast("list[object]", value) if isinstance(value, list) else None


def as_list(value: object) -> list[object]:
    """Return the items of a list, or a single value as a list."""
    listed = list_of(value)
    return [value] if listed is None else listed


def one_line(value: object, *, most: int = MAX_TEXT_CHARACTERS) -> str | None:
    """Return text or number as one line that any database accepts; inner spaces are kept."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(ValueError):  # more digits than Python writes
            value = str(value)
    if not isinstance(value, str):
        return None
    return storable(_CONTROL.sub(" ", value[: 2 * most])).strip()[:most].strip() or None


def description_of(*parts: str | None) -> str | None:
    """Return markup (escaped up to twice) or plain text as Markdown, without parts that cannot be parsed."""
    texts = (_described(part[:MAX_MARKUP_CHARACTERS]) for part in parts if part and part.strip())
    text = "\n\n".join(filter(None, texts))
    return storable(text)[:MAX_DESCRIPTION_CHARACTERS].strip() or None


def _described(part: str) -> str:
    part = _WRITTEN_LINE_END.sub("\n", part)
    for _ in range(MAX_ESCAPES):
        if _MARKUP.search(part) or not _ESCAPED_MARKUP.search(part):
            break
        part = unescape(part)
    if not _MARKUP.search(part):
        return readable(unescape(part))
    try:
        return to_markdown(part)
    except Permanent:
        return ""


def date_of(text: str | None, dates: DateReader) -> datetime | None:
    """Return the moment; "Posted 30+ Days Ago" is thirty days ago, the latest it can mean."""
    if text is None:
        return None
    stated = _AT_LEAST.sub("", _POSTED.sub("", text[:MAX_CHARACTERS]))
    return dates.read(_ZONE.sub(r"\1:\2", _UTC.sub("+00:00", stated)))


def is_relative(text: str | None) -> bool:
    """Return whether the moment depends on when the text is read: "3 days ago"."""
    return text is not None and date_of(text, DateReader(now=None)) is None


def remote_in(*texts: str | None) -> Remote | None:
    """Return the work mode of the first text that states one."""
    for text in filter(None, texts):
        for policy, words in _REMOTE_WORDS:
            if words.search(text):
                return policy
    return None


def joined(*parts: str | None) -> str | None:
    """Return the non-empty parts joined by commas, each once."""
    return ", ".join(dict.fromkeys(filter(None, parts))) or None


def other_places(first: str | None, others: Sequence[str]) -> tuple[str, ...]:
    """Return the others without the first, alone or with its country, and without repetitions."""
    return tuple(other for other in dict.fromkeys(others) if not f"{first}, ".startswith(f"{other}, "))


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
    has the paths of minimum, maximum, currency and period, `salary_text` those of words. A list among the paths of
    `location` is one of parts that are joined.
    """

    title: str = "title"
    external_id: Sequence[str] = ("id",)
    url: Sequence[str] = ()
    location: Sequence[str | Sequence[str]] = ()
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
    work_mode_codes: Mapping[str, str] | None = None  # the `path` of a code, and the mode of each code
    salary: tuple[str, str, str, str] | None = None
    salary_text: Sequence[str] = ()


class ApiBoardConfig(PlatformConfig):
    """The config of a board with an API."""

    board_token: Text = None
    company: Text = None


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
        entry = self.checked(url, config)
        recognized = recognize_platform(url)
        named = recognized.token if recognized is not None and recognized.name == self.name else None
        self.url = url
        self.token = entry.board_token or named
        self.api_base = (entry.api_base or self.default_api(url)).rstrip("/")
        self.company = entry.company

    def checked(self, url: str, config: Mapping[str, object]) -> ApiBoardConfig:
        """Return the checked config; raise BadConfig with all its problems."""
        return ApiBoardConfig.of(self.name, url, config)

    def default_api(self, url: str) -> str:  # noqa: ARG002
        """Return the base of the platform's API."""
        return self.api

    @property
    def identity(self) -> str | None:
        """Return what names the board among all of the platform."""
        return self.token

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
            raise error or self.unexpected(_document_shape(document))
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
        stated = (
            next(iter(item.texts(place)), None) if isinstance(place, str) else joined(*map(item.text, place))
            for place in self.paths.location
        )
        return next(filter(None, stated), None)

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
        codes = self.paths.work_mode_codes or {}
        coded = codes.get(item.text(codes.get("path", "")) or "")
        return stated or flagged or (Remote(coded) if coded else None) or remote_in(location)

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


def _document_shape(document: object) -> str:
    if (items := list_of(document)) is not None:
        return f"a JSON list of {len(items)}"
    keys = [key[:40] for key in list(ListingFields.of(document).values)[:10]]
    return f"JSON with the keys {keys}" if keys else f"JSON of type {type(document).__name__}"
