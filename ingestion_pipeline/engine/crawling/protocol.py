"""The protocol of crawled systems, and the types that pass between them and the crawl loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any, Protocol

from sqlalchemy import Connection

from ingestion_pipeline.engine.outcomes import Skipped
from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.pages.visits.page import CrawledPage, KnownPage, NewPage, PageAnswer, PageVisit, SamePage
from ingestion_pipeline.settings import Settings, Work
from ingestion_pipeline.sources import Source
from ingestion_pipeline.tasks.errors import Resource, WorkError
from ingestion_pipeline.tasks.results import Counts
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.urls import host_of

FETCH_PAGE = "fetch_page"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlFilter:
    """Which pages a run crawls: those of a shard, or of the requested sources."""

    shard: int | None = None
    shards: int = 1
    source_ids: Collection[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageWork:
    """A claimed page to fetch; `plan` belongs to the system."""

    task: Task
    source: Source
    visit: PageVisit
    plan: Any

    @property
    def host(self) -> str:
        """The host of the page."""
        return host_of(self.visit.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageDone:
    """A fetched page, and what follows from it, in a type of the system."""

    work: PageWork
    answer: PageAnswer
    followed: Any
    elapsed_ms: int

    @property
    def task(self) -> Task:
        """The claimed task."""
        return self.work.task

    @property
    def is_new(self) -> bool:
        """Whether it becomes a new snapshot; otherwise the stored one still holds."""
        return isinstance(self.answer, NewPage)

    @property
    def size_bytes(self) -> int:
        """Size of the body that was sent."""
        return len(self.answer.body) if isinstance(self.answer, NewPage) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFailed:
    """A page that could not be fetched."""

    work: PageWork
    error: WorkError


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlCounts(Counts):
    """How many pages ended how; `lost` were claimed by another worker meanwhile."""

    new: int = 0
    same: int = 0
    retried: int = 0
    given_back: int = 0
    failed: int = 0
    skipped: int = 0
    lost: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOutcomes:
    """The pages that a transaction writes: fetched, waiting again, and failed."""

    done: Sequence[tuple[PageDone, int]] = ()
    waiting: Sequence[PageFailed] = ()
    failed: Sequence[PageFailed] = ()


class KnownPageCache:
    """Keys of pages that are in the database already, by crawl: most links lead to such pages.

    A hint in front of the database query, bounded in size: when full it drops everything.
    """

    def __init__(self, most: int = 4_000) -> None:
        self._most = most
        self._count = 0
        self._keys: dict[int, set[str]] = {}

    def of(self, walk_id: int) -> Collection[str]:
        """Return the cached page keys of the crawl."""
        return self._keys.get(walk_id, ())

    def add(self, walk_id: int, keys: Collection[str]) -> None:
        """Add keys that existed before the current transaction, which may still be rolled back."""
        if self._count + len(keys) > self._most:
            self._keys.clear()
            self._count = 0
        if len(keys) <= self._most:
            stored_keys = self._keys.setdefault(walk_id, set())
            before = len(stored_keys)
            stored_keys.update(keys)
            self._count += len(stored_keys) - before


class Visitor(Protocol):
    """Fetches one page politely; every failure is a `WorkError`."""

    async def visit(self, visit: PageVisit, *, host: HostLease, honours_robots: bool) -> PageAnswer:
        """Return the page, or that it is unchanged, at the host's pace."""
        ...


class PageArchive(Protocol):
    """Stores pages and snapshots; safe to use from several threads."""

    def known_pages(self, connection: Connection, urls: Collection[str]) -> Mapping[str, KnownPage]:
        """Return the newest snapshot of each URL that has one whose objects are all on disk."""
        ...

    def store(self, pages: Sequence[tuple[str, NewPage]], *, now: datetime) -> Sequence[Any]:
        """Write each (source, page) to disk; return what `keep` takes."""
        ...

    def keep(self, connection: Connection, stored_pages: Sequence[Any], *, now: datetime) -> Sequence[int]:
        """Write a snapshot of each stored page; return the ids in the same order."""
        ...

    def renew(self, connection: Connection, pages: Collection[SamePage]) -> int:
        """Store the new validators of unchanged pages; return how many differed."""
        ...

    def stored(self, known_page: KnownPage) -> CrawledPage:
        """Return the page as it was stored."""
        ...


class DeferredSystem(Protocol):
    """A kind of source whose poll only starts the work: other runs do it."""

    def pace(self, source: Source, settings: Settings) -> Pace:
        """Return how fast a host may be requested for the source."""
        ...

    def check(self, source: Source) -> None:
        """Raise ValueError if the source's configuration cannot work."""
        ...

    def start(
        self, connection: Connection, sources: Sequence[Source], *, now: datetime, settings: Settings
    ) -> Mapping[str, str | Resource]:
        """Start the work of each source unless some is under way; return a message for each.

        A source for which there is no room has the reason instead: its poll waits, uncounted.
        """
        ...


class CrawledSystem(DeferredSystem, Protocol):
    """A kind of source that is crawled page by page."""

    def retries(self, settings: Settings) -> Work:
        """Return how often and how soon a failed page is tried again."""
        ...

    def honours_robots(self, work: PageWork) -> bool:
        """Return whether robots.txt applies to the page; it does not to a documented API."""
        ...

    def waiting(
        self, connection: Connection, crawl_filter: CrawlFilter, *, now: datetime, limit: int
    ) -> Sequence[Source]:
        """Return the sources with claimable pages, the longest untouched first."""
        ...

    def open_pages(
        self, connection: Connection, tasks: Sequence[Task], *, archive: PageArchive
    ) -> Sequence[PageWork | Skipped[PageWork]]:
        """Mark each claimed page as in progress; return what is to be done with it."""
        ...

    def reads_content(self, work: PageWork) -> bool:
        """Return whether `follow` parses the page; if not, an unchanged one is not read again."""
        ...

    def lock(self, connection: Connection, works: Sequence[PageWork]) -> None:
        """Lock the crawls of these pages; called before their tasks are locked.

        The same order everywhere, so that no two transactions deadlock.
        """
        ...

    def without_progress(self, connection: Connection, works: Sequence[PageWork], *, since: datetime) -> set[int]:
        """Return the tasks whose crawl has fetched no page of their host since then."""
        ...

    def follow(self, work: PageWork, page: CrawledPage | None) -> Any:  # noqa: ANN401
        """Return what follows from the page, without side effects; failures are `WorkError`."""
        ...

    def write(
        self,
        connection: Connection,
        outcomes: PageOutcomes,
        *,
        page_cache: KnownPageCache,
        now: datetime,
        settings: Settings,
        random: Random,
    ) -> None:
        """Write the outcomes of the pages, and the tasks that follow from them."""
        ...
