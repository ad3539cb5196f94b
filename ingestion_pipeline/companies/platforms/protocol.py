"""What a job platform is: how to configure a board of it, and what the board can do without I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ingestion_pipeline.companies.listing import Listing
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.structured.items import Reading
from ingestion_pipeline.sources.config_reader import BadConfig, ConfigReader
from ingestion_pipeline.sources.platforms import recognize_platform


class JobBoard(Protocol):
    """A configured board: it says what to ask and reads the answers, and touches no network."""

    def first_request(self) -> Request:
        """The request that begins a listing; BadConfig if nothing says whose board it is."""
        ...

    def next_request(self, body: bytes, *, asked: Request, url: str = "") -> Request | None:
        """The request for the page after this one, the answer to `asked` that came from `url`."""
        ...

    def detail_request(self, listing: Listing) -> Request | None:
        """Where the rest of a listing is, which `read` reads, too; None if the list has it all."""
        ...

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),
        now: datetime | None = None,
    ) -> Reading[Listing]:
        """Every listing of the pages; a body that is no listing raises, it is never empty.

        `now` is when they were fetched, and without it a relative date stays unread.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlatform:
    """A kind of board; `version` changes when the same body would be read otherwise.

    Only a documented API, made for programs, may say that it does not honour robots.txt.
    """

    name: str
    version: int
    honours_robots: bool
    configure: Callable[[str, Mapping[str, object]], JobBoard]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressPlace:
    """Whose board it is and where it is asked; `url` is the source's own address, or empty."""

    platform: str
    url: str
    token: str | None
    api_base: str
    company: str | None

    def known_token(self) -> str:
        """The token; BadConfig where neither address nor config names it."""
        if self.token is None:
            raise BadConfig(
                f"a {self.platform} source needs the token of its board: in its address or as"
                " board_token in its config"
            )
        return self.token


def read_place(reader: ConfigReader, url: str, *, platform: str, api_base: str) -> AddressPlace:
    """The keys that every board of an API has: `board_token`, `api_base` and `company`."""
    if url:
        reader.checked_address("url", url)
    found = recognize_platform(url)
    named = found.token if found is not None and found.name == platform else None
    return AddressPlace(
        platform=platform,
        url=url,
        token=reader.text("board_token") or named,
        api_base=(reader.address("api_base") or api_base).rstrip("/"),
        company=reader.text("company"),
    )
