"""Any HTML list of chapters as a source of a series: by selectors, or by the name of a theme."""

from __future__ import annotations

from collections.abc import Mapping

from ingestion_pipeline.reading.html_reader import (
    BadSelector,
    FieldSelector,
    HtmlReader,
    checked_css,
)
from ingestion_pipeline.series.platforms.feed import ConfigReader, Platform
from ingestion_pipeline.series.platforms.listed import (
    FIELDS,
    ListedFeed,
    naming_field,
    read_defaults,
)
from ingestion_pipeline.series.platforms.themes import THEMES, Theme

ACCEPT = "text/html, application/xhtml+xml, */*;q=0.5"
NO_THEME = Theme(items="", fields={})


def configure(url: str, config: Mapping[str, object]) -> ListedFeed:
    """The elements that `items` selects as releases; a theme fills in what is left out."""
    reader = ConfigReader("html", config)
    defaults = read_defaults(url, reader)
    theme = _theme(reader)
    fields = {**theme.fields, **reader.text_lists("fields", allowed=FIELDS)}
    following = reader.text("next") or theme.next
    html_reader = HtmlReader(
        items=_items(reader, theme),
        fields={
            name: [_field(reader, f"fields.{name}", text) for text in texts]
            for name, texts in fields.items()
        },
        required=naming_field(list(fields), reader),
        next=_css(reader, "next", following) if following else None,
        may_be_empty=reader.flag("may_be_empty", default=False),
    )
    reader.finish()
    return ListedFeed(platform="html", accept=ACCEPT, defaults=defaults, reader=html_reader)


def _theme(reader: ConfigReader) -> Theme:
    name = reader.text("theme")
    if name is None:
        return NO_THEME
    if name not in THEMES:
        reader.refuse("theme", name, ", ".join(sorted(THEMES)))
    return THEMES.get(name, NO_THEME)


def _items(reader: ConfigReader, theme: Theme) -> str:
    css = reader.text("items") or theme.items
    if not css:
        reader.reject("items", "needed: a CSS selector, or a theme that has one")
        return ""
    return _css(reader, "items", css)


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


PLATFORM = Platform(name="html", version=1, rate=None, honours_robots=True, configure=configure)
