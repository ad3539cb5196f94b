"""The asset `pages` and the jobs `crawl_catalogs`, `ingest_catalog` and `detect_recipes`."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import dagster as dg

from ingestion_pipeline.bootstrap import open_fetcher, open_reader, renderer_if_any
from ingestion_pipeline.catalogs.crawling.reporting import (
    CrawlReport,
    HostTimes,
    crawl_report,
    crawled_since,
    newest_picture,
)
from ingestion_pipeline.catalogs.crawling.runs import IngestionCounts, run_ingestion, start_now
from ingestion_pipeline.catalogs.detection.runs import DetectionCounts, run_detection
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.protocol import CrawlFilter
from ingestion_pipeline.orchestration import heartbeat, resources
from ingestion_pipeline.orchestration.check_events import fail_if_all_failed, fail_if_network_down, network_problem
from ingestion_pipeline.orchestration.checks import REPORTED_BY_COMPLETION, REPORTED_BY_CRAWLS, changed_checks
from ingestion_pipeline.orchestration.contracts import written_contracts, written_items
from ingestion_pipeline.orchestration.datasets import dataset_materialization, dataset_reports
from ingestion_pipeline.orchestration.events import picture, with_current_expectations
from ingestion_pipeline.orchestration.partitioned_assets import partitioned_asset
from ingestion_pipeline.orchestration.partitions import CATALOGS, register_keys
from ingestion_pipeline.orchestration.requested import admit, requested_or_due_keys, shard_of
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.settings.logs import key_values
from ingestion_pipeline.tasks.errors import WorkError
from ingestion_pipeline.tasks.worker import Worker

HOSTS_SHOWN = 20
CRAWL_SHARD = "crawl"  # crawl:number; a shard has one crawling run at a time


@dg.op(ins={"sources": dg.In(dg.Nothing)}, out=dg.Out(is_required=False), tags={"kind": "crawl"})
def crawl(context: dg.OpExecutionContext, run_context: RunContextResource) -> Iterator[Any]:
    """Crawl waiting pages, or the requested partitions, extract them, and report the results.

    It reports both assets itself: an output of its own would be one event more, and `datasets` of
    the same run is skipped because it has been reported.
    """
    keys = requested_or_due_keys(context, resources.CRAWL, "catalog")
    with run_context.open() as ctx:
        since = ctx.store.now()
        crawl_filter = _crawl_filter(context, ctx, keys)
        with heartbeat.working(ctx, run_id=context.run_id, job=context.job_name) as worker:
            worked, problem = asyncio.run(_work(ctx, worker, crawl_filter))
        heartbeat.end_run(ctx.store, run_id=context.run_id)
        numbers = asdict(worked.crawled)
        numbers |= {f"reading_{name}": count for name, count in asdict(worked.read).items()}
        context.log.info("crawl run finished %s", key_values(numbers))
        limit = ctx.settings.polling.reported_events
        with ctx.store.read() as connection:
            crawled_ids = crawled_since(connection, since=since, source_ids=keys, limit=limit)
            crawled = [crawl_report(connection, key, since=since) for key in crawled_ids]
        reports = [report for report in crawled if report is not None]
        register_keys(context.instance, CATALOGS.name or "", [report.source_id for report in reports])
        for report in reports:
            if keys is not None or _has_changes(report):
                # Unchanged and by schedule: an earlier event has the picture already.
                shown_since = since if keys is None else None
                preview = _preview(ctx, report.source_id, since=shown_since)
                yield from with_current_expectations(ctx, [_materialization(report, preview)])
        extracted = dataset_reports(ctx, [report.source_id for report in reports])
        datasets = [report for report in extracted if keys is not None or report.read]
        yield from with_current_expectations(ctx, map(dataset_materialization, datasets))
        check_keys = [*REPORTED_BY_CRAWLS, *(REPORTED_BY_COMPLETION if datasets else ())]
        yield from changed_checks(context.instance, ctx, check_keys)
        ids = [report.source_id for report in reports]
        yield from written_contracts(context.instance, ctx, ["pages"], ids)
        yield from written_items(context.instance, ctx, [report.source_id for report in datasets])
        fail_if_network_down(problem)
        _fail_if_nothing_fetched(reports, keys)
    if keys is None:
        yield dg.Output(None, metadata=numbers)


def _has_changes(report: CrawlReport) -> bool:
    """Return whether the crawl found something new, failed somewhere, or has just finished."""
    is_through = bool(report.fetched) and not report.waiting
    return bool(report.new or report.failed) or is_through


async def _work(ctx: RunContext, worker: Worker, crawl_filter: CrawlFilter) -> tuple[IngestionCounts, str | None]:
    async with (
        open_fetcher(ctx.settings) as fetcher,
        renderer_if_any(ctx.settings, clock=ctx.store.now) as renderer,
        open_reader(ctx) as reader,
    ):
        worked = await run_ingestion(ctx, worker, fetcher, crawl_filter, renderer=renderer, reader=reader)
        return worked, network_problem(fetcher)


def _crawl_filter(context: dg.OpExecutionContext, ctx: RunContext, keys: list[str] | None) -> CrawlFilter:
    if keys is not None:
        admit(context, ctx, keys)
        for key, outcome in start_now(ctx, keys).items():
            context.log.info("crawl requested source=%s: %s", key, outcome)
        return CrawlFilter(source_ids=keys)
    return CrawlFilter(shard=shard_of(context), shards=ctx.settings.polling.shards)


def _preview(ctx: RunContext, source_id: str, *, since: datetime | None) -> dict[str, dg.MetadataValue]:
    """Return a screenshot of a page and its URL; empty if there is none."""
    with ctx.store.read() as connection:
        newest = newest_picture(connection, source_id, since=since)
    if newest is None:
        return {}
    try:
        image = picture(ctx.content.get(newest.screenshot_hash))
    except WorkError:  # the object is missing or damaged: report the crawl without it
        return {}
    if image is None:
        return {}
    return {"screenshot": dg.MetadataValue.md(image), "screenshot_of": dg.MetadataValue.url(newest.url)}


def _materialization(report: CrawlReport, preview: Mapping[str, dg.MetadataValue]) -> dg.AssetMaterialization:
    """Return the event of the source's last extraction and what this run did for it."""
    counts = {
        "fetched": report.fetched,
        "new": report.new,
        "unchanged": report.unchanged,
        "failed": sum(report.failed.values()),
        "waiting": report.waiting,
        "pages": report.total,
        "bytes": report.size_bytes,
        "too_deep": report.too_deep,
        "over_budget": report.over_budget,
    }
    counts |= {f"failed_{name}": count for name, count in report.failed.items()}
    metadata: dict[str, dg.MetadataValue] = {name: dg.MetadataValue.int(count) for name, count in counts.items()}
    metadata["extraction"] = dg.MetadataValue.text(f"{report.extraction_id}, {report.status}")
    if report.hosts:
        slowest = report.hosts[0]
        metadata["p50_ms"] = dg.MetadataValue.int(slowest.p50_ms)
        metadata["p95_ms"] = dg.MetadataValue.int(slowest.p95_ms)
        metadata["slowest_host"] = dg.MetadataValue.text(slowest.host[:200])
        metadata["hosts"] = _host_table(report.hosts[:HOSTS_SHOWN])
    metadata |= preview
    return dg.AssetMaterialization("pages", partition=report.source_id, metadata=metadata)


