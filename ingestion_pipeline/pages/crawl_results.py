"""What became of claimed pages, and the one transaction that writes it down, fenced."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from ingestion_pipeline.pages.crawled import (
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
from ingestion_pipeline.pages.page import SamePage
from ingestion_pipeline.pages.workshop import RunContext
from ingestion_pipeline.settings import Work
from ingestion_pipeline.work import claims
from ingestion_pipeline.work.dead_letters import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.work.errors import Resource, WorkError
from ingestion_pipeline.work.retry import DeadLetterTask, ReleaseTask, Retry, after_failure
from ingestion_pipeline.work.task import (
    Move,
    TaskStatus,
    failed,
    finished,
    released,
    retried,
)

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
