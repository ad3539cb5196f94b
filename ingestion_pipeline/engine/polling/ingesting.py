"""A changed listing between its fetch and its rows."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from uuid import uuid4

from sqlalchemy import Connection, RowMapping, String, delete, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.polling.protocol import Ingested, Placed, PolledReading, PolledSystem
from ingestion_pipeline.engine.polling.results import PollCounts, give_back_batch
from ingestion_pipeline.pages.content.snapshots import PageRef, keep_snapshots
from ingestion_pipeline.pages.content.store import storage_errors_fatal
from ingestion_pipeline.pages.visits.page import StoredPage
from ingestion_pipeline.pages.visits.response_class import explained
from ingestion_pipeline.sources import Source, poll_results
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_results import PollFailure, PollSuccess
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.locking import lock_rows
from ingestion_pipeline.store.tables import batch_items, ingestions, sources
from ingestion_pipeline.store.types import Id
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.dead_letters import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.tasks.errors import Fatal, Permanent, WorkError, classify
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.tasks.worker import Worker


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
    fetched_at: datetime


def batch_item(row: RowMapping, task: Task, source: Source) -> BatchItem:
    """The item that a row states."""
    return BatchItem(
        batch_id=row["batch_id"],
        task=task,
        source=source,
        content_hash=row["fetched"]["content_hash"],
        reader=row["fetched"]["reader"],
        pages=tuple(PageRef(**page) for page in row["fetched"]["pages"]),
        reading=row["reading"],
        fetched_at=row["fetched_at"],
    )


def pages_of(items: Iterable[BatchItem]) -> list[tuple[str, PageRef]]:
    """Their pages in order, each with its source."""
    return [(item.source.id, page) for item in items for page in item.pages]


_BITS = 62  # fits a BIGINT; two of ten million are equal once in a hundred thousand times


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestionRow:
    """A row of `ingestions`."""

    id: int
    source_id: str
    config_version: int
    run_id: str | None
    reader: str
    snapshots: list[int]
    outcome: str
    tracking_id: str
    fetched_at: datetime
    ingested_at: datetime


def new_ingestion_id() -> int:
    """An id that no other ingestion has; drawn, so that a poll that says nothing costs no row.

    (If two should be equal after all, the transaction fails and its listings follow one by one.)
    """
    return uuid4().int >> (128 - _BITS)


def polled(item: BatchItem, reading: bytes) -> PolledReading:
    """What was read of the item, under an id of its own."""
    return PolledReading(
        task=item.task, source=item.source, reading=reading, ingestion_id=new_ingestion_id()
    )


def short_reader(reader: str) -> str:
    """Platform and version; the configuration behind them has its own place."""
    return ":".join(reader.split(":", 2)[:2])


def keep_lineage(
    connection: Connection,
    shop: RunContext,
    items: Sequence[BatchItem],
    polls: Mapping[str, tuple[int, Ingested]],
    *,
    now: datetime,
) -> None:
    """What was read has its snapshots, and each poll the row that its records name."""
    if not items:
        return
    kept = iter(keep_snapshots(connection, pages_of(items), now=now, run_id=shop.run_id))
    rows = [
        IngestionRow(
            id=polls[item.source.id][0],
            source_id=item.source.id,
            config_version=item.source.config_version,
            run_id=shop.run_id,
            reader=short_reader(item.reader),
            snapshots=[next(kept) for _ in item.pages],
            outcome=polls[item.source.id][1].outcome,
            tracking_id=item.task.tracking_id,
            fetched_at=item.fetched_at,
            ingested_at=now,
        )
        for item in items
    ]
    connection.execute(insert(ingestions), [asdict(one) for one in rows])
    placed = [
        Placed(source_id=one.source_id, ingestion_id=one.id, snapshot_id=one.snapshots[0])
        for one in rows
        if len(one.snapshots) == 1
    ]
    if placed:
        shop.systems[items[0].source.kind].place(connection, placed)


QUARANTINED = "quarantined"


def dead_letter_feed(
    connection: Connection,
    shop: RunContext,
    item: BatchItem,
    outcome: str,
    *,
    now: datetime,
) -> None:
    """The poll's dead letter says what is wrong and which snapshots prove it."""
    pages, task = pages_of([item]), item.task
    kept = keep_snapshots(connection, pages, now=now, failure=QUARANTINED, run_id=shop.run_id)
    cure = f"`ingest sources update {task.source_id} --accept-drop` says that it is right"
    error = Permanent(f"{outcome}; {cure}", code=QUARANTINED)
    add_dead_letters(
        connection, [DeadLetterEntry(task=task, error=error, evidence={"snapshots": kept})], now=now
    )


log = logging.getLogger(__name__)

ROWS_PER_TRANSACTION = 5_000
REMEMBERED_TOGETHER = 50  # readings; a run that dies in between has read the others for nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingestion:
    """What a batch came to: a result per source that was ingested, and counts of the rest."""

    ingested: Sequence[Ingested] = ()
    counts: PollCounts = field(default_factory=PollCounts)


