"""Write the results of claimed pages in one fenced transaction.

A result counts only if its claim still holds, its page still waits to be read, and its extraction
is active: results of a superseded or cancelled claim leave nothing.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.catalogs.crawling.following import explore
from ingestion_pipeline.catalogs.crawling.system import failure_reason, lock_extractions
from ingestion_pipeline.catalogs.datasets.carry_over import ActiveExtraction
from ingestion_pipeline.catalogs.datasets.finishing import budget_finish, failed_finishes, finish_extractions
from ingestion_pipeline.catalogs.datasets.rows import (
    FinishedPage,
    Item,
    PageItems,
    ensure_dataset,
    items_of,
    write_items,
    write_pages,
)
from ingestion_pipeline.catalogs.extraction.page_result import ExtractionResult
from ingestion_pipeline.catalogs.extraction.tasks import ReadCounts, ReadDone, ReadFailed, ReadOver, ReadResult
from ingestion_pipeline.catalogs.recipes.recipe import PageType
from ingestion_pipeline.catalogs.states import ExtractionKind, PageStatus, lock_rows
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.protocol import PageGone
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.dead_letters import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.tasks.errors import Fatal, Permanent, classify, storable
from ingestion_pipeline.tasks.retry import DeadLetterTask, ReleaseTask, Retry, after_failure
from ingestion_pipeline.tasks.task import Move, Task, TaskStatus, failed, finished, released, retried

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingsPersisted:
    """Counts of a flush, the times of retries, and the extractions that have ended."""

    counts: ReadCounts = field(default_factory=ReadCounts)
    retry_times: Sequence[datetime] = ()
    ended: frozenset[int] = frozenset()

    def __add__(self, other: ReadingsPersisted) -> ReadingsPersisted:
        """Return the sum of both."""
        return ReadingsPersisted(
            counts=self.counts + other.counts,
            retry_times=[*self.retry_times, *other.retry_times],
            ended=self.ended | other.ended,
        )


def write_readings(ctx: RunContext, results: Sequence[ReadResult]) -> ReadingsPersisted:
    """Write every result whose claim still holds and whose extraction is active.

    A result that cannot be written breaks its transaction: then each is written on its own, so that
    only that one fails.
    """
    try:
        return _commit(ctx, results)
    except SQLAlchemyError as error:
        if isinstance(classify(error), Fatal):
            raise
        log.warning("batch write failed pages=%d; writing one by one", len(results), exc_info=True)
    written = ReadingsPersisted()
    for result in results:
        written += _commit_single(ctx, result)
    return written


def _commit_single(ctx: RunContext, result: ReadResult) -> ReadingsPersisted:
    try:
        return _commit(ctx, [result])
    except SQLAlchemyError as error:
        if not isinstance(result, ReadDone) or isinstance(classify(error), Fatal):
            raise
        message = f"the records of {result.work.url} could not be written: {error}"
        failure = Permanent(message[:2_000], code="not_written")
        stack = traceback.format_exc(limit=-20)
        return _commit(ctx, [ReadFailed(work=result.work, error=failure, stack=stack)])


def _commit(ctx: RunContext, results: Sequence[ReadResult]) -> ReadingsPersisted:
    if not results:
        return ReadingsPersisted()

    def write(connection: Connection) -> ReadingsPersisted:
        now = ctx.store.clock.now(connection)
        return _Flush(connection, ctx, now=now).write(results)

    return ctx.store.write(write)


class _Flush:
    """One write transaction."""

    def __init__(self, connection: Connection, ctx: RunContext, *, now: datetime) -> None:
        self._connection = connection
        self._ctx = ctx
        self._now = now
        self._moves: list[Move] = []
        self._dead_letters: list[DeadLetterEntry] = []
        self._pages: list[FinishedPage] = []
        self._retry_times: list[datetime] = []
        self._released = 0

    def write(self, results: Sequence[ReadResult]) -> ReadingsPersisted:
        works = [result.work for result in results if not isinstance(result, PageGone)]
        lock_rows(self._connection, {work.extraction_id for work in works})
        held_ids = claims.held(self._connection, [(result.task.id, result.task.fence) for result in results])
        held = [result for result in results if result.task.id in held_ids]
        ids = {result.work.extraction_id for result in held if not isinstance(result, PageGone)}
        active = lock_extractions(self._connection, ids, now=self._now)
        current = [
            result for result in held if not isinstance(result, PageGone) and result.work.extraction_id in active
        ]
        current_ids = {result.task.id for result in current}
        gone = [result for result in held if result.task.id not in current_ids]
        self._moves += [_skipped(result.task, _skip_reason(result)) for result in gone]
        done = [result for result in current if isinstance(result, ReadDone)]
        counts = self._write_done(done, active)
        for result in current:
            if isinstance(result, ReadFailed):
                self._decide(result)
        self._write_pages(self._pages)
        add_dead_letters(self._connection, self._dead_letters, now=self._now)
        over = [result for result in current if isinstance(result, ReadOver)]
        self._moves += [_skipped(result.task, str(result.why)) for result in over]
        claims.apply(self._connection, self._moves, now=self._now)
        ended = self._finish_extractions(ids, over)
        counts += ReadCounts(
            retried=len(self._retry_times),
            given_back=self._released,
            failed=len(self._dead_letters),
            skipped=len(gone) + len(over),
            lost=len(results) - len(held),
        )
        return ReadingsPersisted(
            counts=counts, retry_times=self._retry_times, ended=frozenset((ids - active.keys()) | ended)
        )

    def _write_pages(self, finished: Sequence[FinishedPage]) -> set[int]:
        run_id = self._ctx.run_id
        return write_pages(self._connection, finished, now=self._now, run_id=run_id)

    def _write_done(self, done: Sequence[ReadDone], active: Mapping[int, ActiveExtraction]) -> ReadCounts:
        """Write pages, items and explored links of pages that no other worker has read."""
        reader_hashes: dict[int, str] = {}
        items_by_page: dict[int, list[Item]] = {}
        pages: list[FinishedPage] = []
        for result in done:
            id_ = result.work.extraction_id
            if id_ not in reader_hashes:
                reader_hashes[id_] = active[id_].reader_hash(result.config, self._ctx.settings)
            items = items_by_page[result.work.page_id] = items_of(result.config.kind, result.reading)
            pages.append(_finished_page(result, items, reader_hashes[id_]))
        written = self._write_pages(pages)
        new_results = [result for result in done if result.work.page_id in written]
        self._moves += [finished(result.task) for result in new_results]
        self._moves += [
            _skipped(result.task, "page already read") for result in done if result.work.page_id not in written
        ]
        datasets = {
            id_: ensure_dataset(self._connection, active[id_], reader_hashes[id_], now=self._now)
            for id_ in sorted({result.work.extraction_id for result in new_results})
        }
        page_items = [_page_items(result, datasets, items_by_page) for result in new_results]
        before = [result.work.page_id for result in new_results if result.work.was_read]
        write_items(self._connection, page_items, read_before=before, now=self._now)
        empty = sum(not entry.items for entry in page_items)
        return ReadCounts(
            read=len(new_results) - empty,
            empty=empty,
            items=sum(len(entry.items) for entry in page_items),
            explored=self._explore(new_results, items_by_page, active),
        )

    def _explore(
        self,
        new_results: Sequence[ReadDone],
        items_by_page: Mapping[int, Sequence[Item]],
        active: Mapping[int, ActiveExtraction],
    ) -> int:
        """Add explored links to the frontier, in the transaction that finishes their page.

        Only from a page that has records. A rerun adds none: it reads the pages that were explored
        then.
        """
        by_extraction: dict[int, list[tuple[Task, str, tuple[str, ...]]]] = {}
        for result in new_results:
            is_rerun = active[result.work.extraction_id].kind is ExtractionKind.RERUN
            if result.reading.explored and items_by_page[result.work.page_id] and not is_rerun:
                links = by_extraction.setdefault(result.work.extraction_id, [])
                links.append((result.task, result.work.step, result.reading.explored))
        return explore(self._connection, by_extraction, now=self._now, settings=self._ctx.settings)

    def _decide(self, result: ReadFailed) -> None:
        """Retry, postpone or dead-letter the page; its row has the reason in each case."""
        reason = failure_reason(result.error)
        status = PageStatus.DOWNLOADED
        match after_failure(
            result.task, result.error, now=self._now, policy=self._ctx.settings.catalog_work, random=self._ctx.random
        ):
            case Retry(not_before):
                self._retry_times.append(not_before)
                self._moves.append(retried(result.task, result.error, not_before=not_before))
            case ReleaseTask(not_before):
                self._released += 1
                self._moves.append(released(result.task, result.error, not_before=not_before))
            case DeadLetterTask():
                status = PageStatus.ERROR
                self._dead_letters.append(_dead_letter(result))
                self._moves.append(failed(result.task, result.error))
        if result.error.code not in RUN_ERROR_CODES:
            self._pages.append(FinishedPage(id=result.work.page_id, status=status, failure=reason))

    def _finish_extractions(self, ids: set[int], over: Sequence[ReadOver]) -> set[int]:
        """Finish extractions without budget or whose root page failed, and return their ids."""
        spent = {item.work.extraction_id: budget_finish(str(item.why)) for item in over}
        # In one call: a second one would take its locks out of order.
        finishes = failed_finishes(self._connection, ids) | spent
        now, settings, random = self._now, self._ctx.settings, self._ctx.random
        ended = finish_extractions(self._connection, finishes, now=now, settings=settings, random=random)
        return {item.id for item in ended}


NO_DATA = "no_data"
NOTE_LENGTH = 500
RUN_ERROR_CODES = frozenset({"stopped", "slice_over"})  # unrelated to the page


def _dead_letter(result: ReadFailed) -> DeadLetterEntry:
    """Return the dead letter with the snapshot as evidence, for whoever inspects it."""
    served = {} if result.work.snapshot_id is None else {"snapshots": [result.work.snapshot_id]}
    return DeadLetterEntry(task=result.task, error=result.error, stack=result.stack, evidence=served)


def _finished_page(result: ReadDone, items: Sequence[Item], reader_hash: str) -> FinishedPage:
    method = result.reading.method or (result.reading.records[0].method if result.reading.records else None)
    # Most pages of an exploratory crawl only have links: no data is missing there.
    is_success = bool(items) or result.work.page_type == PageType.EXPLORATORY
    return FinishedPage(
        id=result.work.page_id,
        status=PageStatus.SUCCESS if is_success else PageStatus.EXTRACTED_NO_DATA,
        item_count=len(items),
        method=None if method is None else method.value,
        reader_hash=reader_hash,
        failure=None if is_success else no_data_failure(result.reading, result.config.kind.name),
    )


def no_data_failure(reading: ExtractionResult, entity: str) -> dict[str, str]:
    """Return why a page that was read has no item: the methods used and their messages."""
    methods = "rules" if reading.model is None else f"rules and {reading.model}"
    messages = [problem.message for problem in reading.problems]
    why = dict.fromkeys(filter(None, (reading.reason, *reading.notes, *messages)))
    text = "; ".join([f"{methods} found no {entity}", *why])
    return {"class": NO_DATA, "code": NO_DATA, "message": storable(text[:NOTE_LENGTH])}


def _page_items(
    result: ReadDone, datasets: Mapping[int, int], items_by_page: Mapping[int, Sequence[Item]]
) -> PageItems:
    return PageItems(
        dataset_id=datasets[result.work.extraction_id],
        page_id=result.work.page_id,
        snapshot_id=result.work.snapshot_id,
        entity_type=result.work.entity_type,
        items=items_by_page[result.work.page_id],
    )


def _skip_reason(result: ReadResult) -> str:
    return result.why if isinstance(result, PageGone) else "extraction has ended"


def _skipped(task: Task, why: str) -> Move:
    move = finished(task, status=TaskStatus.SKIPPED)
    return replace(move, error_code="page_gone", error=why[:2_000])
