"""Parsing and ingesting changed feeds: from a batch of stored pages to rows."""

import time
import traceback
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, String, delete, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.engine import poll_handler
from ingestion_pipeline.engine.context import (
    IngestResult,
    PolledFeed,
    PolledSystem,
    RunContext,
    SinglePageSnapshot,
    hash_of_bodies,
)
from ingestion_pipeline.engine.handler import Failed, decided
from ingestion_pipeline.engine.worker_loop import one_by_one_on_failure
from ingestion_pipeline.pages.content.snapshots import PageRef, write_feed_snapshots
from ingestion_pipeline.pages.content.store import storage_errors_fatal
from ingestion_pipeline.pages.visits.page import StoredPage, explain_failure
from ingestion_pipeline.sources import Source, poll_results
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_results import PollSuccess
from ingestion_pipeline.sources.source import QUARANTINED
from ingestion_pipeline.store.changes import Cause, Origin, common_origin, set_origins
from ingestion_pipeline.store.statements import lock_rows, row_source
from ingestion_pipeline.store.tables import batch_items, ingestions, sources
from ingestion_pipeline.store.types import Id
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline.tasks.ended_tasks import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.tasks.errors import Fatal, Permanent, WorkError, classify
from ingestion_pipeline.tasks.task import Suspicion, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem:
    """A changed feed of a batch: its claimed poll, its stored pages and later its parsed feed."""

    batch_id: str
    task: Task
    source: Source
    content_hash: str
    parser_version: str
    pages: tuple[PageRef, ...]
    parsed_hash: str | None
    fetched_at: datetime


def _pages_of(items: Iterable[BatchItem]) -> list[tuple[str, PageRef]]:
    """Return the pages of the items in order, each with its source id."""
    return [(item.source.id, page) for item in items for page in item.pages]


_BITS = 62  # fits a BIGINT; two of ten million are equal once in a hundred thousand times


def _write_lineage(
    connection: Connection,
    ctx: RunContext,
    items: Sequence[BatchItem],
    polls: Mapping[str, tuple[int, IngestResult]],
    *,
    now: datetime,
) -> None:
    """Write the snapshots of the feeds, and for each poll the row that its records refer to."""
    if not items:
        return
    snapshot_ids = iter(write_feed_snapshots(connection, _pages_of(items), now=now, run_id=ctx.run_id))
    rows: list[dict[str, Any]] = [
        {
            "id": polls[item.source.id][0],
            "source_id": item.source.id,
            "config_version": item.source.config_version,
            "run_id": ctx.run_id,
            # Platform and version; the configuration is stored elsewhere.
            "parser_version": ":".join(item.parser_version.split(":", 2)[:2]),
            "snapshots": [next(snapshot_ids) for _ in item.pages],
            "outcome": polls[item.source.id][1].outcome,
            "tracking_id": item.task.tracking_id,
            "fetched_at": item.fetched_at,
            "ingested_at": now,
        }
        for item in items
    ]
    connection.execute(insert(ingestions), rows)
    snapshots = [
        SinglePageSnapshot(source_id=row["source_id"], ingestion_id=row["id"], snapshot_id=row["snapshots"][0])
        for row in rows
        if len(row["snapshots"]) == 1
    ]
    if snapshots:
        ctx.systems[items[0].source.kind].link_snapshots(connection, snapshots)


def _dead_letter_feed(connection: Connection, ctx: RunContext, item: BatchItem, outcome: str, *, now: datetime) -> None:
    """Write a dead letter that states what is wrong and which snapshots show it."""
    pages, task = _pages_of([item]), item.task
    snapshot_ids = write_feed_snapshots(connection, pages, now=now, failure=QUARANTINED, run_id=ctx.run_id)
    cure = f"`ingest sources update {task.source_id} --accept-drop` accepts it"
    error = Permanent(f"{outcome}; {cure}", code=QUARANTINED)
    add_dead_letters(
        connection, [DeadLetterEntry(task=task, error=error, evidence={"snapshots": snapshot_ids})], now=now
    )


ROWS_PER_TRANSACTION = 5_000
READINGS_PER_TRANSACTION = 50  # a run that dies in between loses at most so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingestion:
    """The result of a batch: one result per ingested source, and counts of the others."""

    ingested: Sequence[IngestResult] = ()
    counts: poll_handler.PollCounts = field(default_factory=poll_handler.PollCounts)

    def __add__(self, other: "Ingestion") -> "Ingestion":
        """Return the results and counts of both."""
        return Ingestion(ingested=[*self.ingested, *other.ingested], counts=self.counts + other.counts)


