"""The asset `job_listings`, polled on demand, and its job."""

import dagster as dg

from ingestion_pipeline.orchestration.ops import extract, fetch, ingest, report
from ingestion_pipeline.orchestration.partitioned import partitioned_asset
from ingestion_pipeline.orchestration.partitions import JOB_BOARDS


@partitioned_asset(
    "job_listings",
    of=JOB_BOARDS,
    follows=("sources", "sources"),
    group="companies",
    kinds={"http", "sql"},
    description=(
        "The jobs a board lists, one partition a board. Materializing polls the board now, due or"
        " not, under the host's lease; a posting that several boards list is one row."
    ),
)
def job_listings(sources: None) -> None:
    """Fetch, extract, ingest and report the requested partitions."""
    return report(ingest(extract(fetch(sources))))


ingest_job_board = dg.define_asset_job(
    "ingest_job_board",
    # The checks would be planned and then skipped: `report` logs its events itself.
    selection=dg.AssetSelection.assets("job_listings").without_checks(),
    description="Poll one job board now; needs the tag dagster/partition.",
)
