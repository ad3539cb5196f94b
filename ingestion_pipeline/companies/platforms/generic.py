"""Any JSON or HTML list of jobs: the source's config says where everything is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from ingestion_pipeline.companies.platforms.linked_pages import (
    FIELDS,
    ListedBoard,
    ListedPage,
    read_defaults,
    required_fields,
)
from ingestion_pipeline.companies.platforms.paging import read_request_builder
from ingestion_pipeline.companies.platforms.protocol import JobPlatform
from ingestion_pipeline.companies.platforms.recognition import RecognisedReader, next_page_of, shows_part_of_list
from ingestion_pipeline.reading.structured.embedded import read_embedded
from ingestion_pipeline.reading.structured.html_items import BadSelector, FieldSelector, HtmlReader, checked_css
from ingestion_pipeline.reading.structured.items import ItemReader
from ingestion_pipeline.reading.structured.json_items import BadJsonPath, JsonPath, JsonReader
from ingestion_pipeline.reading.text.decoding import decode
from ingestion_pipeline.sources.config_reader import ConfigReader
from ingestion_pipeline.tasks.errors import Permanent

RECOGNISE = "recognise"  # config key for lists without selectors
JSON_ACCEPT = "application/json, */*;q=0.5"
HTML_ACCEPT = "text/html, application/xhtml+xml, */*;q=0.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenericReader:
    """Reader of pages by paths or selectors; `script` names the data inside a page to use.

    `follows_pager` if the config does not say how to find the next page: the page's own links do.
    """

    items: ItemReader
    script: str | None = None
    follows_pager: bool = False

    def read(self, body: bytes, *, url: str, content_type: str | None) -> ListedPage:
        """Return every item of the page."""
        if self.script is not None:
            body, content_type = _state(body, content_type, self.script), None
        page = self.items.read(body, url=url, content_type=content_type)
        following = next_page_of(body, url=url) if self.follows_pager else page.next_url
        return ListedPage(
            items=page.reading.records,
            base_url=page.base_url,
            problems=page.reading.problems,
            next_url=following,
            is_part=self.follows_pager and shows_part_of_list(body),
        )

    def next_url(self, body: bytes, *, url: str) -> str | None:
        """Return the URL of the next page, as the page states it."""
        if self.script is not None:
            body = _state(body, None, self.script)
        return next_page_of(body, url=url) if self.follows_pager else self.items.next_url(body, url=url)


def _state(body: bytes, content_type: str | None, name: str) -> bytes:
    """Return the data that a script of the page assigns to that name, as JSON."""
    states = read_embedded(decode(body, content_type)).states
    match = next((state for state in states if state.name == name), None)
    if match is None:
        names = ", ".join(dict.fromkeys(state.name[:60] for state in states[:10])) or "none"
        raise Permanent(f"no script of the page sets {name!r}; the page has: {names}", code="no_items")
    try:
        return orjson.dumps(match.data)
    except TypeError as error:  # a lone surrogate, or a number beyond 64 bits
        raise Permanent(f"the data of {name!r} is no JSON: {error}", code="not_json") from error


def configure_json(url: str, config: Mapping[str, object]) -> ListedBoard:
    """Configure the list at `items` and its `fields`; `script` if it is inside a page."""
    reader = ConfigReader("json", config)
    defaults = read_defaults(url, reader, is_window=True)
    fields = reader.text_lists("fields", allowed=FIELDS)
    requests = read_request_builder(
        reader, accept=HTML_ACCEPT if config.get("script") else JSON_ACCEPT, has_cursors=True
    )
    items, following, script = reader.text("items"), reader.text("next"), reader.text("script")
    json_reader = JsonReader(
        items=_path(reader, "items", items or ""),
        fields={name: [_path(reader, f"fields.{name}", path) for path in paths] for name, paths in fields.items()},
        required=required_fields(fields, reader),
        next=_path(reader, "next", following) if following else None,
    )
    reader.finish()
    return ListedBoard(
        platform="json", requests=requests, defaults=defaults, reader=GenericReader(items=json_reader, script=script)
    )


def configure_html(url: str, config: Mapping[str, object]) -> ListedBoard:
    """Configure the elements of `items` and their `fields`, or a recognised list."""
    reader = ConfigReader("html", config)
    if reader.flag(RECOGNISE, default=False):
        return _recognising(url, reader)
    defaults = read_defaults(url, reader, is_window=False)
    fields = reader.text_lists("fields", allowed=FIELDS)
    requests = read_request_builder(reader, accept=HTML_ACCEPT, has_cursors=False)
    items, following = reader.text("items"), reader.text("next")
    if items is None:
        reader.reject("items", f"needed: a CSS selector, one match for each job; or {RECOGNISE}: true")
    html_reader = HtmlReader(
        items=_css(reader, "items", items) if items else "",
        fields={name: [_field(reader, f"fields.{name}", text) for text in texts] for name, texts in fields.items()},
        required=required_fields(fields, reader),
        next=_css(reader, "next", following) if following else None,
        may_be_empty=reader.flag("may_be_empty", default=False),
    )
    reader.finish()
    return ListedBoard(
        platform="html",
        requests=requests,
        defaults=defaults,
        reader=GenericReader(items=html_reader, follows_pager=following is None and requests.paging is None),
    )


def _recognising(url: str, reader: ConfigReader) -> ListedBoard:
    """Configure a page without selectors, whose list is recognised by its repetition."""
    defaults = read_defaults(url, reader, is_window=False)
    requests = read_request_builder(reader, accept=HTML_ACCEPT, has_cursors=False)
    may_be_empty = reader.flag("may_be_empty", default=False)
    reader.finish()
    return ListedBoard(
        platform="html", requests=requests, defaults=defaults, reader=RecognisedReader(may_be_empty=may_be_empty)
    )


def _path(reader: ConfigReader, key: str, text: str) -> JsonPath:
    try:
        return JsonPath.of(text)
    except BadJsonPath as error:
        reader.reject(key, str(error))
        return JsonPath.of("")


def _css(reader: ConfigReader, key: str, text: str) -> str:
    try:
        return checked_css(text)
    except BadSelector as error:
        reader.reject(key, str(error))
        return ""


def _field(reader: ConfigReader, key: str, text: str) -> FieldSelector:
    try:
        return FieldSelector.of(text)
    except BadSelector as error:
        reader.reject(key, str(error))
        return FieldSelector("", None)


JSON = JobPlatform(name="json", version=2, honours_robots=True, configure=configure_json)
HTML = JobPlatform(name="html", version=3, honours_robots=True, configure=configure_html)
