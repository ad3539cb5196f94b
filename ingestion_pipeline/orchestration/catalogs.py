"""The asset `pages` and the job `crawl_catalogs`: one op that walks on, and reads."""

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
from ingestion_pipeline.catalogs.crawling.runs import Worked, ask_for, ingest_slice
from ingestion_pipeline.catalogs.detection.runs import DetectionCounts, detect_slice
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.protocol import CrawlFilter
from ingestion_pipeline.orchestration import heartbeat, resources
from ingestion_pipeline.orchestration.check_events import (
    fail_if_all_failed,
    fail_if_network_down,
    network_problem,
)
from ingestion_pipeline.orchestration.checks import (
    TOLD_BY_COMPLETION,
    TOLD_BY_CRAWLS,
    changed_checks,
)
from ingestion_pipeline.orchestration.contracts import written_contracts, written_items
from ingestion_pipeline.orchestration.datasets import dataset_materialization, dataset_reports
from ingestion_pipeline.orchestration.events import expecting, picture
from ingestion_pipeline.orchestration.partitioned import worked_out
from ingestion_pipeline.orchestration.partitions import CATALOGS, register_keys
from ingestion_pipeline.orchestration.requested import admit, asked_or_due, shard_of
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.tasks.errors import WorkError
from ingestion_pipeline.tasks.worker import Worker

HOSTS_SHOWN = 20
CRAWL_SHARD = "crawl"  # crawl:number; a shard has one crawling run at a time


@dg.op(ins={"sources": dg.In(dg.Nothing)}, out=dg.Out(is_required=False), tags={"kind": "crawl"})
def crawl(context: dg.OpExecutionContext, workshop: RunContextResource) -> Iterator[Any]:
    """Walk on where pages wait, or through the partitions asked for, and read; then tell of it.

    It tells of both assets: its own output would be one event more, and so `datasets` of the same
    run is skipped, having been told of.
    """
    keys = asked_or_due(context, resources.CRAWL, "catalog")
    with workshop.open() as shop:
        since = shop.store.now()
        wanted = _wanted(context, shop, keys)
        with heartbeat.working(shop, run_id=context.run_id, job=context.job_name) as worker:
            worked, problem = asyncio.run(_work(shop, worker, wanted))
        heartbeat.end(shop.store, run_id=context.run_id)
        numbers = asdict(worked.crawled)
        numbers |= {f"reading_{name}": count for name, count in asdict(worked.read).items()}
        context.log.info("%s", ", ".join(f"{name} {count}" for name, count in numbers.items()))
        limit = shop.settings.polling.reported_events
        with shop.store.read() as connection:
            told = crawled_since(connection, since=since, source_ids=keys, limit=limit)
            crawled = [crawl_report(connection, key, since=since) for key in told]
        reports = [one for one in crawled if one is not None]
        register_keys(context.instance, CATALOGS.name or "", [one.source_id for one in reports])
        for report in reports:
            if keys is not None or _is_news(report):
                # Unchanged and by schedule: the picture is in an earlier event, and not kept twice.
                shown_since = since if keys is None else None
                preview = _preview(shop, report.source_id, since=shown_since)
                yield from expecting(shop, [_materialization(report, preview)])
        found = dataset_reports(shop, [one.source_id for one in reports])
        datasets = [one for one in found if keys is not None or one.read]
        yield from expecting(shop, map(dataset_materialization, datasets))
        told_checks = [*TOLD_BY_CRAWLS, *(TOLD_BY_COMPLETION if datasets else ())]
        yield from changed_checks(context.instance, shop, told_checks)
        ids = [one.source_id for one in reports]
        yield from written_contracts(context.instance, shop, ["pages"], ids)
        yield from written_items(context.instance, shop, [one.source_id for one in datasets])
        fail_if_network_down(problem)
        _pass_verdict(reports, keys)
    if keys is None:
        yield dg.Output(None, metadata=numbers)


def _is_news(report: CrawlReport) -> bool:
    """A walk that got something new, or failed at something, or has just got through."""
    is_through = bool(report.fetched) and not report.waiting
    return bool(report.new or report.failed) or is_through


async def _work(shop: RunContext, worker: Worker, wanted: CrawlFilter) -> tuple[Worked, str | None]:
    async with (
        open_fetcher(shop.settings) as fetcher,
        renderer_if_any(shop.settings, clock=shop.store.now) as renderer,
        open_reader(shop) as reader,
    ):
        worked = await ingest_slice(shop, worker, fetcher, wanted, renderer=renderer, reader=reader)
        return worked, network_problem(fetcher)


def _wanted(
    context: dg.OpExecutionContext, shop: RunContext, keys: list[str] | None
) -> CrawlFilter:
    if keys is not None:
        admit(context, shop, keys)
        for key, said in ask_for(shop, keys).items():
            context.log.info("%s: %s", key, said)
        return CrawlFilter(source_ids=keys)
    return CrawlFilter(shard=shard_of(context), shards=shop.settings.polling.shards)


