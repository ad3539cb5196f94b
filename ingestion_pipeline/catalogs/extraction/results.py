"""Writes what was read from pages, in one transaction.

It counts only if the page still waits to be read, and its extraction is active.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection

from ingestion_pipeline.catalogs.crawling.following import explore
from ingestion_pipeline.catalogs.datasets.item_rows import (
    FinishedPage,
    Item,
    PageItems,
    ensure_dataset,
    items_of,
    write_items,
    write_pages,
)
from ingestion_pipeline.catalogs.extraction.page_result import ExtractionResult
from ingestion_pipeline.catalogs.extraction.tasks import ReadDone, ReadOutcome, ReadWork
from ingestion_pipeline.catalogs.extractions import ActiveExtraction
from ingestion_pipeline.catalogs.recipes.recipe import PageType
from ingestion_pipeline.catalogs.states import ExtractionKind, PageStatus, failure_reason
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.outcomes import EndedTask, Failed, Skipped, not_done
from ingestion_pipeline.reading.llm import OverBudget
from ingestion_pipeline.tasks.errors import storable
from ingestion_pipeline.tasks.retry import DeadLetterTask
from ingestion_pipeline.tasks.task import Task, TaskStatus, finished


def extraction_ids(outcomes: Sequence[ReadOutcome]) -> set[int]:
    """Return the extractions of the pages that were loaded."""
    return {outcome.item.extraction_id for outcome in outcomes if outcome.item is not None}


class ReadingWriter:
    """Writes outcomes in one transaction, in which all their claims are held."""

    def __init__(
        self, connection: Connection, ctx: RunContext, active: Mapping[int, ActiveExtraction], *, now: datetime
    ) -> None:
        self._connection = connection
        self._ctx = ctx
        self._active = active
        self._now = now

    def write(self, outcomes: Sequence[ReadOutcome]) -> Sequence[EndedTask]:
        """Write what the outcomes change; return what becomes of their tasks."""
        done: list[ReadDone] = []
        ended: list[EndedTask] = []
        failed_pages: list[FinishedPage] = []
        for outcome in outcomes:
            if isinstance(outcome, Skipped):
                ended.append(_skip(outcome.task, outcome.reason))
            elif outcome.item is None:  # it could not be loaded
                ended.append(not_done(outcome))
            elif outcome.item.extraction_id not in self._active:
                ended.append(_skip(outcome.task, "extraction has ended"))
            elif isinstance(outcome, Failed):
                ended.append(_failed(outcome))
                failed_pages += _failed_page(outcome.item, outcome)
            elif isinstance(outcome.value, OverBudget):
                ended.append(_skip(outcome.task, str(outcome.value)))
            else:
                done.append(outcome.value)
        ended_readings, explored = self._write_done(done)
        self._write_pages(failed_pages)
        if explored:
            ended_readings[0] = replace(ended_readings[0], amounts={**ended_readings[0].amounts, "explored": explored})
        return [*ended, *ended_readings]

    def _write_pages(self, finished: Sequence[FinishedPage]) -> set[int]:
        run_id = self._ctx.run_id
        return write_pages(self._connection, finished, now=self._now, run_id=run_id)

    def _write_done(self, done: Sequence[ReadDone]) -> tuple[list[EndedTask], int]:
        """Write pages, items and explored links of pages that no other worker has read; return how many links."""
        reader_hashes: dict[int, str] = {}
        items_by_page: dict[int, list[Item]] = {}
        pages: list[FinishedPage] = []
        for result in done:
            id_ = result.work.extraction_id
            if id_ not in reader_hashes:
                reader_hashes[id_] = self._active[id_].reader_hash(result.config, self._ctx.settings)
            items = items_by_page[result.work.page_id] = items_of(result.config.kind, result.reading)
            pages.append(_finished_page(result, items, reader_hashes[id_]))
        written = self._write_pages(pages)
        new_results = [result for result in done if result.work.page_id in written]
        datasets = {
            id_: ensure_dataset(self._connection, self._active[id_], reader_hashes[id_], now=self._now)
            for id_ in sorted({result.work.extraction_id for result in new_results})
        }
        page_items = [_page_items(result, datasets, items_by_page) for result in new_results]
        before = [result.work.page_id for result in new_results if result.work.was_read]
        write_items(self._connection, page_items, read_before=before, now=self._now)
        explored = self._explore(new_results, items_by_page)
        return [_ended(result, written, items_by_page[result.work.page_id]) for result in done], explored

    def _explore(self, new_results: Sequence[ReadDone], items_by_page: Mapping[int, Sequence[Item]]) -> int:
        """Add explored links to the frontier, in the transaction that finishes their page.

        Only from a page that has records. A rerun adds none: it reads the pages that were explored
        then.
        """
        by_extraction: dict[int, list[tuple[Task, str, tuple[str, ...]]]] = {}
        for result in new_results:
            is_rerun = self._active[result.work.extraction_id].kind is ExtractionKind.RERUN
            if result.reading.explored and items_by_page[result.work.page_id] and not is_rerun:
                links = by_extraction.setdefault(result.work.extraction_id, [])
                links.append((result.work.task, result.work.step, result.reading.explored))
        return explore(self._connection, by_extraction, now=self._now, settings=self._ctx.settings)


NO_DATA = "no_data"
NOTE_LENGTH = 500
RUN_ERROR_CODES = frozenset({"stopped", "slice_over"})  # unrelated to the page


def _failed(failure: Failed[ReadWork]) -> EndedTask:
    """Return the end of the task; a dead letter has the snapshot as evidence, for whoever inspects it."""
    ended = not_done(failure)
    if ended.dead_letter is None or failure.item is None or failure.item.snapshot_id is None:
        return ended
    return replace(ended, dead_letter=replace(ended.dead_letter, evidence={"snapshots": [failure.item.snapshot_id]}))


def _failed_page(work: ReadWork, failure: Failed[ReadWork]) -> Sequence[FinishedPage]:
    """Return the page's row with the reason, unless that is a reason of the run."""
    if failure.error.code in RUN_ERROR_CODES:
        return ()
    is_final = isinstance(failure.decision, DeadLetterTask)
    status = PageStatus.ERROR if is_final else PageStatus.DOWNLOADED
    return [FinishedPage(id=work.page_id, status=status, failure=failure_reason(failure.error))]


def _ended(done: ReadDone, written: Collection[int], items: Sequence[Item]) -> EndedTask:
    if done.work.page_id not in written:
        return _skip(done.work.task, "page already read")
    count = "read" if items else "empty"
    return EndedTask(move=finished(done.work.task), count=count, amounts={"items": len(items)})


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


def _skip(task: Task, why: str) -> EndedTask:
    move = finished(task, status=TaskStatus.SKIPPED)
    return EndedTask(move=replace(move, error_code="page_gone", error=why[:2_000]), count="skipped")
