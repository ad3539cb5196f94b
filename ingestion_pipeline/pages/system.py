"""What a system brings to polling; the engine brings claims, manners, storage and transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sqlalchemy import Connection

from ingestion_pipeline.pages.hosts import Pace
from ingestion_pipeline.pages.listing import Feed
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Source
from ingestion_pipeline.work.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPage:
    """A fetched page as the content store gives it back; `url` is where its redirects led."""

    url: str
    body: bytes
    content_type: str | None
    fetched_at: datetime


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
