"""What became of claimed polls while fetching, and the one transaction that writes it down."""

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
    """A poll that is ours to do."""

    task: Task
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A poll whose source is gone."""

    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredListing:
    """A changed listing, stored and waiting to be read."""

    task: Task
    source: Source
    content_hash: str
    reader: str
    pages: tuple[PageRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """A poll that begins a walk through the source's pages; other runs do the walking."""

    task: Task
    source: Source


PollResult = PollSuccess | PollFailure | Missing | StoredListing | Deferred


@dataclass(frozen=True, slots=True, kw_only=True)
class PollCounts(Counts):
    """How many polls ended how; `lost` were taken over by another worker meanwhile."""

    changed: int = 0
    unchanged: int = 0
    begun: int = 0
    retried: int = 0
    given_back: int = 0
    failed: int = 0
    skipped: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """What a slice leaves: batches to extract, and what became of the rest."""

    owner: str
    batch_ids: list[str]
    counts: PollCounts


def failure_of(one: ClaimedPoll, error: WorkError) -> PollFailure:
    """The poll has failed of this."""
    return PollFailure(task=one.task, source=one.source, error=error)


def worker_lost(one: ClaimedPoll) -> PollFailure:
    """The poll has killed its workers: it is given up without being tried again."""
    deaths = one.task.attempts - 1
    stage = one.task.stage or "claimed"
    said = f"the worker died {deaths} times over this poll; last known stage: {stage}"
    return failure_of(one, Permanent(said, code="worker_lost"))


def write_results(
    connection: Connection,
    results: Sequence[PollResult],
    *,
    batch_id: str,
    now: datetime,
    settings: Settings,
    random: Random,
    begun_by: Mapping[Kind, DeferredSystem] | None = None,
) -> tuple[PollCounts, Mapping[str, datetime]]:
    """Everything that is still ours takes effect, what another worker took meanwhile does not.

    The counts, and when each source that is retried is due again.
    """
    mine = claims.held(connection, [(one.task.id, one.task.fence) for one in results])
    kept = [one for one in results if one.task.id in mine]
    unchanged = [one for one in kept if isinstance(one, PollSuccess)]
    failures = [one for one in kept if isinstance(one, PollFailure)]
    listings = [one for one in kept if isinstance(one, StoredListing)]
    gone = [one for one in kept if isinstance(one, Missing)]
    begun = [one for one in kept if isinstance(one, Deferred)]
    said, refused = _start(connection, begun, begun_by or {}, now=now, settings=settings)
    failures += refused
    # All of them before the first is written: whoever reports them has them in one order, too.
    lock_rows(
        connection, sources.c.id, [one.source.id for one in kept if not isinstance(one, Missing)]
    )
    if said:
        crawls.begin(connection, said, now=now, settings=settings, random=random)
    poll_results.succeed(connection, unchanged, now=now, settings=settings, random=random)
    failed = poll_results.fail(connection, failures, now=now, settings=settings, random=random)
    _keep_listings(connection, listings, batch_id=batch_id, now=now)
    skipped = [_source_deleted(one.task) for one in gone]
    claims.apply(connection, skipped, now=now)
    counts = PollCounts(
        changed=len(listings),
        unchanged=len(unchanged),
        begun=len(begun) - len(refused),
        retried=len(failed.retry_at),
        given_back=failed.given_back,
        failed=failed.given_up,
        skipped=len(gone),
        lost=len(results) - len(kept),
    )
    return counts, failed.retry_at


def _start(
    connection: Connection,
    polls: Sequence[Deferred],
    begun_by: Mapping[Kind, DeferredSystem],
    *,
    now: datetime,
    settings: Settings,
) -> tuple[list[tuple[Task, Source, str]], list[PollFailure]]:
    """What was begun, with a word on each; for the others there was no room."""
    begun: list[tuple[Task, Source, str]] = []
    refused: list[PollFailure] = []
    for kind in sorted({one.source.kind for one in polls}):
        some = [one for one in polls if one.source.kind is kind]
        wanted = [one.source for one in some]
        said = begun_by[kind].start(connection, wanted, now=now, settings=settings)
        for one in some:
            match said[one.source.id]:
                case Resource() as why:
                    refused.append(PollFailure(task=one.task, source=one.source, error=why))
                case str() as word:
                    begun.append((one.task, one.source, word))
    return begun, refused


def _source_deleted(task: Task) -> Move:
    return replace(
        finished(task, status=TaskStatus.SKIPPED),
        error_code="source_deleted",
        error="the source is gone; nothing polls it",
    )


def _keep_listings(
    connection: Connection, listings: Sequence[StoredListing], *, batch_id: str, now: datetime
) -> None:
    """The batch that `extract` will read."""
    if not listings:
        return
    ids = [one.task.id for one in listings]
    connection.execute(
        delete(batch_items).where(batch_items.c.task_id.in_(ids))  # a dead worker's leftovers
    )
    connection.execute(
        insert(batch_items),
        [
            {
                "batch_id": batch_id,
                "task_id": one.task.id,
                "fence": one.task.fence,
                "source_id": one.source.id,
                "fetched": {
                    "content_hash": one.content_hash,
                    "reader": one.reader,
                    "pages": [asdict(page) for page in one.pages],
                },
                "fetched_at": now,
            }
            for one in listings
        ],
    )
    claims.set_stage(connection, [(one.task.id, one.task.fence) for one in listings], "fetched")


def give_back_batch(connection: Connection, batch_id: str, error: Fatal, *, now: datetime) -> None:
    """What is left of the batch is claimable at once, and the attempt is not counted."""
    item = (batch_items.c.task_id, batch_items.c.fence)
    rows = connection.execute(select(*item).where(batch_items.c.batch_id == batch_id))
    mine = claims.held(connection, [(task_id, fence) for task_id, fence in rows])
    tasks = claims.tasks_by_id(connection, mine)
    moves = [released(tasks[task_id], error, not_before=now) for task_id in sorted(mine)]
    claims.apply(connection, moves, now=now)
    connection.execute(delete(batch_items).where(batch_items.c.batch_id == batch_id))
