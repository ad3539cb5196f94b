"""A platform's name enters, or the address and config of a source.

The adapter leaves: what to request, page by page, and how to read the answers into releases.
Requests are made elsewhere, and what a chapter is does not depend on where it was listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ingestion_pipeline.series.platforms import html_list, json_feed, mangadex, rss
from ingestion_pipeline.series.platforms.protocol import Rate, SeriesFeed, SeriesPlatform
from ingestion_pipeline.sources.config_reader import BadConfig, UnknownPlatform

__all__ = [
    "PLATFORMS",
    "BadConfig",
    "Rate",
    "SeriesFeed",
    "SeriesPlatform",
    "UnknownPlatform",
    "platform",
]

PLATFORMS: Mapping[str, SeriesPlatform] = MappingProxyType(
    {
        adapter.name: adapter
        for adapter in (mangadex.PLATFORM, rss.PLATFORM, json_feed.PLATFORM, html_list.PLATFORM)
    }
)


def platform(name: str) -> SeriesPlatform:
    """The platform of that name.

    Raises:
        UnknownPlatform: there is none; the message lists those that exist.
    """
    if name not in PLATFORMS:
        known = ", ".join(sorted(PLATFORMS))
        raise UnknownPlatform(f"no series platform is called {name!r}; there are: {known}")
    return PLATFORMS[name]
