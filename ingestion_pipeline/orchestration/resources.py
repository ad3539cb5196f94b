"""The run context resource, and the tags of runs."""

from contextlib import AbstractContextManager

import dagster as dg
from pydantic import PrivateAttr

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration.partitions import register_keys, set_names
from ingestion_pipeline.sources.lookup import sources_by_id

PARTITION = "dagster/partition"


class RunContextResource(dg.ConfigurableResource["RunContextResource"]):
    """The resource that opens a run context; settings are read once per step."""

    _run_id: str | None = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Register the partition of the run with the instance.

        Dagster checks the key before the first step and fails the run without it; no sensor may
        have registered it yet.
        """
        self._run_id = context.run.run_id if context.run else None
        key = context.run.tags.get(PARTITION) if context.run else None
        if key is None or context.instance is None:
            return
        with self.open() as ctx, ctx.store.read() as connection:
            sources = sources_by_id(connection, [key])
        for source in sources.values():
            for name in set_names(source.kind):
                register_keys(context.instance, name, [source.id])

    def open(self) -> AbstractContextManager[RunContext]:
        """Open the run context: everything a run needs."""
        return open_run_context(run_id=self._run_id)


TIER = "ingestion/tier"
SHARD = "ingestion/shard"  # tier:number, so that a cold run never blocks a hot one
SHARDS = "ingestion/shards"  # number of shards, if it differs from the settings
PRIORITY = "dagster/priority"
CRAWL = "ingestion/crawl"  # a job that crawls all waiting pages
