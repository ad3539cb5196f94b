"""Adapters of chapter platforms, by name: which pages to request, and how to parse releases."""

from collections.abc import Mapping
from types import MappingProxyType

from ingestion_pipeline.series.platforms import chapter_lists, mangadex
from ingestion_pipeline.series.platforms.protocol import SeriesFeed, SeriesPlatform
from ingestion_pipeline.sources.source import BadConfig, UnknownPlatform

__all__ = ["PLATFORMS", "BadConfig", "SeriesFeed", "SeriesPlatform", "UnknownPlatform", "platform"]

_ADAPTERS = (mangadex.PLATFORM, chapter_lists.RSS, chapter_lists.JSON, chapter_lists.HTML)
PLATFORMS: Mapping[str, SeriesPlatform] = MappingProxyType({adapter.name: adapter for adapter in _ADAPTERS})


def platform(name: str) -> SeriesPlatform:
    """Return the platform of that name; UnknownPlatform lists those that exist."""
    if name not in PLATFORMS:
        names = ", ".join(sorted(PLATFORMS))
        raise UnknownPlatform(f"no series platform is called {name!r}; there are: {names}")
    return PLATFORMS[name]
