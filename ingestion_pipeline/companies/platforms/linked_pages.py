"""Boards without an API: a list at one URL, whose further pages are numbered or linked to."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ingestion_pipeline.companies.job_listing import Listing, Remote, company_slug, salary_in, stated_salary
from ingestion_pipeline.companies.platforms.job_board import (
    MAX_TITLE_CHARACTERS,
    JobBoard,
    date_of,
    description_of,
    is_relative,
    one_line,
    remote_in,
)
from ingestion_pipeline.pages.http.request import Request, Secret, SecretPlace, is_usable
from ingestion_pipeline.reading.html.links import absolute_link
from ingestion_pipeline.reading.structured.items import Item, JsonPath, ParsedFeed, Problem, read_document
from ingestion_pipeline.reading.text.values import DateReader
from ingestion_pipeline.sources.declarations import BadField, quoted
from ingestion_pipeline.sources.platform_config import (
    Address,
    ConfigSection,
    PlatformConfig,
    Text,
    TrueOrFalse,
    accepted,
    parsed_by,
    whole,
)
from ingestion_pipeline.sources.source import BadConfig
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.urls import host_of, without_credentials

MAX_PAGES = 50
PAGE = "{page}"


class PagingKind(StrEnum):
    """How the next page is addressed."""

    PAGE_NUM = "page_num"
    OFFSET = "offset"
    CURSOR = "cursor"
    URL_TEMPLATE = "url_template"


# Default query parameters by kind; the first offset is 0 by default, the first page 1.
_PARAMETERS = {PagingKind.PAGE_NUM: "page", PagingKind.OFFSET: "offset", PagingKind.CURSOR: "cursor"}


class Paging(ConfigSection):
    """Where the number, offset or cursor of a page goes."""

    kind: Annotated[PagingKind, accepted(", ".join(PagingKind))] = PagingKind.PAGE_NUM
    parameter: Text = None
    first: Annotated[int, whole(0, 1_000_000)] | None = None
    size: Annotated[int, whole(1, 10_000)] = 0
    size_parameter: Text = None
    cursor: Annotated[JsonPath | None, parsed_by(JsonPath.of)] = None
    url_template: Address = ""
    max_pages: Annotated[int, whole(1, MAX_PAGES)] = MAX_PAGES

    @classmethod
    def mistakes(cls, values: Mapping[str, Any]) -> Iterator[BadField]:
        """Yield the problems of keys that a kind needs, or cannot have."""
        kind = values.get("kind", PagingKind.PAGE_NUM)
        if kind == PagingKind.URL_TEMPLATE and PAGE not in str(values.get("url_template")):
            yield BadField("url_template", f"needed: an address with {PAGE} in it")
        if kind == PagingKind.OFFSET and "size" not in values:
            yield BadField("size", "needed: how many jobs a page has, by which the offset grows")
        if kind == PagingKind.CURSOR and not values.get("cursor"):
            yield BadField("cursor", "needed: the path to the cursor of the next page")
        if kind != PagingKind.CURSOR and "cursor" in values:
            yield BadField("cursor", f"belongs to kind cursor; this is {quoted(kind)}")


class Auth(ConfigSection):
    """The `place` of a secret, its `name`, and the variable `env` it is from."""

    place: Annotated[SecretPlace, accepted(", ".join(SecretPlace))] = SecretPlace.BEARER
    env: Text = None
    name: Text = None

    @classmethod
    def mistakes(cls, values: Mapping[str, Any]) -> Iterator[BadField]:
        """Yield the problems of a variable or name that is missing or cannot be used."""
        variable, name = (str(values.get(key, "")).strip() for key in ("env", "name"))
        if not is_usable(variable):
            yield BadField("env", "needed: the name of an environment variable that holds the secret, none of ours")
        plain = name.replace("-", "").replace("_", "")
        if values.get("place", SecretPlace.BEARER) != SecretPlace.BEARER and not (plain.isascii() and plain.isalnum()):
            yield BadField("name", "needed: the name of the header or of the parameter")

    @property
    def secret(self) -> Secret:
        """Return the secret by the name of its variable."""
        return Secret(place=self.place, variable=self.env or "", name=self.name or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBuilder:
    """Builder of a list's requests, page by page."""

    accept: str
    body: Mapping[str, object] | None = None
    secret: Secret | None = None
    paging: Paging | None = None

    def first(self, url: str) -> Request:
        """Return the first request of the list at `url`."""
        return self._page(url, 1, None)

    def linked(self, url: str, *, previous: Request) -> Request:
        """Return the request for a page that the previous one links to."""
        return replace(self._request(url, {}), page=previous.page + 1)

    def numbered(self, url: str, body: bytes, *, previous: Request) -> Request | None:
        """Return the request after a non-empty page; None at the limit or the end."""
        paging = self.paging
        if paging is None or previous.page >= paging.max_pages:
            return None
        following = None
        if paging.cursor is not None:
            following = paging.cursor.follow(read_document(body, None))
            if not isinstance(following, str) or not following:
                return None
        return self._page(url, previous.page + 1, following)

    def _page(self, url: str, page: int, cursor: str | None) -> Request:
        paging = self.paging
        if paging is None:
            return self._request(url, {})
        values: dict[str, object] = {}
        if paging.size_parameter and paging.size:
            values[paging.size_parameter] = paging.size
        parameter = paging.parameter or _PARAMETERS.get(paging.kind, "")
        first = paging.first if paging.first is not None else int(paging.kind is not PagingKind.OFFSET)
        match paging.kind:
            case PagingKind.URL_TEMPLATE:
                url = paging.url_template.replace(PAGE, str(first + page - 1))
            case PagingKind.PAGE_NUM:
                values[parameter] = first + page - 1
            case PagingKind.OFFSET:
                values[parameter] = first + (page - 1) * paging.size
            case PagingKind.CURSOR:
                values |= {} if cursor is None else {parameter: cursor}
        return replace(
            self._request(url, values), page=page, may_be_missing=page > 1 and paging.kind is not PagingKind.CURSOR
        )

    def _request(self, url: str, values: Mapping[str, object]) -> Request:
        """Put the values into the body of a POST, else into the URL."""
        if self.body is not None:
            body = json.dumps({**self.body, **values}).encode()
            return Request(url=url, accept=self.accept, body=body, secret=self.secret)
        if values:
            parts = urlsplit(url)
            existing = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in values]
            url = urlunsplit(parts._replace(query=urlencode([*existing, *values.items()])))
        return Request(url=url, accept=self.accept, secret=self.secret)


