"""Platform `html`: any HTML list of chapters, by selectors or by the name of a theme."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ingestion_pipeline.reading.structured.html_items import (
    BadSelector,
    FieldSelector,
    HtmlPage,
    HtmlReader,
    checked_css,
)
from ingestion_pipeline.reading.structured.items import ItemPage
from ingestion_pipeline.series.platforms.generic import FIELDS, ListedFeed, naming_field, read_defaults
from ingestion_pipeline.series.platforms.protocol import SeriesPlatform
from ingestion_pipeline.sources.config_reader import ConfigReader
from ingestion_pipeline.tasks.errors import Permanent


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """The selectors of a site theme; `marks` match on its series pages only."""

    marks: str
    items: str
    fields: Mapping[str, tuple[str, ...]]
    next: str | None = None


# In the order in which a page is compared with them.
THEMES: Mapping[str, Theme] = MappingProxyType(
    {
        # WordPress with Madara: a new chapter has its date in a title, an old one as text. Many
        # sites fill the holder by a script, and then the page as it is fetched lists nothing.
        "madara": Theme(
            marks="li.wp-manga-chapter, #manga-chapters-holder",
            items="li.wp-manga-chapter",
            fields={
                "label": ("a",),
                "title": ("a",),
                "url": ("a@href",),
                "published_at": (".chapter-release-date a@title", ".chapter-release-date"),
            },
        ),
        # WordPress with MangaStream, by Themesia.
        "mangastream": Theme(
            marks="#chapterlist li[data-num], #chapterlist .eph-num",
            items="#chapterlist li:has(a[href])",
            fields={
                "label": (".chapternum", "a", "@data-num"),
                "title": (".chapternum", "a"),
                "url": (".eph-num a@href", "a@href"),
                "published_at": (".chapterdate",),
            },
        ),
        # My Manga Reader CMS: the name of the series stands before the number.
        "mmrcms": Theme(
            marks=".chapters .chapter-title-rtl",
            items=".chapters > li:has(.chapter-title-rtl a)",
            fields={
                "label": (".chapter-title-rtl a",),
                "title": (".chapter-title-rtl em", ".chapter-title-rtl a"),
                "url": (".chapter-title-rtl a@href",),
                "published_at": (".date-chapter-title-rtl",),
            },
        ),
        # MangaBox, as Manganato and Mangakakalot have it: the whole date is in a title.
        "mangabox": Theme(
            marks=".row-content-chapter .chapter-name, .chapter-list .row span a",
            items=".row-content-chapter li:has(a), .chapter-list .row:has(span a)",
            fields={
                "label": ("a",),
                "title": ("a",),
                "url": ("a@href",),
                "published_at": (".chapter-time@title", "span:last-child@title", ".chapter-time", "span:last-child"),
            },
        ),
        # FoOlSlide: its date is half a sentence, which no selector reaches.
        "foolslide": Theme(
            marks=".list .element .meta_r",
            items=".list .element:has(.title a)",
            fields={
                "label": (".title a",),
                "title": (".title a",),
                "url": (".title a@href",),
                "scanlation_group": (".meta_r a",),
            },
        ),
        # The latest chapters stand above the table and mostly again in it, there with their dates.
        "mangareader": Theme(
            marks="#mangaproperties, #latestchapters",
            items="#mangaproperties ul li:has(a), #latestchapters li:has(a), #listing tr:has(a),"
            " #mangaproperties ~ table tr:has(a)",
            fields={"label": ("a",), "title": ("a",), "url": ("a@href",), "published_at": ("td:last-child",)},
        ),
    }
)

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
        description = f"the page of one chapter ({page.described()})"
        cure = "give the address of the series; or "
    return Permanent(
        f"not a list of chapters but {description}; {cure}name a theme ({', '.join(THEMES)}) or"
        f" say where the chapters are, in the config: {EXAMPLE}",
        code="no_theme",
    )


ACCEPT = "text/html, application/xhtml+xml, */*;q=0.5"
NO_THEME = Theme(marks="", items="", fields={})


def configure(url: str, config: Mapping[str, object]) -> ListedFeed:
    """Build the feed from `items` and `fields`; a theme fills in what is left out.

    Without items, fields and theme each page is parsed by the theme whose marks it has.
    """
    reader = ConfigReader("html", config)
    defaults = read_defaults(url, reader)
    name, items = reader.text("theme"), reader.text("items")
    fields = reader.text_lists("fields", allowed=FIELDS)
    following = reader.text("next")
    may_be_empty = reader.flag("may_be_empty", default=False)

    def html_reader(theme: Theme) -> HtmlReader:
        return _html_reader(
            reader,
            items=items or theme.items,
            fields={**theme.fields, **fields},
            following=following or theme.next,
            may_be_empty=may_be_empty,
        )

    if name is None and items is None and not fields:
        themed = {name: html_reader(theme) for name, theme in THEMES.items()}
        reader.finish()
        item_reader = ThemedReader(readers=themed)
    else:
        item_reader = html_reader(_theme(reader, name))
        reader.finish()
    return ListedFeed(platform="html", accept=ACCEPT, defaults=defaults, reader=item_reader)


def _theme(reader: ConfigReader, name: str | None) -> Theme:
    if name is not None and name not in THEMES:
        reader.refuse("theme", name, ", ".join(THEMES))
    return THEMES.get(name or "", NO_THEME)


def _html_reader(
    reader: ConfigReader,
    *,
    items: str,
    fields: Mapping[str, tuple[str, ...]],
    following: str | None,
    may_be_empty: bool,
) -> HtmlReader:
    if not items:
        reader.reject("items", "needed beside fields: a CSS selector, or a theme that has one")
    return HtmlReader(
        items=_css(reader, "items", items) if items else "",
        fields={name: [_field(reader, f"fields.{name}", text) for text in texts] for name, texts in fields.items()},
        required=naming_field(list(fields), reader),
        next=_css(reader, "next", following) if following else None,
        may_be_empty=may_be_empty,
    )


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


PLATFORM = SeriesPlatform(name="html", version=2, rate=None, honours_robots=True, configure=configure)
