"""The schedules and sensors: what starts runs without a person.

Schedules poll each tier and start `maintain`. A sensor uses no network and one or two indexed queries, and gives a
reason for every skipped tick.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME

from ingestion_pipeline.engine.context import MountNames, RunContext
from ingestion_pipeline.engine.model_batches import is_batch_due
from ingestion_pipeline.engine.system_spec import REPORTED_EVENTS
from ingestion_pipeline.notices.queries import is_work_waiting
from ingestion_pipeline.operations.alerts import RUN_FAILED, notify_run_failure, record_heartbeat
from ingestion_pipeline.orchestration import runs
from ingestion_pipeline.orchestration.assets import JOB_OF_ASSET, WORK_JOBS
from ingestion_pipeline.orchestration.checks import evaluate_planned_checks
from ingestion_pipeline.orchestration.exports import own_assets
from ingestion_pipeline.orchestration.jobs import (
    MODEL_BATCHES_JOB,
    NOTICES_SHARD,
    TICK_SECONDS,
    extraction_completion,
    own_jobs,
)
from ingestion_pipeline.orchestration.mount import AnyOption, Mount, RunContextParam, asset_key, own_asset, set_name
from ingestion_pipeline.orchestration.runs import declared, differences, import_sources
from ingestion_pipeline.registry import ingesting_kinds, kind_specs
from ingestion_pipeline.sources import Tier
from ingestion_pipeline.sources.files import fingerprints, partition_keys
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_tasks import (
    backlog,
    due_counts,
    known_pace,
    new_shards,
    shard_count,
    shards_of,
    source_counts,
    unscheduled_shards,
)
from ingestion_pipeline.sources.scheduling.tiers import load_measurements
from ingestion_pipeline.store.statements import audit
from ingestion_pipeline.tasks.claims import lost_runs

# A tick may come more often than its tier is polled: sources/ decides what is due. The slower
# ticks avoid the minutes of the HOT one: on a shared host they would find it busy.
NOT_STARTED = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED]
Jobs = Mapping[str, Any]  # by their names without a prefix
TICKS = {Tier.HOT: "*/5 * * * *", Tier.WARM: "3-59/15 * * * *", Tier.COLD: "7 * * * *"}


def run_for(names: MountNames, tier: Tier, shard: int, *, key: str, shards: int | None = None) -> dg.RunRequest:
    """Return the request for a run of one shard, of `shards` if the load decides; a run key works only once."""
    return dg.RunRequest(
        job_name=names.job(f"poll_{tier.value}"),
        run_key=f"{tier.value}:{shard}:{key}",
        tags={
            runs.TIER: tier.value,
            runs.SHARD: names.job(f"{tier.value}:{shard}"),
            runs.PRIORITY: str(-tier.priority),
            **({} if shards is None else {runs.SHARDS: str(shards)}),
        },
    )


def _polling_schedule(mount: Mount, tier: Tier, jobs: Jobs) -> dg.ScheduleDefinition:
    def poll(
        context: dg.ScheduleEvaluationContext, run_context: RunContextParam
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        tick: datetime = context.scheduled_execution_time
        with run_context.store.read() as connection:
            limits = run_context.settings.polling
            now = run_context.store.clock.now(connection)
            held_up = backlog(connection, now=now, limit=limits.backlog_limit, kinds=ingesting_kinds())
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
            run_for(run_context.names, tier, shard, key=f"{tick:%Y%m%dT%H%M}", shards=shards_tag)
            for shard in shards_of(due, count)
        ]
        if not due:
            yield dg.SkipReason(f"no {tier.value.upper()} source is due")
        elif all(request.tags[runs.SHARD] in queued for request in requests):
            yield dg.SkipReason(f"{sum(due.values())} sources are due, and their runs are queued already")
        yield from (request for request in requests if request.tags[runs.SHARD] not in queued)

    return dg.schedule(
        name=mount.names.job(f"{tier.value}_polling"),
        cron_schedule=TICKS[tier],
        job=jobs[f"poll_{tier.value}"],
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"One run per shard that has a {tier.value.upper()} source due.",
    )(mount.bound(poll))


def _queued_shards(instance: dg.DagsterInstance, tier: Tier) -> set[str]:
    """Return the shards whose last run has not started: it will claim what became due since."""
    waiting = dg.RunsFilter(statuses=NOT_STARTED, tags={runs.TIER: tier.value})
    return {run.tags.get(runs.SHARD, "") for run in instance.get_runs(waiting)}


def schedules(mount: Mount, jobs: Jobs) -> list[dg.ScheduleDefinition]:
    """Return the schedules of these jobs, which are named without a prefix."""
    maintenance = dg.ScheduleDefinition(
        name=mount.names.job("maintenance"),
        job=jobs["maintain"],
        cron_schedule="*/5 * * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Retention, tiers, health, alerts and checks, every five minutes.",
    )
    return [*(_polling_schedule(mount, tier, jobs) for tier in Tier), maintenance]


# Dagster warns about a parameter that is not passed.
warnings.filterwarnings("ignore", message="Parameter `owners`", category=dg.BetaWarning)
RUNNING = dg.DefaultSensorStatus.RUNNING
# The daemon evaluates sensors every five seconds. A sensor with an interval of five is skipped
# whenever an evaluation comes a moment early, and waits ten.
AT_EVERY_LOOK_SECONDS = 3
# Counts may miss changes (one enabled and one removed between two ticks, a key that was added by
# hand): the partitions are compared this often in any case.
MIRROR_MINUTES = 5


def new_sources(context: dg.SensorEvaluationContext, run_context: RunContextParam) -> dg.SensorResult | dg.SkipReason:
    """Import changed files, sync the partitions, request a run per shard with new sources."""
    before: dict[str, Any] = json.loads(context.cursor) if context.cursor else {}
    files = fingerprints(run_context.settings.sources)
    if files != before.get("files") or _has_lost_sources(run_context, before):
        import_sources(run_context, context.log)
    with run_context.store.read() as connection:
        total, disabled, newest = source_counts(connection)
        now = run_context.store.clock.now(connection)
    after = {
        "files": files,
        "counts": [total, disabled, newest and newest.isoformat()],
        "mirrored": f"{now:%Y%m%dT%H}{now.minute // MIRROR_MINUTES:02}",
    }
    nothing = f"nothing new among {total} sources"
    if after == before:
        return dg.SkipReason(nothing)
    requests = _first_work(context.instance, run_context, now) + _first_runs(run_context, now)
    partitions = _mirror(context, run_context)
    return dg.SensorResult(
        run_requests=requests,
        dynamic_partitions_requests=partitions,
        asset_events=_declared(run_context, partitions),
        cursor=json.dumps(after),
        skip_reason=None if requests or partitions else nothing,
    )


def _has_lost_sources(ctx: RunContext, before: dict[str, Any]) -> bool:
    """Return whether the store holds fewer sources than before: another database."""
    with ctx.store.read() as connection:
        return source_counts(connection)[0] < before.get("counts", [0])[0]


def _first_work(instance: dg.DagsterInstance, ctx: RunContext, now: datetime) -> list[dg.RunRequest]:
    """Start what new sources need and request runs for it, unless one is running already."""
    started = [job.name for job in WORK_JOBS.values() if job.start_new is not None and job.start_new(ctx)]
    return [
        dg.RunRequest(job_name=name, run_key=f"{name}:new:{now:%Y%m%dT%H%M%S}")
        for name in map(ctx.names.job, started)
        if not _is_queued(instance, name, *WORKING)
    ]


def _first_runs(ctx: RunContext, now: datetime) -> list[dg.RunRequest]:
    """Return a run request per shard with a never polled source, which would wait for its tier's next tick."""
    with ctx.store.read() as connection:
        shards = new_shards(connection, now=now, shards=ctx.settings.polling.shards)
    return [run_for(ctx.names, tier, shard, key=f"new:{now:%Y%m%dT%H%M%S}") for tier, shard in shards]


