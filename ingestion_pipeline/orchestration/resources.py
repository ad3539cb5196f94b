"""The run context as a resource, opened once per run, and the tags of runs."""

from collections.abc import Generator

import dagster as dg

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration.partitions import register_keys, set_names
from ingestion_pipeline.sources.lookup import sources_by_id

PARTITION = "dagster/partition"
RunContextParam = dg.ResourceParam[RunContext]


@dg.resource(description="The run context: database, settings, content store and systems, for the whole run.")
def run_context(context: dg.InitResourceContext) -> Generator[RunContext]:
    """Yield the run context; settings are read once per run, or per tick of a sensor."""
    with open_run_context(run_id=context.run.run_id if context.run else None) as ctx:
        _register_partition(context, ctx)
        yield ctx


def _register_partition(context: dg.InitResourceContext, ctx: RunContext) -> None:
    """Register the partition of the run with the instance.

    Dagster checks the key before the first step and fails the run without it; no sensor may
    have registered it yet.
    """
    key = context.run.tags.get(PARTITION) if context.run else None
    if key is None or context.instance is None:
        return
    with ctx.store.read() as connection:
        sources = sources_by_id(connection, [key])
    for source in sources.values():
        for name in set_names(source.kind):
            register_keys(context.instance, name, [source.id])


TIER = "ingestion/tier"
SHARD = "ingestion/shard"  # tier:number, so that a cold run never blocks a hot one; or the name of a job
SHARDS = "ingestion/shards"  # number of shards, if it differs from the settings
PRIORITY = "dagster/priority"
