"""Polls as tasks: fetch a feed at its host's pace, store it if it changed; other runs do what a poll only starts.

A run that is killed between fetching and ingesting loses nothing: its polls stay claimed until their leases expire
(`tasks/claims.py`; the sensor `stale_runs` expires them sooner), are then claimed again with a higher fence, and
fetched again. The batch of the dead run is deleted by whoever stores the feed again, or by retention, never resumed.
"""

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from uuid import uuid4

from sqlalchemy import Connection, delete, insert, select

from ingestion_pipeline.engine.context import Feed, FetchState, RunContext, UnchangedFeed, fetch_feed
from ingestion_pipeline.engine.handler import (
    Completed,
    EndedTask,
    Failed,
    Outcome,
    Skipped,
    TaskHandler,
    decided,
    end_tasks,
    not_done,
    skipped,
)
from ingestion_pipeline.engine.worker_loop import WorkerLoop
from ingestion_pipeline.pages.content.snapshots import PageRef
from ingestion_pipeline.pages.content.store import ContentStore, storage_errors_fatal
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.http.request import Fetched
from ingestion_pipeline.pages.politeness.host_leases import HostLease, PacedFetch
from ingestion_pipeline.sources import Source, Tier, poll_results
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_results import PollFailure
from ingestion_pipeline.sources.poll_tasks import claim_size, known_pace
from ingestion_pipeline.sources.scheduling.tiers import load_measurements
from ingestion_pipeline.store.changes import set_origins
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.statements import lock_rows
from ingestion_pipeline.store.tables import batch_items, sources
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline.tasks.ended_tasks import Counts, DeadLetterTask, Decision, ReleaseTask, Retry
from ingestion_pipeline.tasks.errors import Fatal, Permanent, Resource
from ingestion_pipeline.tasks.task import Task, released
from ingestion_pipeline.urls import host_of, without_secrets

BATCHES_PER_RUN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedPoll:
    """A poll that this worker has claimed; without a feed nothing is fetched."""

    task: Task
    source: Source
    feed: Feed | None = None

    @property
    def host(self) -> str | None:
        """The host of the feed's first page."""
        return None if self.feed is None else host_of(self.feed.first_request().url)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFeed:
    """A changed feed, stored and waiting to be parsed."""

    content_hash: str
    parser_version: str
    pages: tuple[PageRef, ...]


@dataclass(frozen=True, slots=True)
class Deferred:
    """A poll that only starts work on the source; other runs do it."""


PollOutcome = Outcome[ClaimedPoll, UnchangedFeed | StoredFeed | Deferred]


@dataclass(frozen=True, slots=True, kw_only=True)
class PollCounts(Counts):
    """How many polls ended how; `lost` were claimed by another worker meanwhile."""

    changed: int = 0
    unchanged: int = 0
    started: int = 0
    retried: int = 0
    given_back: int = 0
    failed: int = 0
    skipped: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PollRunResult:
    """The result of a run's fetching: batches to extract, and counts."""

    owner: str
    batch_ids: list[str]
    counts: PollCounts


async def fetch_feeds(
    ctx: RunContext, worker: Worker, fetcher: HttpFetcher, claim_filter: ClaimFilter
) -> PollRunResult:
    """Fetch until no poll is due; a fatal error is raised after everything else is written."""
    clock = SteadyClock(await asyncio.to_thread(ctx.store.now))
    size = await asyncio.to_thread(_claim_size, ctx, claim_filter)
    handler = PollHandler(ctx, claim_filter, capacity=size, fetcher=fetcher, clock=clock)
    try:
        counts = await WorkerLoop(ctx, worker, fetcher, handler, clock=clock).run()
    except Fatal as error:
        await asyncio.to_thread(handler.release_batches, error)
        raise
    return PollRunResult(owner=worker.owner, batch_ids=handler.filled_batches(), counts=PollCounts.of(counts))


def _claim_size(ctx: RunContext, claim_filter: ClaimFilter) -> int:
    tiers = {tier.priority: tier.value for tier in Tier}
    with ctx.store.read() as connection:
        pace = known_pace(load_measurements(connection), tiers.get(claim_filter.priority or 0))
    return claim_size(pace, ctx.settings.polling)


