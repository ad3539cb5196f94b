"""The polling schedules, one per tier, and the schedule of `maintain`."""

from collections.abc import Iterator
from datetime import datetime

import dagster as dg

from ingestion_pipeline.orchestration import resources
from ingestion_pipeline.orchestration.jobs import maintain
from ingestion_pipeline.orchestration.polling import POLL_JOBS
from ingestion_pipeline.orchestration.resources import RunContextParam
from ingestion_pipeline.sources import Tier
from ingestion_pipeline.sources.scheduling.budget import load_measurements
from ingestion_pipeline.sources.scheduling.due import backlog, due_counts, known_pace, shard_count, shards_of

# A tick may come more often than its tier is polled: sources/ decides what is due. The slower
# ticks avoid the minutes of the HOT one: on a shared host they would find it busy.
NOT_STARTED = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED]
TICKS = {Tier.HOT: "*/5 * * * *", Tier.WARM: "3-59/15 * * * *", Tier.COLD: "7 * * * *"}


def run_for(tier: Tier, shard: int, *, key: str, shards: int | None = None) -> dg.RunRequest:
    """Return the request for a run of one shard, of `shards` if the load decides; a run key works only once."""
    return dg.RunRequest(
        job_name=POLL_JOBS[tier].name,
        run_key=f"{tier.value}:{shard}:{key}",
        tags={
            resources.TIER: tier.value,
            resources.SHARD: f"{tier.value}:{shard}",
            resources.PRIORITY: str(-tier.priority),
            **({} if shards is None else {resources.SHARDS: str(shards)}),
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
        context: dg.ScheduleEvaluationContext, run_context: RunContextParam
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        tick: datetime = context.scheduled_execution_time
        with run_context.store.read() as connection:
            limits = run_context.settings.polling
            now = run_context.store.clock.now(connection)
            held_up = backlog(connection, now=now, limit=limits.backlog_limit)
            due = due_counts(connection, tier, now=now)
            pace = known_pace(load_measurements(connection), tier.value)
        if held_up is not None:
            yield dg.SkipReason(str(held_up))
            return
        count = shard_count(sum(due.values()), pace=pace, limits=limits)
        shards_tag = None if count == limits.shards else count
        # an in-memory instance, as in tests, cannot be opened a second time
        queued = _queued_shards(context.instance, tier) if context.instance_ref else set[str]()
        requests = [
            run_for(tier, shard, key=f"{tick:%Y%m%dT%H%M}", shards=shards_tag) for shard in shards_of(due, count)
        ]
        if not due:
            yield dg.SkipReason(f"no {tier.value.upper()} source is due")
        elif all(request.tags[resources.SHARD] in queued for request in requests):
            yield dg.SkipReason(f"{sum(due.values())} sources are due, and their runs are queued already")
        yield from (request for request in requests if request.tags[resources.SHARD] not in queued)

    return poll


def _queued_shards(instance: dg.DagsterInstance, tier: Tier) -> set[str]:
    """Return the shards whose last run has not started: it will claim what became due since."""
    waiting = dg.RunsFilter(statuses=NOT_STARTED, tags={resources.TIER: tier.value})
    return {run.tags.get(resources.SHARD, "") for run in instance.get_runs(waiting)}


maintenance = dg.ScheduleDefinition(
    name="maintenance",
    job=maintain,
    cron_schedule="*/5 * * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Retention, tiers, health, alerts and checks, every five minutes.",
)

SCHEDULES = [*(_polling_schedule(tier) for tier in Tier), maintenance]