def extract_batch(shop: RunContext, worker: Worker, batch_id: str) -> PollCounts:
    """Every listing of the batch has its reading, or its poll has failed or was lost."""
    renewed = time.monotonic()
    with _given_back_if_fatal(shop, batch_id):
        items, counts = _load(shop, batch_id)
        read: list[tuple[BatchItem, str]] = []
        for item in items:
            if time.monotonic() - renewed > worker.lease.total_seconds() / 3:
                worker.renew()
                renewed = time.monotonic()
            try:
                read.append((item, _read(shop, item)))
            except Exception as error:
                counts += _fail(shop, item, error)
            if len(read) >= REMEMBERED_TOGETHER:
                _remember_readings(shop, read)
                read = []
        _remember_readings(shop, read)
    return counts


def ingest_batch(shop: RunContext, worker: Worker, batch_id: str) -> Ingestion:
    """Every reading of the batch is rows, or its poll has failed, or another worker has it now."""
    done: list[Ingested] = []
    with _given_back_if_fatal(shop, batch_id):
        items, counts = _load(shop, batch_id)
        sized, failed = _sized(shop, [item for item in items if item.reading is not None])
        counts += failed
        for chunk in _chunks(sized):
            worker.renew()
            result = _ingest_together(shop, chunk)
            done += result.ingested
            counts += result.counts
    return Ingestion(ingested=done, counts=counts)


@contextmanager
def _given_back_if_fatal(shop: RunContext, batch_id: str) -> Generator[None]:
    """What the end of a run leaves of its batch is nobody's fault, and waits for nobody's lease."""
    try:
        yield
    except Exception as error:
        fatal = classify(error)
        if isinstance(fatal, Fatal):
            with suppress(SQLAlchemyError), shop.store.begin() as connection:
                give_back_batch(connection, batch_id, fatal, now=shop.store.clock.now(connection))
        raise


def _load(shop: RunContext, batch_id: str) -> tuple[list[BatchItem], PollCounts]:
    """The items that are still claimed by this run, and how many are not."""
    with shop.store.read() as connection:
        query = select(batch_items).where(batch_items.c.batch_id == batch_id)
        rows = connection.execute(query.order_by(batch_items.c.task_id)).mappings().all()
        tasks = claims.tasks_by_id(connection, [row["task_id"] for row in rows])
        sources = sources_by_id(connection, [row["source_id"] for row in rows])
    items = [
        batch_item(row, tasks[row["task_id"]], sources[row["source_id"]])
        for row in rows
        # a claim that was lost meanwhile is somebody else's: its listing is fetched again there
        if row["task_id"] in tasks
        and row["source_id"] in sources
        and tasks[row["task_id"]].fence == row["fence"]
    ]
    if lost := {row["task_id"] for row in rows} - {item.task.id for item in items}:
        with shop.store.begin() as connection:
            _drop_items(connection, batch_id, sorted(lost))
    return items, PollCounts(changed=-len(lost), lost=len(lost))


def _read(shop: RunContext, item: BatchItem) -> str:
    with storage_errors_fatal():
        pages = [
            StoredPage(
                url=page.final_url,
                body=shop.content.get(page.content_hash),
                content_type=page.content_type,
                fetched_at=item.fetched_at,
            )
            for page in item.pages
        ]
    reading = _believed(shop.systems[item.source.kind], item.source, pages)
    with storage_errors_fatal():
        return shop.content.put(reading, durably=False)  # the pages are: it is read from them


def _believed(system: PolledSystem, source: Source, pages: Sequence[StoredPage]) -> bytes:
    """What the pages say; a wall, or another thing served instead, is told as what it is."""
    try:
        reading = system.read(source, pages)
    except WorkError as error:
        raise explained(pages, error) or error from error
    # Only one that says nothing is doubted: to look at every listing again would cost a parse.
    if not system.size(reading) and (refusal := explained(pages, None)) is not None:
        raise refusal
    return reading


def _remember_readings(shop: RunContext, read: Sequence[tuple[BatchItem, str]]) -> None:
    """The batch knows where its readings are."""
    if not read:
        return
    columns = {"batch_id": String(36), "task_id": Id, "reading": String(64)}
    rows = [(item.batch_id, item.task.id, reading) for item, reading in read]
    with shop.store.begin() as connection:
        claims.set_stage(
            connection, [(item.task.id, item.task.fence) for item, _ in read], "extracted"
        )
        given = row_source(connection, columns, rows, "given")
        connection.execute(
            update(batch_items)
            .where(
                batch_items.c.batch_id == given.c.batch_id, batch_items.c.task_id == given.c.task_id
            )
            .values(reading=given.c.reading)
        )


def _stored_reading(shop: RunContext, item: BatchItem) -> bytes:
    with storage_errors_fatal():
        return shop.content.get(item.reading or "")


