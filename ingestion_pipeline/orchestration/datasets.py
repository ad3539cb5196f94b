"""The asset `datasets`: records extracted from the stored pages of catalogues."""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import dagster as dg

from ingestion_pipeline.bootstrap import open_reader
from ingestion_pipeline.catalogs.crawling.runs import run_extraction
from ingestion_pipeline.catalogs.datasets.report import DatasetReport, dataset_report
from ingestion_pipeline.catalogs.extraction.entity_type import BadEntityType, EntityType, entity_types
from ingestion_pipeline.catalogs.extraction.source_config import entity_folder
from ingestion_pipeline.catalogs.extraction.tasks import ReadCounts
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.protocol import CrawlFilter
from ingestion_pipeline.orchestration import heartbeat
from ingestion_pipeline.orchestration.checks import REPORTED_BY_COMPLETION, changed_checks
from ingestion_pipeline.orchestration.contracts import written_items
from ingestion_pipeline.orchestration.events import with_current_expectations
from ingestion_pipeline.orchestration.partitioned_assets import partitioned_asset
from ingestion_pipeline.orchestration.partitions import CATALOGS
from ingestion_pipeline.orchestration.requested import admit, requested_keys
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.settings.logs import key_values
from ingestion_pipeline.tasks.worker import Worker

CELL_CHARS = 80
COLUMNS_SHOWN = 8


@dg.op(ins={"pages": dg.In(dg.Nothing)}, out=dg.Out(is_required=False), tags={"kind": "read"})
def read(context: dg.OpExecutionContext, run_context: RunContextResource) -> Iterator[Any]:
    """Extract the downloaded pages of the requested partitions without a request, and report."""
    keys = requested_keys(context, "catalog")
    with run_context.open() as ctx:
        admit(context, ctx, keys)
        with heartbeat.working(ctx, run_id=context.run_id, job=context.job_name) as worker:
            counts = asyncio.run(_read(ctx, worker, CrawlFilter(source_ids=keys)))
        heartbeat.end_run(ctx.store, run_id=context.run_id)
        numbers = asdict(counts)
        context.log.info("extraction run finished %s", key_values(numbers))
        reports = dataset_reports(ctx, keys)
        yield from with_current_expectations(ctx, map(dataset_materialization, reports))
        yield from changed_checks(context.instance, ctx, REPORTED_BY_COMPLETION)
        yield from written_items(context.instance, ctx, keys)
    if not reports:
        raise dg.Failure(
            f"no page of {', '.join(keys[:5])} was ever fetched: materialize `pages` first", allow_retries=False
        )


async def _read(ctx: RunContext, worker: Worker, crawl_filter: CrawlFilter) -> ReadCounts:
    async with open_reader(ctx) as reader:
        return await run_extraction(ctx, worker, crawl_filter, reader=reader)


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


def dataset_materialization(
    report: DatasetReport, more: Mapping[str, dg.MetadataValue] | None = None
) -> dg.AssetMaterialization:
    """Return the event of the source's dataset; numbers, since Dagster plots them."""
    counts = {
        "items": report.items,
        "new_items": report.new_items,
        "flagged": report.flagged,
        "kept_of_failed_pages": report.kept_items,
        "input_tokens": report.input_tokens,
        "output_tokens": report.output_tokens,
        "saved_by_cache": report.saved_by_cache,
        "saved_by_unchanged": report.saved_by_unchanged,
        "saved_by_rules": report.saved_by_rules,
    }
    counts |= {f"pages_{state.lower()}": count for state, count in report.pages.items()}
    metadata: dict[str, dg.MetadataValue] = {name: dg.MetadataValue.int(count) for name, count in counts.items()}
    metadata["cost_usd"] = dg.MetadataValue.float(float(report.cost_usd))
    if report.grounded_share is not None:
        metadata["grounding_rate"] = dg.MetadataValue.float(round(report.grounded_share, 4))
    if report.version is not None:
        metadata["version"] = dg.MetadataValue.int(report.version)
    metadata["status"] = dg.MetadataValue.text(report.status)
    extraction = f"{report.extraction_id}, {report.extraction_status}"
    metadata["extraction"] = dg.MetadataValue.text(extraction)
    if report.no_data:
        metadata["no_data"] = dg.MetadataValue.text("\n".join(report.no_data))
    metadata |= more or {}
    if report.version is not None:
        metadata["export"] = dg.MetadataValue.text(export_command(report))
    if report.preview:
        metadata["preview"] = preview_table(report.preview)
    return dg.AssetMaterialization("datasets", partition=report.source_id, metadata=metadata)


def export_command(report: DatasetReport) -> str:
    """Return the command that exports this very version."""
    name = report.entity_type or "data_items"
    return f"ingest export {name} --source {report.source_id} --version {report.version} --to csv"


def preview_table(rows: Sequence[Mapping[str, Any]], *, cell_chars: int = CELL_CHARS) -> dg.MetadataValue:
    """Return the first rows as a table, whose cells show any text without interpreting it."""
    used = [name for name in rows[0] if any(row.get(name) is not None for row in rows)]
    columns = used[:COLUMNS_SHOWN]
    records = [dg.TableRecord({name: _cell(row.get(name), cell_chars) for name in columns}) for row in rows]
    schema = dg.TableSchema(columns=[dg.TableColumn(name, "string") for name in columns])
    return dg.MetadataValue.table(records, schema=schema)


def _cell(value: object, most: int) -> str:
    text = "" if value is None else " ".join(str(value).split())
    return text if len(text) <= most else text[: most - 1] + "…"


@partitioned_asset(
    "datasets",
    of=CATALOGS,
    follows=("pages", "pages"),
    group="catalogs",
    kinds={"python", "sql"},
    description=(
        "The records of a catalogue, one partition a source, each field with the span of the page"
        " that proves it. Materializing reads what is downloaded and not read yet, without a"
        " request; `crawl_catalogs` and `ingest_catalog` do it after they have fetched."
    ),
)
def datasets(pages: None) -> None:
    """Extract the requested partitions."""
    return read(pages)
