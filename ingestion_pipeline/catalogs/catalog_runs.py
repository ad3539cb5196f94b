"""The runs of catalogues: detect recipes, crawl and extract pages, read stored pages again."""

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime

from sqlalchemy import Connection

from ingestion_pipeline.catalogs import extraction_control
from ingestion_pipeline.catalogs.crawl_handler import CrawlHandler, PageDone
from ingestion_pipeline.catalogs.datasets.finishing import running
from ingestion_pipeline.catalogs.datasets.publishing import readable_entity_types
from ingestion_pipeline.catalogs.detection.detection_tasks import run_detection
from ingestion_pipeline.catalogs.extraction.model_methods import PROMPT_VERSION
from ingestion_pipeline.catalogs.extraction.page_extraction import ExtractionHandler
from ingestion_pipeline.catalogs.extraction.pipeline import PipelineReader, Reader
from ingestion_pipeline.catalogs.extraction.record import READER_VERSION
from ingestion_pipeline.catalogs.extraction.tasks import ReadCounts, ReadValue, ReadWork, wake_for_models
from ingestion_pipeline.catalogs.extraction_reports import (
    CrawlReport,
    DatasetReport,
    crawl_report,
    crawled_since,
    dataset_event,
    dataset_report,
    newest_picture,
)
from ingestion_pipeline.catalogs.extraction_states import start_extractions, update_extraction_tasks
from ingestion_pipeline.catalogs.frontier import CrawlFilter, PageWork, waiting_sources
from ingestion_pipeline.catalogs.recipes.detected_recipes import has_waiting_detection
from ingestion_pipeline.catalogs.reruns import predict_rerun, rerun
from ingestion_pipeline.catalogs.states import EXTRACTION_TASKS
from ingestion_pipeline.engine import system_spec
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.worker_loop import WorkerLoop
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.visits.page import Renderer
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.reading.html.markdown import MARKDOWN_VERSION
from ingestion_pipeline.reading.llm import open_model
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, poll_results
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.tables import tasks
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline.tasks.ended_tasks import Counts
from ingestion_pipeline.tasks.errors import WorkError
from ingestion_pipeline.tasks.task import TaskStatus

TURN_SECONDS = 60.0  # of fetching, before the fetched pages are extracted
LEAST_READING_SECONDS = 30.0  # even if the run's time is over: it still ends before it is stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlCounts(Counts):
    """How many pages ended how; `lost` were claimed by another worker meanwhile."""

    new: int = 0
    same: int = 0
    retried: int = 0
    given_back: int = 0
    failed: int = 0
    skipped: int = 0
    lost: int = 0
    size_bytes: int = 0


async def run_crawl(
    ctx: RunContext,
    worker: Worker,
    fetcher: HttpFetcher,
    crawl_filter: CrawlFilter,
    *,
    renderer: Renderer | None = None,
    seconds: float | None = None,
) -> CrawlCounts:
    """Fetch waiting pages for one run; without a renderer, pages that need one are refused."""
    clock = SteadyClock(await asyncio.to_thread(ctx.store.now))
    visitor = PoliteVisitor(fetcher, renderer, clock, ctx.settings)
    handler = CrawlHandler(ctx, crawl_filter, visitor=visitor, clock=clock)
    loop: WorkerLoop[PageWork, PageDone] = WorkerLoop(ctx, worker, fetcher, handler, clock=clock, seconds=seconds)
    return CrawlCounts.of(await loop.run())


async def run_extraction(
    ctx: RunContext,
    worker: Worker,
    crawl_filter: CrawlFilter,
    *,
    reader: Reader | None = None,
    seconds: float | None = None,
) -> ReadCounts:
    """Extract records from stored pages for one run; without a reader, by rules alone."""
    clock = SteadyClock(await asyncio.to_thread(ctx.store.now))
    reader = reader or PipelineReader(ctx.settings, clock.now)
    handler = ExtractionHandler(ctx, reader, crawl_filter, clock=clock)
    loop: WorkerLoop[ReadWork, ReadValue] = WorkerLoop(ctx, worker, None, handler, clock=clock, seconds=seconds)
    return ReadCounts.of(await loop.run())


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestionCounts:
    """Counts of fetched and of extracted pages."""

    crawled: CrawlCounts = field(default_factory=CrawlCounts)
    read: ReadCounts = field(default_factory=ReadCounts)

    def __add__(self, other: "IngestionCounts") -> "IngestionCounts":
        """Add the counts."""
        return IngestionCounts(crawled=self.crawled + other.crawled, read=self.read + other.read)


