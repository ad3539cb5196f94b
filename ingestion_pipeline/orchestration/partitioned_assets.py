"""The decorator for assets with one partition per source."""

import warnings
from collections.abc import Callable
from typing import Any

import dagster as dg

from ingestion_pipeline.orchestration.contracts import column_schema
from ingestion_pipeline.sources import Kind

OWNERS = ["team:ingestion"]

# Beta in this Dagster; there is no other way for one run to take many partitions.
warnings.filterwarnings("ignore", message="Parameter `backfill_policy`", category=dg.BetaWarning)
MANY = dg.BackfillPolicy.multi_run(max_partitions_per_run=500)


def partitioned_asset(
    name: str,
    *,
    of: dg.DynamicPartitionsDefinition,
    follows: tuple[str, str],
    group: str,
    kinds: set[str],
    description: str,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Return a graph asset on the same partition of another, named by (parameter, asset)."""
    parameter, before = follows
    return dg.graph_asset(
        name=name,
        partitions_def=of,
        backfill_policy=MANY,
        group_name=group,
        kinds=kinds,
        owners=OWNERS,
        ins={
            parameter: dg.AssetIn(key=before, dagster_type=dg.Nothing, partition_mapping=dg.IdentityPartitionMapping())
        },
        description=description,
        metadata={"dagster/column_schema": column_schema(name)},
    )


def ingest_job(kind: Kind, *assets: str) -> Any:  # noqa: ANN401 - Dagster's own type is private
    """Return the job that materializes a partition of these assets, of one source of the kind."""
    return dg.define_asset_job(
        f"ingest_{kind.value}",
        # The checks would be planned and then skipped: the ops log their events themselves.
        selection=dg.AssetSelection.assets(*assets).without_checks(),
        description=f"Ingest one source of the kind {kind} now; needs the tag dagster/partition.",
    )
