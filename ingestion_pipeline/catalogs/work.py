"""The work of catalogues: detect recipes, crawl and extract pages, read stored pages again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from datetime import datetime

from sqlalchemy import Connection

from ingestion_pipeline.catalogs.crawling.frontier import waiting_sources
from ingestion_pipeline.catalogs.crawling.reporting import CrawlReport, crawl_report, crawled_since, newest_picture
from ingestion_pipeline.catalogs.crawling.runs import KINDS, run_extraction, run_ingestion, start_now
from ingestion_pipeline.catalogs.datasets.report import DatasetReport, dataset_report
from ingestion_pipeline.catalogs.detection.detection_tasks import run_detection
from ingestion_pipeline.catalogs.events import crawl_event, dataset_event
from ingestion_pipeline.catalogs.extraction.entity_type import BadEntityType, EntityType, entity_types
from ingestion_pipeline.catalogs.extraction.pipeline import PipelineReader, Reader
from ingestion_pipeline.catalogs.extraction.source_config import entity_folder
from ingestion_pipeline.catalogs.recipes.detected_recipes import has_waiting_detection
from ingestion_pipeline.engine.asset_events import AssetEvent, EventValue, Url, picture
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.protocol import CrawlFilter
from ingestion_pipeline.engine.work import WorkAsset, WorkJob, WorkReport, WorkRun, WorkSpec, all_failed
from ingestion_pipeline.reading.llm import ModelClient
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.tasks.errors import WorkError

MOST_CRAWLED = 10_000  # catalogues whose shards are considered


async def _detect(run: WorkRun) -> WorkReport:
    counts = asdict(await run_detection(run.ctx, run.worker, run.fetcher, renderer=run.renderer))
    return WorkReport(numbers=counts, failure=all_failed(counts, "detections"))


async def _crawl(run: WorkRun) -> WorkReport:
    """Crawl and extract; report `datasets` too, since it is not materialized in the same run."""
    ctx, keys, since = run.ctx, run.scope.source_ids, run.ctx.store.now()
    crawl_filter = CrawlFilter(source_ids=keys, shard=run.scope.shard, shards=ctx.settings.polling.shards)
    async with open_reader(ctx) as reader:
        counts = await run_ingestion(ctx, run.worker, run.fetcher, crawl_filter, renderer=run.renderer, reader=reader)
    with ctx.store.read() as connection:
        ids = crawled_since(connection, since=since, source_ids=keys, limit=ctx.settings.polling.reported_events)
        crawled = [crawl_report(connection, key, since=since) for key in ids]
    reports = [report for report in crawled if report is not None]
    ids = [report.source_id for report in reports]
    datasets = [report for report in dataset_reports(ctx, ids) if keys is not None or report.read]
    events = [_crawl_event(ctx, report, since, keys) for report in reports if keys is not None or _has_changes(report)]
    return WorkReport(
        numbers=asdict(counts.crawled) | {f"reading_{name}": count for name, count in asdict(counts.read).items()},
        events=[*events, *map(dataset_event, datasets)],
        written={"pages": ids, "datasets": [report.source_id for report in datasets]},
        failure=_crawl_failure(reports, keys),
    )


def _has_changes(report: CrawlReport) -> bool:
    """Return whether the crawl found something new, failed somewhere, or has just finished."""
    is_through = bool(report.fetched) and not report.waiting
    return bool(report.new or report.failed) or is_through


def _crawl_event(ctx: RunContext, report: CrawlReport, since: datetime, keys: list[str] | None) -> AssetEvent:
    # Unchanged and by schedule: an earlier event has the picture already.
    return crawl_event(report, _preview(ctx, report.source_id, since=since if keys is None else None))


def _preview(ctx: RunContext, source_id: str, *, since: datetime | None) -> dict[str, EventValue]:
    """Return a screenshot of a page and its URL; empty if there is none."""
    with ctx.store.read() as connection:
        newest = newest_picture(connection, source_id, since=since)
    if newest is None:
        return {}
    try:
        image = picture(ctx.content.get(newest.screenshot_hash))
    except WorkError:  # the object is missing or damaged: report the crawl without it
        return {}
    return {} if image is None else {"screenshot": image, "screenshot_of": Url(newest.url)}


def _crawl_failure(reports: Sequence[CrawlReport], keys: list[str] | None) -> str | None:
    """Return why the run failed: every extraction did, or nothing requested was fetched."""
    if keys is None:
        is_all_failed = reports and all(report.total == sum(report.failed.values()) for report in reports)
        named = ", ".join(report.source_id for report in reports[:5])
        return f"every page of {named} failed; `ingest dead-letters list` shows why" if is_all_failed else None
    if any(report.fetched for report in reports):
        return None
    return (
        f"no page of {', '.join(keys[:5])} was fetched: another run has the host, robots.txt forbids it, or the"
        " root failed; `ingest sources show ID` shows which"
    )


async def _read(run: WorkRun) -> WorkReport:
    """Extract the downloaded pages of the requested sources, without a request."""
    keys = run.scope.source_ids or []
    async with open_reader(run.ctx) as reader:
        counts = await run_extraction(run.ctx, run.worker, CrawlFilter(source_ids=keys), reader=reader)
    reports = dataset_reports(run.ctx, keys)
    return WorkReport(
        numbers=asdict(counts),
        events=list(map(dataset_event, reports)),
        written={"datasets": keys},
        failure=None if reports else f"no page of {', '.join(keys[:5])} was ever fetched: materialize `pages` first",
    )


@asynccontextmanager
async def open_reader(ctx: RunContext) -> AsyncGenerator[Reader]:
    """Yield the reader of stored pages: rules, and models if any is configured."""
    clock = SteadyClock(ctx.store.now())
    if not ctx.settings.has_model:
        yield PipelineReader(ctx.settings, clock.now)
        return
    async with ModelClient(ctx.store, ctx.settings) as client:
        yield PipelineReader(ctx.settings, clock.now, client)


def dataset_reports(ctx: RunContext, keys: Collection[str]) -> list[DatasetReport]:
    """Return reports of those sources that have been extracted, in order."""
    with ctx.store.read() as connection:
        reports = [dataset_report(connection, key) for key in keys]
    types = _types(ctx)
    return [_in_order(report, types.get(report.entity_type or "")) for report in reports if report is not None]


def _types(ctx: RunContext) -> Mapping[str, EntityType]:
    try:
        return entity_types(entity_folder(ctx.settings))
    except BadEntityType:  # extraction reports it; show what was extracted before
        return entity_types()


def _in_order(report: DatasetReport, kind: EntityType | None) -> DatasetReport:
    """Return the report with the preview's fields in the order of the entity type."""
    if kind is None:
        return report
    names = [field.name for field in kind.fields]
    rows = [{name: row.get(name) for name in names} for row in report.preview]
    return replace(report, preview=rows)


