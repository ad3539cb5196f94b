"""Personio: the XML feed of a career site (https://developer.personio.de/docs), all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ingestion_pipeline.companies.listing import Listing
from ingestion_pipeline.companies.platforms.fields import (
    MAX_TITLE_CHARACTERS,
    date_of,
    description_of,
    joined,
    one_line,
    other_places,
    remote_in,
)
from ingestion_pipeline.companies.platforms.protocol import BoardAddress, JobPlatform, read_board_address
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.links import absolute_link
from ingestion_pipeline.reading.structured.items import MAX_PROBLEMS, MAX_RECORDS, ParsedFeed, Problem
from ingestion_pipeline.reading.structured.sitemaps import XmlElement, read_xml
from ingestion_pipeline.reading.text.dates import DateReader
from ingestion_pipeline.sources.config_reader import ConfigReader
from ingestion_pipeline.tasks.errors import Permanent

ACCEPT = "application/xml, text/xml;q=0.9, */*;q=0.5"
ROOT = "workzag-jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonioBoard:
    """One career site."""

    board: BoardAddress
    language: str | None

    def first_request(self) -> Request:
        """Return the request for the whole feed, in the configured language."""
        query = f"?language={self.language}" if self.language else ""
        return Request(url=f"{self._site()}/xml{query}", accept=ACCEPT)

    def next_request(self, body: bytes, *, previous: Request, url: str = "") -> Request | None:  # noqa: ARG002  all come at once
        """Return None: the feed has one page."""
        return None

    def detail_request(self, listing: Listing) -> Request | None:  # noqa: ARG002  the feed has it all
        """Return None: the feed is complete."""
        return None

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),  # noqa: ARG002  links are relative to the site's own address
        now: datetime | None = None,
    ) -> ParsedFeed[Listing]:
        """Return one listing per position, in feed order."""
        roots = [_root(read_xml(*pair)) for pair in zip(bodies, content_types, strict=True)]
        positions = [position for root in roots for position in root.each("position")]
        dates = DateReader(now=now)
        listings = [self._listing(position, dates) for position in positions[: MAX_RECORDS + 1]]
        problems = [
            Problem(where=f"position {n}", message="it has no id or no name; the rest counts")
            for n, listing in enumerate(listings)
            if listing is None
        ]
        if listings and len(problems) == len(listings):
            raise _unexpected(f"{len(listings)} positions without id or name")
        return ParsedFeed(
            records=[listing for listing in listings if listing is not None],
            problems=problems[:MAX_PROBLEMS],
            is_complete=bool(roots) and not problems,
        )

    def _site(self) -> str:
        if self.board.api_base:
            return self.board.api_base
        token = self.board.required_token()
        end = "com" if ".personio.com" in self.board.url else "de"
        return f"https://{token}.jobs.personio.{end}"

    def _listing(self, position: XmlElement, dates: DateReader) -> Listing | None:
        title = one_line(position.text_of("name"), most=MAX_TITLE_CHARACTERS)
        external_id = one_line(position.text_of("id"))
        if title is None or external_id is None:
            return None
        location = one_line(position.text_of("office"))
        extra = (one_line(office.text) for o in position.each("additionalOffices") for office in o.children)
        terms = (one_line(position.text_of(name)) for name in ("employmentType", "schedule"))
        return Listing(
            external_id=external_id,
            title=title,
            url=self._url(external_id),
            location=location,
            posted_at=date_of(one_line(position.text_of("createdAt")), dates),
            description=_description(position),
            company=one_line(position.text_of("subcompany")) or self.board.company,
            department=one_line(position.text_of("department")),
            employment_type=joined(*terms),
            remote=remote_in(location),
            other_locations=other_places(location, list(filter(None, extra))),
        )

    def _url(self, external_id: str) -> str | None:
        if self.board.token is None and not self.board.url:
            return None
        return absolute_link(self.board.url or self._site(), f"/job/{external_id}")


def _description(position: XmlElement) -> str | None:
    parts = (part for all_ in position.each("jobDescriptions") for part in all_.children)
    texts = [(part.text_of("name"), part.text_of("value")) for part in parts]
    return description_of(*(f"<h3>{name or ''}</h3>{value or ''}" for name, value in texts))


def _root(root: XmlElement) -> XmlElement:
    if root.name != ROOT:
        raise _unexpected(f"a document of <{root.name[:60]}>")
    return root


def _unexpected(description: str) -> Permanent:
    return Permanent(
        f"not a list of personio but {description}; give the answer of"
        " https://<token>.jobs.personio.de/xml, or check the source's address and api_base",
        code="unexpected_body",
    )


def configure(url: str, config: Mapping[str, object]) -> PersonioBoard:
    """Configure the site by its URL or `board_token`, in a `language` of two letters."""
    reader = ConfigReader("personio", config)
    board = read_board_address(reader, url, platform="personio", api_base="")
    language = reader.text("language")
    if language is not None and not (language.isascii() and language.isalpha()):
        reader.refuse("language", language, "letters such as en or de")
    reader.finish()
    return PersonioBoard(board=board, language=language)


PLATFORM = JobPlatform(name="personio", version=2, honours_robots=False, configure=configure)