async def run_ingestion(
    ctx: RunContext,
    worker: Worker,
    fetcher: HttpFetcher,
    crawl_filter: CrawlFilter,
    *,
    renderer: Renderer | None = None,
    reader: Reader | None = None,
) -> IngestionCounts:
    """Fetch and extract pages in turns for one run, until none of either waits.

    In turns, so that the pages of a crawl which takes days at its host's pace do not stay unread.
    """
    deadline = time.monotonic() + ctx.settings.polling.slice_seconds
    await asyncio.to_thread(wake_for_models, ctx)
    counts = IngestionCounts()
    while True:
        turn = min(deadline - time.monotonic(), TURN_SECONDS)
        crawled = await run_crawl(ctx, worker, fetcher, crawl_filter, renderer=renderer, seconds=turn)
        left = max(deadline - time.monotonic(), LEAST_READING_SECONDS)
        read = await run_extraction(ctx, worker, crawl_filter, reader=reader, seconds=left)
        before, counts = counts, counts + IngestionCounts(crawled=crawled, read=read)
        if counts == before or time.monotonic() >= deadline:
            return counts


class NotACatalog(ValueError):
    """Raised for sources of other kinds: only a catalogue has extractions."""


def start_now(ctx: RunContext, source_ids: Collection[str]) -> dict[str, str]:
    """Start a crawl of each source now, due or not, as its poll; return a message for each.

    Pages that wait for a retry or a pause become due as well; what their host asked for still applies.
    """
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        by_id = sources_by_id(connection, source_ids)
        for missing in set(source_ids) - by_id.keys():
            raise UnknownSource(missing)
        for source in by_id.values():
            if source.kind is not Kind.CATALOG:
                raise NotACatalog(
                    f"{source.id} is of the kind {source.kind}, and only catalogues are extracted;"
                    " `ingest sources list --kind catalog` shows them"
                )
        polls = poll_results.claim_polls(connection, source_ids, now=now, settings=ctx.settings)
        outcomes = start_extractions(connection, list(by_id.values()), now=now)
        # Also pages that wait for a retry, a pause or a model; locked tasks are being worked on.
        update_extraction_tasks(
            connection,
            tasks.c.source_id.in_(list(source_ids)),
            tasks.c.status == TaskStatus.PENDING.value,
            tasks.c.not_before > now,
            values={"not_before": now},
            skip_locked=True,
        )
        started = [(polls[key], by_id[key], outcomes[key]) for key in sorted(polls)]
        poll_results.begin_crawls(connection, started, now=now, settings=ctx.settings, random=ctx.random)
    return outcomes


MOST_CRAWLED = 10_000  # catalogues whose shards are considered


async def _detect(run: system_spec.WorkRun) -> system_spec.WorkReport:
    counts = asdict(await run_detection(run.ctx, run.worker, run.fetcher, renderer=run.renderer))
    return system_spec.WorkReport(numbers=counts, failure=system_spec.all_failed(counts, "detections"))


async def _crawl(run: system_spec.WorkRun) -> system_spec.WorkReport:
    """Crawl and extract; report `datasets` too, since it is not materialized in the same run."""
    ctx, keys, since = run.ctx, run.scope.source_ids, run.ctx.store.now()
    crawl_filter = CrawlFilter(source_ids=keys, shard=run.scope.shard, shards=ctx.settings.polling.shards)
    async with open_reader(ctx) as reader:
        counts = await run_ingestion(ctx, run.worker, run.fetcher, crawl_filter, renderer=run.renderer, reader=reader)
    with ctx.store.read() as connection:
        updated = crawled_since(connection, since=since, source_ids=keys, limit=system_spec.REPORTED_EVENTS)
        reports = [
            report
            for key in dict.fromkeys([*updated, *(keys or ())])
            if (report := crawl_report(connection, key, since=since)) is not None
            and (key in updated or not report.waiting)
        ]
    ids = [report.source_id for report in reports]
    datasets = [report for report in dataset_reports(ctx, ids) if keys is not None or report.read]
    # Unchanged and by schedule: an earlier event has the picture already.
    pictured_since = since if keys is None else None
    events = [
        system_spec.AssetEvent(
            asset="pages",
            partition=report.source_id,
            metadata={**_preview(ctx, report.source_id, since=pictured_since), **report.metadata},
            has_data=report.has_pages,
        )
        for report in reports
        # by schedule only if it found something new, failed somewhere, or has just finished
        if keys is not None or report.new or report.failed or (report.fetched and not report.waiting)
    ]
    return system_spec.WorkReport(
        numbers=asdict(counts.crawled) | {f"reading_{name}": count for name, count in asdict(counts.read).items()},
        events=[*events, *(dataset_event(report) for report in datasets)],
        written={"pages": ids, "datasets": [report.source_id for report in datasets]},
        failure=_crawl_failure(reports, keys),
        message=_all_fetched(reports) if keys is not None else None,
    )