def _crawl_shards(connection: Connection, settings: Settings, now: datetime) -> list[int]:
    crawling = waiting_sources(connection, CrawlFilter(), now=now, limit=MOST_CRAWLED, kinds=KINDS)
    return sorted({source.shard % settings.polling.shards for source in crawling})


WORK = (
    WorkSpec(
        name="detect",
        kind="catalog",
        work=_detect,
        job=WorkJob(
            name="detect_recipes",
            description="Detect the recipes of catalogues without one: platforms, rules, votes.",
            pending=lambda connection, _settings, now: has_waiting_detection(connection, now=now),
        ),
    ),
    WorkSpec(
        name="crawl",
        kind="catalog",
        work=_crawl,
        job=WorkJob(
            name="crawl_catalogs",
            description="Crawl the waiting pages of catalogues politely, and extract them.",
            pending=_crawl_shards,
            is_sharded=True,
        ),
        assets=(
            WorkAsset(
                name="pages",
                description=(
                    "The pages of a catalogue, one partition a source. Materializing starts an extraction now,"
                    " or continues the running one, and crawls until it is done or the run's time is over."
                ),
            ),
        ),
        request=start_now,
    ),
    WorkSpec(
        name="read",
        kind="catalog",
        work=_read,
        assets=(
            WorkAsset(
                name="datasets",
                after="pages",
                technologies=frozenset({"python", "sql"}),
                description=(
                    "The records of a catalogue, one partition a source, each field with the span of the page"
                    " that proves it. Materializing reads what is downloaded and not read yet, without a"
                    " request; `crawl_catalogs` and `ingest_catalog` do it after they have fetched."
                ),
            ),
        ),
    ),
)
