"""Layouts that many chapter sites share, as data: a source names one and says only what differs.

Who changes a theme raises the version of the platform `html`, so that its sources are read anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Selectors as a source's config would give them."""

    items: str
    fields: Mapping[str, tuple[str, ...]]
    next: str | None = None


THEMES: Mapping[str, Theme] = MappingProxyType(
    {
        # The latest chapters stand above the table and mostly again in it, there with their dates.
        "mangareader": Theme(
            items="#mangaproperties ul li:has(a), #latestchapters li:has(a), #listing tr:has(a),"
            " #mangaproperties ~ table tr:has(a)",
            fields={
                "label": ("a",),
                "title": ("a",),
                "url": ("a@href",),
                "published_at": ("td:last-child",),
            },
        ),
        # WordPress with Madara: a new chapter has its date in a title, an old one as text.
        "madara": Theme(
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
    }
)
