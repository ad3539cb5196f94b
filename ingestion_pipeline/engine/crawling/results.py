"""What became of claimed pages, and the one transaction that writes it down, fenced."""

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
    KnownPages,
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
_OF_THE_RUN = frozenset({"stopped", "slice_over"})  # neither the page nor its host refused anything
_SINCE = "put_off_since"  # in a task's state: when it was first put off


def write_pages(
    connection: Connection,
    shop: RunContext,
    system: CrawledSystem,
    results: Sequence[PageResult],
    stored: Mapping[int, Any],
    *,
    archive: PageArchive,
    known: KnownPages,
    now: datetime,
) -> tuple[CrawlCounts, list[datetime]]:
    """Everything that is still ours takes effect, what another worker took meanwhile does not.

    `stored` is what the archive has of each new page, by its task. The counts, and when those that
    are tried again are due.
    """
    system.lock(connection, [one.work for one in results if not isinstance(one, PageGone)])
    mine = claims.held(connection, [(one.task.id, one.task.fence) for one in results])
    kept = [one for one in results if one.task.id in mine]
    done = [one for one in kept if isinstance(one, PageDone)]
    gone = [one for one in kept if isinstance(one, PageGone)]
    bad = [one for one in kept if isinstance(one, PageFailed)]
    hopeless = _root_failed(connection, shop, system, bad, now=now)
    decided = _Decided(shop, bad, hopeless, policy=system.retries(shop.settings), now=now)
    outcomes = PageOutcomes(
        done=_with_snapshots(connection, done, stored, archive, now=now),
        waiting=decided.waiting,
        failed=[*decided.failed, *decided.left],
    )
    system.write(
        connection, outcomes, known=known, now=now, settings=shop.settings, random=shop.random
    )
    burials = [
        DeadLetterEntry(task=one.task, error=one.error, stack=one.stack) for one in decided.failed
    ]
    add_dead_letters(connection, burials, now=now)
    ended = [*(finished(one.task) for one in done), *map(_skipped, gone)]
    claims.apply(connection, [*ended, *decided.moves], now=now)
    new = [one for one in done if one.is_new]
    counts = CrawlCounts(
        new=len(new),
        same=len(done) - len(new),
        retried=len(decided.retry_at),
        given_back=len(decided.waiting) - len(decided.retry_at),
        failed=len(outcomes.failed),
        skipped=len(gone),
        lost=len(results) - len(kept),
        size_bytes=sum(one.size_bytes for one in new),
    )
    return counts, decided.retry_at


def _with_snapshots(
    connection: Connection,
    done: Sequence[PageDone],
    stored: Mapping[int, Any],
    archive: PageArchive,
    *,
    now: datetime,
) -> list[tuple[PageDone, int]]:
    new = [one.task.id for one in done if one.is_new]
    ids = archive.keep(connection, [stored[task_id] for task_id in new], now=now)
    snapshots = dict(zip(new, ids, strict=True))
    same = {one.task.id: one.answer for one in done if isinstance(one.answer, SamePage)}
    archive.renew(connection, same.values())
    snapshots |= {task_id: answer.known.snapshot_id for task_id, answer in same.items()}
    return [(one, snapshots[one.task.id]) for one in done]


def _root_failed(
    connection: Connection,
    shop: RunContext,
    system: CrawledSystem,
    pages: Sequence[PageFailed],
    *,
    now: datetime,
) -> set[int]:
    """The tasks that are put off once more after all patience: else a crawl might never end.

    The age alone does not tell: a large catalogue on a slow host puts its pages off for weeks.
    """
    since = now - timedelta(seconds=shop.settings.crawl.longest_wait_seconds)
    old = [one.work for one in pages if _is_put_off(one) and _put_off_since(one, now) < since]
    return system.without_progress(connection, old, since=since) if old else set()


def _is_put_off(one: PageFailed) -> bool:
    return isinstance(one.error, Resource) and one.error.code not in _OF_THE_RUN


def _put_off_since(one: PageFailed, now: datetime) -> datetime:
    said = (one.task.state or {}).get(_SINCE)
    return now if said is None else datetime.fromisoformat(said)


class _Decided:
    """Each failed page is tried again, given back, given up, or left: forbidden, or hopeless."""

    def __init__(
        self,
        shop: RunContext,
        pages: Sequence[PageFailed],
        hopeless: Collection[int],
        *,
        policy: Work,
        now: datetime,
    ) -> None:
        self.moves: list[Move] = []
        self.waiting: list[PageFailed] = []
        self.failed: list[PageFailed] = []
        self.left: list[PageFailed] = []
        self.retry_at: list[datetime] = []
        for one in pages:
            # What is forbidden will not be allowed during this crawl.
            if one.error.code == FORBIDDEN or one.task.id in hopeless:
                self.left.append(one)
                self.moves.append(_left(one))
                continue
            match after_failure(one.task, one.error, now=now, policy=policy, random=shop.random):
                case Retry(not_before):
                    self.waiting.append(one)
                    self.retry_at.append(not_before)
                    self.moves.append(retried(one.task, one.error, not_before=not_before))
                case ReleaseTask(not_before):
                    self.waiting.append(one)
                    self.moves.append(_put_off(one, not_before, now=now))
                case DeadLetterTask():
                    self.failed.append(one)
                    self.moves.append(failed(one.task, one.error))


