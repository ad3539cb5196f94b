"""Job platforms by name: each adapter builds requests page by page and parses the responses.

Adapters make no requests themselves. A new one is listed in `API_PLATFORMS` if it has a JSON API, else here; it is
named in `READERS` of `sources/platforms.py`, and its URLs are recognised by `sources/boards.yaml`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from ingestion_pipeline.companies.platforms import job_lists
from ingestion_pipeline.companies.platforms.api_boards import API_PLATFORMS
from ingestion_pipeline.companies.platforms.job_board import JobBoard, JobPlatform
from ingestion_pipeline.sources.source import BadConfig, UnknownPlatform

__all__ = ["PLATFORMS", "BadConfig", "JobBoard", "JobPlatform", "UnknownPlatform", "platform"]

_LISTS = (job_lists.JSON_LD, job_lists.RSS, job_lists.JSON, job_lists.HTML)
PLATFORMS: Mapping[str, JobPlatform] = MappingProxyType(
    {adapter.name: adapter for adapter in (*API_PLATFORMS, *_LISTS)}
)


def platform(name: str) -> JobPlatform:
    """Return the platform of that name; raise UnknownPlatform, which lists those that exist."""
    if name not in PLATFORMS:
        names = ", ".join(sorted(PLATFORMS))
        raise UnknownPlatform(f"no job platform is called {name!r}; there are: {names}")
    return PLATFORMS[name]