def _preview(
    shop: RunContext, source_id: str, *, since: datetime | None
) -> dict[str, dg.MetadataValue]:
    """A page as the browser showed it, and its address; nothing, if there is no picture of one."""
    with shop.store.read() as connection:
        newest = newest_picture(connection, source_id, since=since)
    if newest is None:
        return {}
    try:
        shown = picture(shop.content.get(newest.screenshot_hash))
    except WorkError:  # its object is gone, or damaged: a crawl is told without it
        return {}
    if shown is None:
        return {}
    return {
        "screenshot": dg.MetadataValue.md(shown),
        "screenshot_of": dg.MetadataValue.url(newest.url),
    }


def _materialization(
    report: CrawlReport, preview: Mapping[str, dg.MetadataValue]
) -> dg.AssetMaterialization:
    """The source's last extraction as it stands, and what this run did for it."""
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
    metadata: dict[str, dg.MetadataValue] = {
        name: dg.MetadataValue.int(count) for name, count in counts.items()
    }
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
    """How quick each host was."""
    numbers = ("pages", "p50_ms", "p95_ms")
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {"host": one.host[:200]} | {name: getattr(one, name) for name in numbers}
            )
            for one in hosts
        ],
        schema=dg.TableSchema(
            columns=[
                dg.TableColumn("host", "string"),
                *(dg.TableColumn(name, "int") for name in numbers),
            ]
        ),
    )


def _pass_verdict(reports: list[CrawlReport], keys: list[str] | None) -> None:
    """Fail the run if every extraction failed, or if nothing that was asked for was got."""
    is_all_failed = all(report.total == sum(report.failed.values()) for report in reports)
    if keys is None and reports and is_all_failed:
        named = ", ".join(report.source_id for report in reports[:5])
        raise dg.Failure(
            f"every page of {named} failed; `ingest dead-letters list` shows why",
            allow_retries=False,
        )
    if keys is None or any(report.fetched for report in reports):
        return
    said = ", ".join(keys[:5])
    raise dg.Failure(
        f"not one page of {said} was got: another run has the host, robots.txt forbids it, or the"
        " root failed; `ingest sources show ID` says which",
        allow_retries=False,
    )


@worked_out(
    "pages",
    of=CATALOGS,
    follows=("sources", "sources"),
    group="catalogs",
    kinds={"http", "sql"},
    description=(
        "The pages of a catalogue, one partition a source. Materializing begins an extraction now,"
        " or goes on with the one under way, and walks until it is done or the run's time is over."
    ),
)
def pages(sources: None) -> None:
    """Crawl the partitions asked for."""
    return crawl(sources)


@dg.job(
    tags={resources.CRAWL: "catalogs"},
    description="Walk on through the catalogues whose pages wait, politely, and read them.",
)
def crawl_catalogs() -> None:
    """One op."""
    crawl()


ingest_catalog = dg.define_asset_job(
    "ingest_catalog",
    # The checks would be planned and then skipped: `crawl` logs its events itself.
    selection=dg.AssetSelection.assets("pages").without_checks(),
    description="Crawl and read one catalogue now; needs the tag dagster/partition.",
)

CATALOG_JOBS: list[Any] = [crawl_catalogs, ingest_catalog]


def crawl_run(shard: int, *, key: str) -> dg.RunRequest:
    """The run that walks on in one shard."""
    return dg.RunRequest(
        job_name=crawl_catalogs.name,
        run_key=f"{CRAWL_SHARD}:{shard}:{key}",
        tags={resources.SHARD: f"{CRAWL_SHARD}:{shard}"},
    )


DETECT_SHARD = "detect"  # one detecting run at a time


@dg.op(tags={"kind": "detect"})
def detect(context: dg.OpExecutionContext, workshop: RunContextResource) -> dg.Output[None]:
    """Look at every catalogue that waits for a recipe; one that has none does not fail the run."""
    with workshop.open() as shop:
        with heartbeat.working(shop, run_id=context.run_id, job=context.job_name) as worker:
            counts, problem = asyncio.run(_detect(shop, worker))
        heartbeat.end(shop.store, run_id=context.run_id)
    numbers = asdict(counts)
    context.log.info("%s", ", ".join(f"{name} {count}" for name, count in numbers.items()))
    fail_if_network_down(problem)
    fail_if_all_failed(numbers, "detections")
    return dg.Output(None, metadata=numbers)


async def _detect(shop: RunContext, worker: Worker) -> tuple[DetectionCounts, str | None]:
    async with (
        open_fetcher(shop.settings) as fetcher,
        renderer_if_any(shop.settings, clock=shop.store.now) as renderer,
    ):
        counts = await detect_slice(shop, worker, fetcher, renderer=renderer)
        return counts, network_problem(fetcher)


@dg.job(
    tags={resources.SHARD: DETECT_SHARD},
    description="Find out how catalogues without a recipe are to be read: platforms, rules, votes.",
)
def detect_recipes() -> None:
    """One op."""
    detect()