def _put_off(one: PageFailed, not_before: datetime, *, now: datetime) -> Move:
    move = released(one.task, one.error, not_before=not_before)
    if not _is_put_off(one):
        return move
    return replace(move, state={**(move.state or {}), _SINCE: _put_off_since(one, now).isoformat()})


def _left(one: PageFailed) -> Move:
    return _explained(finished(one.task, status=TaskStatus.SKIPPED), one.error)


def _explained(move: Move, error: WorkError) -> Move:
    return replace(
        move, error_class=error.error_class.value, error_code=error.code, error=error.text
    )


def _skipped(one: PageGone) -> Move:
    move = finished(one.task, status=TaskStatus.SKIPPED)
    return replace(move, error_code="page_gone", error=one.why)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesPersisted:
    """What a flush came to, and when what is tried again is due; a `fatal` error ends the run."""

    counts: CrawlCounts = field(default_factory=CrawlCounts)
    again_at: Sequence[datetime] = ()
    fatal: Fatal | None = None

    def __add__(self, other: PagesPersisted) -> PagesPersisted:
        """Both."""
        return PagesPersisted(
            counts=self.counts + other.counts,
            again_at=[*self.again_at, *other.again_at],
            fatal=self.fatal or other.fatal,
        )


class PageWriter:
    """Writes what became of a run's pages, and frees the hosts that it left."""

    def __init__(
        self, shop: RunContext, system: CrawledSystem, archive: PageArchive, hosts: LeasedHosts
    ) -> None:
        self._shop = shop
        self._system = system
        self._archive = archive
        self._hosts = hosts
        self._known = KnownPages()

    def write(self, results: Sequence[PageResult], left: Mapping[str, HostLease]) -> PagesPersisted:
        """Every result takes effect that is still ours, and the hosts are free."""
        try:
            stored = self._stored(results)
        except Fatal as error:
            # Nothing is lost but the visit: the pages go back, and then the run ends.
            put_back = [_put_back(one, error) for one in results]
            return self._commit(put_back, {}, left) + PagesPersisted(fatal=error)
        try:
            return self._commit(results, stored, left)
        except SQLAlchemyError as error:
            if isinstance(classify(error), Fatal):
                raise
            log.warning("a flush of %d pages failed; one by one now", len(results), exc_info=True)
        self._hosts.let_go(left)
        written = PagesPersisted()
        for one in results:
            written += self._commit_alone(one, stored)
        return written

    def _stored(self, results: Sequence[PageResult]) -> dict[int, Any]:
        """What the archive has of each new page, by its task."""
        new = [
            (one.task.id, one.work.source.id, one.answer)
            for one in results
            if isinstance(one, PageDone) and isinstance(one.answer, NewPage)
        ]
        pages = [(source, page) for _, source, page in new]
        kept = self._archive.store(pages, now=self._shop.store.now())
        return dict(zip((task_id for task_id, _, _ in new), kept, strict=True))

    def _commit(
        self,
        results: Sequence[PageResult],
        stored: Mapping[int, Any],
        left: Mapping[str, HostLease],
    ) -> PagesPersisted:
        def write(connection: Connection) -> PagesPersisted:
            now = self._shop.store.clock.now(connection)
            free = next_allowed_at(left, self._shop.store, connection)
            counts, again_at = write_pages(
                connection,
                self._shop,
                self._system,
                results,
                stored,
                archive=self._archive,
                known=self._known,
                now=now,
            )
            self._hosts.release(connection, left, free, now=now)
            return PagesPersisted(counts=counts, again_at=again_at)

        return self._shop.store.write(write)

    def _commit_alone(self, one: PageResult, stored: Mapping[int, Any]) -> PagesPersisted:
        try:
            return self._commit([one], stored, {})
        except SQLAlchemyError as error:
            if not isinstance(one, PageDone) or isinstance(classify(error), Fatal):
                raise
            said = f"what {one.work.visit.url} leads to could not be written: {error}"
            failure = Permanent(said[:2_000], code="not_written")
            stack = traceback.format_exc(limit=-20)
            return self._commit([PageFailed(work=one.work, error=failure, stack=stack)], {}, {})


def _put_back(result: PageResult, error: Fatal) -> PageResult:
    return PageFailed(work=result.work, error=error) if isinstance(result, PageDone) else result
