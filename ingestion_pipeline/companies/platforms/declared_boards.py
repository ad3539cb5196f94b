"""The platforms that `declared_boards.yaml` describes; the file says what its keys mean."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import ClassVar
from urllib.parse import quote, unquote, urlsplit

from pydantic import TypeAdapter

from ingestion_pipeline.companies.job_listing import Listing, Salary, salary_in
from ingestion_pipeline.companies.platforms.job_board import (
    ApiPage,
    JobPlatform,
    ListingFields,
    ListingPaths,
    PagedApiBoard,
    count_of,
    detail_of,
    list_of,
    other_places,
)
from ingestion_pipeline.companies.platforms.job_lists import script_data
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.links import absolute_link
from ingestion_pipeline.reading.structured.items import FieldSelector, HtmlPage, HtmlReader, ParsedFeed
from ingestion_pipeline.reading.text.plain_text import packaged_data
from ingestion_pipeline.sources.platforms import recognize_platform
from ingestion_pipeline.sources.source import BadConfig
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.urls import host_of

HTML_ACCEPT = "text/html, application/xhtml+xml, */*;q=0.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredPlatform:
    """A platform of the file."""

    paths: ListingPaths
    endpoint: str
    api: str = ""
    site: Sequence[re.Pattern[str]] = ()
    items: str = ""
    total: str | None = None
    next: str | None = None
    page_size: int | None = None
    first_page: int = 1
    detail: str | None = None
    detail_mark: str = ""
    detail_item: str = ""
    script: str | None = None
    rows: str | None = None
    mark: str = ""
    selectors: Mapping[str, Sequence[str]] | None = None
    id_in_url: re.Pattern[str] | None = None
    own_page: str | None = None
    is_api: bool = False


class DeclaredBoard(PagedApiBoard):
    """A board by its declaration."""

    declaration: ClassVar[DeclaredPlatform]

    def default_api(self, url: str) -> str:
        """Return the board's own host if the platform gives each board one; else the platform's."""
        recognized = recognize_platform(url)
        is_own = recognized is not None and recognized.name == self.name
        has_hosts = "<token>" in self.api or not self.api
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc}" if is_own and has_hosts else self.api

    @cached_property
    def site(self) -> str | None:
        """Return which board of the tenant it is."""
        matches = (pattern.search(self.url) for pattern in self.declaration.site)
        return next((unquote(match[1]) for match in matches if match), None)

    @property
    def identity(self) -> str | None:
        """Return the token and, of a tenant with several boards, the site."""
        tenant = self.token or (host_of(self.url) if self.declaration.site else None)
        return f"{tenant}/{self.site}" if self.site else tenant

    def request_at(self, offset: int) -> Request:
        """Return the request for the page that begins at the item; each page is one where its size is unknown."""
        number = offset // (self.declaration.page_size or 1)
        page = {"page": str(number + self.declaration.first_page), "offset": str(offset)}
        return Request(url=self._address(self.endpoint, page), accept=self.accept, page=number + 1)

    def following(self, previous: Request, page: ApiPage) -> Request | None:
        """Return the next page's request; None after an empty page, or one that reaches the total."""
        if self.declaration.next is not None:
            address = page.document.link(previous.url, self.declaration.next)
            is_here = address is not None and host_of(address) == host_of(previous.url)
            return replace(previous, url=address, page=previous.page + 1) if address and is_here else None
        size = self.declaration.page_size
        if size is None or page.is_detail or not page.items:
            return None
        is_last = previous.page * size >= page.total if page.total is not None else len(page.items) < size
        return None if size and is_last else self.request_at(previous.page * (size or 1))

    def detail_request(self, listing: Listing) -> Request | None:
        """Return the request for the job's own response."""
        if self.declaration.detail is None or not listing.external_id:
            return None
        return Request(url=self._address(self.declaration.detail, {"id": listing.external_id}), accept=self.accept)

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),
        now: datetime | None = None,
    ) -> ParsedFeed[Listing]:
        """Return every listing; a job that is listed once for each of its places is one with all of them."""
        feed = super().read(bodies, content_types=content_types, urls=urls, now=now)
        by_id: dict[str | None, Listing] = {}
        for listing in feed.records:
            first = by_id.setdefault(listing.external_id, listing)
            places = (*first.other_locations, *filter(None, (listing.location,)), *listing.other_locations)
            by_id[listing.external_id] = replace(first, other_locations=other_places(first.location, places))
        return replace(feed, records=list(by_id.values()))

    def parse(self, body: bytes, content_type: str | None) -> ApiPage:
        """Return the jobs of a response, or of a page with its rows or the data of its script."""
        if self.declaration.rows is not None:
            selectors = self.declaration.selectors or {}
            fields = {name: [FieldSelector.of(text) for text in texts] for name, texts in selectors.items()}
            rows = HtmlReader(items=self.declaration.rows, fields=fields, required=("title", "url"), may_be_empty=True)
            html = HtmlPage.of(body, content_type)
            if not html.has(self.declaration.mark):
                raise self.unexpected(f"a page without {self.declaration.mark} ({html.described()})")
            return ApiPage(document=ListingFields({}), items=rows.read_page(html, url=self.url).reading.records)
        if self.declaration.script is not None:
            try:
                body, content_type = script_data(body, content_type, self.declaration.script), None
            except Permanent as error:
                raise self.unexpected(error.text) from error
        return super().parse(body, content_type)

    def page(self, document: object) -> ApiPage | None:
        """Return the items of a list, or a job by the mark of its response."""
        fields = ListingFields.of(document)
        if self.declaration.detail_mark and fields.text(self.declaration.detail_mark):
            item = fields.value(self.declaration.detail_item) if self.declaration.detail_item else document
            return detail_of(next(iter(list_of(item) or [item])))
        items = list_of(fields.value(self.items) if self.items else document)
        if items is None:
            return None
        return ApiPage(document=fields, items=items, total=count_of(fields, self.total) if self.total else None)

    def external_id(self, item: ListingFields) -> str | None:
        """Return the id by its path, else from the job's URL."""
        if (stated := super().external_id(item)) or self.declaration.id_in_url is None:
            return stated
        match = self.declaration.id_in_url.search(item.text(*self.paths.url) or "")
        return match[1] if match else None

    def own_page(self, item: ListingFields) -> str | None:
        """Return the job's page."""
        template, external_id = self.declaration.own_page, self.external_id(item)
        if template is None or external_id is None:
            return None
        try:
            return absolute_link(self.url or None, self._filled(template, {"id": external_id}))
        except BadConfig:  # a saved body of an unknown board
            return None

    def salary(self, item: ListingFields) -> Salary | None:
        """Return the pay by its fields, else by its text."""
        text = item.text(*self.paths.salary_text)
        return super().salary(item) or (salary_in(text) if text else None)

    def _address(self, endpoint: str, values: Mapping[str, str]) -> str:
        if not self.api_base:
            raise BadConfig(f"a {self.name} source needs the address of its career site")
        return self._filled(self.api_base + endpoint, values)

    def _filled(self, template: str, values: Mapping[str, str]) -> str:
        """Fill in the places of a template; raise BadConfig for a token or site that the source does not name."""
        for name, value in ({"base": self.api_base} | dict(values)).items():
            template = template.replace(f"<{name}>", value if name == "base" else quote(value, safe=""))
        if "<site>" in template:
            if self.site is None:
                raise BadConfig(f"a {self.name} source needs the address of its career site, with its name in it")
            template = template.replace("<site>", quote(self.site, safe=""))
        return template.replace("<token>", quote(self.required_token(), safe="")) if "<token>" in template else template


def _board(name: str, declared: DeclaredPlatform) -> type[DeclaredBoard]:
    is_page = declared.rows is not None or declared.script is not None
    attributes: dict[str, object] = {
        "name": name,
        "api": declared.api,
        "endpoint": declared.endpoint,
        "items": declared.items,
        "total": declared.total,
        "paths": declared.paths,
        "declaration": declared,
    }
    return type(name, (DeclaredBoard,), attributes | ({"accept": HTML_ACCEPT} if is_page else {}))


_DECLARED = TypeAdapter(dict[str, DeclaredPlatform]).validate_python(
    packaged_data("ingestion_pipeline.companies.platforms", "declared_boards.yaml")
)
DECLARED_PLATFORMS = tuple(
    JobPlatform(name=name, version=1, honours_robots=not declared.is_api, configure=_board(name, declared))
    for name, declared in _DECLARED.items()
)
