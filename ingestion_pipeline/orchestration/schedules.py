"""Four schedules: a tick per tier asks which shards have due sources; one keeps the house."""

from collections.abc import Iterator
from datetime import datetime

import dagster as dg

from ingestion_pipeline.orchestration import tags
from ingestion_pipeline.orchestration.jobs import POLL_JOBS, maintain
from ingestion_pipeline.orchestration.resources import WorkshopResource
from ingestion_pipeline.sources import Tier
from ingestion_pipeline.sources.due import due_shards

# A tick may come oftener than its tier is polled: who is due is decided in sources/, not here.
# The slower ticks keep off the HOT one's minutes: on a host they share, they would find it busy.
TICKS = {Tier.HOT: "*/5 * * * *", Tier.WARM: "3-59/15 * * * *", Tier.COLD: "7 * * * *"}


def run_for(tier: Tier, shard: int, *, key: str) -> dg.RunRequest:
    """The run that drains one shard; Dagster never forgets a key, not even a failed run's."""
    return dg.RunRequest(
        job_name=POLL_JOBS[tier].name,
        run_key=f"{tier.value}:{shard}:{key}",
        tags={
            tags.TIER: tier.value,
            tags.SHARD: f"{tier.value}:{shard}",
            tags.PRIORITY: str(-tier.priority),
        },
    )


def _polling_schedule(tier: Tier) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"{tier.value}_polling",
        cron_schedule=TICKS[tier],
        job=POLL_JOBS[tier],
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"One run per shard that has a {tier.value.upper()} source due.",
    )
    def poll(
        context: dg.ScheduleEvaluationContext, workshop: WorkshopResource
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        tick: datetime = context.scheduled_execution_time
        with workshop.open() as shop, shop.store.read() as connection:
            now = shop.store.clock.now(connection)
            shards = due_shards(connection, tier, now=now, shards=shop.settings.polling.shards)
        if not shards:
            yield dg.SkipReason(f"no {tier.value.upper()} source is due")
        for shard in shards:
            yield run_for(tier, shard, key=f"{tick:%Y%m%dT%H%M}")

    return poll


maintenance = dg.ScheduleDefinition(
    name="maintenance",
    job=maintain,
    cron_schedule="*/5 * * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Retention, tiers, health, alerts and checks, every five minutes.",
)

SCHEDULES = [*(_polling_schedule(tier) for tier in Tier), maintenance]
