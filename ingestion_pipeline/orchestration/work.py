"""The jobs that drain the tasks of systems, and the partitioned assets that their work writes."""

import asyncio
from collections.abc import Generator, Iterator
from typing import Any

import dagster as dg

from ingestion_pipeline.bootstrap import open_fetcher, renderer_if_any
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.system_spec import WorkAsset, WorkJob, WorkReport, WorkRun, WorkScope, WorkSpec
from ingestion_pipeline.orchestration import heartbeat, resources
from ingestion_pipeline.orchestration.checks import changed_checks, checks_of, column_schema, written_contracts
from ingestion_pipeline.orchestration.events import with_current_expectations
from ingestion_pipeline.orchestration.resources import SETS, RunContextParam, register_keys
from ingestion_pipeline.orchestration.steps import (
    MANY,
    OWNERS,
    StepContext,
    admit,
    fail,
    ingest_job,
    network_problem,
    requested_keys,
    shard_of,
)
from ingestion_pipeline.registry import systems
from ingestion_pipeline.settings.logs import key_values
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline.tasks.worker import Worker


def _run(context: StepContext, ctx: RunContext, spec: WorkSpec, scope: WorkScope) -> Generator[Any, None, WorkReport]:
    """Do the work and report it; each event is logged here, and none is made of an output.

    Not an async op: Dagster drops the coroutine of one that is interrupted, and its claims would
    not be released. `asyncio.run` unwinds it.
    """
    run = context.run
    with heartbeat.working(ctx, run_id=run.run_id, job=run.job_name) as worker:
        report, problem = asyncio.run(_work(ctx, worker, spec, scope))
    heartbeat.end_run(ctx.store, run_id=run.run_id)
    context.log.info("%s finished %s", spec.name, key_values(dict(report.numbers)) or "tasks=0")
    if report.warning is not None:
        context.log.warning("%s", report.warning)
    kind_set = SETS[Kind(spec.kind)].name or ""
    register_keys(context.instance, kind_set, [event.partition for event in report.events])
    yield from with_current_expectations(ctx, report.events)
    assets = {*(asset.name for asset in spec.assets), *(event.asset for event in report.events)}
    yield from changed_checks(context.instance, ctx, checks_of(*assets))
    yield from written_contracts(context.instance, ctx, report.written)
    fail(problem or report.failure)
    return report


async def _work(ctx: RunContext, worker: Worker, spec: WorkSpec, scope: WorkScope) -> tuple[WorkReport, str | None]:
    """Return what was done, and the outage of our own network that ended it."""
    async with open_fetcher(ctx.settings) as fetcher, renderer_if_any(ctx.settings, clock=ctx.store.now) as renderer:
        run = WorkRun(ctx=ctx, worker=worker, fetcher=fetcher, renderer=renderer, scope=scope)
        return await spec.work(run), network_problem(fetcher)


def _draining_job(spec: WorkSpec, job: WorkJob) -> dg.JobDefinition:
    @dg.op(name=spec.name, out=dg.Out(is_required=False))
    def drain(context: dg.OpExecutionContext, run_context: RunContextParam) -> Iterator[Any]:
        scope = WorkScope(shard=shard_of(context) if job.is_sharded else None)
        report = yield from _run(context, run_context, spec, scope)
        yield dg.Output(None, metadata=dict(report.numbers))

    tags = {} if job.is_sharded else {resources.SHARD: job.name}

    @dg.job(name=job.name, tags=tags, description=job.description)
    def draining_job() -> None:
        drain()

    return draining_job


def _asset_spec(system: str, asset: WorkAsset) -> dg.AssetSpec:
    return dg.AssetSpec(
        asset.name,
        deps=[dg.AssetDep(asset.after, partition_mapping=dg.IdentityPartitionMapping())],
        description=asset.description,
        group_name=system,
        owners=OWNERS,
        kinds=set(asset.technologies),
        metadata={"dagster/column_schema": column_schema(asset.name)},
        skippable=True,  # reported by events of their own, each with its partition
    )


def _assets(system: str, spec: WorkSpec) -> dg.AssetsDefinition:
    kind = Kind(spec.kind)

    @dg.multi_asset(
        name=f"{spec.name}_{spec.kind}",
        specs=[_asset_spec(system, asset) for asset in spec.assets],
        partitions_def=SETS[kind],
        backfill_policy=MANY,
        can_subset=True,
    )
    def materialize(context: dg.AssetExecutionContext, run_context: RunContextParam) -> Iterator[Any]:
        keys = requested_keys(context, kind.value)
        admit(context, run_context, keys, only=kind)
        _request(context, run_context, spec, keys)
        yield from _run(context, run_context, spec, WorkScope(source_ids=keys))

    return materialize


def _request(context: StepContext, ctx: RunContext, spec: WorkSpec, keys: list[str]) -> None:
    if spec.request is None:
        return
    try:
        outcomes = spec.request(ctx, keys)
    except Resource as full:
        raise dg.Failure(f"nothing was started: {full}", allow_retries=False) from full
    for key, outcome in outcomes.items():
        context.log.info("%s requested source=%s: %s", spec.name, key, outcome)


_WORK = [(system.name, spec) for system in systems() for spec in system.work]
WORK_JOBS = {spec.job.name: spec.job for _, spec in _WORK if spec.job is not None}
DRAINING_JOBS = {spec.job.name: _draining_job(spec, spec.job) for _, spec in _WORK if spec.job is not None}
WORK_ASSETS = [_assets(system, spec) for system, spec in _WORK if spec.assets]
# The other assets are made from these, and are materialized on their own.
INGEST_JOBS = [
    ingest_job(Kind(spec.kind), *(asset.name for asset in spec.assets))
    for _, spec in _WORK
    if any(asset.after == "sources" for asset in spec.assets)
]
