"""The partitioned asset `sources`: checked declarations."""

import dagster as dg
from pydantic import Field

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration.checks import column_schema
from ingestion_pipeline.orchestration.events import declared, refuse_unknown
from ingestion_pipeline.orchestration.heartbeat import whole_run
from ingestion_pipeline.orchestration.resources import SOURCES, RunContextParam, register_keys
from ingestion_pipeline.orchestration.steps import MANY, OWNERS, requested_keys
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
def sources(context: dg.AssetExecutionContext, config: Declaration, run_context: RunContextParam) -> None:
    """Check and refresh the declaration of every requested partition."""
    keys = requested_keys(context, "series")
    bad: list[str] = []
    run, folder = context.run, run_context.settings.sources
    with whole_run(run_context, run_id=run.run_id, job=run.job_name):
        with run_context.store.read() as connection:
            by_id = sources_by_id(connection, keys)
        refuse_unknown(keys, by_id)
        register_keys(context.instance, SOURCES.name or "", keys)
        if config.approve:
            waiting = [source for source in by_id.values() if source.status is SourceStatus.PENDING_VALIDATION]
            bad += _approve(run_context, waiting)
        for key in keys:
            refreshed = refresh_source(run_context.store, key, folder=folder, check=definition_check(folder))
            bad += [f"{key}: {problem}" for problem in refreshed.problems]
            if not refreshed.problems:  # start what it needs before it can be polled, again after a failure
                with run_context.store.begin() as connection:
                    declare(connection, [key], now=run_context.store.clock.now(connection), retries=True)
            context.add_asset_metadata(declared(refreshed.source, problems=len(refreshed.problems)), partition_key=key)
    if bad:
        raise dg.Failure("; ".join(bad), allow_retries=False)


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
