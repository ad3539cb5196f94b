"""The asset `notices`: materializing it expands the outbox and delivers what is due."""

import asyncio
from dataclasses import asdict

import dagster as dg

from ingestion_pipeline.bootstrap import open_channels
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.notices.delivery import Delivered, run_deliveries
from ingestion_pipeline.notices.queries import count_notices
from ingestion_pipeline.orchestration import heartbeat
from ingestion_pipeline.orchestration.contracts import column_schema
from ingestion_pipeline.orchestration.partitioned_assets import OWNERS
from ingestion_pipeline.orchestration.resources import RunContextParam
from ingestion_pipeline.settings.logs import key_values
from ingestion_pipeline.tasks.worker import Worker


@dg.asset(
    name="notices",
    group_name="notices",
    kinds={"http", "sql"},
    owners=OWNERS,
    deps=["chapters"],
    description=(
        "Notices and their delivery, each sent once. Materializing turns new chapters into notices"
        " and delivers what is due: by webhook, mail or your own services, within the limits of"
        " each recipient."
    ),
    metadata={"dagster/column_schema": column_schema("notices")},
)
def notices(context: dg.AssetExecutionContext, run_context: RunContextParam) -> dg.MaterializeResult:
    """Expand and deliver; a recipient that cannot be reached does not fail the run."""
    run = context.run
    with heartbeat.working(run_context, run_id=run.run_id, job=run.job_name) as worker:
        done = asyncio.run(_deliver(run_context, worker))
    heartbeat.end_run(run_context.store, run_id=run.run_id)
    with run_context.store.read() as connection:
        left = count_notices(connection)
    context.log.info("delivery finished %s", key_values(asdict(done)))
    return dg.MaterializeResult(metadata=_metadata(done, left))


async def _deliver(ctx: RunContext, worker: Worker) -> Delivered:
    async with open_channels(ctx.settings) as channels:
        return await run_deliveries(ctx, worker, channels)


def _metadata(done: Delivered, left: dict[str, int]) -> dict[str, dg.MetadataValue]:
    counts = {
        "expanded": done.expanded.notices,
        "muted": done.expanded.muted,
        "messages": done.messages,
        "sent": done.sent,
        "retried": done.retried,
        "failed": done.failed,
        "pending": left["pending"],
        "failed_in_all": left["failed"],
    }
    metadata: dict[str, dg.MetadataValue] = {name: dg.MetadataValue.int(count) for name, count in counts.items()}
    if done.delay_seconds is not None:
        metadata["median_delay_seconds"] = dg.MetadataValue.float(done.delay_seconds)
    return metadata
