"""Layouts that many chapter sites share, as data: recognised by their marks, or named by a source.

Who changes a theme raises the version of the platform `html`, so that its sources are read anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Selectors as a source's config would give them; `marks` match on its series pages alone."""

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
                "published_at": (
                    ".chapter-release-date a@title",
                    ".chapter-release-date",
                ),
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
                "published_at": (
                    ".chapter-time@title",
                    "span:last-child@title",
                    ".chapter-time",
                    "span:last-child",
                ),
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
            fields={
                "label": ("a",),
                "title": ("a",),
                "url": ("a@href",),
                "published_at": ("td:last-child",),
            },
        ),
    }
)

# What marks the page of one chapter in these layouts: people give its address by mistake.
CHAPTER_PAGE = "#imgholder, #ci, .reading-content, #readerarea, .container-chapter-reader"
