"""Which platform a URL belongs to, told by the URL alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from ingestion_pipeline.sources.source import Kind

# The platforms with a reader, by kind; each system's registry is compared with this by a test.
READERS: dict[Kind, tuple[str, ...]] = {
    Kind.SERIES: ("mangadex", "rss", "json", "html"),
    Kind.CATALOG: ("catalog", "page"),
}

_MANGADEX_HOSTS = {"mangadex.org", "www.mangadex.org", "api.mangadex.org"}
_MANGADEX_ID = re.compile(
    r"/(?:title|manga)/(?P<token>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
)
_FEED = re.compile(r"(\.(xml|rss|atom|rdf)|/(feed|rss|atom))/?$")


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform and the token that names the board, series or tenant on it."""

    name: str
    token: str | None


def recognize_platform(url: str) -> Platform | None:
    """The platform of the URL, or None; nothing is fetched."""
    try:
        parts = urlsplit(url)
    except ValueError:  # browsers read a backslash as a slash, urlsplit does not
        return None
    if (parts.hostname or "").lower() in _MANGADEX_HOSTS:
        found = _MANGADEX_ID.search(parts.path.lower())
        return Platform("mangadex", found["token"] if found else None)
    if _FEED.search(parts.path.lower()):
        return Platform("rss", None)
    return None
