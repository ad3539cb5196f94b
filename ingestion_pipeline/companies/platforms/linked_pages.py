"""What the boards without an API of their own share: one address, pages that link to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ingestion_pipeline.companies.listing import Listing, Remote
from ingestion_pipeline.companies.names import company_slug
from ingestion_pipeline.companies.platforms.fields import (
    MAX_TITLE_CHARACTERS,
    date_of,
    description_of,
    is_relative,
    one_line,
    remote_in,
)
from ingestion_pipeline.companies.platforms.paging import MAX_PAGES, Asking
from ingestion_pipeline.companies.salary import Salary, salary_in, stated_salary
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.links import absolute_link
from ingestion_pipeline.reading.structured.items import Item, Problem, Reading
from ingestion_pipeline.reading.text.dates import DateReader
from ingestion_pipeline.sources.config_reader import BadConfig, ConfigReader
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.urls import host_of, without_credentials

FIELDS = (
    *("title", "url", "external_id", "location", "posted_at", "description", "company"),
    *("department", "employment_type", "remote", "salary"),
    *("salary_min", "salary_max", "salary_currency", "salary_period"),
)
NO_ITEMS = "no_items"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPage:
    """The items of a page, what its links are relative to, and what else is to be said.

    `is_part` where a button loads more of the list, which no link leads to.
    """

    items: Sequence[Item]
    base_url: str
    problems: Sequence[Problem] = ()
    next_url: str | None = None
    is_part: bool = False


class PageReader(Protocol):
    """Reads one page of a list."""

    def read(self, body: bytes, *, url: str, content_type: str | None) -> ListedPage:
        """Every item of the page that came from `url`, in its order; anything else raises."""
        ...

    def next_url(self, body: bytes, *, url: str) -> str | None:
        """The address of the page after this one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardDefaults:
    """What a source's config says of all its listings, and of where they are listed."""

    url: str
    requested_url: str
    company: str | None
    day_first: bool
    is_complete: bool | None  # None: not stated
    is_remote: bool = False
    only_company: str | None = None

    def holds_all(self, listings: Sequence[Listing]) -> bool:
        """Return whether a list that was read to its end has every job there is.

        The config may say so. Else the page of one company has, and a page of several companies'
        jobs is a window on the newest.
        """
        if self.is_complete is not None:
            return self.is_complete
        companies = {company_slug(one.company) for one in listings if one.company}
        return self.only_company is None and len(companies) <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBoard:
    """A list at an address."""

    platform: str
    asking: Asking
    defaults: BoardDefaults
    reader: PageReader

    def first_request(self) -> Request:
        """The first page of the list."""
        if not self.defaults.requested_url:
            raise BadConfig(
                f"a source of {self.platform} needs an address; without one it reads saved bodies"
                " only"
            )
        return self.asking.first(self.defaults.requested_url)

    def next_request(self, body: bytes, *, asked: Request, url: str = "") -> Request | None:
        """The page after this one, by its number or by its link.

        None after an empty page, at the limit, and if it links to none or to itself.

        Raises:
            Permanent: `foreign_next`; a source's pace is kept for its own host alone.
        """
        url = url or asked.url
        if self.asking.paging is not None:
            if not self._page(body, url, None, is_first=asked.page == 1).items:
                return None
            return self.asking.numbered(self.defaults.requested_url, body, asked=asked)
        address = self.reader.next_url(body, url=url)
        if address is None or address in {url, asked.url} or asked.page >= MAX_PAGES:
            return None
        if asked.page > 1 and not self._page(body, url, None, is_first=False).items:
            return None
        if host_of(address) not in {host_of(url), host_of(asked.url)}:
            raise Permanent(
                f"the next page is said to be {without_credentials(address)}, on another host;"
                " add that as a source of its own, or mend next in the config",
                code="foreign_next",
            )
        return self.asking.linked(address, asked=asked)

    def detail_request(self, listing: Listing) -> Request | None:  # noqa: ARG002  what a page holds is not known
        """None: what the listing's own page holds is not known."""
        return None

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),
        now: datetime | None = None,
    ) -> Reading[Listing]:
        """One listing per item, in the order of the pages; the same item twice counts once."""
        where = list(urls) or [self.defaults.requested_url] * len(bodies)
        asked = zip(bodies, content_types, where, strict=True)
        pages = [
            self._page(body, url, type_, is_first=n == 0)
            for n, (body, type_, url) in enumerate(asked)
        ]
        dates = DateReader(now=now, day_first=self.defaults.day_first)
        listings = [
            self._listing(item, page.base_url, dates) for page in pages for item in page.items
        ]
        problems = [problem for page in pages for problem in page.problems]
        is_whole = bool(pages) and not problems and self._is_last(pages, bodies, where)
        return Reading(
            records=[one for one in dict.fromkeys(listings) if self._is_meant(one)],
            problems=problems,
            is_complete=is_whole and self.defaults.holds_all(listings),
        )

    def _page(
        self, body: bytes, url: str, content_type: str | None, *, is_first: bool
    ) -> ListedPage:
        """The page; one without items after the first is behind the last."""
        try:
            return self.reader.read(body, url=url, content_type=content_type)
        except Permanent as error:
            if is_first or error.code != NO_ITEMS:
                raise
            return ListedPage(items=(), base_url=url)

    def _is_last(
        self, pages: Sequence[ListedPage], bodies: Sequence[bytes], urls: Sequence[str]
    ) -> bool:
        """Whether nothing comes behind these pages; cut off at the limit, something may.

        A page that a link leads to and that lists nothing may have failed.
        """
        paging, last = self.asking.paging, pages[-1]
        if paging is None:
            has_items = bool(last.items) or len(pages) == 1
            return has_items and not last.is_part and last.next_url in {None, *urls}
        is_repeated = len(bodies) > 1 and bodies[-1] == bodies[-2]
        return not pages[-1].items or is_repeated or len(pages) < paging.max_pages

    def _is_meant(self, listing: Listing) -> bool:
        """Whether it is of the company that an aggregator is watched for."""
        wanted = self.defaults.only_company
        return wanted is None or wanted.casefold() in (listing.company or "").casefold()

    def _listing(self, item: Item, base_url: str, dates: DateReader) -> Listing:
        location = one_line(item.get("location"))
        posted = one_line(item.get("posted_at"))
        always = Remote.REMOTE if self.defaults.is_remote else None
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
            remote=remote_in(item.get("remote"), location) or always,
            salary=_salary(item),
        )


