"""The asset `datasets`: what the pages of catalogues state, read from what is stored."""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import dagster as dg

from ingestion_pipeline.bootstrap import open_reader
from ingestion_pipeline.catalogs.crawling.runs import read_slice
from ingestion_pipeline.catalogs.datasets.report import DatasetReport, dataset_report
from ingestion_pipeline.catalogs.extraction.entity_type import (
    BadEntityType,
    EntityType,
    entity_types,
)
from ingestion_pipeline.catalogs.extraction.loop import ReadPages
from ingestion_pipeline.catalogs.extraction.source_config import entity_folder
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.protocol import CrawlFilter
from ingestion_pipeline.orchestration import heartbeat
from ingestion_pipeline.orchestration.checks import TOLD_BY_COMPLETION, changed_checks
from ingestion_pipeline.orchestration.contracts import written_items
from ingestion_pipeline.orchestration.events import expecting
from ingestion_pipeline.orchestration.partitioned import worked_out
from ingestion_pipeline.orchestration.partitions import CATALOGS
from ingestion_pipeline.orchestration.requested import admit, asked_keys
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.tasks.worker import Worker

CELL_CHARS = 80
COLUMNS_SHOWN = 8


@dg.op(ins={"pages": dg.In(dg.Nothing)}, out=dg.Out(is_required=False), tags={"kind": "read"})
def read(context: dg.OpExecutionContext, workshop: RunContextResource) -> Iterator[Any]:
    """Read the downloaded pages of the partitions asked for, without a request; tell of it."""
    keys = asked_keys(context, "catalog")
    with workshop.open() as shop:
        admit(context, shop, keys)
        with heartbeat.working(shop, run_id=context.run_id, job=context.job_name) as worker:
            done = asyncio.run(_read(shop, worker, CrawlFilter(source_ids=keys)))
        heartbeat.end(shop.store, run_id=context.run_id)
        numbers = asdict(done.counts)
        context.log.info("%s", ", ".join(f"{name} {count}" for name, count in numbers.items()))
        found = dataset_reports(shop, keys)
        yield from expecting(shop, map(dataset_materialization, found))
        yield from changed_checks(context.instance, shop, TOLD_BY_COMPLETION)
        yield from written_items(context.instance, shop, keys)
    if not found:
        raise dg.Failure(
            f"no page of {', '.join(keys[:5])} was ever fetched: materialize `pages` first",
            allow_retries=False,
        )


async def _read(shop: RunContext, worker: Worker, wanted: CrawlFilter) -> ReadPages:
    async with open_reader(shop) as reader:
        return await read_slice(shop, worker, wanted, reader=reader)


def dataset_reports(shop: RunContext, keys: Collection[str]) -> list[DatasetReport]:
    """Of these sources those that have been extracted, in their order."""
    with shop.store.read() as connection:
        found = [dataset_report(connection, key) for key in keys]
    types = _types(shop)
    return [_in_order(one, types.get(one.entity_type or "")) for one in found if one is not None]


def _types(shop: RunContext) -> Mapping[str, EntityType]:
    try:
        return entity_types(entity_folder(shop.settings))
    except BadEntityType:  # whoever reads by it is told; what was read before is shown all the same
        return entity_types()


def _in_order(report: DatasetReport, kind: EntityType | None) -> DatasetReport:
    """The preview's fields as their type has them: what a record is called comes first."""
    if kind is None:
        return report
    names = [one.name for one in kind.fields]
    rows = [{name: row.get(name) for name in names} for row in report.preview]
    return replace(report, preview=rows)


def dataset_materialization(
    report: DatasetReport, more: Mapping[str, dg.MetadataValue] | None = None
) -> dg.AssetMaterialization:
    """The source's dataset as it stands; numbers, since Dagster plots them."""
    counts = {
        "items": report.items,
        "new_items": report.new_items,
        "flagged": report.flagged,
        "kept_of_failed_pages": report.kept,
        "input_tokens": report.input_tokens,
        "output_tokens": report.output_tokens,
        "saved_by_cache": report.saved_by_cache,
        "saved_by_unchanged": report.saved_by_unchanged,
        "saved_by_rules": report.saved_by_rules,
    }
    counts |= {f"pages_{state.lower()}": count for state, count in report.pages.items()}
    metadata: dict[str, dg.MetadataValue] = {
        name: dg.MetadataValue.int(count) for name, count in counts.items()
    }
    metadata["cost_usd"] = dg.MetadataValue.float(float(report.cost_usd))
    if report.grounded_share is not None:
        metadata["grounding_rate"] = dg.MetadataValue.float(round(report.grounded_share, 4))
    if report.version is not None:
        metadata["version"] = dg.MetadataValue.int(report.version)
    metadata["status"] = dg.MetadataValue.text(report.status)
    said = f"{report.extraction_id}, {report.extraction_status}"
    metadata["extraction"] = dg.MetadataValue.text(said)
    if report.no_data:
        metadata["no_data"] = dg.MetadataValue.text("\n".join(report.no_data))
    metadata |= more or {}
    if report.version is not None:
        metadata["export"] = dg.MetadataValue.text(export_command(report))
    if report.preview:
        metadata["preview"] = preview_table(report.preview)
    return dg.AssetMaterialization("datasets", partition=report.source_id, metadata=metadata)


def export_command(report: DatasetReport) -> str:
    """What writes this very version to a file, whatever becomes of it later."""
    name = report.entity_type or "data_items"
    return f"ingest export {name} --source {report.source_id} --version {report.version} --to csv"


def preview_table(
    rows: Sequence[Mapping[str, Any]], *, cell_chars: int = CELL_CHARS
) -> dg.MetadataValue:
    """The first rows: as a table's cells, which show any text and do nothing by it."""
    used = [name for name in rows[0] if any(row.get(name) is not None for row in rows)]
    columns = used[:COLUMNS_SHOWN]
    records = [
        dg.TableRecord({name: _cell(row.get(name), cell_chars) for name in columns}) for row in rows
    ]
    schema = dg.TableSchema(columns=[dg.TableColumn(name, "string") for name in columns])
    return dg.MetadataValue.table(records, schema=schema)


def _cell(value: object, most: int) -> str:
    text = "" if value is None else " ".join(str(value).split())
    return text if len(text) <= most else text[: most - 1] + "…"


@worked_out(
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
    """Read the partitions asked for."""
    return read(pages)
