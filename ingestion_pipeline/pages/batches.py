"""The rest of a run: read the listings of a batch, and ingest what they say, fenced.

`extract_batch` writes readings into the content store; `ingest_batch` commits rows, source, task
and the end of the batch item in one transaction, which checks the fence. A listing that cannot be
read, or rows that cannot be written, fail their own poll and nobody else's.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, delete, select, update

from ingestion_pipeline.pages.poll_results import PageRef, PollCounts
from ingestion_pipeline.pages.system import Ingested, StoredPage
from ingestion_pipeline.pages.workshop import Workshop
from ingestion_pipeline.sources import Kind, Source, outcomes
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.outcomes import PollFailure, PollSuccess
from ingestion_pipeline.store.tables import batch_items
from ingestion_pipeline.work import claims
from ingestion_pipeline.work.errors import Fatal, classify
from ingestion_pipeline.work.task import Task
from ingestion_pipeline.work.worker import Worker

log = logging.getLogger(__name__)

ROWS_PER_TRANSACTION = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem:
    """A changed listing of a batch: still claimed, its pages and later its reading stored."""

    batch_id: str
    task: Task
    source: Source
    content_hash: str
    reader: str
    pages: tuple[PageRef, ...]
    reading: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingestion:
    """What a batch came to: a result per source that was ingested, and counts of the rest."""

    ingested: Sequence[Ingested] = ()
    counts: PollCounts = field(default_factory=PollCounts)


def extract_batch(shop: Workshop, worker: Worker, batch_id: str) -> PollCounts:
    """Every listing of the batch has its reading, or its poll has failed."""
    counts = PollCounts()
    renewed = time.monotonic()
    for item in _load(shop, batch_id):
        try:
            reading = _read(shop, item)
        except Exception as error:
            counts += _fail(shop, item, error)
            continue
        with shop.store.begin() as connection:
            _remember_reading(connection, item, reading)
        if time.monotonic() - renewed > worker.lease.total_seconds() / 3:
            worker.renew()
            renewed = time.monotonic()
    return counts


def ingest_batch(shop: Workshop, worker: Worker, batch_id: str) -> Ingestion:
    """Every reading of the batch is rows, or its poll has failed, or another worker has it now."""
    done: list[Ingested] = []
    counts = PollCounts()
    items = [item for item in _load(shop, batch_id) if item.reading is not None]
    for chunk in _chunks(shop, items):
        worker.renew()
        try:
            result = _ingest(shop, chunk)
        except Exception as error:
            if isinstance(classify(error), Fatal):
                raise
            # One listing spoils its transaction: each on its own, so that only the culprit fails.
            log.warning("a batch of %d listings failed; one by one now", len(chunk), exc_info=True)
            result = _ingest_singly(shop, chunk)
        done += result.ingested
        counts += result.counts
    return Ingestion(ingested=done, counts=counts)


def _load(shop: Workshop, batch_id: str) -> list[BatchItem]:
    with shop.store.read() as connection:
        query = select(batch_items).where(batch_items.c.batch_id == batch_id)
        rows = connection.execute(query.order_by(batch_items.c.task_id)).mappings().all()
        tasks = claims.tasks_by_id(connection, [row["task_id"] for row in rows])
        sources = sources_by_id(connection, [row["source_id"] for row in rows])
    return [
        BatchItem(
            batch_id=batch_id,
            task=tasks[row["task_id"]],
            source=sources[row["source_id"]],
            content_hash=row["fetched"]["content_hash"],
            reader=row["fetched"]["reader"],
            pages=tuple(PageRef(**page) for page in row["fetched"]["pages"]),
            reading=row["reading"],
        )
        for row in rows
        # a claim that was lost meanwhile is somebody else's: its listing is fetched again there
        if row["task_id"] in tasks
        and row["source_id"] in sources
        and tasks[row["task_id"]].fence == row["fence"]
    ]


def _read(shop: Workshop, item: BatchItem) -> str:
    pages = [
        StoredPage(
            url=page.url, body=shop.content.get(page.content_hash), content_type=page.content_type
        )
        for page in item.pages
    ]
    return shop.content.put(shop.systems[item.source.kind].read(item.source, pages))


def _remember_reading(connection: Connection, item: BatchItem, reading: str) -> None:
    connection.execute(
        update(batch_items)
        .where(batch_items.c.batch_id == item.batch_id, batch_items.c.task_id == item.task.id)
        .values(reading=reading)
    )
    claims.set_stage(connection, [(item.task.id, item.task.fence)], "extracted")


def _chunks(shop: Workshop, items: Sequence[BatchItem]) -> Iterable[list[BatchItem]]:
    """As many listings as make a transaction of bounded size, of one kind, at least one."""
    chunk: list[BatchItem] = []
    rows = 0
    for item in sorted(items, key=lambda one: (one.source.kind, one.source.id)):
        size = shop.systems[item.source.kind].size(shop.content.get(item.reading or ""))
        is_other = bool(chunk) and chunk[0].source.kind is not item.source.kind
        if chunk and (is_other or rows + size > ROWS_PER_TRANSACTION):
            yield chunk
            chunk, rows = [], 0
        chunk.append(item)
        rows += size
    if chunk:
        yield chunk


def _ingest(shop: Workshop, items: Sequence[BatchItem]) -> Ingestion:
    """Rows, sources, tasks and the end of the batch items: one transaction, fenced."""
    kind: Kind = items[0].source.kind
    readings = {item.source.id: shop.content.get(item.reading or "") for item in items}
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        mine = claims.held(connection, [(item.task.id, item.task.fence) for item in items])
        kept = [item for item in items if item.task.id in mine]
        results = shop.systems[kind].ingest(
            connection,
            [(item.source, readings[item.source.id]) for item in kept],
            now=now,
            settings=shop.settings,
        )
        by_source = {result.source_id: result for result in results}
        successes = [_success(item, by_source[item.source.id]) for item in kept]
        outcomes.succeed(connection, successes, now=now, settings=shop.settings, random=shop.random)
        _drop_items(connection, items)
    lost = len(items) - len(kept)
    return Ingestion(ingested=list(results), counts=PollCounts(changed=-lost, lost=lost))


def _success(item: BatchItem, result: Ingested) -> PollSuccess:
    first = item.pages[0]
    # Validators speak of the first page only, and a quarantined listing must be seen again.
    is_one_page = len(item.pages) == 1 and not result.quarantined
    return PollSuccess(
        task=item.task,
        source=item.source,
        outcome=result.outcome,
        etag=first.etag if is_one_page else None,
        last_modified=first.last_modified if is_one_page else None,
        changed=not result.quarantined,
        content_hash=item.content_hash,
        reader=item.reader,
        newest_at=result.newest_at,
        needs_full_read=result.needs_full_read,
        record_count=result.record_count,
    )


def _ingest_singly(shop: Workshop, items: Sequence[BatchItem]) -> Ingestion:
    done: list[Ingested] = []
    counts = PollCounts()
    for item in items:
        try:
            result = _ingest(shop, [item])
            done += result.ingested
            counts += result.counts
        except Exception as error:
            counts += _fail(shop, item, error)
    return Ingestion(ingested=done, counts=counts)


def _fail(shop: Workshop, item: BatchItem, error: Exception) -> PollCounts:
    """The poll has failed as its class decides; a fatal error is raised again."""
    failure = PollFailure(
        task=item.task,
        source=item.source,
        error=classify(error),
        stack="".join(traceback.format_exception(error, limit=-20)),
    )
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        mine = claims.held(connection, [(item.task.id, item.task.fence)])
        failures = [failure] if mine else []
        failed = outcomes.fail(
            connection, failures, now=now, settings=shop.settings, random=shop.random
        )
        _drop_items(connection, [item])
    if isinstance(failure.error, Fatal):
        raise failure.error from error
    return PollCounts(
        changed=-1,
        retried=len(failed.retry_at),
        given_back=failed.given_back,
        failed=failed.given_up,
        lost=1 - len(failures),
    )


def _drop_items(connection: Connection, items: Sequence[BatchItem]) -> None:
    ids = [item.task.id for item in items]
    connection.execute(
        delete(batch_items).where(
            batch_items.c.batch_id == items[0].batch_id, batch_items.c.task_id.in_(ids)
        )
    )