def _mirror(context: dg.SensorEvaluationContext, ctx: RunContext) -> list[Any]:
    """Return the requests that make Dagster's partition sets equal to the store."""
    with ctx.store.read() as connection:
        by_kind = partition_keys(connection, limit=ctx.settings.polling.partition_limit)
    expected = {set_name(ctx.names): [key for keys in by_kind.values() for key in keys]}
    expected |= {set_name(ctx.names, kind): by_kind.get(kind, []) for kind in kind_specs()}
    requests: list[Any] = []
    for name, keys in expected.items():
        definition = dg.DynamicPartitionsDefinition(name=name)
        registered = context.instance.get_dynamic_partitions(name)
        missing, gone = differences(keys, registered)
        if missing:
            requests.append(definition.build_add_request(missing))
        if gone:
            requests.append(definition.build_delete_request(gone))
    return requests


def _declared(ctx: RunContext, requests: list[Any]) -> list[dg.AssetMaterialization]:
    """Return events of `sources` for new partitions, at most as many as a run reports."""
    added = [
        key
        for request in requests
        if isinstance(request, dg.AddDynamicPartitionsRequest) and request.partitions_def_name == set_name(ctx.names)
        for key in request.partition_keys
    ]
    with ctx.store.read() as connection:
        sources = sources_by_id(connection, added[:REPORTED_EVENTS])
    return [
        dg.AssetMaterialization(
            asset_key(ctx.names, "sources"), partition=key, metadata=declared(ctx, source, problems=0)
        )
        for key, source in sorted(sources.items())
    ]


