"""What a platform is: how to configure a source of it, and what the source can do without I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.structured.items import Reading
from ingestion_pipeline.series.chapter import Release


class SeriesFeed(Protocol):
    """A configured source: it says what to ask and reads the answers, and touches no network."""

    def first_request(self) -> Request:
        """The request that begins a listing."""
        ...

    def next_request(
        self, body: bytes, *, asked: Request | None = None, url: str = ""
    ) -> Request | None:
        """The request for the page after this one, which came from `url`; None after the last."""
        ...

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),
        now: datetime | None = None,
    ) -> Reading[Release]:
        """Every release of the pages; a body that is no listing raises, it is never empty.

        `urls` are where they came from in the end, by default the source's address; `now` is when
        they were fetched, and without it a relative date stays unread.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A limit that a platform publishes, kept as a token bucket."""

    per_second: float
    burst: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPlatform:
    """A kind of source; `version` changes when the same body would be read otherwise.

    Only a documented API, made for programs and fetched at its published rate, may say that it does
    not honour robots.txt.
    """

    name: str
    version: int
    rate: Rate | None
    honours_robots: bool
    configure: Callable[[str, Mapping[str, object]], SeriesFeed]
