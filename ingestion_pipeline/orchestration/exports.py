"""The job `export_datasets`: one file for each dataset that is published."""

import dagster as dg
from pydantic import Field

from ingestion_pipeline.catalogs.entities.declared import entity_folder
from ingestion_pipeline.exports.exporting import BadPath, Exported, export_published
from ingestion_pipeline.exports.formats import Format
from ingestion_pipeline.orchestration.heartbeat import whole_run
from ingestion_pipeline.orchestration.resources import WorkshopResource

LISTED = 100  # files in the metadata; the log has all


class Export(dg.Config):
    """What is written; as it is, every published dataset as Parquet."""

    format: str = Field(default=Format.PARQUET.value, description=f"one of {', '.join(Format)}")
    sources: list[str] = Field(
        default_factory=list, description="ids of sources; none: all that have a published dataset"
    )
    evidence: bool = Field(default=False, description="columns that say what proves each field")


@dg.op
def write_datasets(
    context: dg.OpExecutionContext, config: Export, workshop: WorkshopResource
) -> dg.Output[None]:
    """Write the newest published dataset of each source; each file is whole or as it was."""
    try:
        form = Format(config.format)
    except ValueError as error:
        said = f"there is no format {config.format!r}; there are: {', '.join(Format)}"
        raise dg.Failure(said, allow_retries=False) from error
    with workshop.open() as shop, whole_run(shop, run_id=context.run_id, job=context.job_name):
        try:
            written = export_published(
                shop.store,
                shop.settings.home / "exports",
                form,
                source_ids=config.sources,
                evidence=config.evidence,
                entities=entity_folder(shop.settings),
            )
        except (LookupError, BadPath) as error:
            raise dg.Failure(str(error), allow_retries=False) from error
    for one in written:
        context.log.info("%s: %s rows", one.path, one.rows)
    if not written:
        context.log.info("nothing is published yet, and so nothing was written")
    return dg.Output(None, metadata=_metadata(written))


def _metadata(written: list[Exported]) -> dict[str, dg.MetadataValue]:
    records = [
        dg.TableRecord(
            {
                "source": one.datasets[0].source_id,
                "version": one.datasets[0].version,
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


@dg.job(description="Write every published dataset to a file in INGESTION_HOME/exports.")
def export_datasets() -> None:
    """One op."""
    write_datasets()
