"""The extraction of records from downloaded pages as tasks; selectors are learned while the pages are read.

The pages come from the content store, never from the network. After each flush the outcomes of learned
selectors are counted; for a source whose pages a model had to read, selectors are learned from some of
those pages. No failure of learning can fail a run.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, select

from ingestion_pipeline.catalogs.datasets.dataset_items import (
    ActiveExtraction,
    FinishedPage,
    Item,
    PageItems,
    ensure_dataset,
    items_of,
    write_items,
    write_pages,
)
from ingestion_pipeline.catalogs.datasets.finishing import budget_finish, failed_finishes, finish_extractions
from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, FieldKind
from ingestion_pipeline.catalogs.extraction.missing_records import (
    EarlierRecords,
    is_first_extraction,
    load_earlier,
    missing_links,
    missing_records,
)
from ingestion_pipeline.catalogs.extraction.pipeline import Reader, is_json, no_model_error
from ingestion_pipeline.catalogs.extraction.record import (
    LEARNED,
    MODEL_METHODS,
    ExtractionMethod,
    ExtractionResult,
    FieldValue,
    PageContent,
    shifted,
)
from ingestion_pipeline.catalogs.extraction.selector_learning import TrainingPage, learn_selectors
from ingestion_pipeline.catalogs.extraction.source_selectors import (
    EntityConfig,
    LearnedSelectors,
    Selectors,
    SelectorScope,
    load_entity_config,
    record_uses,
    save_learned,
)
from ingestion_pipeline.catalogs.extraction.tasks import (
    ReadDone,
    ReadOutcome,
    ReadValue,
    ReadWork,
    content_missing,
    load_claimed_pages,
    snapshot_columns_of,
    stored_content,
)
from ingestion_pipeline.catalogs.extraction_states import lock_extractions
from ingestion_pipeline.catalogs.frontier import CrawlFilter, explore, links_on, waiting_sources
from ingestion_pipeline.catalogs.recipes.recipe import PageType
from ingestion_pipeline.catalogs.states import (
    EXTRACT_PAGE,
    ExtractionKind,
    PageStatus,
    failure_reason,
    lock_extraction_rows,
)
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.handler import Completed, EndedTask, Failed, NotNeeded, Skipped, TaskHandler, not_done
from ingestion_pipeline.pages.content.store import storage_errors_fatal
from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.pages.politeness.rights import allows_models
from ingestion_pipeline.reading.evidence.grounding import PROVED
from ingestion_pipeline.reading.html.cleaning import in_parser_thread
from ingestion_pipeline.reading.llm import Billing, OverBudget
from ingestion_pipeline.reading.text.plain_text import decode
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.tables import data_items, extractions, pages, snapshots
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.ended_tasks import DeadLetterTask
from ingestion_pipeline.tasks.errors import Permanent, WorkError, classify, storable
from ingestion_pipeline.tasks.task import Task, TaskStatus, finished

MAX_TRAINING_PAGES = 10  # their bodies are loaded and parsed
MAX_TRAINING_RECORDS = 500
# All of them, else only the newest ones: the layout may have changed in between.
_NEWEST_COUNTS = (MAX_TRAINING_PAGES, 5, 3, 1)
_COSTLIER = {ExtractionMethod.LAYOUT, *MODEL_METHODS}

log = logging.getLogger(__name__)


class SelectorLearner:
    """The learned selectors of one run; `learn_from` runs in a thread beside the readings."""

    def __init__(self, ctx: RunContext) -> None:
        self._ctx = ctx
        self._learned_by_scope: dict[SelectorScope, LearnedSelectors | None] = {}
        self._pages_read: dict[SelectorScope, int] = {}
        self._next_attempt_pages: dict[SelectorScope, int] = {}

    def register(self, works: Iterable[ReadWork]) -> None:
        """Remember the stored selectors of the sources whose pages were just claimed."""
        self._learned_by_scope |= {_scope(work): work.learned for work in works}

    def with_learned(self, config: EntityConfig, work: ReadWork) -> EntityConfig:
        """Return the config with the learned selectors, unless selectors are configured."""
        learned = self._learned_by_scope.get(_scope(work))
        if learned is None or config.selectors is not None:
            return config
        return replace(config, learned=learned.for_kind(config.kind))

    def learn_from(self, done: Sequence[ReadDone]) -> None:
        """Learn from readings that have been written; a failure is only logged."""
        by_scope: dict[SelectorScope, list[ReadDone]] = {}
        for result in done:
            if result.config.selectors is None:
                by_scope.setdefault(_scope(result.work), []).append(result)
        for scope, scope_results in by_scope.items():
            try:
                self._count(scope, scope_results)
                self._learn(scope, scope_results)
            except Exception:
                log.exception("selector learning failed source=%s", scope.source_id)

    def _count(self, scope: SelectorScope, done: Sequence[ReadDone]) -> None:
        learned = self._learned_by_scope.get(scope)
        if learned is None:
            return
        current = learned.for_kind(done[0].config.kind)
        tried = [result for result in done if result.config.learned is not None]
        outcomes = [_was_read_by_learned(result) for result in tried if result.config.learned == current]
        conclusive = [outcome for outcome in outcomes if outcome is not None]
        if not conclusive:
            return
        with self._ctx.store.begin() as connection:
            now = self._ctx.store.clock.now(connection)
            is_kept = record_uses(connection, scope, learned, conclusive, now=now)
        if not is_kept:
            log.info("learned selectors dropped source=%s reason=too_many_failures", scope.source_id)
            for by_scope in (self._learned_by_scope, self._pages_read, self._next_attempt_pages):
                by_scope.pop(scope, None)

    def _learn(self, scope: SelectorScope, done: Sequence[ReadDone]) -> None:
        """Try to learn selectors, less often the more pages were tried in vain."""
        by_model = sum(result.reading.method in MODEL_METHODS for result in done)
        if self._learned_by_scope.get(scope) is not None or not by_model:
            return
        read = self._pages_read[scope] = self._pages_read.get(scope, 0) + by_model
        if read < self._next_attempt_pages.get(scope, 1):
            return
        self._next_attempt_pages[scope] = read + max(1, read // 2)
        config = done[0].config
        with self._ctx.store.read() as connection:
            rows = _read_pages(connection, scope, config.reader_hash(self._ctx.settings))
        training_pages = [page for pair in rows if (page := _training_page(self._ctx, config.kind, pair))]
        learned_from, selectors = _learn_from_newest(config.kind, training_pages)
        if selectors is None:
            return
        with self._ctx.store.begin() as connection:
            now = self._ctx.store.clock.now(connection)
            self._learned_by_scope[scope] = save_learned(
                connection, scope, config.kind, selectors, learned_from=learned_from, now=now
            )
        log.info("selectors learned source=%s pages=%d", scope.source_id, learned_from)


def _scope(work: ReadWork) -> SelectorScope:
    return SelectorScope(source_id=work.task.source_id or "", entity_type=work.entity_type)


def _was_read_by_learned(result: ReadDone) -> bool | None:
    """Return whether learned selectors read the page; None if the result is inconclusive.

    That is so where the page has no record, or has embedded data.
    """
    if any(record.reason == LEARNED for record in result.reading.records):
        return True
    return False if result.reading.method in _COSTLIER else None


def _learn_from_newest(kind: EntityType, training_pages: Sequence[TrainingPage]) -> tuple[int, Selectors | None]:
    for number in sorted({min(len(training_pages), most) for most in _NEWEST_COUNTS}, reverse=True):
        if number and (selectors := learn_selectors(kind, training_pages[:number])):
            return number, selectors
    return 0, None


def _read_pages(connection: Connection, scope: SelectorScope, reader_hash: str) -> list[tuple[Any, Sequence[Any]]]:
    """Return rows of the newest pages that a model has read, each content once, with the ordered items."""
    query = (
        select(pages.c.id, pages.c.snapshot_id, snapshots.c.body_hash, snapshots.c.content_type)
        .join(extractions, extractions.c.id == pages.c.extraction_id)
        .join(snapshots, snapshots.c.id == pages.c.snapshot_id)
        .where(
            extractions.c.source_id == scope.source_id,
            extractions.c.entity_type == scope.entity_type,
            pages.c.status == PageStatus.SUCCESS.value,
            pages.c.extraction_method.in_(MODEL_METHODS),
            pages.c.reader_hash == reader_hash,
            pages.c.carried_from.is_(None),
            snapshots.c.body_hash.is_not(None),
        )
        .order_by(pages.c.read_at.desc(), pages.c.id.desc())
        .limit(2 * MAX_TRAINING_PAGES)
    )
    once: dict[int, Any] = {}
    for row in connection.execute(query):
        once.setdefault(row.snapshot_id, row)
    rows = list(once.values())[:MAX_TRAINING_PAGES]
    items = _items(connection, [row.id for row in rows])
    return [(row, items[row.id]) for row in rows if row.id in items]


def _items(connection: Connection, page_ids: Sequence[int]) -> dict[int, list[Any]]:
    table = data_items
    query = (
        select(table.c.page_id, table.c.data, table.c.grounding, table.c.is_flagged)
        .where(table.c.page_id.in_(page_ids))
        .order_by(table.c.page_id.desc(), table.c.position)
        .limit(MAX_TRAINING_RECORDS + 1)
    )
    rows = connection.execute(query).all()
    if len(rows) > MAX_TRAINING_RECORDS:  # the last page's items may be incomplete
        rows = [row for row in rows if row.page_id != rows[-1].page_id]
    return {id_: list(page_rows) for id_, page_rows in groupby(rows, key=lambda row: row.page_id)}


def _training_page(ctx: RunContext, kind: EntityType, page: tuple[Any, Sequence[Any]]) -> TrainingPage | None:
    """Return the page with the proved values of its records; None if it is unsuitable."""
    row, items = page
    if any(item.is_flagged for item in items):
        return None
    try:
        body = decode(ctx.content.get(row.body_hash), row.content_type)
    except WorkError:  # gone from the content store: use other pages
        return None
    records = [_values(kind, item.data, item.grounding) for item in items]
    return None if is_json(body) else TrainingPage(body=body, records=records)


def _values(kind: EntityType, data: Mapping[str, Any], grounding: Mapping[str, Any]) -> dict[str, FieldValue | None]:
    """Return proved and absent values; a field without proof is left out."""
    values: dict[str, FieldValue | None] = {}
    for field in kind.fields:
        value = data.get(field.name)
        if value is None:
            values[field.name] = None
        elif grounding.get(field.name, {}).get("status") in PROVED:
            is_number = field.kind is FieldKind.NUMBER
            values[field.name] = Decimal(str(value)) if is_number else value
    return values


BATCH_SIZE = 200  # pages in memory and in one transaction
MAX_SOURCES = 200  # per claim; the others have waited longer at the next one
CALL_SITE = "extract_page"
_CONTENT_ERROR_CODES = frozenset({"content_damaged", "empty_body"})


class ExtractionHandler(TaskHandler[ReadWork, ReadValue]):
    """Extracts records from stored pages, for one run."""

    concurrency = 8  # pages that ask models at a time

    def __init__(self, ctx: RunContext, reader: Reader, crawl_filter: CrawlFilter, *, clock: SteadyClock) -> None:
        self.capacity = self.transaction_size = BATCH_SIZE
        self.flush_after = max(2, self.capacity // 2)
        self.policy = ctx.settings.catalog_work
        self.ended: set[int] = set()  # extractions
        self._ctx = ctx
        self._reader = reader
        self._crawl_filter = crawl_filter
        self._clock = clock
        self._configs: dict[int, EntityConfig] = {}
        self._is_first: dict[int, bool] = {}  # by extraction; constant during a run
        self._learner = SelectorLearner(ctx)

    def claim_requests(self, room: int, held: Sequence[ReadWork]) -> Sequence[tuple[ClaimFilter, int]]:  # noqa: ARG002
        """Claim an equal share of each source with waiting pages."""
        with self._ctx.store.read() as connection:
            now = self._ctx.store.clock.now(connection)
            sources = waiting_sources(connection, self._crawl_filter, now=now, limit=MAX_SOURCES, kinds=[EXTRACT_PAGE])
        share = max(1, room // max(len(sources), 1))
        return [(ClaimFilter(kind=EXTRACT_PAGE, frontier_of=source.id), share) for source in sources[:room]]

    def load(
        self, connection: Connection, tasks: Sequence[Task], *, now: datetime
    ) -> Sequence[ReadWork | Skipped[ReadWork]]:
        """Return the claimed pages, and mark their reading as started."""
        loaded = load_claimed_pages(connection, tasks, now=now)
        works = [work for work in loaded if isinstance(work, ReadWork)]
        self._learner.register(works)
        self.ended -= {work.extraction_id for work in works}  # active, or active again
        return loaded

    async def execute(self, item: ReadWork, host: HostLease | None) -> ReadValue:  # noqa: ARG002 - no requests
        """Extract the records of the page; an extraction whose budget is spent ends."""
        if item.extraction_id in self.ended:
            raise NotNeeded("extraction has ended")
        try:
            config = self._entity_config(item)
            outcome = await self._read(item, config)
            if isinstance(outcome, OverBudget):
                self.ended.add(item.extraction_id)
                return outcome
            await self._check_earlier_records(item, config, outcome)
        except Exception as error:
            failure = classify(error)
            if failure.code in _CONTENT_ERROR_CODES:  # no retry restores the stored content
                failure = content_missing(item.url, str(failure))
            raise failure from error
        return ReadDone(work=item, config=config, reading=outcome)

    def lock(self, connection: Connection, outcomes: Sequence[ReadOutcome]) -> None:
        """Lock the extractions before the tasks."""
        lock_extraction_rows(connection, extraction_ids(outcomes))

    def persist(self, connection: Connection, outcomes: Sequence[ReadOutcome], *, now: datetime) -> Sequence[EndedTask]:
        """Write pages, records and explored links; what belongs to an extraction that has ended is skipped."""
        ids = extraction_ids(outcomes)
        active = lock_extractions(connection, ids, now=now)
        self.ended |= ids - active.keys()
        return ReadingWriter(connection, self._ctx, active, now=now).write(outcomes)

    def finish(self, connection: Connection, outcomes: Sequence[ReadOutcome], *, now: datetime) -> None:
        """Finish extractions without budget or whose root page failed."""
        spent = {
            outcome.item.extraction_id: budget_finish(str(outcome.value))
            for outcome in outcomes
            if isinstance(outcome, Completed) and isinstance(outcome.value, OverBudget)
        }
        # In one call: a second one would take its locks out of order.
        finishes = failed_finishes(connection, extraction_ids(outcomes)) | spent
        settings, random = self._ctx.settings, self._ctx.random
        ended = finish_extractions(connection, finishes, now=now, settings=settings, random=random)
        self.ended |= {extraction.id for extraction in ended}

    def after_persist(self, outcomes: Sequence[ReadOutcome]) -> None:
        """Learn selectors from what was read."""
        values = [outcome.value for outcome in outcomes if isinstance(outcome, Completed)]
        self._learner.learn_from([value for value in values if isinstance(value, ReadDone)])

    def _entity_config(self, work: ReadWork) -> EntityConfig:
        config = self._configs.get(work.extraction_id)
        if config is None:
            try:
                config = load_entity_config(work.config, self._ctx.settings, entity=work.entity_type)
            except ValueError as error:
                message = f"{error}; correct the source's config and crawl it again"
                raise Permanent(message, code="unknown_entity") from error
            self._configs[work.extraction_id] = config
        return self._learner.with_learned(config, work)

    async def _read(self, work: ReadWork, config: EntityConfig) -> ExtractionResult | OverBudget:
        page = await in_parser_thread(self._content, work)
        billing = Billing(
            call_site=CALL_SITE,
            source_id=work.task.source_id,
            page_id=work.page_id,
            extraction_id=work.extraction_id,
            may_wait=work.may_wait,
        )
        outcome = await self._reader.read(config, page, billing)
        if isinstance(outcome, ExtractionResult):
            outcome = with_page_offsets(outcome, page)
        if isinstance(outcome, OverBudget) or not outcome.explored:
            return outcome
        links = outcome.explored if config.kind.explores else ()
        explored = await in_parser_thread(links_on, page, links, known_as=work.url)
        return replace(outcome, explored=explored)

    async def _check_earlier_records(self, work: ReadWork, config: EntityConfig, reading: ExtractionResult) -> None:
        """Raise if the reading would remove records whose disappearance is not confirmed.

        Raises:
            Resource: a model read the page before, rules leave it open, and no model is configured.
            Permanent: the page had records, and has none any more; or it was explored, and links to
                few of the pages that it linked to.
        """
        settings = self._ctx.settings
        is_open = bool(reading.reason) and not settings.has_model
        if reading.records and not is_open:
            return
        earlier = await asyncio.to_thread(self._earlier_records, work, config)
        if is_open and earlier.by_model:
            raise no_model_error(config.kind, self._clock.now())
        if not reading.records and (earlier.count or earlier.explored):
            store = self._ctx.content
            page = await in_parser_thread(stored_content, store, url=work.url, **snapshot_columns_of(work))
            find = missing_records if earlier.count else missing_links
            failure = await in_parser_thread(find, page, earlier)
            if failure is not None:
                raise failure

    def _earlier_records(self, work: ReadWork, config: EntityConfig) -> EarlierRecords:
        with self._ctx.store.read() as connection:
            if work.extraction_id not in self._is_first:
                self._is_first[work.extraction_id] = is_first_extraction(connection, work)
            if self._is_first[work.extraction_id]:
                return EarlierRecords()
            return load_earlier(connection, work, config.kind, self._ctx.content)

    def _content(self, work: ReadWork) -> PageContent:
        with storage_errors_fatal():
            content = work.content(self._ctx.content)
        may_ask = not self._ctx.settings.rights.honour or allows_models(work.rights)
        return replace(content, may_ask_models=may_ask)


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
        page_items = [
            PageItems(
                dataset_id=datasets[result.work.extraction_id],
                page_id=result.work.page_id,
                snapshot_id=result.work.snapshot_id,
                entity_type=result.work.entity_type,
                items=items_by_page[result.work.page_id],
            )
            for result in new_results
        ]
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


def _skip(task: Task, why: str) -> EndedTask:
    move = finished(task, status=TaskStatus.SKIPPED)
    return EndedTask(move=replace(move, error_code="page_gone", error=why[:2_000]), count="skipped")


def with_page_offsets(reading: ExtractionResult, page: PageContent) -> ExtractionResult:
    """Return the reading with spans of the whole stored text, of which the page may be a part."""
    if not page.starts_at:
        return reading
    records = [
        replace(record, evidence={name: shifted(proof, page.starts_at) for name, proof in record.evidence.items()})
        for record in reading.records
    ]
    return replace(reading, records=tuple(records))