def _host_table(hosts: Sequence[HostTimes]) -> dg.TableMetadataValue:
    """Return the response times of each host as a table."""
    numbers = ("pages", "p50_ms", "p95_ms")
    return dg.MetadataValue.table(
        [dg.TableRecord({"host": host.host[:200]} | {name: getattr(host, name) for name in numbers}) for host in hosts],
        schema=dg.TableSchema(
            columns=[dg.TableColumn("host", "string"), *(dg.TableColumn(name, "int") for name in numbers)]
        ),
    )


def _fail_if_nothing_fetched(reports: list[CrawlReport], keys: list[str] | None) -> None:
    """Fail the run if every extraction failed, or nothing requested was fetched."""
    is_all_failed = all(report.total == sum(report.failed.values()) for report in reports)
    if keys is None and reports and is_all_failed:
        named = ", ".join(report.source_id for report in reports[:5])
        raise dg.Failure(f"every page of {named} failed; `ingest dead-letters list` shows why", allow_retries=False)
    if keys is None or any(report.fetched for report in reports):
        return
    named = ", ".join(keys[:5])
    raise dg.Failure(
        f"no page of {named} was fetched: another run has the host, robots.txt forbids it, or the"
        " root failed; `ingest sources show ID` shows which",
        allow_retries=False,
    )


@partitioned_asset(
    "pages",
    of=CATALOGS,
    follows=("sources", "sources"),
    group="catalogs",
    kinds={"http", "sql"},
    description=(
        "The pages of a catalogue, one partition a source. Materializing starts an extraction now,"
        " or continues the running one, and crawls until it is done or the run's time is over."
    ),
)
def pages(sources: None) -> None:
    """Crawl the requested partitions."""
    return crawl(sources)


@dg.job(
    tags={resources.CRAWL: "catalogs"}, description="Crawl the waiting pages of catalogues politely, and extract them."
)
def crawl_catalogs() -> None:
    """Run `crawl`."""
    crawl()


ingest_catalog = dg.define_asset_job(
    "ingest_catalog",
    # The checks would be planned and then skipped: `crawl` logs its events itself.
    selection=dg.AssetSelection.assets("pages").without_checks(),
    description="Crawl and read one catalogue now; needs the tag dagster/partition.",
)

CATALOG_JOBS: list[Any] = [crawl_catalogs, ingest_catalog]


def crawl_run(shard: int, *, key: str) -> dg.RunRequest:
    """Return the request for a run that crawls one shard."""
    return dg.RunRequest(
        job_name=crawl_catalogs.name,
        run_key=f"{CRAWL_SHARD}:{shard}:{key}",
        tags={resources.SHARD: f"{CRAWL_SHARD}:{shard}"},
    )


DETECT_SHARD = "detect"  # one detecting run at a time


@dg.op(tags={"kind": "detect"})
def detect(context: dg.OpExecutionContext, run_context: RunContextResource) -> dg.Output[None]:
    """Detect the recipe of every catalogue that waits for one; a failure does not fail the run."""
    with run_context.open() as ctx:
        with heartbeat.working(ctx, run_id=context.run_id, job=context.job_name) as worker:
            counts, problem = asyncio.run(_detect(ctx, worker))
        heartbeat.end_run(ctx.store, run_id=context.run_id)
    numbers = asdict(counts)
    context.log.info("detection run finished %s", key_values(numbers))
    fail_if_network_down(problem)
    fail_if_all_failed(numbers, "detections")
    return dg.Output(None, metadata=numbers)


async def _detect(ctx: RunContext, worker: Worker) -> tuple[DetectionCounts, str | None]:
    async with open_fetcher(ctx.settings) as fetcher, renderer_if_any(ctx.settings, clock=ctx.store.now) as renderer:
        counts = await run_detection(ctx, worker, fetcher, renderer=renderer)
        return counts, network_problem(fetcher)


@dg.job(
    tags={resources.SHARD: DETECT_SHARD},
    description="Detect the recipes of catalogues without one: platforms, rules, votes.",
)
def detect_recipes() -> None:
    """Run `detect`."""
    detect()