def _preview(ctx: RunContext, source_id: str, *, since: datetime | None) -> dict[str, system_spec.EventValue]:
    """Return a screenshot of a page and its URL; empty if there is none."""
    with ctx.store.read() as connection:
        newest = newest_picture(connection, source_id, since=since)
    if newest is None:
        return {}
    try:
        image = system_spec.picture(ctx.content.get(newest.screenshot_hash))
    except WorkError:  # the object is missing or damaged: report the crawl without it
        return {}
    return {} if image is None else {"screenshot": image, "screenshot_of": system_spec.Url(newest.url)}


def _crawl_failure(reports: Sequence[CrawlReport], keys: list[str] | None) -> str | None:
    """Return why the run failed: every extraction did, or nothing requested was fetched."""
    if keys is None:
        is_all_failed = reports and all(report.total == report.failed for report in reports)
        named = ", ".join(report.source_id for report in reports[:5])
        return f"every page of {named} failed; `ingest dead-letters list` shows why" if is_all_failed else None
    if any(report.fetched for report in reports) or _all_fetched(reports):
        return None
    return (
        f"no page of {', '.join(keys[:5])} was fetched: another run has the host, robots.txt forbids it, or the"
        " root failed; `ingest sources show ID` shows which"
    )


def _all_fetched(reports: Sequence[CrawlReport]) -> str | None:
    """Return that there was nothing to do, if every page had been fetched before the run."""
    has_work = any(report.fetched or report.failed or report.waiting for report in reports)
    if has_work or not reports or not all(report.has_pages for report in reports):
        return None
    return "nothing waits: every page is fetched; the extraction finishes within a minute"


def _still_running(ctx: RunContext, scope: system_spec.WorkScope) -> str:
    """Return how to cancel the extractions that the cancelled run leaves to the next."""
    with ctx.store.read() as connection:
        ids = [str(row.id) for row in running(connection, source_ids=scope.source_ids)]
    first = ids[0] if ids else "ID"
    return (
        f"the run is cancelled, its extraction is not: the next run continues {', '.join(ids[:5]) or 'it'};"
        f" `ingest extractions cancel {first}` or the job control_extraction ends it"
    )


async def _read(run: system_spec.WorkRun) -> system_spec.WorkReport:
    """Extract the downloaded pages of the requested sources, without a request."""
    keys = run.scope.source_ids or []
    async with open_reader(run.ctx) as reader:
        counts = await run_extraction(run.ctx, run.worker, CrawlFilter(source_ids=keys), reader=reader)
    reports = dataset_reports(run.ctx, keys)
    return system_spec.WorkReport(
        numbers=asdict(counts),
        events=[dataset_event(report) for report in reports],
        written={"datasets": keys},
        failure=None if any(report.metadata["items"] for report in reports) else _nothing_read(reports, keys),
        message="nothing waits: every downloaded page is read" if counts == ReadCounts() else None,
    )


def _nothing_read(reports: Sequence[DatasetReport], keys: Sequence[str]) -> str:
    named = ", ".join(keys[:5])
    if any(report.read for report in reports):
        return f"no page of {named} has a record: `ingest extractions list` shows why"
    return f"no page of {named} was ever fetched: materialize `pages` first"


@asynccontextmanager
async def open_reader(ctx: RunContext) -> AsyncGenerator[Reader]:
    """Yield the reader of stored pages: rules, and models if any is configured."""
    clock = SteadyClock(ctx.store.now())
    async with open_model(ctx.store, ctx.settings) as client:
        yield PipelineReader(ctx.settings, clock.now, client)


def dataset_reports(ctx: RunContext, keys: Collection[str]) -> list[DatasetReport]:
    """Return reports of those sources that have been extracted, with fields in the order of the entity type."""
    with ctx.store.read() as connection:
        reports = [report for key in keys if (report := dataset_report(connection, key)) is not None]
    types, ordered = readable_entity_types(ctx.settings), list[DatasetReport]()
    for report in reports:
        kind = types.get(report.entity_type or "")
        names = [] if kind is None else [field.name for field in kind.fields]
        preview = [{name: row.get(name) for name in names} for row in report.preview] if names else report.preview
        ordered.append(replace(report, preview=preview))
    return ordered


