"""The run context, opened once per run; the tags of runs; and the partition sets, which mirror the store."""

from collections.abc import Collection, Generator, Iterable

import dagster as dg
from sqlalchemy.exc import IntegrityError

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.registry import kind_specs
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.sources.lookup import sources_by_id

SOURCES = dg.DynamicPartitionsDefinition(name="sources")
# The set of each kind, besides `sources`.
SETS: dict[Kind, dg.DynamicPartitionsDefinition] = {
    kind: dg.DynamicPartitionsDefinition(name=spec.partitions) for kind, spec in kind_specs().items()
}


def set_names(kind: Kind) -> list[str]:
    """Return the names of the sets that a source of this kind belongs to."""
    sets = [SOURCES, *([SETS[kind]] if kind in SETS else [])]
    return [definition.name for definition in sets if definition.name]


def register_keys(instance: dg.DagsterInstance, name: str, keys: Iterable[str]) -> None:
    """Add the keys that the instance does not have; a temporary instance starts without any."""
    missing = _unknown(instance, name, keys)
    while missing:
        try:
            instance.add_dynamic_partitions(name, missing)
        except IntegrityError:
            # On SQLite Dagster selects, then inserts: another run registered one in between.
            if (still := _unknown(instance, name, missing)) == missing:
                raise
            missing = still
        else:
            return


def _unknown(instance: dg.DagsterInstance, name: str, keys: Iterable[str]) -> list[str]:
    registered = set(instance.get_dynamic_partitions(name))  # one query, however many keys
    return [key for key in dict.fromkeys(keys) if key not in registered]


def differences(expected: Collection[str], registered: Collection[str]) -> tuple[list[str], list[str]]:
    """Return which keys to add and which to remove."""
    expected, registered = set(expected), set(registered)
    return sorted(expected - registered), sorted(registered - expected)


PARTITION = "dagster/partition"
RunContextParam = dg.ResourceParam[RunContext]


@dg.resource(description="The run context: database, settings, content store and systems, for the whole run.")
def run_context(context: dg.InitResourceContext) -> Generator[RunContext]:
    """Yield the run context; settings are read once per run, or per tick of a sensor."""
    with open_run_context(run_id=context.run.run_id if context.run else None) as ctx:
        _register_partition(context, ctx)
        yield ctx


def _register_partition(context: dg.InitResourceContext, ctx: RunContext) -> None:
    """Register the run's partition: Dagster checks it first, and no sensor may have registered it yet."""
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
