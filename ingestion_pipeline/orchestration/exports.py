"""The job `export_datasets`: one file for each table and each published dataset."""

from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from ingestion_pipeline.catalogs.extraction.entity_type import BadEntityType, UnknownEntityType
from ingestion_pipeline.catalogs.extraction.source_config import entity_folder
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.exports.changes import export_all_or_changes
from ingestion_pipeline.exports.exporting import ExportResult, export_published
from ingestion_pipeline.exports.files import Format, private_folder
from ingestion_pipeline.exports.request import ITEMS, ExportRequest
from ingestion_pipeline.exports.tables import TABLES
from ingestion_pipeline.orchestration.heartbeat import whole_run
from ingestion_pipeline.orchestration.resources import RunContextParam

LISTED = 100  # files in the metadata; the log has all


class Export(dg.Config):
    """What is written; by default every table and dataset, as Parquet."""

    format: str = Field(default=Format.PARQUET.value, description=f"one of {', '.join(Format)}")
    sources: list[str] = Field(
        default_factory=list, description="ids of sources; none: all that have a published dataset"
    )
    evidence: bool = Field(default=False, description="also columns with the evidence of each field")
    names: list[str] = Field(
        default_factory=list,
        description="what is exported, as for `ingest export`; none: every table that has rows, and"
        " every published dataset (with `sources` only these)",
    )
    since_last: bool = Field(default=False, description="only changes since the last export, into new files")


@dg.op
def write_datasets(context: dg.OpExecutionContext, config: Export, run_context: RunContextParam) -> dg.Output[None]:
    """Write all rows, or those that changed; each file is replaced atomically."""
    try:
        form = Format(config.format)
    except ValueError as error:
        problem = f"there is no format {config.format!r}; there are: {', '.join(Format)}"
        raise dg.Failure(problem, allow_retries=False) from error
    with whole_run(run_context, run_id=context.run_id, job=context.job_name):
        try:
            written = list(_written(run_context, config, form))
        except (LookupError, ValueError, UnknownEntityType, BadEntityType) as error:
            raise dg.Failure(str(error), allow_retries=False) from error
    for exported in written:
        context.log.info("file exported path=%s rows=%s", exported.path, exported.rows)
    if not written:
        context.log.info("nothing to export; no file written")
    return dg.Output(None, metadata=_metadata(written))


def _written(ctx: RunContext, config: Export, form: Format) -> Iterator[ExportResult]:
    """Export the tables, then the datasets; a table without rows gives no file."""
    folder = private_folder(ctx.settings.home / "exports")
    entities = entity_folder(ctx.settings)
    everything = [*TABLES, ITEMS] if not config.sources else [ITEMS]
    for name in config.names or everything:
        if name == ITEMS and not config.since_last:
            yield from export_published(
                ctx.store, folder, form, source_ids=config.sources, evidence=config.evidence, entities=entities
            )
            continue
        for source_id in config.sources or [None]:
            evidence = config.evidence and name not in TABLES
            request = ExportRequest(name=name, source_id=source_id, evidence=evidence, entities=entities)
            exported = export_all_or_changes(ctx.store, request, form, folder, since_last=config.since_last)
            if exported is not None:
                yield exported


def _metadata(written: list[ExportResult]) -> dict[str, dg.MetadataValue]:
    records = [
        dg.TableRecord(
            {
                "source": exported.datasets[0].source_id if exported.datasets else None,
                "version": exported.datasets[0].version if exported.datasets else None,
                "rows": exported.rows,
                "path": str(exported.path),
            }
        )
        for exported in written[:LISTED]
    ]
    schema = dg.TableSchema(
        columns=[
            dg.TableColumn("source", "string"),
            dg.TableColumn("version", "int"),
            dg.TableColumn("rows", "int"),
            dg.TableColumn("path", "string"),
        ]
    )
    return {
        "files": dg.MetadataValue.int(len(written)),
        "rows": dg.MetadataValue.int(sum(exported.rows for exported in written)),
        "written": dg.MetadataValue.table(records, schema=schema),
    }


@dg.job(description="Write every table and published dataset to a file in INGESTION_HOME/exports.")
def export_datasets() -> None:
    """Run `write_datasets`."""
    write_datasets()