def extract_batch(ctx: RunContext, worker: Worker, batch_id: str) -> poll_handler.PollCounts:
    """Parse every feed of the batch; a poll whose feed cannot be parsed fails."""
    renewed = time.monotonic()
    with _released_if_fatal(ctx, batch_id):
        items, counts = _load(ctx, batch_id)
        read: list[tuple[BatchItem, str]] = []
        for item in sorted(items, key=_is_suspect):
            if time.monotonic() - renewed > worker.lease.total_seconds() / 3:
                worker.renew()
                renewed = time.monotonic()
            if _is_suspect(item):
                _store_parsed(ctx, read)
                read = []
                _execute_alone(ctx, item)
            try:
                read.append((item, _read(ctx, item)))
            except Exception as error:
                counts += _fail(ctx, item, error)
            if len(read) >= READINGS_PER_TRANSACTION:
                _store_parsed(ctx, read)
                read = []
        _store_parsed(ctx, read)
    return counts


def _is_suspect(item: BatchItem) -> bool:
    """Return whether a worker died over the poll: then it is parsed and ingested alone."""
    return item.task.suspicion > Suspicion.NONE


def _execute_alone(ctx: RunContext, item: BatchItem) -> None:
    with ctx.store.begin() as connection:
        claims.set_suspicion(connection, [(item.task.id, item.task.fence)], Suspicion.ALONE)


def ingest_batch(ctx: RunContext, worker: Worker, batch_id: str) -> Ingestion:
    """Write every parsed feed of the batch; a poll whose feed cannot be written fails."""
    with _released_if_fatal(ctx, batch_id):
        items, counts = _load(ctx, batch_id)
        sized, failed = _sized(ctx, [item for item in items if item.parsed_hash is not None])
        done = Ingestion(counts=counts + failed)
        for chunk in _chunks(sized):
            worker.renew()
            if _is_suspect(chunk[0]):
                _execute_alone(ctx, chunk[0])
            done += _ingest_chunk(ctx, chunk)
    return done


@contextmanager
def _released_if_fatal(ctx: RunContext, batch_id: str) -> Generator[None]:
    """Release the rest of the batch if a fatal error ends the run."""
    try:
        yield
    except Exception as error:
        fatal = classify(error)
        if isinstance(fatal, Fatal):
            with suppress(SQLAlchemyError), ctx.store.begin() as connection:
                poll_handler.release_batch(connection, batch_id, fatal, now=ctx.store.clock.now(connection))
        raise


def _load(ctx: RunContext, batch_id: str) -> tuple[list[BatchItem], poll_handler.PollCounts]:
    """Return the items whose claims are still held, and the count of those that are lost."""
    with ctx.store.read() as connection:
        query = select(batch_items).where(batch_items.c.batch_id == batch_id)
        rows = connection.execute(query.order_by(batch_items.c.task_id)).mappings().all()
        tasks = claims.tasks_by_id(connection, [row["task_id"] for row in rows])
        sources = sources_by_id(connection, [row["source_id"] for row in rows])
    items = [
        BatchItem(
            batch_id=batch_id,
            task=tasks[row["task_id"]],
            source=sources[row["source_id"]],
            content_hash=row["fetched"]["content_hash"],
            parser_version=row["fetched"]["parser_version"],
            pages=tuple(PageRef(**page) for page in row["fetched"]["pages"]),
            parsed_hash=row["parsed_hash"],
            fetched_at=row["fetched_at"],
        )
        for row in rows
        # a lost claim belongs to another worker, which fetches the feed again
        if row["task_id"] in tasks and row["source_id"] in sources and tasks[row["task_id"]].fence == row["fence"]
    ]
    if lost := {row["task_id"] for row in rows} - {item.task.id for item in items}:
        with ctx.store.begin() as connection:
            _drop_items(connection, batch_id, sorted(lost))
    return items, poll_handler.PollCounts(changed=-len(lost), lost=len(lost))


def _read(ctx: RunContext, item: BatchItem) -> str:
    with storage_errors_fatal():
        pages = [
            StoredPage(
                url=page.final_url,
                body=ctx.content.get(page.content_hash),
                content_type=page.content_type,
                fetched_at=item.fetched_at,
            )
            for page in item.pages
        ]
    parsed = _parse_pages(ctx.systems[item.source.kind], item.source, pages)
    with storage_errors_fatal():
        return ctx.content.put(parsed, fsync=False)  # it can be parsed again from the stored pages


