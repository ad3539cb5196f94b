"""The one resource: a run's workshop, from the environment and the settings table."""

from contextlib import AbstractContextManager

import dagster as dg
from pydantic import PrivateAttr

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration.partitions import register_keys, set_names
from ingestion_pipeline.sources.lookup import sources_by_id

PARTITION = "dagster/partition"


class RunContextResource(dg.ConfigurableResource["RunContextResource"]):
    """Settings are read once per step; the store is closed when the step ends."""

    _run_id: str | None = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """The instance knows the partition that the run is for.

        Before its first step Dagster looks for the key among those it knows, and breaks off without
        it; no sensor may have brought it there yet.
        """
        self._run_id = context.run.run_id if context.run else None
        key = context.run.tags.get(PARTITION) if context.run else None
        if key is None or context.instance is None:
            return
        with self.open() as shop, shop.store.read() as connection:
            found = sources_by_id(connection, [key])
        for source in found.values():
            for name in set_names(source.kind):
                register_keys(context.instance, name, [source.id])

    def open(self) -> AbstractContextManager[RunContext]:
        """Everything a run works with."""
        return open_run_context(run_id=self._run_id)


TIER = "ingestion/tier"
SHARD = "ingestion/shard"  # tier:number, so that a cold run never keeps a hot one waiting
SHARDS = "ingestion/shards"  # how many there are, if not as many as the settings say
PRIORITY = "dagster/priority"
CRAWL = "ingestion/crawl"  # a job that walks on wherever pages wait