def pending_work(
    context: dg.SensorEvaluationContext, run_context: RunContextParam
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """Request at most one run a minute per tier and shard with pending work, one for notices.

    A shard has one crawling run at a time, which also takes work that arrives meanwhile.
    """
    with run_context.store.read() as connection:
        now = run_context.store.clock.now(connection)
        limit = run_context.settings.polling.backlog_limit
        held_up = backlog(connection, now=now, limit=limit, kinds=ingesting_kinds())
        waiting: list[tuple[Tier, int]] = (
            [] if held_up else unscheduled_shards(connection, now=now, shards=run_context.settings.polling.shards)
        )
        is_news_waiting = is_work_waiting(connection, now=now)
        pending = {name: job.pending(connection, run_context.settings, now) for name, job in WORK_JOBS.items()}
        pending[MODEL_BATCHES_JOB] = is_batch_due(connection, now=now)
    if not (waiting or is_news_waiting or any(pending.values())):
        yield dg.SkipReason(str(held_up or "no retry is due and no claim has expired"))
    names = run_context.names
    for tier, shard in waiting:
        request = run_for(names, tier, shard, key=f"pending:{now:%Y%m%dT%H%M}")
        if not _is_queued(context.instance, request.tags[runs.SHARD]):
            yield request
    for name, work in pending.items():
        yield from _draining_runs(context.instance, names.job(name), now, work=work)
    # One delivery run at a time takes all notices, also those that arrive meanwhile.
    shard = names.job(NOTICES_SHARD)
    if is_news_waiting and not _is_queued(context.instance, shard, *WORKING):
        yield dg.RunRequest(job_name=names.job("deliver_notices"), run_key=_calm_key(context.instance, shard, now))


def _draining_runs(
    instance: dg.DagsterInstance, name: str, now: datetime, *, work: bool | Sequence[int]
) -> Iterator[dg.RunRequest]:
    """Yield a run request for the job, or for each shard of it, that has work and no active run."""
    if isinstance(work, bool):
        if work and not _is_queued(instance, name, *WORKING):
            yield dg.RunRequest(job_name=name, run_key=_calm_key(instance, name, now))
        return
    for shard in (f"{name}:{number}" for number in work):
        if not _is_queued(instance, shard, *WORKING):
            yield dg.RunRequest(job_name=name, run_key=f"{shard}:{now:%Y%m%dT%H%M}", tags={runs.SHARD: shard})


RUSH = 3  # runs in a minute that are started at once; work that so many leave is not for them


def _calm_key(instance: dg.DagsterInstance, shard: str, now: datetime) -> str:
    """Return a run key: a run at once, but one a minute after a failure, or after several in a minute."""
    last = instance.get_runs(dg.RunsFilter(tags={runs.SHARD: shard}), limit=1)
    has_failed = bool(last) and last[0].status is dg.DagsterRunStatus.FAILURE
    recent = dg.RunsFilter(tags={runs.SHARD: shard}, created_after=now - timedelta(minutes=1))
    is_slow = has_failed or instance.get_runs_count(recent) >= RUSH
    return f"{shard}:{now:%Y%m%dT%H%M}" + ("" if is_slow else f"{now:%S}")


WORKING = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED)


def _is_queued(instance: dg.DagsterInstance, shard: str, *also: dg.DagsterRunStatus) -> bool:
    """Return whether a run that will drain the shard waits already; another would find nothing."""
    waiting = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, *also]
    return instance.get_runs_count(dg.RunsFilter(statuses=waiting, tags={runs.SHARD: shard})) > 0


ALIVE = {dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.CANCELING}


