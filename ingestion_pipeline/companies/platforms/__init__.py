"""Job platforms by name: each adapter builds requests page by page and parses the responses.

Adapters make no requests themselves. A new one is an entry of `declared_boards.yaml`; one that needs code is listed in
`API_PLATFORMS`, else here. It is named in `READERS` of `sources/platforms.py`, and `sources/boards.yaml` recognises it.
"""

from collections.abc import Mapping
from types import MappingProxyType

from ingestion_pipeline.companies.platforms import job_lists
from ingestion_pipeline.companies.platforms.api_boards import API_PLATFORMS
from ingestion_pipeline.companies.platforms.declared_boards import DECLARED_PLATFORMS
from ingestion_pipeline.companies.platforms.job_board import ApiBoard, JobBoard, JobPlatform
from ingestion_pipeline.sources.platforms import recognize_platform
from ingestion_pipeline.sources.source import BadConfig, UnknownPlatform

__all__ = ["PLATFORMS", "BadConfig", "JobBoard", "JobPlatform", "UnknownPlatform", "board_identity", "platform"]

_LISTS = (job_lists.JSON_LD, job_lists.SITEMAP, job_lists.RSS, job_lists.JSON, job_lists.HTML)
PLATFORMS: Mapping[str, JobPlatform] = MappingProxyType(
    {adapter.name: adapter for adapter in (*API_PLATFORMS, *DECLARED_PLATFORMS, *_LISTS)}
)


def platform(name: str) -> JobPlatform:
    """Return the platform of that name; raise UnknownPlatform, which lists those that exist."""
    if name not in PLATFORMS:
        names = ", ".join(sorted(PLATFORMS))
        raise UnknownPlatform(f"no job platform is called {name!r}; there are: {names}")
    return PLATFORMS[name]


def board_identity(name: str, url: str, config: Mapping[str, object]) -> str | None:
    """Return what names the board on its platform, in one spelling; None if neither URL nor config does."""
    if name in PLATFORMS:
        try:
            board = PLATFORMS[name].configure(url, config)
        except BadConfig:
            return None
        if isinstance(board, ApiBoard):
            return board.identity and board.identity.casefold()
    recognized = recognize_platform(url)
    is_named = recognized is not None and recognized.name == name and recognized.token
    return recognized.token.casefold() if recognized and recognized.token and is_named else None