class PollHandler(TaskHandler[ClaimedPoll, UnchangedFeed | StoredFeed | Deferred]):
    """Polls the sources of the filter, for one run; without a fetcher only those whose work is deferred."""

    flush_after = 200
    transaction_size = 5_000

    def __init__(
        self,
        ctx: RunContext,
        claim_filter: ClaimFilter,
        *,
        capacity: int,
        fetcher: HttpFetcher | None = None,
        clock: SteadyClock | None = None,
    ) -> None:
        self.concurrency = ctx.settings.polling.concurrency
        self.capacity = capacity
        self.policy = ctx.settings.work
        self._ctx = ctx
        self._fetcher = fetcher
        self._clock = clock
        self._claim_filter = claim_filter
        # A manual claim ignores due times: each source is claimed once, and again when its retry is due.
        self._requested = None if claim_filter.source_ids is None else sorted(claim_filter.source_ids)
        self._retry_at: dict[str, datetime] = {}
        self._batches = {str(uuid4()): 0}  # how many changed feeds each holds
        self._first_feed_at = math.inf

    # --- claiming

    def may_start(self) -> bool:
        """Return whether this run can also ingest more changed feeds, and the first has not waited too long for it.

        Else hosts that hang and retries would delay the changes of all others.
        """
        polling = self._ctx.settings.polling
        if time.monotonic() - self._first_feed_at > polling.run_seconds:
            return False
        return sum(self._batches.values()) < BATCHES_PER_RUN * polling.batch_size

    def claim_requests(self, room: int, held: Sequence[ClaimedPoll]) -> Sequence[tuple[ClaimFilter, int]]:  # noqa: ARG002
        """Claim what is due, or the sources that were requested."""
        if self._requested is None:
            return [(self._claim_filter, room)]
        now = self._ctx.store.now()
        due = [source for source, at in self._retry_at.items() if at <= now]
        self._requested += due
        for source in due:
            del self._retry_at[source]
        claimed, self._requested = self._requested[:room], self._requested[room:]
        return [(replace(self._claim_filter, source_ids=claimed), room)] if claimed else []

    def load(
        self,
        connection: Connection,
        tasks: Sequence[Task],
        *,
        now: datetime,  # noqa: ARG002 - the protocol
    ) -> Sequence[ClaimedPoll | PollOutcome]:
        """Return the feed to fetch for each poll; one that only starts work is completed already."""
        existing = sources_by_id(connection, {task.source_id or "" for task in tasks})
        return [self._loaded(task, existing.get(task.source_id or "")) for task in tasks]

    def _loaded(self, task: Task, source: Source | None) -> ClaimedPoll | PollOutcome:
        if source is None:
            return Skipped(task=task, reason="the source is gone; nothing polls it", code="source_deleted")
        poll = ClaimedPoll(task=task, source=source)
        try:
            if source.kind in self._ctx.deferred_systems:
                self._ctx.deferred_systems[source.kind].check(source)
                return Completed(task=task, item=poll, value=Deferred())
            poll = replace(poll, feed=self._feed(source))
            host_of(poll.feed.first_request().url if poll.feed else "")
        except ValueError as error:
            return Failed(task=task, item=poll, error=Permanent(str(error), code="bad_config"))
        return poll

    def _feed(self, source: Source) -> Feed:
        if source.kind not in self._ctx.systems:
            raise ValueError(f"nothing polls sources of kind {source.kind}; disable {source.id}")
        return self._ctx.systems[source.kind].feed(source)

    # --- fetching

    async def execute(self, item: ClaimedPoll, host: HostLease | None) -> UnchangedFeed | StoredFeed:
        """Fetch the feed; store its pages if it changed."""
        if item.feed is None or host is None or self._fetcher is None or self._clock is None:
            raise ValueError(f"the poll of {item.source.id} needs a feed, a fetcher and the lease of its host")
        system = self._ctx.systems[item.source.kind]
        parser_version = system.parser_version(item.source)
        robots = host.robots if system.honours_robots(item.source) else None
        answer = await fetch_feed(
            item.feed,
            _fetch_state(item.source, parser_version),
            parser_version=parser_version,
            fetch=PacedFetch(self._fetcher, item.host or "", host, robots, self._clock),
            max_pages=self._ctx.settings.fetch.max_pages,
            may_be_cut=system.may_be_cut,
        )
        if isinstance(answer, UnchangedFeed):
            return answer
        pages = await asyncio.to_thread(_store_pages, self._ctx.content, answer.pages)
        return StoredFeed(content_hash=answer.content_hash, parser_version=parser_version, pages=pages)

    # --- writing

    def persist(self, connection: Connection, outcomes: Sequence[PollOutcome], *, now: datetime) -> Sequence[EndedTask]:
        """Write unchanged and failed polls, start deferred work, and fill the batch that `extract` reads."""
        done = [outcome for outcome in outcomes if isinstance(outcome, Completed)]
        unchanged = [
            poll_results.unchanged(
                end.task, end.item.source, etag=end.value.etag, last_modified=end.value.last_modified
            )
            for end in done
            if isinstance(end.value, UnchangedFeed)
        ]
        feeds = [(end.item, end.value) for end in done if isinstance(end.value, StoredFeed)]
        started, refused = self._start([end.item for end in done if isinstance(end.value, Deferred)], connection, now)
        failures = [poll_failure(end) for end in outcomes if isinstance(end, Failed) and end.item]
        # All locked before the first write, in the order that reporting uses as well.
        lock_rows(connection, sources.c.id, [end.item.source.id for end in outcomes if end.item is not None])
        settings, random = self._ctx.settings, self._ctx.random
        if started:
            poll_results.begin_crawls(connection, started, now=now, settings=settings, random=random)
        poll_results.succeed(connection, unchanged, now=now, settings=settings, random=random)
        decisions = poll_results.fail(connection, failures + refused, now=now, settings=settings, random=random)
        _store_batch_items(connection, feeds, batch_id=self._batch_with_room(), now=now)
        return [
            *(EndedTask(move=None, count="changed") for _ in feeds),
            *(EndedTask(move=None, count="unchanged") for _ in unchanged),
            *(EndedTask(move=None, count="started") for _ in started),
            *self._not_done(failures + refused, decisions),
            *(skipped(end) for end in outcomes if isinstance(end, Skipped)),
            *(not_done(end) for end in outcomes if isinstance(end, Failed) and end.item is None),
        ]

    def _start(
        self, polls: Sequence[ClaimedPoll], connection: Connection, now: datetime
    ) -> tuple[list[tuple[Task, Source, str]], list[PollFailure]]:
        """Start the work of these polls; return those started with a message, and those refused."""
        started: list[tuple[Task, Source, str]] = []
        refused: list[PollFailure] = []
        for kind in sorted({poll.source.kind for poll in polls}):
            polls_of_kind = [poll for poll in polls if poll.source.kind == kind]
            answers = self._ctx.deferred_systems[kind].start(
                connection, [poll.source for poll in polls_of_kind], now, self._ctx.settings
            )
            for poll in polls_of_kind:
                match answers[poll.source.id]:
                    case Resource() as why:
                        decision = ReleaseTask(why.until)
                        refused.append(PollFailure(task=poll.task, source=poll.source, error=why, decision=decision))
                    case str() as message:
                        started.append((poll.task, poll.source, message))
        return started, refused

    def _not_done(self, failures: Sequence[PollFailure], decisions: Sequence[Decision]) -> Iterator[EndedTask]:
        for failure, decision in zip(failures, decisions, strict=True):
            end = end_of_poll(decision)
            if end.again_at is not None:
                self._retry_at[failure.source.id] = end.again_at
            yield end

    # --- batches

    def after_persist(self, outcomes: Sequence[PollOutcome]) -> None:
        """Count the feeds in the batch."""
        changed = sum(isinstance(end, Completed) and isinstance(end.value, StoredFeed) for end in outcomes)
        self._batches[next(reversed(self._batches))] += changed
        if changed:
            self._first_feed_at = min(self._first_feed_at, time.monotonic())

    def filled_batches(self) -> list[str]:
        """Return the batches that hold changed feeds."""
        return [batch_id for batch_id, count in self._batches.items() if count]

    def release_batches(self, error: Fatal) -> None:
        """Release every poll that waits to be parsed."""
        with self._ctx.store.begin() as connection:
            now = self._ctx.store.clock.now(connection)
            for batch_id in self._batches:
                release_batch(connection, batch_id, error, now=now)

    def _batch_with_room(self) -> str:
        batch_id, count = list(self._batches.items())[-1]
        if count < self._ctx.settings.polling.batch_size:
            return batch_id
        batch_id = str(uuid4())
        self._batches[batch_id] = 0
        return batch_id


