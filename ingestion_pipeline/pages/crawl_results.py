"""What became of claimed pages, and the one transaction that writes it down, fenced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
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
from ingestion_pipeline.pages.workshop import Workshop
from ingestion_pipeline.work import claims
from ingestion_pipeline.work.dead_letters import Burial, bury
from ingestion_pipeline.work.errors import WorkError
from ingestion_pipeline.work.retry import GiveBack, GiveUp, Retry, after_failure
from ingestion_pipeline.work.task import (
    Move,
    TaskStatus,
    failed,
    finished,
    released,
    retried,
)

FORBIDDEN = "blocked_by_robots"


def write_pages(
    connection: Connection,
    shop: Workshop,
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
    mine = claims.held(connection, [(one.task.id, one.task.fence) for one in results])
    kept = [one for one in results if one.task.id in mine]
    done = [one for one in kept if isinstance(one, PageDone)]
    gone = [one for one in kept if isinstance(one, PageGone)]
    decided = _Decided(shop, [one for one in kept if isinstance(one, PageFailed)], now=now)
    outcomes = PageOutcomes(
        done=_with_snapshots(connection, done, stored, archive, now=now),
        waiting=decided.waiting,
        failed=[*decided.failed, *decided.forbidden],
    )
    system.write(
        connection, outcomes, known=known, now=now, settings=shop.settings, random=shop.random
    )
    burials = [Burial(task=one.task, error=one.error, stack=one.stack) for one in decided.failed]
    bury(connection, burials, now=now)
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


class _Decided:
    """Each failed page is tried again, given back, given up, or left because it is forbidden."""

    def __init__(self, shop: Workshop, pages: Sequence[PageFailed], *, now: datetime) -> None:
        self.moves: list[Move] = []
        self.waiting: list[PageFailed] = []
        self.failed: list[PageFailed] = []
        self.forbidden: list[PageFailed] = []
        self.retry_at: list[datetime] = []
        for one in pages:
            if one.error.code == FORBIDDEN:  # it will not be allowed during this crawl
                self.forbidden.append(one)
                self.moves.append(_left(one))
                continue
            match after_failure(
                one.task, one.error, now=now, policy=shop.settings.work, random=shop.random
            ):
                case Retry(not_before):
                    self.waiting.append(one)
                    self.retry_at.append(not_before)
                    self.moves.append(retried(one.task, one.error, not_before=not_before))
                case GiveBack(not_before):
                    self.waiting.append(one)
                    self.moves.append(released(one.task, one.error, not_before=not_before))
                case GiveUp():
                    self.failed.append(one)
                    self.moves.append(failed(one.task, one.error))


def _left(one: PageFailed) -> Move:
    return _explained(finished(one.task, status=TaskStatus.SKIPPED), one.error)


def _explained(move: Move, error: WorkError) -> Move:
    return replace(
        move, error_class=error.error_class.value, error_code=error.code, error=error.text
    )


def _skipped(one: PageGone) -> Move:
    move = finished(one.task, status=TaskStatus.SKIPPED)
    return replace(move, error_code="page_gone", error=one.why)
