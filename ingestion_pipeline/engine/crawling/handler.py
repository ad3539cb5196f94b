"""The crawl as tasks: fetch a page at its host's pace, and write it with what follows from it.

The frontier is in the database. A run holds a bounded number of pages, and of one source or host never more than its
share, so that a large catalogue does not starve others.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.protocol import (
    FETCH_PAGE,
    CrawledSystem,
    CrawlFilter,
    KnownPageCache,
    PageArchive,
    PageDone,
    PageFailed,
    PageOutcomes,
    PageWork,
    Visitor,
)
from ingestion_pipeline.engine.handler import TaskHandler
from ingestion_pipeline.engine.outcomes import (
    Completed,
    EndedTask,
    Failed,
    NotNeeded,
    Outcome,
    Skipped,
    not_done,
    skipped,
)
from ingestion_pipeline.pages.content.store import storage_errors_fatal
from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.pages.visits.page import CrawledPage, NewPage, PageAnswer, SamePage
from ingestion_pipeline.pages.visits.polite_visits import LARGE_BYTES
from ingestion_pipeline.sources import Kind, Source
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.errors import BOT_CHECK, FORBIDDEN, Resource, WorkError
from ingestion_pipeline.tasks.retry import ReleaseTask
from ingestion_pipeline.tasks.task import Task, TaskStatus, finished

MOST_SOURCES = 200  # considered at a time; the others come first the next time

# Errors of the whole host and not of one page: until they end, nothing of the host is claimed.
_HOST_CODES = frozenset({"host_busy", "host_yielded", "rate_limited", "crawl_delay", "robots_unavailable"})
_RUN_CODES = frozenset({"stopped", "slice_over"})  # reasons of the run, not of page or host
_PUT_OFF_SINCE = "put_off_since"  # in a task's state: when it was first put off

CrawlOutcome = Outcome[PageWork, PageDone]


class CrawlHandler(TaskHandler[PageWork, PageDone]):
    """Crawls the pages of one kind of source, for one run."""

    flush_after = 250  # pages share the fixed cost of a transaction
    transaction_size = 1_000

    def __init__(
        self,
        ctx: RunContext,
        kind: Kind,
        crawl_filter: CrawlFilter,
        *,
        visitor: Visitor,
        archive: PageArchive,
        clock: SteadyClock,
    ) -> None:
        self._system: CrawledSystem = ctx.crawlers[kind]
        self.concurrency = ctx.settings.polling.concurrency
        self.capacity = ctx.settings.crawl.batch_size
        self.policy = self._system.retries(ctx.settings)
        self._ctx = ctx
        self._crawl_filter = crawl_filter
        self._visitor = visitor
        self._archive = archive
        self._clock = clock
        self._held_until: dict[str, datetime] = {}  # by host
        self._blocked_sources: set[str] = set()
        self._stored: Mapping[int, Any] = {}  # the stored form of each new page, by task
        self._page_cache = KnownPageCache()

    # --- claiming

    def claim_requests(self, room: int, held: Sequence[PageWork]) -> Sequence[tuple[ClaimFilter, int]]:
        """Claim a few pages of each source: within the room, and within its share."""
        with self._ctx.store.read() as connection:
            now = self._ctx.store.clock.now(connection)
            sources = self._system.waiting(connection, self._crawl_filter, now=now, limit=MOST_SOURCES)
        share = max(1, min(self._ctx.settings.crawl.per_source, self.capacity // max(len(sources), 1)))
        held_by = Counter(work.source.id for work in held)
        held_by.update(f"host:{work.host}" for work in held)
        claim_requests: list[tuple[ClaimFilter, int]] = []
        for source in sources:
            count = min(room, share - max(held_by[source.id], held_by[f"host:{source.host}"]))
            if count <= 0 or self._is_held(source):
                continue
            held_by[f"host:{source.host}"] += count
            room -= count
            claim_requests.append((ClaimFilter(kind=FETCH_PAGE, frontier_of=source.id), count))
        return claim_requests

    def _is_held(self, source: Source) -> bool:
        now = self._clock.now()
        return source.id in self._blocked_sources or self._held_until.get(source.host, now) > now

    def load(
        self,
        connection: Connection,
        tasks: Sequence[Task],
        *,
        now: datetime,  # noqa: ARG002 - the protocol
    ) -> Sequence[PageWork | Skipped[PageWork]]:
        """Return what is to be done with each page, and mark it as in progress."""
        return self._system.open_pages(connection, tasks, archive=self._archive)

    # --- fetching

    async def execute(self, item: PageWork, host: HostLease | None) -> PageDone:
        """Fetch the page, and return it with what follows from it."""
        if item.source.id in self._blocked_sources:  # no further requests to a site that blocks us
            raise NotNeeded("its source blocks robots")
        if host is None:
            raise ValueError(f"no lease on the host of {item.visit.url}")
        waited, started = host.rate_limiter.waited_seconds, time.monotonic()
        answer = await self._visitor.visit(item.visit, host=host, honours_robots=self._system.honours_robots(item))
        elapsed = time.monotonic() - started - (host.rate_limiter.waited_seconds - waited)
        if isinstance(answer, NewPage) and len(answer.body) <= LARGE_BYTES:
            followed = self._followed(item, answer)
        else:
            followed = await asyncio.to_thread(self._followed, item, answer)
        return PageDone(work=item, answer=answer, followed=followed, elapsed_ms=round(max(elapsed, 0.0) * 1_000))

    def _followed(self, work: PageWork, answer: PageAnswer) -> Any:  # noqa: ANN401 - the system's
        with storage_errors_fatal():
            page = self._page(work, answer)
        return self._system.follow(work, page)

    def _page(self, work: PageWork, answer: PageAnswer) -> CrawledPage | None:
        """Return the page to parse; an unchanged one is read from the store, if at all."""
        if isinstance(answer, NewPage):
            return CrawledPage(
                url=answer.final_url,
                body=answer.body,
                content_type=answer.content_type,
                links=(*answer.links, *answer.discovered),
                is_rendered=answer.is_rendered,
            )
        return self._archive.stored(answer.known_page) if self._system.reads_content(work) else None

    def size_bytes(self, value: PageDone) -> int:
        """Return the size of the body."""
        return value.size_bytes

    def is_urgent(self, outcome: CrawlOutcome) -> bool:
        """Hold back the host or the source of a failed page; the crawl of a source that blocks us ends now."""
        if not isinstance(outcome, Failed) or outcome.item is None:
            return False
        error, host = outcome.error, outcome.item.host
        if isinstance(error, Resource) and error.code in _HOST_CODES:
            self._held_until[host] = max(error.until, self._held_until.get(host, error.until))
        if error.code == BOT_CHECK:
            self._blocked_sources.add(outcome.item.source.id)
        return error.code == BOT_CHECK

    # --- writing

    def prepare(self, outcomes: Sequence[CrawlOutcome]) -> None:
        """Store the bodies of new pages."""
        new = [
            (outcome.task.id, outcome.item.source.id, outcome.value.answer)
            for outcome in outcomes
            if isinstance(outcome, Completed) and isinstance(outcome.value.answer, NewPage)
        ]
        stored = self._archive.store([(source, page) for _, source, page in new], now=self._ctx.store.now())
        self._stored = dict(zip((task_id for task_id, _, _ in new), stored, strict=True))

    def lock(self, connection: Connection, outcomes: Sequence[CrawlOutcome]) -> None:
        """Lock the crawls before the tasks."""
        self._system.lock(connection, [outcome.item for outcome in outcomes if outcome.item is not None])

    def persist(
        self, connection: Connection, outcomes: Sequence[CrawlOutcome], *, now: datetime
    ) -> Sequence[EndedTask]:
        """Write the pages, and the tasks that follow from them."""
        done = [outcome.value for outcome in outcomes if isinstance(outcome, Completed)]
        failures = self._with_abandoned(connection, outcomes, now=now)
        page_outcomes = PageOutcomes(
            done=self._with_snapshots(connection, done, now=now),
            waiting=[page for page, end in failures if end.is_pending],
            failed=[page for page, end in failures if not end.is_pending],
        )
        self._system.write(
            connection,
            page_outcomes,
            page_cache=self._page_cache,
            now=now,
            settings=self._ctx.settings,
            random=self._ctx.random,
        )
        return [
            *map(_done, done),
            *(end for _, end in failures),
            *(_skip(outcome) for outcome in outcomes if isinstance(outcome, Skipped)),
            *(not_done(outcome) for outcome in outcomes if isinstance(outcome, Failed) and outcome.item is None),
        ]

    def _with_snapshots(
        self, connection: Connection, done: Sequence[PageDone], *, now: datetime
    ) -> list[tuple[PageDone, int]]:
        new = [page.task.id for page in done if page.is_new]
        ids = self._archive.keep(connection, [self._stored[task_id] for task_id in new], now=now)
        snapshots = dict(zip(new, ids, strict=True))
        same = {page.task.id: page.answer for page in done if isinstance(page.answer, SamePage)}
        self._archive.renew(connection, same.values())
        snapshots |= {task_id: answer.known_page.snapshot_id for task_id, answer in same.items()}
        return [(page, snapshots[page.task.id]) for page in done]

    def _with_abandoned(
        self, connection: Connection, outcomes: Sequence[CrawlOutcome], *, now: datetime
    ) -> list[tuple[PageFailed, EndedTask]]:
        """Return each failed page with the end of its task; one that was put off too long is abandoned.

        Otherwise a crawl might never end. The age alone is not enough: a large catalogue on a slow host puts its
        pages off for weeks.
        """
        failures = [(outcome.item, outcome) for outcome in outcomes if isinstance(outcome, Failed) and outcome.item]
        since = now - timedelta(seconds=self._ctx.settings.crawl.longest_wait_seconds)
        old = [work for work, failure in failures if _is_put_off(failure.error) and _put_off_since(work, now) < since]
        abandoned = self._system.without_progress(connection, old, since=since) if old else set[int]()
        return [
            (
                PageFailed(work=work, error=failure.error),
                # A page that robots.txt forbids stays forbidden during this crawl.
                _abandon(work, failure.error)
                if failure.error.code == FORBIDDEN or work.task.id in abandoned
                else _failed(work, failure, now=now),
            )
            for work, failure in failures
        ]


def _done(page: PageDone) -> EndedTask:
    if not page.is_new:
        return EndedTask(move=finished(page.task), count="same")
    return EndedTask(move=finished(page.task), count="new", amounts={"size_bytes": page.size_bytes})


def _is_put_off(error: WorkError) -> bool:
    return isinstance(error, Resource) and error.code not in _RUN_CODES


def _put_off_since(work: PageWork, now: datetime) -> datetime:
    put_off_since = (work.task.state or {}).get(_PUT_OFF_SINCE)
    return now if put_off_since is None else datetime.fromisoformat(put_off_since)


def _failed(work: PageWork, failure: Failed[PageWork], *, now: datetime) -> EndedTask:
    """Return the end of a failed page's task; one that is put off remembers since when."""
    ended = not_done(failure)
    if isinstance(failure.decision, ReleaseTask) and failure.error.code in _HOST_CODES:
        ended = replace(ended, again_at=failure.decision.not_before)
    if ended.move is None or not ended.is_pending or not _is_put_off(failure.error):
        return ended
    state = {**(ended.move.state or {}), _PUT_OFF_SINCE: _put_off_since(work, now).isoformat()}
    return replace(ended, move=replace(ended.move, state=state))


def _abandon(work: PageWork, error: WorkError) -> EndedTask:
    move = finished(work.task, status=TaskStatus.SKIPPED)
    move = replace(move, error_class=error.error_class.value, error_code=error.code, error=error.text)
    return EndedTask(move=move, count="failed")


def _skip(outcome: Skipped[PageWork]) -> EndedTask:
    return skipped(replace(outcome, code="page_gone"))
