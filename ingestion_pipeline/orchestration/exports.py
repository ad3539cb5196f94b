"""The job `export_datasets`: one file for each table and each dataset that is published."""

from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from ingestion_pipeline.catalogs.extraction.entity_type import BadEntityType, UnknownEntityType
from ingestion_pipeline.catalogs.extraction.source_config import entity_folder
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.exports.changes import export_anew
from ingestion_pipeline.exports.exporting import Exported, export_published
from ingestion_pipeline.exports.files import Format, private_folder
from ingestion_pipeline.exports.request import ITEMS, ExportRequest
from ingestion_pipeline.exports.tables import TABLES
from ingestion_pipeline.orchestration.heartbeat import whole_run
from ingestion_pipeline.orchestration.resources import RunContextResource

LISTED = 100  # files in the metadata; the log has all


class Export(dg.Config):
    """What is written; as it is, everything that there is, as Parquet."""

    format: str = Field(default=Format.PARQUET.value, description=f"one of {', '.join(Format)}")
    sources: list[str] = Field(
        default_factory=list, description="ids of sources; none: all that have a published dataset"
    )
    evidence: bool = Field(default=False, description="columns that say what proves each field")
    names: list[str] = Field(
        default_factory=list,
        description="what is exported, as for `ingest export`; none: every table that has rows, and"
        " every published dataset (with `sources` only these)",
    )
    since_last: bool = Field(
        default=False, description="only what changed since the last time, into new files"
    )


@dg.op
def write_datasets(
    context: dg.OpExecutionContext, config: Export, workshop: RunContextResource
) -> dg.Output[None]:
    """Write what there is, or what changed; each file is whole or as it was."""
    try:
        form = Format(config.format)
    except ValueError as error:
        said = f"there is no format {config.format!r}; there are: {', '.join(Format)}"
        raise dg.Failure(said, allow_retries=False) from error
    with workshop.open() as shop, whole_run(shop, run_id=context.run_id, job=context.job_name):
        try:
            written = list(_written(shop, config, form))
        except (LookupError, ValueError, UnknownEntityType, BadEntityType) as error:
            raise dg.Failure(str(error), allow_retries=False) from error
    for one in written:
        context.log.info("%s: %s rows", one.path, one.rows)
    if not written:
        context.log.info("there is nothing to tell, and so nothing was written")
    return dg.Output(None, metadata=_metadata(written))


def _written(shop: RunContext, config: Export, form: Format) -> Iterator[Exported]:
    """Table after table, then the datasets; a table without rows gives no file."""
    folder = private_folder(shop.settings.home / "exports")
    entities = entity_folder(shop.settings)
    everything = [*TABLES, ITEMS] if not config.sources else [ITEMS]
    for name in config.names or everything:
        if name == ITEMS and not config.since_last:
            yield from export_published(
                shop.store,
                folder,
                form,
                source_ids=config.sources,
                evidence=config.evidence,
                entities=entities,
            )
            continue
        for source_id in config.sources or [None]:
            evidence = config.evidence and name not in TABLES
            wanted = ExportRequest(
                name=name, source_id=source_id, evidence=evidence, entities=entities
            )
            found = export_anew(shop.store, wanted, form, folder, since_last=config.since_last)
            if found is not None:
                yield found


def _metadata(written: list[Exported]) -> dict[str, dg.MetadataValue]:
    records = [
        dg.TableRecord(
            {
                "source": one.datasets[0].source_id if one.datasets else None,
                "version": one.datasets[0].version if one.datasets else None,
                "rows": one.rows,
                "path": str(one.path),
            }
        )
        for one in written[:LISTED]
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
        "rows": dg.MetadataValue.int(sum(one.rows for one in written)),
        "written": dg.MetadataValue.table(records, schema=schema),
    }


@dg.job(description="Write every table and published dataset to a file in INGESTION_HOME/exports.")
def export_datasets() -> None:
    """One op."""
    write_datasets()