def stale_runs(context: dg.SensorEvaluationContext, run_context: RunContextParam) -> dg.SkipReason:
    """Fail runs without a heartbeat and release their claims, without a run slot; record the daemon's heartbeat."""
    with run_context.store.begin() as connection:
        record_heartbeat(connection, run_context.settings, now=run_context.store.clock.now(connection))
    with run_context.store.read() as connection:
        lost = lost_runs(connection, now=run_context.store.clock.now(connection))
    for lost_run in lost:
        run = context.instance.get_run_by_id(lost_run.run_id)
        if run is not None and run.status in ALIVE:
            message = f"no heartbeat since {lost_run.lease_until:%H:%M:%S} UTC"
            context.instance.report_run_failed(run, message=message)
        runs.release_run(run_context.store, run_id=lost_run.run_id)
    return dg.SkipReason(f"{len(lost)} lost runs ended" if lost else "every run is alive")


def run_failures(context: dg.RunFailureSensorContext, run_context: RunContextParam) -> None:
    """Release the failed run's claims and hosts, and record the failure; another project's is its own affair."""
    run = context.dagster_run
    if (job := _shown_job(run_context, run)) is None:
        return
    freed = runs.release_run(run_context.store, run_id=run.run_id)
    evaluate_planned_checks(context.instance, run_context, run.run_id)  # of a killed one: it could not
    with run_context.store.begin() as connection:
        now = run_context.store.clock.now(connection)
        audit(
            connection,
            actor="system",
            action=RUN_FAILED,
            subject=f"run:{run.run_id}",
            now=now,
            detail={"job": job, "freed": freed},
        )
        notify_run_failure(connection, job, run_id=run.run_id, now=now)


def _shown_job(ctx: RunContext, run: dg.DagsterRun) -> str | None:
    """Return the run's job; of assets materialized in the UI, whose job is Dagster's own, the job of one source.

    None if the run is not ours.
    """
    if run.job_name != IMPLICIT_ASSET_JOB_NAME:
        return run.job_name if ctx.names.own_job(run.job_name) in own_jobs() else None
    ours = own_assets(ctx.settings)
    assets = sorted(asset for key in run.asset_selection or () if (asset := own_asset(ctx.names, key)) in ours)
    jobs = dict.fromkeys(JOB_OF_ASSET.get(asset, f"materialize {asset}") for asset in assets)
    return ", ".join(jobs) or None


def _sensor(mount: Mount, function: Callable[..., Any], **options: AnyOption) -> dg.SensorDefinition:
    name = mount.names.job(function.__name__)
    return dg.sensor(name=name, default_status=RUNNING, **options)(mount.bound(function))


def sensors(mount: Mount, jobs: Jobs) -> list[dg.SensorDefinition]:
    """Return the sensors of these jobs, which are named without a prefix."""
    work = [jobs[name] for name in (*(f"poll_{tier.value}" for tier in Tier), *WORK_JOBS)]
    # The page of each asset that the runs of the sensor refresh names it.
    single = [job for name, job in jobs.items() if name.startswith("ingest_")]
    run_failure_sensor = dg.run_failure_sensor(
        name=mount.names.job("run_failures"),
        default_status=RUNNING,
        minimum_interval_seconds=10,
        description=(
            "Claims of a failed run are released at once, and its checks evaluated. The failure is in the audit log,"
            " and the first of a job in an hour is notified."
        ),
    )
    return [
        _sensor(
            mount,
            new_sources,
            jobs=work,
            minimum_interval_seconds=AT_EVERY_LOOK_SECONDS,
            description="Rows and source files become partitions, and are polled for the first time.",
        ),
        _sensor(
            mount,
            pending_work,
            jobs=[*work, jobs["deliver_notices"], jobs[MODEL_BATCHES_JOB], *single],
            minimum_interval_seconds=AT_EVERY_LOOK_SECONDS,
            description=(
                "Claimable work that no schedule covers soon: retries, claims of dead runs, the work of the"
                " systems, and notices."
            ),
        ),
        _sensor(
            mount,
            extraction_completion,
            job=jobs["complete_extractions"],
            minimum_interval_seconds=TICK_SECONDS,
            description="Finish each extraction as soon as none of its pages waits.",
        ),
        _sensor(
            mount,
            stale_runs,
            minimum_interval_seconds=30,
            description="Runs without a heartbeat are reported as failed and their claims released.",
        ),
        run_failure_sensor(mount.bound(run_failures)),
    ]
