"""The protocol of job platforms: how a board is configured and what it does without I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ingestion_pipeline.companies.listing import Listing
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.structured.items import ParsedFeed
from ingestion_pipeline.sources.config_reader import BadConfig, ConfigReader
from ingestion_pipeline.sources.platforms import recognize_platform


class JobBoard(Protocol):
    """A configured board: it builds requests and parses responses, without network access."""

    def first_request(self) -> Request:
        """Return the first request of a listing; raise BadConfig if the board is unknown."""
        ...

    def next_request(self, body: bytes, *, previous: Request, url: str = "") -> Request | None:
        """Return the request after `previous`, whose response came from `url`; None at the end."""
        ...

    def detail_request(self, listing: Listing) -> Request | None:
        """Return the request for a listing's details, for `read`; None if the list has all."""
        ...

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),
        now: datetime | None = None,
    ) -> ParsedFeed[Listing]:
        """Return every listing of the pages; raise for a body that is no listing.

        `now` is when they were fetched; without it relative dates are not parsed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlatform:
    """A kind of board; `version` changes when the same body would be parsed differently.

    Only a documented API, made for programs, may ignore robots.txt.
    """

    name: str
    version: int
    honours_robots: bool
    configure: Callable[[str, Mapping[str, object]], JobBoard]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardAddress:
    """The board's owner and API base; `url` is the source's own URL, or empty."""

    platform: str
    url: str
    token: str | None
    api_base: str
    company: str | None

    def required_token(self) -> str:
        """Return the token; raise BadConfig if neither URL nor config names it."""
        if self.token is None:
            raise BadConfig(
                f"a {self.platform} source needs the token of its board: in its address or as board_token in its config"
            )
        return self.token


def read_board_address(reader: ConfigReader, url: str, *, platform: str, api_base: str) -> BoardAddress:
    """Read the keys that every API board has: `board_token`, `api_base` and `company`."""
    if url:
        reader.checked_address("url", url)
    recognized = recognize_platform(url)
    named = recognized.token if recognized is not None and recognized.name == platform else None
    return BoardAddress(
        platform=platform,
        url=url,
        token=reader.text("board_token") or named,
        api_base=(reader.address("api_base") or api_base).rstrip("/"),
        company=reader.text("company"),
    )
