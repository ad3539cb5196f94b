"""Results of claimed polls after fetching, and the transaction that writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, insert, select

from ingestion_pipeline.pages.content.snapshots import PageRef
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Source, crawls, poll_results
from ingestion_pipeline.sources.poll_results import PollFailure, PollSuccess
from ingestion_pipeline.store.locking import lock_rows
from ingestion_pipeline.store.tables import batch_items, sources
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.errors import Fatal, Permanent, Resource, WorkError
from ingestion_pipeline.tasks.results import Counts
from ingestion_pipeline.tasks.task import Move, Task, TaskStatus, finished, released

if TYPE_CHECKING:
    from ingestion_pipeline.engine.crawling.protocol import DeferredSystem


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedPoll:
    """A poll that this worker has claimed."""

    task: Task
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingSource:
    """A poll whose source has been deleted."""

    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFeed:
    """A changed feed, stored and waiting to be parsed."""

    task: Task
    source: Source
    content_hash: str
    parser_version: str
    pages: tuple[PageRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """A poll that only starts work on the source; other runs do it."""

    task: Task
    source: Source


PollResult = PollSuccess | PollFailure | MissingSource | StoredFeed | Deferred


@dataclass(frozen=True, slots=True, kw_only=True)
class PollCounts(Counts):
    """How many polls ended how; `lost` were claimed by another worker meanwhile."""

    changed: int = 0
    unchanged: int = 0
    begun: int = 0
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


def failure_of(poll: ClaimedPoll, error: WorkError) -> PollFailure:
    """Return the poll's failure with this error."""
    return PollFailure(task=poll.task, source=poll.source, error=error)


def worker_lost(poll: ClaimedPoll) -> PollFailure:
    """Return the failure of a poll whose workers died: it is given up without another try."""
    deaths = poll.task.attempts - 1
    stage = poll.task.stage or "claimed"
    message = f"worker lost {deaths} times on this poll; last stage: {stage}"
    return failure_of(poll, Permanent(message, code="worker_lost"))


def write_results(
    connection: Connection,
    results: Sequence[PollResult],
    *,
    batch_id: str,
    now: datetime,
    settings: Settings,
    random: Random,
    deferred_systems: Mapping[Kind, DeferredSystem] | None = None,
) -> tuple[PollCounts, Mapping[str, datetime]]:
    """Write every result whose claim is still held; those that another worker claimed are lost.

    Return the counts, and when each source that is retried is due again.
    """
    held_ids = claims.held(connection, [(result.task.id, result.task.fence) for result in results])
    held = [result for result in results if result.task.id in held_ids]
    unchanged = [result for result in held if isinstance(result, PollSuccess)]
    failures = [result for result in held if isinstance(result, PollFailure)]
    feeds = [result for result in held if isinstance(result, StoredFeed)]
    missing = [result for result in held if isinstance(result, MissingSource)]
    deferred = [result for result in held if isinstance(result, Deferred)]
    started, refused = _start_deferred(connection, deferred, deferred_systems or {}, now=now, settings=settings)
    failures += refused
    # All locked before the first write, in the order that reporting uses as well.
    lock_rows(connection, sources.c.id, [result.source.id for result in held if not isinstance(result, MissingSource)])
    if started:
        crawls.begin(connection, started, now=now, settings=settings, random=random)
    poll_results.succeed(connection, unchanged, now=now, settings=settings, random=random)
    failed = poll_results.fail(connection, failures, now=now, settings=settings, random=random)
    _store_batch_items(connection, feeds, batch_id=batch_id, now=now)
    skipped = [_source_deleted(result.task) for result in missing]
    claims.apply(connection, skipped, now=now)
    counts = PollCounts(
        changed=len(feeds),
        unchanged=len(unchanged),
        begun=len(deferred) - len(refused),
        retried=len(failed.retry_at),
        given_back=failed.released,
        failed=failed.dead_lettered,
        skipped=len(missing),
        lost=len(results) - len(held),
    )
    return counts, failed.retry_at


def _start_deferred(
    connection: Connection,
    polls: Sequence[Deferred],
    deferred_systems: Mapping[Kind, DeferredSystem],
    *,
    now: datetime,
    settings: Settings,
) -> tuple[list[tuple[Task, Source, str]], list[PollFailure]]:
    """Start the work of these polls; return those started with a message, and those refused."""
    started: list[tuple[Task, Source, str]] = []
    refused: list[PollFailure] = []
    for kind in sorted({poll.source.kind for poll in polls}):
        polls_of_kind = [poll for poll in polls if poll.source.kind is kind]
        sources = [poll.source for poll in polls_of_kind]
        outcomes = deferred_systems[kind].start(connection, sources, now=now, settings=settings)
        for poll in polls_of_kind:
            match outcomes[poll.source.id]:
                case Resource() as why:
                    refused.append(PollFailure(task=poll.task, source=poll.source, error=why))
                case str() as word:
                    started.append((poll.task, poll.source, word))
    return started, refused


def _source_deleted(task: Task) -> Move:
    return replace(
        finished(task, status=TaskStatus.SKIPPED),
        error_code="source_deleted",
        error="the source is gone; nothing polls it",
    )


def _store_batch_items(connection: Connection, feeds: Sequence[StoredFeed], *, batch_id: str, now: datetime) -> None:
    """Write the batch that `extract` will read."""
    if not feeds:
        return
    ids = [feed.task.id for feed in feeds]
    connection.execute(
        delete(batch_items).where(batch_items.c.task_id.in_(ids))  # left by a dead worker
    )
    connection.execute(
        insert(batch_items),
        [
            {
                "batch_id": batch_id,
                "task_id": feed.task.id,
                "fence": feed.task.fence,
                "source_id": feed.source.id,
                "fetched": {
                    "content_hash": feed.content_hash,
                    "parser_version": feed.parser_version,
                    "pages": [asdict(page) for page in feed.pages],
                },
                "fetched_at": now,
            }
            for feed in feeds
        ],
    )
    claims.set_stage(connection, [(feed.task.id, feed.task.fence) for feed in feeds], "fetched")


def release_batch(connection: Connection, batch_id: str, error: Fatal, *, now: datetime) -> None:
    """Make the rest of the batch claimable at once, without counting the attempt."""
    item = (batch_items.c.task_id, batch_items.c.fence)
    rows = connection.execute(select(*item).where(batch_items.c.batch_id == batch_id))
    held_ids = claims.held(connection, [(task_id, fence) for task_id, fence in rows])
    tasks = claims.tasks_by_id(connection, held_ids)
    moves = [released(tasks[task_id], error, not_before=now) for task_id in sorted(held_ids)]
    claims.apply(connection, moves, now=now)
    connection.execute(delete(batch_items).where(batch_items.c.batch_id == batch_id))
