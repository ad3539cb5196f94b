"""What a system brings to crawling, and what passes between it and the loop: pages, as work."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any, Protocol

from sqlalchemy import Connection

from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.pages.visits.page import (
    CrawledPage,
    KnownPage,
    NewPage,
    PageAnswer,
    PageVisit,
    SamePage,
)
from ingestion_pipeline.settings import Settings, Work
from ingestion_pipeline.sources import Source
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline.tasks.results import Counts, FailedResult, Result
from ingestion_pipeline.tasks.task import Task

FETCH_PAGE = "fetch_page"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlFilter:
    """Whose pages a run walks through: those of a shard, or of the sources it was asked for."""

    shard: int | None = None
    shards: int = 1
    source_ids: Collection[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageWork:
    """A page that is ours to visit; `plan` is the system's own word on it."""

    task: Task
    source: Source
    visit: PageVisit
    plan: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PageDone(Result[PageWork]):
    """A page that was visited, and what follows from it, in the system's own words."""

    answer: PageAnswer
    followed: Any
    elapsed_ms: int

    @property
    def is_new(self) -> bool:
        """Whether it is to be a snapshot; else the known one still holds."""
        return isinstance(self.answer, NewPage)

    @property
    def size_bytes(self) -> int:
        """Of what was sent."""
        return len(self.answer.body) if isinstance(self.answer, NewPage) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFailed(FailedResult[PageWork]):
    """A page that was not got."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageGone:
    """A page that nobody wants any more."""

    task: Task
    why: str


PageResult = PageDone | PageFailed | PageGone


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlCounts(Counts):
    """How many visits ended how; `lost` were taken over by another worker meanwhile."""

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
    """What a transaction writes of its pages: those got, those that wait again, those given up."""

    done: Sequence[tuple[PageDone, int]] = ()
    waiting: Sequence[PageFailed] = ()
    failed: Sequence[PageFailed] = ()


class KnownPages:
    """What a run has seen to be in the database already, by walk: most links lead to such pages.

    A hint in front of the database's own word, and so of bounded size: it forgets all at once.
    """

    def __init__(self, most: int = 4_000) -> None:
        self._most = most
        self._count = 0
        self._keys: dict[int, set[str]] = {}

    def of(self, walk_id: int) -> Collection[str]:
        """The keys of pages that the walk need not be told of again."""
        return self._keys.get(walk_id, ())

    def add(self, walk_id: int, keys: Collection[str]) -> None:
        """These were there before the transaction that says so: it may still be rolled back."""
        if self._count + len(keys) > self._most:
            self._keys.clear()
            self._count = 0
        if len(keys) <= self._most:
            known = self._keys.setdefault(walk_id, set())
            before = len(known)
            known.update(keys)
            self._count += len(known) - before


class Visitor(Protocol):
    """Looks at one page, politely; whatever goes wrong leaves as a `WorkError`."""

    async def visit(self, visit: PageVisit, *, host: HostLease, honours_robots: bool) -> PageAnswer:
        """The page, or that it is as it was; at the host's pace."""
        ...


class PageArchive(Protocol):
    """Where pages are kept; safe to be used from several threads."""

    def known(self, connection: Connection, urls: Collection[str]) -> Mapping[str, KnownPage]:
        """What the newest snapshot of each URL left; not those never seen, or lost on disk."""
        ...

    def store(self, pages: Sequence[tuple[str, NewPage]], *, now: datetime) -> Sequence[Any]:
        """Each (source, page) is on disk; the answer is what `keep` takes."""
        ...

    def keep(self, connection: Connection, kept: Sequence[Any], *, now: datetime) -> Sequence[int]:
        """Each is a snapshot; their ids, in the same order."""
        ...

    def renew(self, connection: Connection, pages: Collection[SamePage]) -> None:
        """What says the same by other validators will be recognised by these."""
        ...

    def stored(self, known: KnownPage) -> CrawledPage:
        """The page as it was kept."""
        ...


class DeferredSystem(Protocol):
    """A kind of source whose poll only begins the work: other runs do it."""

    def pace(self, source: Source, settings: Settings) -> Pace:
        """How fast a host may be asked for the source."""
        ...

    def check(self, source: Source) -> None:
        """Raise ValueError if the source's configuration cannot work."""
        ...

    def start(
        self,
        connection: Connection,
        sources: Sequence[Source],
        *,
        now: datetime,
        settings: Settings,
    ) -> Mapping[str, str | Resource]:
        """Each source's work has begun, unless some is under way; a word for people on each.

        A source that there is no room for has the reason instead: its poll waits, uncounted.
        """
        ...


class CrawledSystem(DeferredSystem, Protocol):
    """A kind of source whose pages are walked through."""

    def retries(self, settings: Settings) -> Work:
        """How often and how soon a page that failed is tried again."""
        ...

    def honours_robots(self, work: PageWork) -> bool:
        """Whether the host's robots.txt governs the page; not that of a documented API."""
        ...

    def waiting(
        self, connection: Connection, wanted: CrawlFilter, *, now: datetime, limit: int
    ) -> Sequence[Source]:
        """The sources that have pages to be claimed, the longest untouched first."""
        ...

    def open_pages(
        self, connection: Connection, tasks: Sequence[Task], *, archive: PageArchive
    ) -> Sequence[PageWork | PageGone]:
        """What is to be done with each claimed page; it is in progress from now on."""
        ...

    def reads_content(self, work: PageWork) -> bool:
        """Whether `follow` looks into the page; else an unchanged one is not read again."""
        ...

    def lock(self, connection: Connection, works: Sequence[PageWork]) -> None:
        """Nobody ends these pages' walks meanwhile; called before their tasks are locked.

        In this order everywhere, so that no two transactions wait for each other.
        """
        ...

    def without_progress(
        self, connection: Connection, works: Sequence[PageWork], *, since: datetime
    ) -> set[int]:
        """Of these pages' tasks, those whose walk has got no page of their host since then."""
        ...

    def follow(self, work: PageWork, page: CrawledPage | None) -> Any:  # noqa: ANN401
        """What follows from the page, pure; a `WorkError` if nothing can."""
        ...

    def write(
        self,
        connection: Connection,
        outcomes: PageOutcomes,
        *,
        known: KnownPages,
        now: datetime,
        settings: Settings,
        random: Random,
    ) -> None:
        """The pages' rows say what became of them; what follows from them waits to be claimed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Crawled:
    """What a slice of a crawl came to."""

    owner: str
    counts: CrawlCounts = field(default_factory=CrawlCounts)
    is_time_over: bool = False