def _parse_pages(system: PolledSystem, source: Source, pages: Sequence[StoredPage]) -> bytes:
    """Parse the pages; raise a precise error for a blocked page or another wrong response."""
    try:
        parsed = system.read(source, pages)
    except WorkError as error:
        raise explain_failure(pages, error) or error from error
    # Only an empty feed is checked: classifying every feed would cost another parse.
    if not system.size(parsed) and (refusal := explain_failure(pages, None)) is not None:
        raise refusal
    return parsed


def _store_parsed(ctx: RunContext, read: Sequence[tuple[BatchItem, str]]) -> None:
    """Store the content hashes of the parsed feeds in the batch."""
    if not read:
        return
    columns = {"batch_id": String(36), "task_id": Id, "parsed_hash": String(64)}
    rows = [(item.batch_id, item.task.id, parsed) for item, parsed in read]
    with ctx.store.begin() as connection:
        claims.set_stage(connection, [(item.task.id, item.task.fence) for item, _ in read], "extracted")
        input_rows = row_source(connection, columns, rows, "given")
        connection.execute(
            update(batch_items)
            .where(batch_items.c.batch_id == input_rows.c.batch_id, batch_items.c.task_id == input_rows.c.task_id)
            .values(parsed_hash=input_rows.c.parsed_hash)
        )


def _stored_parsed(ctx: RunContext, item: BatchItem) -> bytes:
    with storage_errors_fatal():
        return ctx.content.get(item.parsed_hash or "")


def _sized(ctx: RunContext, items: Sequence[BatchItem]) -> tuple[list[tuple[BatchItem, int]], poll_handler.PollCounts]:
    """Return each feed with about how many rows it is; one with a damaged parsed feed fails."""
    sized: list[tuple[BatchItem, int]] = []
    counts = poll_handler.PollCounts()
    for item in sorted(items, key=lambda item: (_is_suspect(item), item.source.kind, item.source.id)):
        try:
            size = ctx.systems[item.source.kind].size(_stored_parsed(ctx, item))
        except Exception as error:
            counts += _fail(ctx, item, error)
        else:
            sized.append((item, size))
    return sized, counts


def _chunks(sized: Sequence[tuple[BatchItem, int]]) -> Iterable[list[BatchItem]]:
    """Yield lists of feeds of one kind that make a transaction of bounded size."""
    chunk: list[BatchItem] = []
    rows = 0
    for item, size in sized:
        is_other = bool(chunk) and chunk[0].source.kind is not item.source.kind
        if chunk and (is_other or _is_suspect(item) or rows + size > ROWS_PER_TRANSACTION):
            yield chunk
            chunk, rows = [], 0
        chunk.append(item)
        rows += size
    if chunk:
        yield chunk


def _ingest_chunk(ctx: RunContext, items: Sequence[BatchItem]) -> Ingestion:
    """Write all feeds in one transaction, or each alone if that fails, so that only the failing one fails."""

    def ingest(part: Sequence[BatchItem]) -> Sequence[Ingestion]:
        return [_ingest(ctx, part)]

    def failed(item: BatchItem, error: Exception) -> Ingestion:
        return Ingestion(counts=_fail(ctx, item, error))

    return sum(one_by_one_on_failure(items, ingest, failed), Ingestion())


def _ingest(ctx: RunContext, items: Sequence[BatchItem]) -> Ingestion:
    """Write rows, sources and tasks and delete the batch items in one fenced transaction."""
    parsed_feeds = {item.source.id: _stored_parsed(ctx, item) for item in items}
    return ctx.store.write(lambda connection: _write(connection, ctx, items, parsed_feeds))