def start_deferred(ctx: RunContext, claim_filter: ClaimFilter, *, limit: int) -> int:
    """Start what the due polls of deferred systems start, claimed and written in one transaction; return how many.

    For a caller that has no run: a run would take longer to start than the work takes.
    """
    handler, lease = PollHandler(ctx, claim_filter, capacity=limit), timedelta(seconds=ctx.settings.work.lease_seconds)
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        set_origins(connection, {}, now=now, default=ctx.origin)
        polls = claims.claim(connection, claim_filter, owner=str(uuid4()), now=now, lease=lease, limit=limit)
        loaded = handler.load(connection, polls, now=now)
        outcomes = [
            decided(outcome, now=now, policy=handler.policy, random=ctx.random)
            for outcome in loaded
            if not isinstance(outcome, ClaimedPoll)  # one to fetch is left to a run
        ]
        ended = handler.persist(connection, outcomes, now=now)
        end_tasks(connection, ended, now=now)
    return sum(end.count == "started" for end in ended)


def end_of_poll(decision: Decision) -> EndedTask:
    """Return how a failed poll counts, whose task `poll_results.fail` has written."""
    match decision:
        case Retry(not_before):
            return EndedTask(move=None, count="retried", again_at=not_before)
        case ReleaseTask():
            return EndedTask(move=None, count="given_back")
        case DeadLetterTask():
            return EndedTask(move=None, count="failed")