def _salary(item: Item) -> Salary | None:
    """What its own fields state, else the words."""
    stated = stated_salary(
        item.get("salary_min"),
        item.get("salary_max"),
        currency=item.get("salary_currency"),
        period=item.get("salary_period"),
    )
    words = item.get("salary")
    return stated or (salary_in(words) if words else None)


def read_defaults(url: str, reader: ConfigReader, *, is_window: bool) -> BoardDefaults:
    """The keys that these boards have; the list is at `url`, or at `api_base` if that is set.

    `is_window` where a list has the newest jobs alone unless its config says `complete`.
    """
    return BoardDefaults(
        url=reader.checked_address("url", url) if url else "",
        requested_url=reader.address("api_base", default=url) or url,
        company=reader.text("company"),
        day_first=reader.flag("day_first", default=False),
        is_complete=reader.optional_flag("complete", default=False if is_window else None),
        is_remote=reader.flag("remote_only", default=False),
        only_company=reader.text("company_filter"),
    )


def required_fields(fields: Mapping[str, object], reader: ConfigReader) -> tuple[str, ...]:
    """What an item must have to be a listing: a title, and its address or its id."""
    named = next((name for name in ("url", "external_id") if name in fields), None)
    if "title" not in fields or named is None:
        reader.reject("fields", "needed: title, and url or external_id")
    return ("title", named) if named else ("title",)