def _write(
    connection: Connection, ctx: RunContext, items: Sequence[BatchItem], parsed_feeds: Mapping[str, bytes]
) -> Ingestion:
    now = ctx.store.clock.now(connection)
    held_ids = claims.held(connection, [(item.task.id, item.task.fence) for item in items])
    held = [item for item in items if item.task.id in held_ids]
    system = ctx.systems[items[0].source.kind]
    polled_feeds = [_polled_feed(item, parsed_feeds[item.source.id], run_id=ctx.run_id) for item in held]
    by_source = {feed.source.id: feed.origin for feed in polled_feeds}
    set_origins(connection, by_source, now=now, default=common_origin(list(by_source.values()) or [ctx.origin]))
    results = system.ingest(connection, polled_feeds, now=now, settings=ctx.settings)
    ended = {result.source_id: result for result in results}
    successes = [_success(item, ended[item.source.id]) for item in held]
    changed = [item for item in held if ended[item.source.id].has_changes]
    written = [item for item in held if ended[item.source.id].has_written]
    by_poll = {feed.source.id: (feed.ingestion_id, ended[feed.source.id]) for feed in polled_feeds}
    _write_lineage(connection, ctx, written, by_poll, now=now)
    for item in changed:
        if (result := ended[item.source.id]).is_dead_lettered:
            _dead_letter_feed(connection, ctx, item, result.outcome, now=now)
    lock_rows(connection, sources.c.id, [item.source.id for item in held])
    poll_results.succeed(connection, successes, now=now, settings=ctx.settings, random=ctx.random)
    _drop_items(connection, items[0].batch_id, [item.task.id for item in items])
    lost, same = len(items) - len(held), len(held) - len(changed)
    counts = poll_handler.PollCounts(changed=-lost - same, unchanged=same, lost=lost)
    return Ingestion(ingested=list(results), counts=counts)


def _polled_feed(item: BatchItem, parsed: bytes, *, run_id: str | None) -> PolledFeed:
    # A random id, so that a poll without changes needs no row; should two be equal after all, the transaction fails and
    # its feeds are ingested one by one.
    ingestion_id = uuid4().int >> (128 - _BITS)
    origin = Origin(cause=_cause(item), source_id=item.source.id, ingestion_id=ingestion_id, run_id=run_id)
    return PolledFeed(task=item.task, source=item.source, parsed=parsed, ingestion_id=ingestion_id, origin=origin)


def _cause(item: BatchItem) -> Cause:
    """Return why the feed may be read differently: its bodies or, where they are the same, how they are read."""
    source = item.source
    if source.synced_at is None:
        return Cause.FIRST_SYNC
    if item.parser_version == source.parser_version:
        return Cause.SOURCE_CHANGED  # also where the same list lacks a record for the second time
    bodies = (bytes.fromhex(page.content_hash) for page in item.pages)
    if hash_of_bodies(bodies, parser_version=source.parser_version or "") == source.content_hash:
        return Cause.READER_CHANGED
    return Cause.SOURCE_CHANGED


def _success(item: BatchItem, result: IngestResult) -> PollSuccess:
    first = item.pages[0]
    # Validators belong to the first page only, and a quarantined feed must be fetched again.
    is_one_page = len(item.pages) == 1 and not result.quarantined
    return PollSuccess(
        task=item.task,
        source=item.source,
        result=result,
        etag=first.etag if is_one_page else None,
        last_modified=first.last_modified if is_one_page else None,
        is_read=not result.quarantined,
        content_hash=item.content_hash,
        parser_version=item.parser_version,
    )


def _fail(ctx: RunContext, item: BatchItem, error: Exception) -> poll_handler.PollCounts:
    """Fail the poll as the class of the error decides; a fatal error is raised again."""
    reason = classify(error)
    stack = "".join(traceback.format_exception(error, limit=-20))
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        is_held = bool(claims.held(connection, [(item.task.id, item.task.fence)]))
        # keep what could not be parsed or written as evidence
        pages = _pages_of([item])
        snapshot_ids = write_feed_snapshots(connection, pages, now=now, failure=reason.code, run_id=ctx.run_id)
        poll = poll_handler.ClaimedPoll(task=item.task, source=item.source)
        failed: poll_handler.PollOutcome = Failed(task=item.task, item=poll, error=reason, stack=stack)
        failed = decided(failed, now=now, policy=ctx.settings.work, random=ctx.random)
        failures = [replace(poll_handler.poll_failure(failed), evidence={"snapshots": snapshot_ids})] if is_held else []
        decisions = poll_results.fail(connection, failures, now=now, settings=ctx.settings, random=ctx.random)
        _drop_items(connection, item.batch_id, [item.task.id])
    if isinstance(reason, Fatal):
        raise reason from error
    counts = Counter(end.count for end in map(poll_handler.end_of_poll, decisions))
    return poll_handler.PollCounts(changed=-1, **counts, lost=int(not is_held))


def _drop_items(connection: Connection, batch_id: str, task_ids: Sequence[int]) -> None:
    connection.execute(
        delete(batch_items).where(batch_items.c.batch_id == batch_id, batch_items.c.task_id.in_(task_ids))
    )
