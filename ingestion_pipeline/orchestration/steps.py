"""What ops and assets share: the partitions or the shard of their run, its outage, and the form of an asset."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration import resources
from ingestion_pipeline.orchestration.checks import column_schema
from ingestion_pipeline.orchestration.events import refuse_unusable
from ingestion_pipeline.orchestration.resources import register_keys, set_names
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.sources import Kind, Source
from ingestion_pipeline.sources.lookup import sources_by_id

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


StepContext = dg.OpExecutionContext | dg.AssetExecutionContext


def requested_keys(context: StepContext, example: str) -> list[str]:
    """Return the requested partitions; fail, naming the tag to set, if there is none."""
    if context.has_partition_key:  # Dagster refuses to list keys that a temporary instance does not have
        return [context.partition_key]
    if context.has_partition_key_range:
        return list(context.partition_keys)
    tags = '{"dagster/partition": "' + example + ':..."}'
    raise dg.Failure(f"{context.run.job_name} works on one source: name it with --tags '{tags}'", allow_retries=False)


def admit(context: StepContext, ctx: RunContext, keys: list[str], *, only: Kind | None = None) -> Mapping[str, Source]:
    """Return the requested sources and register their partitions; fail if one cannot be used."""
    with ctx.store.read() as connection:
        sources = sources_by_id(connection, keys)
    strange = [source for source in sources.values() if only is not None and source.kind is not only]
    if only is not None and strange:
        noun, kind = only.value.replace("_", " "), strange[0].kind.value
        raise dg.Failure(
            f"{context.run.job_name}: {strange[0].id} is no {noun}, but a source of kind {kind}", allow_retries=False
        )
    refuse_unusable(keys, sources)
    for kind in {source.kind for source in sources.values()}:
        own = [key for key in keys if sources[key].kind is kind]
        for name in set_names(kind):
            register_keys(context.instance, name, own)
    return sources


def network_problem(fetcher: HttpFetcher) -> str | None:
    """Return the outage of our own that the run met; None if it met none."""
    return fetcher.network.problem if fetcher.network is not None else None


def fail(problem: str | None) -> None:
    """Fail the run if there is a problem; what it released is claimed by a later run."""
    if problem is not None:
        raise dg.Failure(problem, allow_retries=False)


def shard_of(context: StepContext) -> int | None:
    """Return the shard that the run drains; None for all of them."""
    shard = context.run.tags.get(resources.SHARD)
    return None if shard is None else int(shard.rpartition(":")[2])