def _crawl_shards(connection: Connection, settings: Settings, now: datetime) -> list[int]:
    crawling = waiting_sources(connection, CrawlFilter(), now=now, limit=MOST_CRAWLED, kinds=EXTRACTION_TASKS)
    return sorted({source.shard % settings.polling.shards for source in crawling})


def run_action(
    ctx: RunContext,
    action: str,
    *,
    extraction: int | None,
    source: str | None,
    dry_run: bool,
    publish: bool,
    actor: str,
) -> str:
    """Run an operator's action on an extraction, or start one of a source; return a message about it.

    Raises:
        LookupError, ValueError: nothing was changed; the message has the cure.
    """
    if action == "start":
        if not source:
            raise ValueError("start needs `source`, the id of a catalogue")
        return f"{source}: {start_now(ctx, [source])[source]}"
    if extraction is None:
        raise ValueError(f"{action} needs `extraction`, an extraction's id")
    if action == "rerun" and dry_run:
        return _predicted(ctx, extraction)
    with ctx.store.begin() as connection:
        return _changed(ctx, connection, action, extraction, publish=publish, actor=actor)


def _predicted(ctx: RunContext, id_: int) -> str:
    with ctx.store.read() as connection:
        prediction = predict_rerun(connection, id_, settings=ctx.settings, content=ctx.content)
    cost = "no price is known" if prediction.cost_usd is None else f"{prediction.cost_usd:f} dollars"
    return f"{prediction.pages} pages, {prediction.calls} model calls at most, {cost}. {prediction.note}".strip()


def _changed(ctx: RunContext, connection: Connection, action: str, id_: int, *, publish: bool, actor: str) -> str:
    now = ctx.store.clock.now(connection)
    match action:
        case "cancel":
            ended = extraction_control.cancel(
                connection, id_, actor=actor, now=now, settings=ctx.settings, random=ctx.random
            )
            return f"extraction {ended.id} of {ended.source_id} is cancelled"
        case "resume" | "retry":
            act = extraction_control.resume if action == "resume" else extraction_control.retry
            done = act(connection, id_, actor=actor, now=now)
            return f"extraction {id_} continues: {done.fetched} pages to fetch, {done.read} to read"
        case "rerun":
            made = rerun(connection, id_, actor=actor, now=now, publish=publish)
            read = f"extraction {made.extraction_id} reads {made.pages} stored pages of {id_} again"
            return f"{read}, into a new dataset: {made.outlook}"
        case "publish" | "accept":
            version = extraction_control.publish(connection, id_, actor=actor, now=now)
            return f"version {version} of extraction {id_} is published"
        case other:
            names = "start, cancel, resume, retry, rerun, publish, accept"
            raise ValueError(f"action: {other!r} is none; there are: {names}")


WORK = (
    system_spec.WorkSpec(
        name="detect",
        kind="catalog",
        work=_detect,
        job=system_spec.WorkJob(
            name="detect_recipes",
            description="Detect the recipes of catalogues without one: platforms, rules, votes.",
            pending=lambda connection, _settings, now: has_waiting_detection(connection, now=now),
        ),
    ),
    system_spec.WorkSpec(
        name="crawl",
        kind="catalog",
        work=_crawl,
        job=system_spec.WorkJob(
            name="crawl_catalogs",
            description="Crawl the waiting pages of catalogues politely, and extract them.",
            pending=_crawl_shards,
            is_sharded=True,
        ),
        assets=(
            system_spec.WorkAsset(
                name="pages",
                code_version=MARKDOWN_VERSION,
                description=(
                    "The pages of each catalogue, a partition each. Materializing starts an extraction now,"
                    " or continues the running one, and crawls until it is done or the run's time is over."
                ),
            ),
        ),
        request=start_now,
        after_cancel=_still_running,
    ),
    system_spec.WorkSpec(
        name="read",
        kind="catalog",
        work=_read,
        after_cancel=_still_running,
        assets=(
            system_spec.WorkAsset(
                name="datasets",
                code_version=f"reader {READER_VERSION}, prompts {PROMPT_VERSION}, {MARKDOWN_VERSION}",
                after="pages",
                technologies=frozenset({"python", "sql"}),
                description=(
                    "The records of each catalogue, a partition each. Each field has the span of the page"
                    " that proves it. Materializing reads what is downloaded and not read yet, without a"
                    " request. Refreshed by the jobs `crawl_catalogs`, which the sensor `pending_work` starts, and"
                    " `complete_extractions`, which the sensor `extraction_completion` starts: it publishes them."
                ),
            ),
        ),
    ),
)
