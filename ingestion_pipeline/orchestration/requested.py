"""What a run was asked for: partitions by key, or whatever is due of a shard."""

from collections.abc import Mapping

import dagster as dg

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration import resources
from ingestion_pipeline.orchestration.events import refuse_unusable
from ingestion_pipeline.orchestration.partitions import register_keys, set_names
from ingestion_pipeline.sources import Kind, Source
from ingestion_pipeline.sources.lookup import sources_by_id


def asked_keys(context: dg.OpExecutionContext, example: str) -> list[str]:
    """The partitions the run was asked for; it fails, with how to name one, if there is none."""
    if context.has_partition_key:
        return [context.partition_key]
    if context.has_partition_key_range:
        return list(context.partition_keys)
    wanted = '{"dagster/partition": "' + example + ':..."}'
    raise dg.Failure(
        f"{context.job_name} works on one source: name it with --tags '{wanted}'",
        allow_retries=False,
    )


def asked_or_due(context: dg.OpExecutionContext, drains: str, example: str) -> list[str] | None:
    """The same; None for a job that drains what is due, which has the tag `drains`."""
    has_none = not context.has_partition_key and not context.has_partition_key_range
    if has_none and drains in context.run.tags:
        return None
    return asked_keys(context, example)


def admit(
    context: dg.OpExecutionContext, shop: RunContext, keys: list[str], *, only: Kind | None = None
) -> Mapping[str, Source]:
    """The sources asked for, each usable, of the kind, and with its partitions; else it fails."""
    with shop.store.read() as connection:
        known = sources_by_id(connection, keys)
    _refuse_strangers(context, known, only)
    refuse_unusable(keys, known)
    for kind in {one.kind for one in known.values()}:
        own = [key for key in keys if known[key].kind is kind]
        for name in set_names(kind):
            register_keys(context.instance, name, own)
    return known


def _refuse_strangers(
    context: dg.OpExecutionContext, known: Mapping[str, Source], only: Kind | None
) -> None:
    strange = [one for one in known.values() if only is not None and one.kind is not only]
    if only is not None and strange:
        noun, kind = only.value.replace("_", " "), strange[0].kind.value
        raise dg.Failure(
            f"{context.job_name}: {strange[0].id} is no {noun}, but a source of kind {kind}",
            allow_retries=False,
        )


def shard_of(context: dg.OpExecutionContext) -> int | None:
    """The shard that the run drains; None for all of them."""
    shard = context.run.tags.get(resources.SHARD)
    return None if shard is None else int(shard.rpartition(":")[2])