FIELDS = (
    *("title", "url", "external_id", "location", "posted_at", "description", "company"),
    *("department", "employment_type", "remote", "salary"),
    *("salary_min", "salary_max", "salary_currency", "salary_period"),
)
NO_ITEMS = "no_items"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPage:
    """A page's items, link base, problems and next page; `is_part` if a button, not a link, loads more."""

    items: Sequence[Item]
    base_url: str
    problems: Sequence[Problem] = ()
    next_url: str | None = None
    is_part: bool = False


class PageReader(ABC):
    """Reader of one page of a list."""

    @abstractmethod
    def read(self, body: bytes, *, url: str, content_type: str | None) -> ListedPage:
        """Return every item of the page from `url`, in order; raise for anything else."""

    def next_url(self, body: bytes, *, url: str) -> str | None:  # noqa: ARG002
        """Return the URL of the next page that the page links to."""
        return None


class BoardConfig(PlatformConfig):
    """What a source's config states about all its listings, and where they are listed."""

    company: Text = None
    day_first: TrueOrFalse = False
    complete: TrueOrFalse | None = None
    remote_only: TrueOrFalse = False
    company_filter: Text = None

    def holds_all(self, listings: Sequence[Listing]) -> bool:
        """Return whether a list that was read to its end has every job there is.

        The config may say so. Otherwise the page of one company does, and a page with jobs of
        several companies is a window on the newest.
        """
        if self.complete is not None:
            return self.complete
        companies = {company_slug(listing.company) for listing in listings if listing.company}
        return self.company_filter is None and len(companies) <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBoard(JobBoard):
    """A list of jobs at a URL."""

    platform: str
    requests: RequestBuilder
    defaults: BoardConfig
    reader: PageReader

    def first_request(self) -> Request:
        """Return the request for the first page of the list."""
        if not self.defaults.requested_url:
            raise BadConfig(f"a source of {self.platform} needs an address; without one it reads saved bodies only")
        return self.requests.first(self.defaults.requested_url)

    def next_request(self, body: bytes, *, previous: Request, url: str = "") -> Request | None:
        """Return the request for the next page, by its number or by its link.

        None after an empty page, at the limit, and if it links to no page or to itself.

        Raises:
            Permanent: `foreign_next`; the rate limit of a source covers its own host only.
        """
        url = url or previous.url
        if self.requests.paging is not None:
            if not self._page(body, url, None, is_first=previous.page == 1).items:
                return None
            return self.requests.numbered(self.defaults.requested_url, body, previous=previous)
        address = self.reader.next_url(body, url=url)
        if address is None or address in {url, previous.url} or previous.page >= MAX_PAGES:
            return None
        if previous.page > 1 and not self._page(body, url, None, is_first=False).items:
            return None
        if host_of(address) not in {host_of(url), host_of(previous.url)}:
            raise Permanent(
                f"the next page is {without_credentials(address)}, on another host;"
                " add that as a source of its own, or fix next in the config",
                code="foreign_next",
            )
        return self.requests.linked(address, previous=previous)

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),
        now: datetime | None = None,
    ) -> ParsedFeed[Listing]:
        """Return one listing per item, in page order; the same item twice counts once."""
        where = list(urls) or [self.defaults.requested_url] * len(bodies)
        responses = zip(bodies, content_types, where, strict=True)
        pages = [self._page(body, url, type_, is_first=n == 0) for n, (body, type_, url) in enumerate(responses)]
        dates = DateReader(now=now, day_first=self.defaults.day_first)
        listings = [self._listing(item, page.base_url, dates) for page in pages for item in page.items]
        problems = [problem for page in pages for problem in page.problems]
        is_whole = bool(pages) and not problems and self._is_last(pages, bodies, where)
        return ParsedFeed(
            records=[listing for listing in dict.fromkeys(listings) if self._is_meant(listing)],
            problems=problems,
            is_complete=is_whole and self.defaults.holds_all(listings),
        )

    def _page(self, body: bytes, url: str, content_type: str | None, *, is_first: bool) -> ListedPage:
        """Parse the page; a later page without items is past the last one."""
        try:
            return self.reader.read(body, url=url, content_type=content_type)
        except Permanent as error:
            if is_first or error.code != NO_ITEMS:
                raise
            return ListedPage(items=(), base_url=url)

    def _is_last(self, pages: Sequence[ListedPage], bodies: Sequence[bytes], urls: Sequence[str]) -> bool:
        """Return whether no page follows these; if cut off at the limit, one may.

        A linked page that lists nothing may have failed.
        """
        paging, last = self.requests.paging, pages[-1]
        if paging is None:
            has_items = bool(last.items) or len(pages) == 1
            return has_items and not last.is_part and last.next_url in {None, *urls}
        is_repeated = len(bodies) > 1 and bodies[-1] == bodies[-2]
        return not pages[-1].items or is_repeated or len(pages) < paging.max_pages

    def _is_meant(self, listing: Listing) -> bool:
        """Return whether it is of the company that an aggregator is polled for."""
        company = self.defaults.company_filter
        return company is None or company.casefold() in (listing.company or "").casefold()

    def _listing(self, item: Item, base_url: str, dates: DateReader) -> Listing:
        location = one_line(item.get("location"))
        posted = one_line(item.get("posted_at"))
        words = item.get("salary")
        stated_pay = stated_salary(
            item.get("salary_min"),
            item.get("salary_max"),
            currency=item.get("salary_currency"),
            period=item.get("salary_period"),
        )
        url = absolute_link(base_url or self.defaults.url, item.get("url"))
        return Listing(
            external_id=one_line(item.get("external_id")) or url,
            title=one_line(item.get("title"), most=MAX_TITLE_CHARACTERS) or "",
            url=url,
            location=location,
            posted_at=date_of(posted, dates),
            posted_is_relative=is_relative(posted),
            description=description_of(item.get("description")),
            company=one_line(item.get("company")) or self.defaults.company,
            department=one_line(item.get("department")),
            employment_type=one_line(item.get("employment_type")),
            remote=remote_in(item.get("remote"), location) or (Remote.REMOTE if self.defaults.remote_only else None),
            salary=stated_pay or (salary_in(words) if words else None),
        )
