"""What a configured board does without network access, and what a platform of job boards is."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ingestion_pipeline.companies.job_listing import Listing
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.structured.items import ParsedFeed


class JobBoard(ABC):
    """A configured board: it builds requests and parses responses."""

    @abstractmethod
    def first_request(self) -> Request:
        """Return the first request of a listing; raise BadConfig if the board is unknown."""

    def next_request(self, body: bytes, *, previous: Request, url: str = "") -> Request | None:  # noqa: ARG002
        """Return the request after `previous`, whose response came from `url`; None at the end."""
        return None

    def detail_request(self, listing: Listing) -> Request | None:  # noqa: ARG002
        """Return the request for a listing's details, for `read`; None if the list has all."""
        return None

    @abstractmethod
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlatform:
    """A kind of board; `version` changes when the same body would be parsed differently.

    Only a documented API, made for programs, may ignore robots.txt.
    """

    name: str
    version: int
    honours_robots: bool
    configure: Callable[[str, Mapping[str, object]], JobBoard]
