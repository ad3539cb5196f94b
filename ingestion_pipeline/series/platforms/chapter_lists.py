"""Platforms `json`, `html` and `rss`: any list of chapters, described by its source's config or recognised by its form.

Numbers of a feed come from the titles of its entries.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import resources
from typing import TYPE_CHECKING

import yaml

from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.links import absolute_link, absolute_links
from ingestion_pipeline.reading.structured.feeds import FeedEntry, read_feed
from ingestion_pipeline.reading.structured.items import (
    FieldSelector,
    HtmlPage,
    HtmlReader,
    Item,
    ItemPage,
    ItemReader,
    JsonPath,
    JsonReader,
    ParsedFeed,
    Problem,
    checked_css,
)
from ingestion_pipeline.reading.text.plain_text import without_references
from ingestion_pipeline.reading.text.values import DateReader
from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.series.chapter_labels import chapter_numbers, volume_text
from ingestion_pipeline.series.platforms.protocol import SeriesPlatform
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.urls import host_of, without_credentials

if TYPE_CHECKING:
    from ingestion_pipeline.series.platforms.configs import FeedConfig

# An item must have the first of these that is configured, else it is no chapter.
NAMING_FIELDS = ("url", "source_chapter_id", "number", "label", "title")
FIELDS = (*NAMING_FIELDS, "language", "scanlation_group", "volume", "published_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFeed:
    """A list of chapters; a window on the newest unless its config says it is complete."""

    accept: str
    defaults: "FeedConfig"
    reader: ItemReader

    def first_request(self) -> Request:
        """Return the request of the first page."""
        return self.defaults.first_request(self.accept)

    def next_request(
        self,
        body: bytes,
        *,
        previous: Request | None = None,  # noqa: ARG002  where it was answered says more
        url: str = "",
    ) -> Request | None:
        """Return the request of the page that this one links to; None if there is none.

        Raises:
            Permanent: `foreign_next`; a source is rate limited for its own host only.
        """
        url = url or self.defaults.requested_url
        address = self.reader.next_url(body, url=url)
        if address is None:
            return None
        # a list that was redirected may continue on the host it was redirected to
        if host_of(address) not in {host_of(url), host_of(self.defaults.requested_url)}:
            raise Permanent(
                f"the next page {without_credentials(address)} is on another host;"
                " add it as a source of its own, or fix next in the config",
                code="foreign_next",
            )
        return Request(url=address, accept=self.accept)

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),
        now: datetime | None = None,
    ) -> ParsedFeed[Release]:
        """Return one release per item, in the order of the pages, without duplicates."""
        inputs = zip(bodies, content_types, urls or [self.defaults.requested_url] * len(bodies), strict=True)
        pages = [self.reader.read(body, url=url, content_type=type_) for body, type_, url in inputs]
        # links are relative to the site, also where the list is elsewhere
        site = self.defaults.url if self.defaults.requested_url != self.defaults.url else None
        located = [(item, page.base_url if site is None else site) for page in pages for item in page.reading.records]
        links = absolute_links((base, item["url"]) for item, base in located if "url" in item)
        items = [_with_address(item, links.get((base, item.get("url", "")))) for item, base in located]
        # sorted is stable: of two mentions of a chapter the one with a date is kept
        dated_last = sorted(items, key=lambda item: "published_at" in item)
        chosen = {_identity(item): item for item in dated_last}
        dates = DateReader(now=now, day_first=self.defaults.day_first)
        problems = [problem for page in pages for problem in page.reading.problems]
        is_whole = bool(pages) and not problems and pages[-1].next_url is None
        return ParsedFeed(
            records=[self._release(chosen[key], dates) for key in dict.fromkeys(map(_identity, items))],
            problems=[*problems, *_unread_dates(items, dates, now), *_dead_links(links)],
            is_complete=self.defaults.complete and is_whole,
            notes=list(dict.fromkeys(note for page in pages for note in page.reading.notes)),
        )

    def _release(self, item: Item, dates: DateReader) -> Release:
        date = item.get("published_at")
        label, title = (without_references(item.get(name) or "") for name in ("label", "title"))
        numbers = chapter_numbers(item.get("number") or "")
        if numbers.first is None:
            numbers = chapter_numbers(label or title, self.defaults.series_title)
        return Release(
            number=numbers.first,
            last_number=numbers.last,
            title=title or label or None,
            url=item.get("url"),
            language=item.get("language") or self.defaults.language,
            scanlation_group=item.get("scanlation_group") or self.defaults.scanlation_group,
            source_chapter_id=item.get("source_chapter_id"),
            volume=item.get("volume") or volume_text(label or title, self.defaults.series_title),
            published_at=dates.read(date) if date else None,
        )


def _identity(item: Item) -> tuple[str | None, ...]:
    """Return all fields but the date, which a first mention often lacks."""
    return tuple(item.get(name) for name in FIELDS if name != "published_at")


def _with_address(item: Item, address: str | None) -> Item:
    rest = {name: text for name, text in item.items() if name != "url"}
    return {**rest, "url": address} if address else rest


def _unread_dates(items: Sequence[Item], dates: DateReader, now: datetime | None) -> list[Problem]:
    """Return one problem for all dates that cannot be parsed; the list stays complete."""
    stated = [item["published_at"] for item in items if "published_at" in item]
    unread = [date for date in stated if dates.read(date) is None]
    if not unread:
        return []
    message = (
        f"{len(unread)} of {len(stated)} dates cannot be read or lie in the future, the first is {unread[0][:60]!r}"
    )
    if now is None:
        message += "; relative dates need the time of fetching, which is not known"
    return [Problem(where="published_at", message=message, hides_record=False)]


def _dead_links(links: Mapping[tuple[str, str], str | None]) -> list[Problem]:
    """Return one problem for all links that are no web address; the chapters still count."""
    dead = [link for (_, link), address in links.items() if address is None]
    if not dead:
        return []
    message = f"{len(dead)} of {len(links)} links are no web addresses, the first is {dead[0][:60]!r}"
    if any(not base for base, _ in links):
        message += "; relative ones need the address of the page"
    return [Problem(where="url", message=message, hides_record=False)]


def configure_json(url: str, config: Mapping[str, object]) -> ListedFeed:
    """Build the feed from `items` and `fields`; all problems of the config are raised at once."""
    from ingestion_pipeline.series.platforms.configs import JsonConfig  # pydantic takes time to import

    entry = JsonConfig.of("json", url, config)
    json_reader = JsonReader(
        items=entry.items or JsonPath.of(""), fields=entry.fields, required=_naming_field(entry.fields), next=entry.next
    )
    return ListedFeed(accept="application/json, */*;q=0.5", defaults=entry, reader=json_reader)


def _naming_field(fields: Collection[str]) -> tuple[str, ...]:
    """Return the field that every chapter must have."""
    return tuple(name for name in NAMING_FIELDS if name in fields)[:1]


JSON = SeriesPlatform(name="json", version=3, rate=None, honours_robots=True, configure=configure_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """The selectors of a site theme; `marks` match on its series pages only."""

    marks: str
    items: str
    fields: Mapping[str, Sequence[str]]


_THEMES_FILE = resources.files("ingestion_pipeline.series.platforms") / "themes.yaml"
# In the order in which a page is compared with them.
THEMES: Mapping[str, Theme] = {
    name: Theme(**selectors) for name, selectors in yaml.safe_load(_THEMES_FILE.read_text()).items()
}

# Matches the page of one chapter in these layouts: people give its address by mistake.
CHAPTER_PAGE = "#imgholder, #ci, .reading-content, #readerarea, .container-chapter-reader"
EXAMPLE = '{"items": "li.chapter", "fields": {"label": "a", "url": "a@href"}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class ThemedReader:
    """Parses a page by the first theme whose marks it has, and notes which one."""

    readers: Mapping[str, HtmlReader]

    def read(self, body: bytes, *, url: str = "", content_type: str | None = None) -> ItemPage:
        """Return every item of the page.

        Raises:
            Permanent: `no_theme`, or what the theme's reader raises.
            Transient: `truncated`; the body is empty.
        """
        page = HtmlPage.of(body, content_type)
        name, reader = self._chosen(page)
        page_items = reader.read_page(page, url=url)
        reading = replace(page_items.reading, notes=[*page_items.reading.notes, f"read as theme {name}"])
        return replace(page_items, reading=reading)

    def next_url(self, body: bytes, *, url: str) -> str | None:
        """Return the address of the next page by the page's theme."""
        if all(reader.next is None for reader in self.readers.values()):
            return None
        page = HtmlPage.of(body)
        return self._chosen(page)[1].next_url_of(page, url=url)

    def _chosen(self, page: HtmlPage) -> tuple[str, HtmlReader]:
        marked = [name for name, theme in THEMES.items() if page.has(theme.marks)]
        if not marked:
            raise _no_theme(page)
        listing = (name for name in marked if page.has(THEMES[name].items))
        name = next(listing, marked[0])
        return name, self.readers[name]


