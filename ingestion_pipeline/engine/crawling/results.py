"""Results of claimed pages, and the fenced transaction that writes them."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.protocol import (
    CrawlCounts,
    CrawledSystem,
    KnownPageCache,
    PageArchive,
    PageDone,
    PageFailed,
    PageGone,
    PageOutcomes,
    PageResult,
)
from ingestion_pipeline.pages.politeness.host_leases import HostLease, LeasedHosts, next_allowed_at
from ingestion_pipeline.pages.visits.page import NewPage, SamePage
from ingestion_pipeline.settings import Work
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.dead_letters import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.tasks.errors import Fatal, Permanent, Resource, WorkError, classify
from ingestion_pipeline.tasks.retry import DeadLetterTask, ReleaseTask, Retry, after_failure
from ingestion_pipeline.tasks.task import Move, TaskStatus, failed, finished, released, retried

FORBIDDEN = "blocked_by_robots"
_RUN_CODES = frozenset({"stopped", "slice_over"})  # reasons of the run, not of page or host
_PUT_OFF_SINCE = "put_off_since"  # in a task's state: when it was first put off


def write_pages(
    connection: Connection,
    ctx: RunContext,
    system: CrawledSystem,
    results: Sequence[PageResult],
    stored: Mapping[int, Any],
    *,
    archive: PageArchive,
    page_cache: KnownPageCache,
    now: datetime,
) -> tuple[CrawlCounts, list[datetime]]:
    """Write every result whose claim is still held; those that another worker claimed are lost.

    `stored` is the stored form of each new page, by task. Return the counts, and when the retried
    pages are due.
    """
    system.lock(connection, [result.work for result in results if not isinstance(result, PageGone)])
    held_ids = claims.held(connection, [(result.task.id, result.task.fence) for result in results])
    held = [result for result in results if result.task.id in held_ids]
    done = [result for result in held if isinstance(result, PageDone)]
    missing = [result for result in held if isinstance(result, PageGone)]
    failures = [result for result in held if isinstance(result, PageFailed)]
    abandoned = _out_of_patience(connection, ctx, system, failures, now=now)
    decisions = _FailureDecisions(ctx, failures, abandoned, policy=system.retries(ctx.settings), now=now)
    outcomes = PageOutcomes(
        done=_with_snapshots(connection, done, stored, archive, now=now),
        waiting=decisions.waiting,
        failed=[*decisions.failed, *decisions.left],
    )
    system.write(connection, outcomes, page_cache=page_cache, now=now, settings=ctx.settings, random=ctx.random)
    entries = [DeadLetterEntry(task=result.task, error=result.error, stack=result.stack) for result in decisions.failed]
    add_dead_letters(connection, entries, now=now)
    ended = [*(finished(result.task) for result in done), *map(_skipped, missing)]
    claims.apply(connection, [*ended, *decisions.moves], now=now)
    new = [result for result in done if result.is_new]
    counts = CrawlCounts(
        new=len(new),
        same=len(done) - len(new),
        retried=len(decisions.retry_at),
        given_back=len(decisions.waiting) - len(decisions.retry_at),
        failed=len(outcomes.failed),
        skipped=len(missing),
        lost=len(results) - len(held),
        size_bytes=sum(result.size_bytes for result in new),
    )
    return counts, decisions.retry_at


def _with_snapshots(
    connection: Connection, done: Sequence[PageDone], stored: Mapping[int, Any], archive: PageArchive, *, now: datetime
) -> list[tuple[PageDone, int]]:
    new = [page.task.id for page in done if page.is_new]
    ids = archive.keep(connection, [stored[task_id] for task_id in new], now=now)
    snapshots = dict(zip(new, ids, strict=True))
    same = {page.task.id: page.answer for page in done if isinstance(page.answer, SamePage)}
    archive.renew(connection, same.values())
    snapshots |= {task_id: answer.known_page.snapshot_id for task_id, answer in same.items()}
    return [(page, snapshots[page.task.id]) for page in done]


def _out_of_patience(
    connection: Connection, ctx: RunContext, system: CrawledSystem, pages: Sequence[PageFailed], *, now: datetime
) -> set[int]:
    """Return the tasks that were put off too long; otherwise a crawl might never end.

    The age alone is not enough: a large catalogue on a slow host puts its pages off for weeks.
    """
    since = now - timedelta(seconds=ctx.settings.crawl.longest_wait_seconds)
    old = [page.work for page in pages if _is_put_off(page) and _put_off_since(page, now) < since]
    return system.without_progress(connection, old, since=since) if old else set()


def _is_put_off(page: PageFailed) -> bool:
    return isinstance(page.error, Resource) and page.error.code not in _RUN_CODES


def _put_off_since(page: PageFailed, now: datetime) -> datetime:
    put_off_since = (page.task.state or {}).get(_PUT_OFF_SINCE)
    return now if put_off_since is None else datetime.fromisoformat(put_off_since)


class _FailureDecisions:
    """Decides for each failed page: retry, release, dead-letter, or abandon it."""

    def __init__(
        self, ctx: RunContext, pages: Sequence[PageFailed], abandoned: Collection[int], *, policy: Work, now: datetime
    ) -> None:
        self.moves: list[Move] = []
        self.waiting: list[PageFailed] = []
        self.failed: list[PageFailed] = []
        self.left: list[PageFailed] = []
        self.retry_at: list[datetime] = []
        for page in pages:
            # A page that robots.txt forbids stays forbidden during this crawl.
            if page.error.code == FORBIDDEN or page.task.id in abandoned:
                self.left.append(page)
                self.moves.append(_abandon(page))
                continue
            match after_failure(page.task, page.error, now=now, policy=policy, random=ctx.random):
                case Retry(not_before):
                    self.waiting.append(page)
                    self.retry_at.append(not_before)
                    self.moves.append(retried(page.task, page.error, not_before=not_before))
                case ReleaseTask(not_before):
                    self.waiting.append(page)
                    self.moves.append(_put_off(page, not_before, now=now))
                case DeadLetterTask():
                    self.failed.append(page)
                    self.moves.append(failed(page.task, page.error))


def _put_off(page: PageFailed, not_before: datetime, *, now: datetime) -> Move:
    move = released(page.task, page.error, not_before=not_before)
    if not _is_put_off(page):
        return move
    return replace(move, state={**(move.state or {}), _PUT_OFF_SINCE: _put_off_since(page, now).isoformat()})


def _abandon(page: PageFailed) -> Move:
    return _with_error(finished(page.task, status=TaskStatus.SKIPPED), page.error)


def _with_error(move: Move, error: WorkError) -> Move:
    return replace(move, error_class=error.error_class.value, error_code=error.code, error=error.text)


def _skipped(page: PageGone) -> Move:
    move = finished(page.task, status=TaskStatus.SKIPPED)
    return replace(move, error_code="page_gone", error=page.why)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesPersisted:
    """The result of a flush, and when retried pages are due; a `fatal` error ends the run."""

    counts: CrawlCounts = field(default_factory=CrawlCounts)
    again_at: Sequence[datetime] = ()
    fatal: Fatal | None = None

    def __add__(self, other: PagesPersisted) -> PagesPersisted:
        """Add the counts and join the rest."""
        return PagesPersisted(
            counts=self.counts + other.counts,
            again_at=[*self.again_at, *other.again_at],
            fatal=self.fatal or other.fatal,
        )


class PageWriter:
    """Writes the results of a run's pages, and releases the hosts that are finished."""

    def __init__(self, ctx: RunContext, system: CrawledSystem, archive: PageArchive, hosts: LeasedHosts) -> None:
        self._ctx = ctx
        self._system = system
        self._archive = archive
        self._hosts = hosts
        self._page_cache = KnownPageCache()

    def write(self, results: Sequence[PageResult], left: Mapping[str, HostLease]) -> PagesPersisted:
        """Write every result whose claim is still held, and release the hosts."""
        try:
            stored = self._stored(results)
        except Fatal as error:
            # Only the requests are lost: the pages are released, and then the run ends.
            released_results = [_release_result(result, error) for result in results]
            return self._commit(released_results, {}, left) + PagesPersisted(fatal=error)
        try:
            return self._commit(results, stored, left)
        except SQLAlchemyError as error:
            if isinstance(classify(error), Fatal):
                raise
            log.warning("batch write failed pages=%d; writing one by one", len(results), exc_info=True)
        self._hosts.release_in_own_transaction(left)
        written = PagesPersisted()
        for result in results:
            written += self._commit_alone(result, stored)
        return written

    def _stored(self, results: Sequence[PageResult]) -> dict[int, Any]:
        """Return the stored form of each new page, by task."""
        new = [
            (result.task.id, result.work.source.id, result.answer)
            for result in results
            if isinstance(result, PageDone) and isinstance(result.answer, NewPage)
        ]
        pages = [(source, page) for _, source, page in new]
        stored = self._archive.store(pages, now=self._ctx.store.now())
        return dict(zip((task_id for task_id, _, _ in new), stored, strict=True))

    def _commit(
        self, results: Sequence[PageResult], stored: Mapping[int, Any], left: Mapping[str, HostLease]
    ) -> PagesPersisted:
        def write(connection: Connection) -> PagesPersisted:
            now = self._ctx.store.clock.now(connection)
            free = next_allowed_at(left, self._ctx.store, connection)
            counts, again_at = write_pages(
                connection,
                self._ctx,
                self._system,
                results,
                stored,
                archive=self._archive,
                page_cache=self._page_cache,
                now=now,
            )
            self._hosts.release(connection, left, free, now=now)
            return PagesPersisted(counts=counts, again_at=again_at)

        return self._ctx.store.write(write)

    def _commit_alone(self, result: PageResult, stored: Mapping[int, Any]) -> PagesPersisted:
        try:
            return self._commit([result], stored, {})
        except SQLAlchemyError as error:
            if not isinstance(result, PageDone) or isinstance(classify(error), Fatal):
                raise
            message = f"the result of {result.work.visit.url} could not be written: {error}"
            failure = Permanent(message[:2_000], code="not_written")
            stack = traceback.format_exc(limit=-20)
            return self._commit([PageFailed(work=result.work, error=failure, stack=stack)], {}, {})


def _release_result(result: PageResult, error: Fatal) -> PageResult:
    return PageFailed(work=result.work, error=error) if isinstance(result, PageDone) else result
