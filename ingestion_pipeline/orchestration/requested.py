"""The partitions or the shard that a run was requested for."""

from collections.abc import Mapping

import dagster as dg

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration import resources
from ingestion_pipeline.orchestration.events import refuse_unusable
from ingestion_pipeline.orchestration.partitions import register_keys, set_names
from ingestion_pipeline.sources import Kind, Source
from ingestion_pipeline.sources.lookup import sources_by_id

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
    _refuse_other_kinds(context, sources, only)
    refuse_unusable(keys, sources)
    for kind in {source.kind for source in sources.values()}:
        own = [key for key in keys if sources[key].kind is kind]
        for name in set_names(kind):
            register_keys(context.instance, name, own)
    return sources


def _refuse_other_kinds(context: StepContext, sources: Mapping[str, Source], only: Kind | None) -> None:
    strange = [source for source in sources.values() if only is not None and source.kind is not only]
    if only is not None and strange:
        noun, kind = only.value.replace("_", " "), strange[0].kind.value
        raise dg.Failure(
            f"{context.run.job_name}: {strange[0].id} is no {noun}, but a source of kind {kind}", allow_retries=False
        )


def shard_of(context: StepContext) -> int | None:
    """Return the shard that the run drains; None for all of them."""
    shard = context.run.tags.get(resources.SHARD)
    return None if shard is None else int(shard.rpartition(":")[2])
