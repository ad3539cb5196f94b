"""The extraction of records from downloaded pages as tasks.

The pages come from the content store, never from the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection

from ingestion_pipeline.catalogs.crawling.following import links_on
from ingestion_pipeline.catalogs.crawling.frontier import CrawlFilter, waiting_sources
from ingestion_pipeline.catalogs.datasets.finishing import budget_finish, failed_finishes, finish_extractions
from ingestion_pipeline.catalogs.extraction.missing_records import (
    EarlierRecords,
    is_first_extraction,
    load_earlier,
    missing_links,
    missing_records,
)
from ingestion_pipeline.catalogs.extraction.page_reader import Reader, with_page_offsets
from ingestion_pipeline.catalogs.extraction.page_result import ExtractionResult, PageContent
from ingestion_pipeline.catalogs.extraction.pipeline import no_model_error
from ingestion_pipeline.catalogs.extraction.results import ReadingWriter, extraction_ids
from ingestion_pipeline.catalogs.extraction.source_config import EntityConfig, load_entity_config
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
from ingestion_pipeline.catalogs.extractions import lock_extractions
from ingestion_pipeline.catalogs.learning.selector_learner import SelectorLearner
from ingestion_pipeline.catalogs.states import EXTRACT_PAGE, lock_rows
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.handler import TaskHandler
from ingestion_pipeline.engine.outcomes import Completed, EndedTask, NotNeeded, Skipped
from ingestion_pipeline.pages.content.store import storage_errors_fatal
from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.reading.html.parsing import in_parser_thread
from ingestion_pipeline.reading.llm import Billing, OverBudget
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.errors import Permanent, WorkError, classify
from ingestion_pipeline.tasks.task import Task

MAX_SOURCES = 200  # per claim; the others have waited longer at the next one
CALL_SITE = "extract_page"
_CONTENT_ERROR_CODES = frozenset({"content_damaged", "empty_body"})


class ExtractionHandler(TaskHandler[ReadWork, ReadValue]):
    """Extracts records from stored pages, for one run."""

    concurrency = 8  # pages that ask models at a time

    def __init__(self, ctx: RunContext, reader: Reader, crawl_filter: CrawlFilter, *, clock: SteadyClock) -> None:
        self.capacity = self.transaction_size = ctx.settings.extraction.batch_size
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
            raise _permanent_if_content_lost(item, classify(error)) from error
        return ReadDone(work=item, config=config, reading=outcome)

    def lock(self, connection: Connection, outcomes: Sequence[ReadOutcome]) -> None:
        """Lock the extractions before the tasks."""
        lock_rows(connection, extraction_ids(outcomes))

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
        """Return the entity config of the page's extraction, with the selectors learned so far."""
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
            call_site=CALL_SITE, source_id=work.task.source_id, page_id=work.page_id, extraction_id=work.extraction_id
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
            return work.content(self._ctx.content)


def _permanent_if_content_lost(work: ReadWork, error: WorkError) -> WorkError:
    """Return the error; one of the stored content as permanent, since no retry restores it."""
    return content_missing(work.url, str(error)) if error.code in _CONTENT_ERROR_CODES else error