def _no_theme(page: HtmlPage) -> Permanent:
    description, cure = f"a page that fits no known theme ({page.described()})", ""
    if page.has(CHAPTER_PAGE):
        description, cure = f"the page of one chapter ({page.described()})", "give the address of the series; or "
    return Permanent(
        f"not a list of chapters but {description}; {cure}name a theme ({', '.join(THEMES)}) or"
        f" say where the chapters are, in the config: {EXAMPLE}",
        code="no_theme",
    )


def configure_html(url: str, config: Mapping[str, object]) -> ListedFeed:
    """Build the feed from `items` and `fields`; a theme fills in what is left out.

    Without items, fields and theme each page is parsed by the theme whose marks it has.
    """
    from ingestion_pipeline.series.platforms.configs import HtmlConfig

    entry = HtmlConfig.of("html", url, config)

    def html_reader(theme: Theme) -> HtmlReader:
        themed = {name: [FieldSelector.of(text) for text in texts] for name, texts in theme.fields.items()}
        fields = {**themed, **entry.fields}
        return HtmlReader(
            items=entry.items or checked_css(theme.items),
            fields=fields,
            required=_naming_field(fields),
            next=entry.next,
            may_be_empty=entry.may_be_empty,
        )

    if entry.theme or entry.items or entry.fields:
        item_reader = html_reader(THEMES.get(entry.theme or "", Theme(marks="", items="", fields={})))
    else:
        item_reader = ThemedReader(readers={key: html_reader(theme) for key, theme in THEMES.items()})
    return ListedFeed(accept="text/html, application/xhtml+xml, */*;q=0.5", defaults=entry, reader=item_reader)


