"""Which platform a URL belongs to, told by the URL alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from ingestion_pipeline.sources.boards import board_at
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.urls import canonical_url

# The platforms with a reader, by kind; each system's registry is compared with this by a test.
READERS: dict[Kind, tuple[str, ...]] = {
    Kind.SERIES: ("mangadex", "rss", "json", "html"),
    Kind.CATALOG: ("catalog", "page"),
    Kind.COMPANY: ("page",),
    Kind.JOB_BOARD: (
        *("greenhouse", "lever", "ashby", "workday", "smartrecruiters", "recruitee", "workable"),
        *("personio", "jsonld", "rss", "json", "html"),
    ),
    Kind.WEBSITE: ("page",),
}
# Where neither says so; whose software a catalogue is made with, detection finds out.
DEFAULTS: dict[Kind, str] = {Kind.CATALOG: "catalog", Kind.COMPANY: "page", Kind.WEBSITE: "page"}

_MANGADEX_HOSTS = {"mangadex.org", "www.mangadex.org", "api.mangadex.org"}
_MANGADEX_ID = re.compile(
    r"/(?:title|manga)/(?P<token>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
)
_FEED = re.compile(r"(\.(xml|rss|atom|rdf)|/(feed|rss|atom))/?$")
_SITEMAP = re.compile(r"/[^/]*sitemap[^/]*$")  # ends like a feed and is none


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform and the token that names the board, series or tenant on it."""

    name: str
    token: str | None


def recognize_platform(url: str) -> Platform | None:
    """The platform of the URL, or None; nothing is fetched and nothing is raised."""
    try:
        parts = urlsplit(canonical_url(url))  # without user info, which may look like a host
        host = (parts.hostname or "").removesuffix(".")
    except ValueError:
        return None
    path = parts.path.lower()
    if host in _MANGADEX_HOSTS:
        found = _MANGADEX_ID.search(path)
        return Platform("mangadex", found["token"] if found else None)
    if board := board_at(host, parts.path, parts.query):
        return Platform(board.platform, board.token)
    if _FEED.search(path) and not _SITEMAP.search(path):
        return Platform("rss", None)
    return None
