"""Any feed, JSON or HTML list of jobs: the source's config says where everything is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from ingestion_pipeline.companies.platforms.linked_pages import (
    FIELDS,
    ListedBoard,
    ListedPage,
    PageReader,
    RequestBuilder,
    T,
    checked,
    read_defaults,
    read_request_builder,
    read_secret,
    required_fields,
)
from ingestion_pipeline.companies.platforms.protocol import JobPlatform
from ingestion_pipeline.companies.platforms.recognition import RecognisedReader, next_page_of, shows_part_of_list
from ingestion_pipeline.reading.structured.embedded import read_embedded
from ingestion_pipeline.reading.structured.feeds import FeedEntry, read_feed
from ingestion_pipeline.reading.structured.html_items import FieldSelector, HtmlReader, checked_css
from ingestion_pipeline.reading.structured.items import Item, ItemReader, Problem
from ingestion_pipeline.reading.structured.json_items import JsonPath, JsonReader
from ingestion_pipeline.reading.text.decoding import decode
from ingestion_pipeline.sources.config_reader import ConfigReader
from ingestion_pipeline.tasks.errors import Permanent

RECOGNISE = "recognise"  # config key for lists without selectors
FEED_ACCEPT = "application/rss+xml, application/atom+xml, application/xml;q=0.9, */*;q=0.5"
JSON_ACCEPT = "application/json, */*;q=0.5"
HTML_ACCEPT = "text/html, application/xhtml+xml, */*;q=0.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedReader(PageReader):
    """Reader of an RSS or Atom feed; an entry without a title is a problem.

    `fields` name elements of an entry that replace or complete the standard ones.
    """

    fields: Mapping[str, Sequence[str]]

    def read(self, body: bytes, *, url: str, content_type: str | None) -> ListedPage:
        """Return every entry that has a title; raise if none has."""
        elements = [name for names in self.fields.values() for name in names]
        reading = read_feed(body, content_type=content_type, elements=elements)
        named = [entry for entry in reading.records if entry.title]
        if reading.records and not named:
            raise Permanent("no entry of the feed has a title", code="no_fields")
        untitled = [
            Problem(where=f"entry {n}", message="it has no title; the rest counts")
            for n, entry in enumerate(reading.records)
            if not entry.title
        ]
        return ListedPage(
            items=[self._item(entry) for entry in named], base_url=url, problems=[*reading.problems, *untitled]
        )

    def _item(self, entry: FeedEntry) -> Item:
        own = {
            name: text
            for name, elements in self.fields.items()
            if (text := next(filter(None, map(entry.elements.get, elements)), None))
        }
        stated = {
            "title": entry.title,
            "url": entry.url,
            "external_id": entry.id,
            "posted_at": entry.published_at.isoformat() if entry.published_at else None,
            "description": entry.summary,
            "department": next(iter(entry.categories), None),
        }
        return {name: text for name, text in stated.items() if text} | own


@dataclass(frozen=True, slots=True, kw_only=True)
class GenericReader(PageReader):
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


def configure_feed(url: str, config: Mapping[str, object]) -> ListedBoard:
    """Configure the feed at `url` or `api_base`; without either it only parses bodies."""
    reader = ConfigReader("rss", config)
    defaults = read_defaults(url, reader, is_window=True)
    fields = reader.text_lists("fields", allowed=FIELDS)
    requests = RequestBuilder(accept=FEED_ACCEPT, secret=read_secret(reader))
    reader.finish()
    return ListedBoard(platform="rss", requests=requests, defaults=defaults, reader=FeedReader(fields=fields))


def configure_json(url: str, config: Mapping[str, object]) -> ListedBoard:
    """Configure the list at `items` and its `fields`; `script` if it is inside a page."""
    reader = ConfigReader("json", config)
    defaults = read_defaults(url, reader, is_window=True)
    fields = reader.text_lists("fields", allowed=FIELDS)
    accept = HTML_ACCEPT if config.get("script") else JSON_ACCEPT
    requests = read_request_builder(reader, accept=accept, has_cursors=True)
    items = JsonReader(
        items=checked(reader, "items", reader.text("items"), JsonPath.of) or JsonPath.of(""),
        fields=_checked_fields(reader, fields, JsonPath.of),
        required=required_fields(fields, reader),
        next=checked(reader, "next", reader.text("next"), JsonPath.of),
    )
    script = reader.text("script")
    reader.finish()
    return ListedBoard(
        platform="json", requests=requests, defaults=defaults, reader=GenericReader(items=items, script=script)
    )


def configure_html(url: str, config: Mapping[str, object]) -> ListedBoard:
    """Configure the elements of `items` and their `fields`, or a list that is recognised by its repetition."""
    reader = ConfigReader("html", config)
    defaults = read_defaults(url, reader, is_window=False)
    requests = read_request_builder(reader, accept=HTML_ACCEPT, has_cursors=False)
    may_be_empty = reader.flag("may_be_empty", default=False)
    if reader.flag(RECOGNISE, default=False):
        page_reader = RecognisedReader(may_be_empty=may_be_empty)
    else:
        page_reader = _selected(reader, has_paging=requests.paging is not None, may_be_empty=may_be_empty)
    reader.finish()
    return ListedBoard(platform="html", requests=requests, defaults=defaults, reader=page_reader)


def _selected(reader: ConfigReader, *, has_paging: bool, may_be_empty: bool) -> GenericReader:
    fields = reader.text_lists("fields", allowed=FIELDS)
    items, following = reader.text("items"), reader.text("next")
    if items is None:
        reader.reject("items", f"needed: a CSS selector, one match for each job; or {RECOGNISE}: true")
    html_reader = HtmlReader(
        items=checked(reader, "items", items, checked_css) or "",
        fields=_checked_fields(reader, fields, FieldSelector.of),
        required=required_fields(fields, reader),
        next=checked(reader, "next", following, checked_css),
        may_be_empty=may_be_empty,
    )
    return GenericReader(items=html_reader, follows_pager=following is None and not has_paging)


def _checked_fields(
    reader: ConfigReader, fields: Mapping[str, Sequence[str]], parse: Callable[[str], T]
) -> dict[str, list[T]]:
    """Return the paths or selectors of each field."""
    parsed = {
        name: [checked(reader, f"fields.{name}", text, parse) for text in texts] for name, texts in fields.items()
    }
    return {name: [path for path in paths if path is not None] for name, paths in parsed.items()}


RSS = JobPlatform(name="rss", version=2, honours_robots=True, configure=configure_feed)
JSON = JobPlatform(name="json", version=2, honours_robots=True, configure=configure_json)
HTML = JobPlatform(name="html", version=3, honours_robots=True, configure=configure_html)