HTML = SeriesPlatform(name="html", version=3, rate=None, honours_robots=True, configure=configure_html)
ACCEPT = "application/rss+xml, application/atom+xml, application/xml;q=0.9, */*;q=0.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class RssFeed:
    """One feed; a window on the newest chapters unless its config says it is complete."""

    defaults: "FeedConfig"

    def first_request(self) -> Request:
        """Return the request of the feed."""
        return self.defaults.first_request(ACCEPT)

    def next_request(
        self,
        body: bytes,  # noqa: ARG002  a feed has one page
        *,
        previous: Request | None = None,  # noqa: ARG002
        url: str = "",  # noqa: ARG002
    ) -> Request | None:
        """Return None: a feed has one page."""
        return None

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),  # noqa: ARG002  links are relative to the source's own address
        now: datetime | None = None,  # noqa: ARG002  no date here is relative
    ) -> ParsedFeed[Release]:
        """Return one release per entry, in feed order."""
        pages = [read_feed(body, content_type=type_) for body, type_ in zip(bodies, content_types, strict=True)]
        problems = [problem for page in pages for problem in page.problems]
        return ParsedFeed(
            records=[self._release(entry) for page in pages for entry in page.records],
            problems=problems,
            is_complete=self.defaults.complete and bool(pages) and not problems,
        )

    def _release(self, entry: FeedEntry) -> Release:
        title, series_title = without_references(entry.title) if entry.title else None, self.defaults.series_title
        numbers = chapter_numbers(title or "", series_title)
        return Release(
            number=numbers.first,
            last_number=numbers.last,
            title=title,
            url=absolute_link(self.defaults.url, entry.url),
            language=self.defaults.language,
            scanlation_group=self.defaults.scanlation_group or entry.author,
            source_chapter_id=entry.id,
            volume=volume_text(title, series_title) if title else None,
            published_at=entry.published_at,
        )


def configure_rss(url: str, config: Mapping[str, object]) -> RssFeed:
    """Build the feed at `api_base`, else at `url`; without either it only parses saved bodies."""
    from ingestion_pipeline.series.platforms.configs import FeedConfig

    return RssFeed(defaults=FeedConfig.of("rss", url, config))


RSS = SeriesPlatform(name="rss", version=3, rate=None, honours_robots=True, configure=configure_rss)