def _sized(
    shop: RunContext, items: Sequence[BatchItem]
) -> tuple[list[tuple[BatchItem, int]], PollCounts]:
    """Each listing with about how many rows it is; one whose reading is damaged has failed."""
    sized: list[tuple[BatchItem, int]] = []
    counts = PollCounts()
    for item in sorted(items, key=lambda one: (one.source.kind, one.source.id)):
        try:
            size = shop.systems[item.source.kind].size(_stored_reading(shop, item))
        except Exception as error:
            counts += _fail(shop, item, error)
        else:
            sized.append((item, size))
    return sized, counts


def _chunks(sized: Sequence[tuple[BatchItem, int]]) -> Iterable[list[BatchItem]]:
    """As many listings as make a transaction of bounded size, of one kind, at least one."""
    chunk: list[BatchItem] = []
    rows = 0
    for item, size in sized:
        is_other = bool(chunk) and chunk[0].source.kind is not item.source.kind
        if chunk and (is_other or rows + size > ROWS_PER_TRANSACTION):
            yield chunk
            chunk, rows = [], 0
        chunk.append(item)
        rows += size
    if chunk:
        yield chunk


def _ingest_together(shop: RunContext, items: Sequence[BatchItem]) -> Ingestion:
    try:
        return _ingest(shop, items)
    except Exception as error:
        if isinstance(classify(error), Fatal):
            raise
        # One listing spoils its transaction: each on its own, so that only the culprit fails.
        log.warning("a batch of %d listings failed; one by one now", len(items), exc_info=True)
        return _ingest_singly(shop, items)


def _ingest(shop: RunContext, items: Sequence[BatchItem]) -> Ingestion:
    """Rows, sources, tasks and the end of the batch items: one transaction, fenced."""
    readings = {item.source.id: _stored_reading(shop, item) for item in items}

    def write(connection: Connection) -> Ingestion:
        return _write(connection, shop, items, readings)

    return shop.store.write(write)


def _write(
    connection: Connection,
    shop: RunContext,
    items: Sequence[BatchItem],
    readings: Mapping[str, bytes],
) -> Ingestion:
    now = shop.store.clock.now(connection)
    mine = claims.held(connection, [(item.task.id, item.task.fence) for item in items])
    kept = [item for item in items if item.task.id in mine]
    system = shop.systems[items[0].source.kind]
    read = [polled(item, readings[item.source.id]) for item in kept]
    results = system.ingest(connection, read, now=now, settings=shop.settings)
    by_source = {result.source_id: result for result in results}
    successes = [_success(item, by_source[item.source.id]) for item in kept]
    telling = [item for item in kept if by_source[item.source.id].says_something]
    writing = [item for item in kept if by_source[item.source.id].has_written]
    by_poll = {one.source.id: (one.ingestion_id, by_source[one.source.id]) for one in read}
    keep_lineage(connection, shop, writing, by_poll, now=now)
    for item in telling:
        if (result := by_source[item.source.id]).is_buried:
            dead_letter_feed(connection, shop, item, result.outcome, now=now)
    lock_rows(connection, sources.c.id, [item.source.id for item in kept])
    poll_results.succeed(connection, successes, now=now, settings=shop.settings, random=shop.random)
    _drop_items(connection, items[0].batch_id, [item.task.id for item in items])
    lost, same = len(items) - len(kept), len(kept) - len(telling)
    ended = PollCounts(changed=-lost - same, unchanged=same, lost=lost)
    return Ingestion(ingested=list(results), counts=ended)


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
        is_read=not result.quarantined,
        changed=result.says_something and not result.quarantined,
        updated=result.updated,
        withdrawn=result.withdrawn,
        content_hash=item.content_hash,
        reader=item.reader,
        newest_at=result.newest_at,
        published=result.published,
        # a listing that was not believed has not answered what the last good one left open
        needs_full_read=result.needs_full_read
        or (result.quarantined and item.source.needs_full_read),
        record_count=result.record_count,
    )


def _ingest_singly(shop: RunContext, items: Sequence[BatchItem]) -> Ingestion:
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


def _fail(shop: RunContext, item: BatchItem, error: Exception) -> PollCounts:
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
        # what could not be read or written, to be looked at
        code, run_id = failure.error.code, shop.run_id
        kept = keep_snapshots(connection, pages_of([item]), now=now, failure=code, run_id=run_id)
        failures = [replace(failure, evidence={"snapshots": kept})] if mine else []
        failed = poll_results.fail(
            connection, failures, now=now, settings=shop.settings, random=shop.random
        )
        _drop_items(connection, item.batch_id, [item.task.id])
    if isinstance(failure.error, Fatal):
        raise failure.error from error
    return PollCounts(
        changed=-1,
        retried=len(failed.retry_at),
        given_back=failed.given_back,
        failed=failed.given_up,
        lost=1 - len(failures),
    )


def _drop_items(connection: Connection, batch_id: str, task_ids: Sequence[int]) -> None:
    connection.execute(
        delete(batch_items).where(
            batch_items.c.batch_id == batch_id, batch_items.c.task_id.in_(task_ids)
        )
    )
