"""What became of claimed readings, and the one transaction that writes it down, fenced.

A result counts only if its claim still holds, its page still waits to be read, and its extraction
goes on: whoever was overtaken, or cancelled, leaves nothing.
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
from ingestion_pipeline.catalogs.datasets.finishing import (
    budget_finish,
    failed_finishes,
    finish_extractions,
)
from ingestion_pipeline.catalogs.datasets.rows import (
    FinishedPage,
    Item,
    PageItems,
    ensure_dataset,
    items_of,
    write_items,
    write_pages,
)
from ingestion_pipeline.catalogs.extraction.page_result import PageReading
from ingestion_pipeline.catalogs.extraction.tasks import (
    ReadCounts,
    ReadDone,
    ReadFailed,
    ReadOver,
    ReadResult,
)
from ingestion_pipeline.catalogs.recipes.recipe import PageType
from ingestion_pipeline.catalogs.states import ExtractionKind, PageStatus, lock_rows
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.protocol import PageGone
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.dead_letters import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.tasks.errors import Fatal, Permanent, classify, storable
from ingestion_pipeline.tasks.retry import DeadLetterTask, ReleaseTask, Retry, after_failure
from ingestion_pipeline.tasks.task import (
    Move,
    Task,
    TaskStatus,
    failed,
    finished,
    released,
    retried,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingsPersisted:
    """What a flush came to, when what is tried again is due, and which extractions have ended."""

    counts: ReadCounts = field(default_factory=ReadCounts)
    again_at: Sequence[datetime] = ()
    ended: frozenset[int] = frozenset()

    def __add__(self, other: ReadingsPersisted) -> ReadingsPersisted:
        """Both."""
        return ReadingsPersisted(
            counts=self.counts + other.counts,
            again_at=[*self.again_at, *other.again_at],
            ended=self.ended | other.ended,
        )


def write_readings(shop: RunContext, results: Sequence[ReadResult]) -> ReadingsPersisted:
    """Every result takes effect that is still ours and still wanted.

    One that cannot be written spoils its transaction: then each is written on its own, so that only
    the culprit fails.
    """
    try:
        return _commit(shop, results)
    except SQLAlchemyError as error:
        if isinstance(classify(error), Fatal):
            raise
        log.warning("a flush of %d readings failed; one by one now", len(results), exc_info=True)
    written = ReadingsPersisted()
    for one in results:
        written += _commit_alone(shop, one)
    return written


def _commit_alone(shop: RunContext, one: ReadResult) -> ReadingsPersisted:
    try:
        return _commit(shop, [one])
    except SQLAlchemyError as error:
        if not isinstance(one, ReadDone) or isinstance(classify(error), Fatal):
            raise
        said = f"the records of {one.work.url} could not be written: {error}"
        failure = Permanent(said[:2_000], code="not_written")
        stack = traceback.format_exc(limit=-20)
        return _commit(shop, [ReadFailed(work=one.work, error=failure, stack=stack)])


def _commit(shop: RunContext, results: Sequence[ReadResult]) -> ReadingsPersisted:
    if not results:
        return ReadingsPersisted()

    def write(connection: Connection) -> ReadingsPersisted:
        now = shop.store.clock.now(connection)
        return _Flush(connection, shop, now=now).write(results)

    return shop.store.write(write)


class _Flush:
    """One transaction."""

    def __init__(self, connection: Connection, shop: RunContext, *, now: datetime) -> None:
        self._connection = connection
        self._shop = shop
        self._now = now
        self._moves: list[Move] = []
        self._burials: list[DeadLetterEntry] = []
        self._pages: list[FinishedPage] = []
        self._again_at: list[datetime] = []
        self._given_back = 0

    def write(self, results: Sequence[ReadResult]) -> ReadingsPersisted:
        works = [one.work for one in results if not isinstance(one, PageGone)]
        lock_rows(self._connection, {work.extraction_id for work in works})
        mine = claims.held(self._connection, [(one.task.id, one.task.fence) for one in results])
        kept = [one for one in results if one.task.id in mine]
        ids = {one.work.extraction_id for one in kept if not isinstance(one, PageGone)}
        going_on = lock_extractions(self._connection, ids, now=self._now)
        wanted = [
            one
            for one in kept
            if not isinstance(one, PageGone) and one.work.extraction_id in going_on
        ]
        wanted_ids = {one.task.id for one in wanted}
        gone = [one for one in kept if one.task.id not in wanted_ids]
        self._moves += [_skipped(one.task, _why(one)) for one in gone]
        done = [one for one in wanted if isinstance(one, ReadDone)]
        counts = self._write_done(done, going_on)
        for one in wanted:
            if isinstance(one, ReadFailed):
                self._decide(one)
        self._write_pages(self._pages)
        add_dead_letters(self._connection, self._burials, now=self._now)
        over = [one for one in wanted if isinstance(one, ReadOver)]
        self._moves += [_skipped(one.task, str(one.why)) for one in over]
        claims.apply(self._connection, self._moves, now=self._now)
        ended = self._end(ids, over)
        counts += ReadCounts(
            retried=len(self._again_at),
            given_back=self._given_back,
            failed=len(self._burials),
            skipped=len(gone) + len(over),
            lost=len(results) - len(kept),
        )
        return ReadingsPersisted(
            counts=counts,
            again_at=self._again_at,
            ended=frozenset((ids - going_on.keys()) | ended),
        )

    def _write_pages(self, finished: Sequence[FinishedPage]) -> set[int]:
        run_id = self._shop.run_id
        return write_pages(self._connection, finished, now=self._now, run_id=run_id)

    def _write_done(
        self, done: Sequence[ReadDone], going_on: Mapping[int, ActiveExtraction]
    ) -> ReadCounts:
        """Pages, items and what is explored, of those that nobody else has read meanwhile."""
        names: dict[int, str] = {}
        found: dict[int, list[Item]] = {}
        pages: list[FinishedPage] = []
        for one in done:
            id_ = one.work.extraction_id
            if id_ not in names:
                names[id_] = going_on[id_].read_as(one.wanted, self._shop.settings)
            items = found[one.work.page_id] = items_of(one.wanted.kind, one.reading)
            pages.append(_read_page(one, items, names[id_]))
        written = self._write_pages(pages)
        fresh = [one for one in done if one.work.page_id in written]
        self._moves += [finished(one.task) for one in fresh]
        self._moves += [
            _skipped(one.task, "it was read already")
            for one in done
            if one.work.page_id not in written
        ]
        datasets = {
            id_: ensure_dataset(self._connection, going_on[id_], names[id_], now=self._now)
            for id_ in sorted({one.work.extraction_id for one in fresh})
        }
        told = [_page_items(one, datasets, found) for one in fresh]
        before = [one.work.page_id for one in fresh if one.work.was_read]
        write_items(self._connection, told, read_before=before, now=self._now)
        empty = sum(not one.items for one in told)
        return ReadCounts(
            read=len(fresh) - empty,
            empty=empty,
            items=sum(len(one.items) for one in told),
            explored=self._explore(fresh, found, going_on),
        )

    def _explore(
        self,
        fresh: Sequence[ReadDone],
        found: Mapping[int, Sequence[Item]],
        going_on: Mapping[int, ActiveExtraction],
    ) -> int:
        """Only from a page that holds records, and in the transaction that finishes it.

        A rerun asks nobody: it has the pages that were explored then, and no others.
        """
        by_extraction: dict[int, list[tuple[Task, str, tuple[str, ...]]]] = {}
        for one in fresh:
            is_rerun = going_on[one.work.extraction_id].kind is ExtractionKind.RERUN
            if one.reading.explored and found[one.work.page_id] and not is_rerun:
                told = by_extraction.setdefault(one.work.extraction_id, [])
                told.append((one.task, one.work.step, one.reading.explored))
        return explore(self._connection, by_extraction, now=self._now, settings=self._shop.settings)

    def _decide(self, one: ReadFailed) -> None:
        """The page is tried again, put off, or given up; its row says why in each case."""
        reason = failure_reason(one.error)
        status = PageStatus.DOWNLOADED
        match after_failure(
            one.task,
            one.error,
            now=self._now,
            policy=self._shop.settings.catalog_work,
            random=self._shop.random,
        ):
            case Retry(not_before):
                self._again_at.append(not_before)
                self._moves.append(retried(one.task, one.error, not_before=not_before))
            case ReleaseTask(not_before):
                self._given_back += 1
                self._moves.append(released(one.task, one.error, not_before=not_before))
            case DeadLetterTask():
                status = PageStatus.ERROR
                self._burials.append(_dead_letter(one))
                self._moves.append(failed(one.task, one.error))
        if one.error.code not in OF_THE_RUN:
            self._pages.append(FinishedPage(id=one.work.page_id, status=status, failure=reason))

    def _end(self, ids: set[int], over: Sequence[ReadOver]) -> set[int]:
        """The ids of those that cannot go on: no money is left, or the root itself was in vain."""
        spent = {one.work.extraction_id: budget_finish(str(one.why)) for one in over}
        # Together: what a second step locked would come out of order.
        endings = failed_finishes(self._connection, ids) | spent
        now, settings, random = self._now, self._shop.settings, self._shop.random
        ended = finish_extractions(
            self._connection, endings, now=now, settings=settings, random=random
        )
        return {one.id for one in ended}


NO_DATA = "no_data"
NOTE_LENGTH = 500
OF_THE_RUN = frozenset({"stopped", "slice_over"})  # says nothing of the page


def _dead_letter(result: ReadFailed) -> DeadLetterEntry:
    """Name what was served in the dead letter: whoever looks at it wants to see that."""
    served = {} if result.work.snapshot_id is None else {"snapshots": [result.work.snapshot_id]}
    return DeadLetterEntry(
        task=result.task, error=result.error, stack=result.stack, evidence=served
    )


def _read_page(one: ReadDone, items: Sequence[Item], name: str) -> FinishedPage:
    rung = one.reading.rung or (one.reading.records[0].rung if one.reading.records else None)
    # Most pages of a walk only lead on: nothing is missing there.
    is_well = bool(items) or one.work.page_type == PageType.EXPLORATORY
    return FinishedPage(
        id=one.work.page_id,
        status=PageStatus.SUCCESS if is_well else PageStatus.EXTRACTED_NO_DATA,
        item_count=len(items),
        rung=None if rung is None else rung.value,
        read_as=name,
        failure=None if is_well else no_data(one.reading, one.wanted.kind.name),
    )


def no_data(reading: PageReading, entity: str) -> dict[str, str]:
    """Why a page that was read has no item: who looked, and what was missing; for people."""
    looked = "rules" if reading.model is None else f"rules and {reading.model}"
    said = [one.message for one in reading.problems]
    why = dict.fromkeys(filter(None, (reading.reason, *reading.notes, *said)))
    text = "; ".join([f"{looked} found no {entity}", *why])
    return {"class": NO_DATA, "code": NO_DATA, "message": storable(text[:NOTE_LENGTH])}


def _page_items(
    one: ReadDone, datasets: Mapping[int, int], found: Mapping[int, Sequence[Item]]
) -> PageItems:
    return PageItems(
        dataset_id=datasets[one.work.extraction_id],
        page_id=one.work.page_id,
        snapshot_id=one.work.snapshot_id,
        entity_type=one.work.entity_type,
        items=found[one.work.page_id],
    )


def _why(one: ReadResult) -> str:
    return one.why if isinstance(one, PageGone) else "its extraction has ended"


def _skipped(task: Task, why: str) -> Move:
    move = finished(task, status=TaskStatus.SKIPPED)
    return replace(move, error_code="page_gone", error=why[:2_000])
