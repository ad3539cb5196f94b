"""The context of a run: everything its loops need, built once; and the protocols of the polled systems in it.

Fetching a feed belongs to its protocol: all its pages, or that it is unchanged.
"""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from random import Random
from typing import Protocol

from sqlalchemy import Connection

from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.pages.http.request import Answer, Fetched, Request, Unchanged
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.pages.visits.page import StoredPage
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Source
from ingestion_pipeline.sources.poll_results import IngestResult
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.changes import Cause, Origin
from ingestion_pipeline.tasks.errors import Permanent, Resource
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.urls import without_credentials


class Feed(Protocol):
    """The pages of a configured source, without any network access."""

    def first_request(self) -> Request:
        """Return the request for the first page of the feed."""
        ...

    def next_request(self, body: bytes, *, previous: Request, url: str = "") -> Request | None:
        """Return the request for the page after this one; None after the last.

        `body` is the response to `previous`, which came from `url` after redirects.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchState:
    """What the last ingestion stored, by which an unchanged feed is recognised."""

    content_hash: str | None = None
    etag: str | None = None
    last_modified: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnchangedFeed:
    """The feed has not changed; its validators may have."""

    etag: str | None
    last_modified: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFeed:
    """Every page of a feed that differs from the stored one."""

    pages: tuple[Fetched, ...]
    content_hash: str


Fetch = Callable[[Request], Awaitable[Answer]]


async def fetch_feed(
    feed: Feed,
    previous_state: FetchState,
    *,
    parser_version: str,
    fetch: Fetch,
    max_pages: int,
    may_be_cut: bool = False,
) -> UnchangedFeed | ChangedFeed:
    """Fetch all pages of the feed; unchanged if every page and `parser_version` are equal.

    Only a feed of one page is requested conditionally: a 304 says nothing about the next page. With
    `may_be_cut` a feed of too many pages is fetched up to the limit, since its parser recognises a
    partial feed; and a feed that links back to one of its own pages ends there.
    """
    first = replace(feed.first_request(), etag=previous_state.etag, last_modified=previous_state.last_modified)
    answer = await fetch(first)
    if isinstance(answer, Unchanged):
        return UnchangedFeed(etag=answer.etag, last_modified=answer.last_modified)
    pages, request = [answer], first
    requested = {(first.url, first.body)}
    while (following := _next_request(feed, pages, request)) is not None:
        leads_back = (following.url, following.body) in requested
        if may_be_cut and (leads_back or len(pages) >= max_pages):
            break
        requested.add((following.url, following.body))
        if len(pages) >= max_pages:
            raise Permanent(
                f"{without_credentials(first.url)} has more than {max_pages} pages;"
                " raise the setting fetch.max_pages if that is right",
                code="too_many_pages",
            )
        page = await _fetch_next(fetch, following)
        if page is None:
            break
        pages.append(page)
        request = following
    content_hash = feed_hash(pages, parser_version=parser_version)
    if content_hash == previous_state.content_hash:
        if len(pages) > 1:
            return UnchangedFeed(etag=None, last_modified=None)
        return UnchangedFeed(etag=answer.etag, last_modified=answer.last_modified)
    return ChangedFeed(pages=tuple(pages), content_hash=content_hash)


def feed_hash(pages: list[Fetched], *, parser_version: str) -> str:
    """Return a hash that is equal iff every page and the parser version are equal."""
    return hash_of_bodies((hashlib.sha256(page.body).digest() for page in pages), parser_version=parser_version)


def hash_of_bodies(digests: Iterable[bytes], *, parser_version: str) -> str:
    """Return the `feed_hash` of pages by the SHA-256 of their bodies."""
    whole = hashlib.sha256(parser_version.encode())
    for digest in digests:
        whole.update(digest)
    return whole.hexdigest()


def _next_request(feed: Feed, pages: list[Fetched], request: Request) -> Request | None:
    """Return the next request; None after the last page, which some servers repeat for every higher number."""
    if request.may_be_missing and pages[-1].body == pages[-2].body:
        return None
    return feed.next_request(pages[-1].body, previous=request, url=pages[-1].final_url)


async def _fetch_next(fetch: Fetch, request: Request) -> Fetched | None:
    """Return the page; None where the feed ended before it."""
    try:
        answer = await fetch(request)
    except Permanent as error:
        if request.may_be_missing and error.code == "http_404":
            return None
        raise
    if isinstance(answer, Unchanged):
        raise Permanent(f"{without_credentials(request.url)} answered 304 to a plain request", code="bad_304")
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledFeed:
    """What a poll read from a source, and the poll task, whose lineage new tasks join.

    The rows written from it refer to `ingestion_id`, the row of the poll.
    """

    task: Task
    source: Source
    parsed: bytes
    ingestion_id: int
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class SinglePageSnapshot:
    """The stored snapshot of a feed of one page."""

    source_id: str
    ingestion_id: int
    snapshot_id: int


class PolledSystem(Protocol):
    """A kind of source that is fetched and ingested by the poll jobs."""

    @property
    def may_be_cut(self) -> bool:
        """Whether a partial feed is better than none: then a feed of too many pages is cut."""
        ...

    def feed(self, source: Source) -> Feed:
        """Return the source's pages; a configuration that cannot work raises ValueError."""
        ...

    def parser_version(self, source: Source) -> str:
        """Return platform, version and configuration; if it changes, everything is parsed again."""
        ...

    def pace(self, source: Source, settings: Settings) -> Pace:
        """Return how fast the source's host may be requested."""
        ...

    def honours_robots(self, source: Source) -> bool:
        """Return whether the host's robots.txt applies to the source."""
        ...

    def read(self, source: Source, pages: Sequence[StoredPage]) -> bytes:
        """Parse the pages, serialised for `ingest`; raise a WorkError if they are not plausible."""
        ...

    def size(self, parsed: bytes) -> int:
        """Return about how many rows the parsed feed has, so that transactions stay bounded."""
        ...

    def ingest(
        self, connection: Connection, feeds: Sequence[PolledFeed], *, now: datetime, settings: Settings
    ) -> Sequence[IngestResult]:
        """Write the feeds in the caller's transaction; return one result per source."""
        ...

    def link_snapshots(self, connection: Connection, snapshots: Sequence[SinglePageSnapshot]) -> None:
        """Link rows to the snapshot they were read from, for feeds of one page."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredSystem:
    """A kind of source whose poll only starts the work: other runs do it.

    `check` raises ValueError if the source's configuration cannot work. `start` starts the work of each source unless
    some is under way, and returns a message for each; one for which there is no room has the reason instead: its poll
    waits, uncounted. `delay_seconds` is our own floor for its host; robots.txt may ask for more.
    """

    check: Callable[[Source], None]
    start: Callable[[Connection, Sequence[Source], datetime, Settings], Mapping[str, str | Resource]]
    delay_seconds: Callable[[Settings], float] = lambda settings: settings.hosts.delay_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MountNames:
    """The prefixes of what an orchestrator shows: of the keys of assets; of jobs, partition sets and shards."""

    key_prefix: tuple[str, ...] = ()
    job_prefix: str = ""

    def job(self, name: str) -> str:
        """Return the name with the prefix of jobs."""
        return self.job_prefix + name

    def own_job(self, name: str) -> str | None:
        """Return the job's name without our prefix; None if it is no job of ours."""
        return name.removeprefix(self.job_prefix) if name.startswith(self.job_prefix) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Everything a run needs: database, settings, content store and systems.

    `random` only spreads due times. `run_id` is the Dagster run; a command has none. The polls of
    `deferred_systems` only start work that other runs do. `names` are those that the run is shown under.
    """

    store: Store
    settings: Settings
    content: ContentStore
    systems: Mapping[Kind, PolledSystem]
    deferred_systems: Mapping[Kind, DeferredSystem] = field(default_factory=dict[Kind, DeferredSystem])
    random: Random = field(default_factory=Random)
    run_id: str | None = None
    names: MountNames = field(default_factory=MountNames)

    @property
    def origin(self) -> Origin:
        """Return why rows change in a run, unless its system knows more."""
        return Origin(cause=Cause.SOURCE_CHANGED, run_id=self.run_id)

    def pace(self, source: Source) -> Pace:
        """Return how fast a host may be requested for the source."""
        deferred = self.deferred_systems.get(source.kind)
        if deferred is not None:
            return Pace(delay_seconds=deferred.delay_seconds(self.settings))
        return self.systems[source.kind].pace(source, self.settings)
