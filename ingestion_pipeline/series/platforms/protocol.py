"""The protocol of a platform adapter: how to configure a source, what to request, how to parse."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ingestion_pipeline.engine.context import Feed
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.reading.structured.items import ParsedFeed
from ingestion_pipeline.series.chapter import Release


class SeriesFeed(Feed, Protocol):
    """A configured source: it builds requests and parses responses, without I/O."""

    def next_request(self, body: bytes, *, previous: Request | None = None, url: str = "") -> Request | None:
        """Return the request of the next page; None after the last."""
        ...

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),
        now: datetime | None = None,
    ) -> ParsedFeed[Release]:
        """Return every release of the pages; raise for a body that is no listing.

        `urls` are the final addresses of the pages, by default the source's address; `now` is when
        they were fetched, and without it relative dates are not parsed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPlatform:
    """A kind of source, with the rate it publishes; `version` changes when the same body is parsed differently.

    Only a documented API, made for programs and fetched at its published rate, may set
    `honours_robots` to False.
    """

    name: str
    version: int
    rate: Pace | None
    honours_robots: bool
    configure: Callable[[str, Mapping[str, object]], SeriesFeed]
