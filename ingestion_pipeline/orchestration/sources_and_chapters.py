"""The partitioned assets `sources` (checked declarations) and `chapters` (polled on demand)."""

import dagster as dg
from pydantic import Field

from ingestion_pipeline.catalogs.recipes.registry import RecipeStatus, detected_recipes
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration.contracts import column_schema
from ingestion_pipeline.orchestration.events import declared, refuse_unknown
from ingestion_pipeline.orchestration.heartbeat import whole_run
from ingestion_pipeline.orchestration.ops import extract, fetch, ingest, report
from ingestion_pipeline.orchestration.partitioned_assets import MANY, OWNERS, partitioned_asset
from ingestion_pipeline.orchestration.partitions import SERIES_SOURCES, SOURCES, register_keys
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.registry import approval_problems, definition_check
from ingestion_pipeline.registry import declared as declare
from ingestion_pipeline.sources import Source, SourceStatus
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.operator_changes import refresh_source
from ingestion_pipeline.sources.poll_tasks import lock_polls
from ingestion_pipeline.sources.registry import enable
from ingestion_pipeline.sources.status import lock_sources


class Declaration(dg.Config):
    """Options for checking sources."""

    approve: bool = Field(
        default=False, description="poll those that were discovered and wait for approval, from now on"
    )


@dg.asset(
    name="sources",
    partitions_def=SOURCES,
    backfill_policy=MANY,
    group_name="sources",
    kinds={"yaml", "sql"},
    owners=OWNERS,
    description=(
        "The registered sources, one partition each. Materializing checks the declaration,"
        " recognises the platform and refreshes the row; it does not poll. With approve in its"
        " config, a discovered source that waits for approval is polled from now on."
    ),
    metadata={"dagster/column_schema": column_schema("sources")},
)
def sources(context: dg.AssetExecutionContext, config: Declaration, run_context: RunContextResource) -> None:
    """Check and refresh the declaration of every requested partition."""
    if not context.has_partition_key and not context.has_partition_key_range:
        raise dg.Failure("name a source: sources is partitioned", allow_retries=False)
    # Dagster refuses to list keys that a temporary instance does not have.
    keys = [context.partition_key] if context.has_partition_key else list(context.partition_keys)
    bad: list[str] = []
    run = context.run
    with run_context.open() as ctx, whole_run(ctx, run_id=run.run_id, job=run.job_name):
        with ctx.store.read() as connection:
            by_id = sources_by_id(connection, keys)
        refuse_unknown(keys, by_id)
        register_keys(context.instance, SOURCES.name or "", keys)
        if config.approve:
            bad += _approve(ctx, [source for source in by_id.values() if _waits_for_approval(source)])
        for key in keys:
            refreshed = refresh_source(
                ctx.store, key, folder=ctx.settings.sources, check=definition_check(ctx.settings.sources)
            )
            bad += [f"{key}: {problem}" for problem in refreshed.problems]
            if not refreshed.problems:
                _begin(ctx, key)
            context.add_asset_metadata(declared(refreshed.source, problems=len(refreshed.problems)), partition_key=key)
    if bad:
        raise dg.Failure("; ".join(bad), allow_retries=False)


def _waits_for_approval(source: Source) -> bool:
    return source.status is SourceStatus.PENDING_VALIDATION


def _approve(ctx: RunContext, waiting: list[Source]) -> list[str]:
    """Enable these sources; return why some could not be enabled."""
    bad: list[str] = []
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        ids = [source.id for source in waiting]
        lock_polls(connection, ids)  # all of them before the first is enabled: the lock order
        lock_sources(connection, ids)
        for source in waiting:
            if problems := approval_problems(source, ctx.settings.sources):
                bad += [f"{source.id}: {problem}" for problem in problems]
            else:
                enable(connection, source.id, actor="dagster", now=now, reason="approved")
    return bad


def _begin(ctx: RunContext, key: str) -> None:
    """Queue recipe detection for a catalogue without one, again after a failure."""
    with ctx.store.begin() as connection:
        recipe = detected_recipes(connection, [key]).get(key)
        in_vain = recipe is not None and recipe.status is RecipeStatus.ERROR
        declare(connection, [key], now=ctx.store.clock.now(connection), again=in_vain)


@partitioned_asset(
    "chapters",
    of=SERIES_SOURCES,
    follows=("sources", "sources"),
    group="series",
    kinds={"http", "sql"},
    description=(
        "The chapters a series source lists, one partition a source. Materializing polls the"
        " source now, due or not, under the host's lease; unchanged listings write nothing."
    ),
)
def chapters(sources: None) -> None:
    """Fetch, extract, ingest and report the requested partitions."""
    return report(ingest(extract(fetch(sources))))
