"""A list whose source says nothing of its layout: the page is compared with the known themes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ingestion_pipeline.reading.html_reader import HtmlPage, HtmlReader
from ingestion_pipeline.reading.items import ItemPage
from ingestion_pipeline.series.platforms.themes import CHAPTER_PAGE, THEMES
from ingestion_pipeline.work.errors import Permanent

EXAMPLE = '{"items": "li.chapter", "fields": {"label": "a", "url": "a@href"}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class ThemedReader:
    """Reads a page by the first theme that it bears the marks of, and says which that was."""

    readers: Mapping[str, HtmlReader]

    def read(self, body: bytes, *, url: str = "", content_type: str | None = None) -> ItemPage:
        """Every item of the page.

        Raises:
            Permanent: `no_theme`, or what the theme's reader raises.
            Transient: `truncated`; the body is empty.
        """
        page = HtmlPage.of(body, content_type)
        name, reader = self._chosen(page)
        found = reader.read_page(page, url=url)
        reading = replace(found.reading, notes=[*found.reading.notes, f"read as theme {name}"])
        return replace(found, reading=reading)

    def next_url(self, body: bytes, *, url: str) -> str | None:
        """Where the page's theme says that the list goes on."""
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
    found, cure = f"a page that fits no known theme ({page.described()})", ""
    if page.has(CHAPTER_PAGE):
        found = f"the page of one chapter ({page.described()})"
        cure = "give the address of the series; or "
    return Permanent(
        f"not a list of chapters but {found}; {cure}name a theme ({', '.join(THEMES)}) or say where"
        f" the chapters are, in the config: {EXAMPLE}",
        code="no_theme",
    )
