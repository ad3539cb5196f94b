"""Any HTML list of chapters as a source of a series: by selectors, or by the name of a theme."""

from __future__ import annotations

from collections.abc import Mapping

from ingestion_pipeline.reading.html_reader import (
    BadSelector,
    FieldSelector,
    HtmlReader,
    checked_css,
)
from ingestion_pipeline.series.platforms.feed import SeriesPlatform
from ingestion_pipeline.series.platforms.listed import (
    FIELDS,
    ListedFeed,
    naming_field,
    read_defaults,
)
from ingestion_pipeline.series.platforms.themed import ThemedReader
from ingestion_pipeline.series.platforms.themes import THEMES, Theme
from ingestion_pipeline.sources.config_reader import ConfigReader

ACCEPT = "text/html, application/xhtml+xml, */*;q=0.5"
NO_THEME = Theme(marks="", items="", fields={})


def configure(url: str, config: Mapping[str, object]) -> ListedFeed:
    """The elements that `items` selects as releases; a theme fills in what is left out.

    Without items, fields and theme each page is read by the theme whose marks it bears.
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
        fields={
            name: [_field(reader, f"fields.{name}", text) for text in texts]
            for name, texts in fields.items()
        },
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


PLATFORM = SeriesPlatform(
    name="html", version=2, rate=None, honours_robots=True, configure=configure
)
