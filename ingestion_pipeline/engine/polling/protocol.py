"""A source's whole listing: its first page, and the pages it leads to, or that nothing changed."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from sqlalchemy import Connection

from ingestion_pipeline.pages.http.request import Answer, Fetched, Request, Unchanged
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.pages.visits.page import StoredPage
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Source
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.urls import without_credentials


class Feed(Protocol):
    """What a configured source can say of its pages, without any network."""

    def first_request(self) -> Request:
        """Where the listing begins."""
        ...

    def next_request(self, body: bytes, *, asked: Request, url: str = "") -> Request | None:
        """What follows this page, the answer to `asked` that came from `url` in the end.

        None if it was the last.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchState:
    """What the last ingestion left: by which an unchanged listing is recognised."""

    content_hash: str | None = None
    etag: str | None = None
    last_modified: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SameListing:
    """Nothing changed; the validators may have."""

    etag: str | None
    last_modified: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewListing:
    """Every page of a listing that differs from the known one."""

    pages: tuple[Fetched, ...]
    content_hash: str


MISSING = "http_404"

Fetch = Callable[[Request], Awaitable[Answer]]


async def fetch_listing(
    listing: Feed,
    known: FetchState,
    *,
    reader: str,
    fetch: Fetch,
    max_pages: int,
    may_be_cut: bool = False,
) -> SameListing | NewListing:
    """All pages, or that they are the known ones; `reader` is part of what must be equal.

    Only a listing of one page is asked for conditionally: a 304 says nothing about the next page.
    With `may_be_cut` a listing of too many pages is fetched as far as it is allowed to go: its
    reader can tell that it is a part; and one that leads back to a page of its own ends there.
    """
    first = replace(listing.first_request(), etag=known.etag, last_modified=known.last_modified)
    answer = await fetch(first)
    if isinstance(answer, Unchanged):
        return SameListing(etag=answer.etag, last_modified=answer.last_modified)
    pages, asked = [answer], first
    requested = {(first.url, first.body)}
    while (following := _next_request(listing, pages, asked)) is not None:
        leads_back = (following.url, following.body) in requested
        if may_be_cut and (leads_back or len(pages) >= max_pages):
            break
        requested.add((following.url, following.body))
        if len(pages) >= max_pages:
            raise Permanent(
                f"{without_credentials(first.url)} leads to more than {max_pages} pages;"
                " raise the setting fetch.max_pages if that is right",
                code="too_many_pages",
            )
        page = await _following(fetch, following)
        if page is None:
            break
        pages.append(page)
        asked = following
    content_hash = listing_hash(pages, reader=reader)
    if content_hash == known.content_hash:
        if len(pages) > 1:
            return SameListing(etag=None, last_modified=None)
        return SameListing(etag=answer.etag, last_modified=answer.last_modified)
    return NewListing(pages=tuple(pages), content_hash=content_hash)


def listing_hash(pages: list[Fetched], *, reader: str) -> str:
    """Equal iff every page is, and the reader and its configuration are the same."""
    digest = hashlib.sha256(reader.encode())
    for page in pages:
        digest.update(hashlib.sha256(page.body).digest())
    return digest.hexdigest()


def _next_request(listing: Feed, pages: list[Fetched], asked: Request) -> Request | None:
    """None also where a server gives its last page again for every number beyond it."""
    if asked.may_be_missing and pages[-1].body == pages[-2].body:
        return None
    return listing.next_request(pages[-1].body, asked=asked, url=pages[-1].final_url)


async def _following(fetch: Fetch, request: Request) -> Fetched | None:
    """The page, or None where the list ended before it."""
    try:
        return _whole(await fetch(request), request)
    except Permanent as error:
        if request.may_be_missing and error.code == MISSING:
            return None
        raise


def _whole(answer: Answer, request: Request) -> Fetched:
    if isinstance(answer, Unchanged):
        shown = without_credentials(request.url)
        raise Permanent(f"{shown} answered 304 to a plain request", code="bad_304")
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """What a reading came to for one source; a quarantined one has changed nothing.

    `published` are the dates that its new records state. One that `is_buried` waits in the dead
    letters, with its body, for somebody to look at it.
    """

    source_id: str
    outcome: str
    new: int = 0
    updated: int = 0
    withdrawn: int = 0
    quarantined: bool = False
    newest_at: datetime | None = None
    published: Sequence[datetime] = ()
    needs_full_read: bool = False
    record_count: int = 0
    is_buried: bool = False
    has_touched: bool = False

    @property
    def says_something(self) -> bool:
        """Whether the listing differed in what it lists, and not only in its bytes."""
        told = self.new or self.updated or self.withdrawn
        return bool(told) or self.needs_full_read or self.quarantined

    @property
    def has_written(self) -> bool:
        """Whether a row may name the poll: it said something, or touched what is nobody's news."""
        return self.says_something or self.has_touched


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledReading:
    """What a poll read of a source, and the poll itself: what it brings is of its lineage.

    The rows that state it name `ingestion_id`, the row that tells of the poll.
    """

    task: Task
    source: Source
    reading: bytes
    ingestion_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A listing of one page, which is kept."""

    source_id: str
    ingestion_id: int
    snapshot_id: int


class PolledSystem(Protocol):
    """A kind of source that is fetched and ingested by the poll jobs.

    One that `may_be_cut` reads a listing of too many pages as the part that it is.
    """

    @property
    def may_be_cut(self) -> bool:
        """Whether a part of a listing is better than none."""
        ...

    def listing(self, source: Source) -> Feed:
        """The source's pages; a configuration that cannot work raises ValueError."""
        ...

    def reader(self, source: Source) -> str:
        """Names platform, version and configuration: another one must read everything again."""
        ...

    def pace(self, source: Source, settings: Settings) -> Pace:
        """How fast the source's host may be asked."""
        ...

    def honours_robots(self, source: Source) -> bool:
        """Whether the host's robots.txt governs what is fetched for the source."""
        ...

    def read(self, source: Source, pages: Sequence[StoredPage]) -> bytes:
        """What the pages say, serialised for `ingest`; a WorkError if it cannot be believed."""
        ...

    def size(self, reading: bytes) -> int:
        """About how many rows the reading is, so that transactions stay bounded."""
        ...

    def ingest(
        self,
        connection: Connection,
        readings: Sequence[PolledReading],
        *,
        now: datetime,
        settings: Settings,
    ) -> Sequence[Ingested]:
        """The readings are rows afterwards, in the caller's transaction; one result a source."""
        ...

    def place(self, connection: Connection, placed: Sequence[Placed]) -> None:
        """Rows may name the snapshot they were read from, where a listing is one page."""
        ...


Systems = Mapping[Kind, PolledSystem]
