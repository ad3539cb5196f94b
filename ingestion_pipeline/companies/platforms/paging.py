"""Requests of configured lists: method, secret, and the pages after the first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ingestion_pipeline.pages.http.request import Request, Secret, SecretPlace
from ingestion_pipeline.pages.http.secrets import is_usable
from ingestion_pipeline.reading.structured.json_items import BadJsonPath, JsonPath, read_document
from ingestion_pipeline.sources.config_reader import ConfigReader

MAX_PAGES = 50
PAGE = "{page}"


class PagingKind(StrEnum):
    """How the next page is addressed."""

    PAGE_NUM = "page_num"
    OFFSET = "offset"
    CURSOR = "cursor"
    URL_TEMPLATE = "url_template"


# Default query parameters by kind.
_PARAMETERS = {PagingKind.PAGE_NUM: "page", PagingKind.OFFSET: "offset", PagingKind.CURSOR: "cursor"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Paging:
    """Where the number, offset or cursor of a page goes."""

    kind: PagingKind
    parameter: str = ""
    first: int = 1
    size: int | None = None
    size_parameter: str | None = None
    cursor: JsonPath | None = None
    template: str = ""
    max_pages: int = MAX_PAGES


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
        match paging.kind:
            case PagingKind.URL_TEMPLATE:
                url = paging.template.replace(PAGE, str(paging.first + page - 1))
            case PagingKind.PAGE_NUM:
                values[paging.parameter] = paging.first + page - 1
            case PagingKind.OFFSET:
                values[paging.parameter] = paging.first + (page - 1) * (paging.size or 0)
            case PagingKind.CURSOR:
                values |= {} if cursor is None else {paging.parameter: cursor}
        return replace(
            self._request(url, values), page=page, may_be_missing=page > 1 and paging.kind is not PagingKind.CURSOR
        )

    def _request(self, url: str, values: Mapping[str, object]) -> Request:
        """Put the values into the body of a POST, else into the URL."""
        if self.body is not None:
            body = json.dumps({**self.body, **values}).encode()
            return Request(url=url, accept=self.accept, body=body, secret=self.secret)
        address = with_parameters(url, values) if values else url
        return Request(url=address, accept=self.accept, secret=self.secret)


def with_parameters(url: str, values: Mapping[str, object]) -> str:
    """Return the URL with these query parameters replaced or added."""
    parts = urlsplit(url)
    existing = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in values]
    return urlunsplit(parts._replace(query=urlencode([*existing, *values.items()])))


def read_request_builder(reader: ConfigReader, *, accept: str, has_cursors: bool) -> RequestBuilder:
    """Read the keys `body`, `auth` and `pagination`."""
    return RequestBuilder(
        accept=accept,
        body=reader.mapping("body"),
        secret=read_secret(reader),
        paging=_read_paging(reader, has_cursors=has_cursors),
    )


def read_secret(reader: ConfigReader) -> Secret | None:
    """Read `auth`: the `place` of a secret, its `name`, and the variable `env` it is from."""
    auth = reader.section("auth")
    if auth is None:
        return None
    place = auth.choice("place", allowed=list(SecretPlace), default=SecretPlace.BEARER)
    variable, name = auth.text("env"), auth.text("name")
    if variable is None or not is_usable(variable):
        auth.reject("env", "needed: the name of an environment variable that holds the secret, none of ours")
    if place != SecretPlace.BEARER and not _is_name(name):
        auth.reject("name", "needed: the name of the header or of the parameter")
    return Secret(place=SecretPlace(place), variable=variable or "", name=name or "")


def _is_name(name: str | None) -> bool:
    plain = (name or "").replace("-", "").replace("_", "")
    return plain.isascii() and plain.isalnum()


def _read_paging(reader: ConfigReader, *, has_cursors: bool) -> Paging | None:
    section = reader.section("pagination")
    if section is None:
        return None
    kinds = [kind for kind in PagingKind if has_cursors or kind is not PagingKind.CURSOR]
    kind = PagingKind(section.choice("kind", allowed=kinds, default=PagingKind.PAGE_NUM))
    default = 0 if kind is PagingKind.OFFSET else 1
    paging = Paging(
        kind=kind,
        parameter=section.text("parameter") or _PARAMETERS.get(kind, ""),
        first=section.integer("first", default=default, allowed=range(1_000_001)),
        size=section.integer("size", default=0, allowed=range(1, 10_001)) or None,
        size_parameter=section.text("size_parameter"),
        cursor=_cursor(section),
        template=section.text("url_template") or "",
        max_pages=section.integer("max_pages", default=MAX_PAGES, allowed=range(1, MAX_PAGES + 1)),
    )
    _refuse_unfit(section, paging)
    return paging


def _cursor(section: ConfigReader) -> JsonPath | None:
    text = section.text("cursor")
    try:
        return JsonPath.of(text) if text else None
    except BadJsonPath as error:
        section.reject("cursor", str(error))
        return None


def _refuse_unfit(section: ConfigReader, paging: Paging) -> None:
    if paging.kind is PagingKind.URL_TEMPLATE:
        if PAGE not in paging.template:
            section.reject("url_template", f"needed: an address with {PAGE} in it")
        else:
            section.checked_address("url_template", paging.template.replace(PAGE, "1"))
    if paging.kind is PagingKind.OFFSET and paging.size is None:
        section.reject("size", "needed: how many jobs a page has, by which the offset grows")
    if paging.kind is PagingKind.CURSOR and paging.cursor is None:
        section.reject("cursor", "needed: the path to the cursor of the next page")
    if paging.kind is not PagingKind.CURSOR and paging.cursor is not None:
        section.reject("cursor", f"belongs to kind cursor; this is {paging.kind}")