def poll_failure(failure: PollOutcome) -> PollFailure:
    """Return the failure of a poll about which something was decided."""
    if not isinstance(failure, Failed) or failure.item is None or failure.decision is None:
        raise ValueError(f"nothing is decided about the poll of {failure.task.source_id}")
    return PollFailure(
        task=failure.task,
        source=failure.item.source,
        error=failure.error,
        stack=failure.stack,
        decision=failure.decision,
    )


def _fetch_state(source: Source, parser_version: str) -> FetchState:
    """Return what an unchanged feed is recognised by; nothing if it must be read again anyway."""
    if source.needs_full_read or source.parser_version != parser_version:
        return FetchState()
    return FetchState(content_hash=source.content_hash, etag=source.etag, last_modified=source.last_modified)


def _store_pages(content: ContentStore, pages: Sequence[Fetched]) -> tuple[PageRef, ...]:
    with storage_errors_fatal():
        names = content.put_many([page.body for page in pages])
    return tuple(
        PageRef(
            url=without_secrets(page.url),
            final_url=without_secrets(page.final_url),
            content_hash=name,
            content_type=page.content_type,
            size_bytes=len(page.body),
            status_code=page.status_code,
            etag=page.etag,
            last_modified=page.last_modified,
            rights=page.rights or None,
        )
        for name, page in zip(names, pages, strict=True)
    )


def _store_batch_items(
    connection: Connection, feeds: Sequence[tuple[ClaimedPoll, StoredFeed]], *, batch_id: str, now: datetime
) -> None:
    """Write the batch that `extract` will read; the polls stay claimed."""
    if not feeds:
        return
    left_by_dead_workers = batch_items.c.task_id.in_([poll.task.id for poll, _ in feeds])
    connection.execute(delete(batch_items).where(left_by_dead_workers))
    connection.execute(
        insert(batch_items),
        [
            {
                "batch_id": batch_id,
                "task_id": poll.task.id,
                "fence": poll.task.fence,
                "source_id": poll.source.id,
                "fetched": {
                    "content_hash": feed.content_hash,
                    "parser_version": feed.parser_version,
                    "pages": [asdict(page) for page in feed.pages],
                },
                "fetched_at": now,
            }
            for poll, feed in feeds
        ],
    )
    claims.set_stage(connection, [(poll.task.id, poll.task.fence) for poll, _ in feeds], "fetched")


def release_batch(connection: Connection, batch_id: str, error: Fatal, *, now: datetime) -> None:
    """Make the rest of the batch claimable at once, without counting the attempt."""
    item = (batch_items.c.task_id, batch_items.c.fence)
    rows = connection.execute(select(*item).where(batch_items.c.batch_id == batch_id))
    held_ids = claims.held(connection, [(task_id, fence) for task_id, fence in rows])
    tasks = claims.tasks_by_id(connection, held_ids)
    moves = [released(tasks[task_id], error, not_before=now) for task_id in sorted(held_ids)]
    claims.apply(connection, moves, now=now)
    connection.execute(delete(batch_items).where(batch_items.c.batch_id == batch_id))
