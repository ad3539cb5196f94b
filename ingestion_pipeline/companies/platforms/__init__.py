"""A platform's name enters, or the address and config of a board.

The adapter leaves: what to request, page by page, and how to read the answers into listings.
Requests are made elsewhere, and what a job is worth does not belong here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ingestion_pipeline.companies.platforms import (
    ashby,
    generic,
    greenhouse,
    jsonld,
    lever,
    personio,
    recruitee,
    rss,
    smartrecruiters,
    workable,
    workday,
)
from ingestion_pipeline.companies.platforms.protocol import JobBoard, JobPlatform
from ingestion_pipeline.sources.config_reader import BadConfig, UnknownPlatform

__all__ = ["PLATFORMS", "BadConfig", "JobBoard", "JobPlatform", "UnknownPlatform", "platform"]

_APIS = (greenhouse, lever, ashby, workday, smartrecruiters, recruitee, workable, personio)

PLATFORMS: Mapping[str, JobPlatform] = MappingProxyType(
    {
        adapter.name: adapter
        for adapter in (
            *(module.PLATFORM for module in _APIS),
            jsonld.PLATFORM,
            rss.PLATFORM,
            generic.JSON,
            generic.HTML,
        )
    }
)


def platform(name: str) -> JobPlatform:
    """The platform of that name.

    Raises:
        UnknownPlatform: there is none; the message lists those that exist.
    """
    if name not in PLATFORMS:
        known = ", ".join(sorted(PLATFORMS))
        raise UnknownPlatform(f"no job platform is called {name!r}; there are: {known}")
    return PLATFORMS[name]
