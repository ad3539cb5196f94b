"""The partitioned assets, one partition for each source, and the jobs that write them.

`sources` are declarations; polled assets are fetched and ingested here (op `fetch` claims and stores bodies, `extract`
and `ingest` write records, `report` logs events); work of systems is drained by jobs, or requested for a partition.
"""

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import datetime
from inspect import Parameter, Signature
from typing import Any

import dagster as dg
from dagster._core.errors import DagsterExecutionInterruptedError
from pydantic import Field
from sqlalchemy import Connection

from ingestion_pipeline.bootstrap import open_fetcher, renderer_if_any
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.ingesting import extract_batch, ingest_batch
from ingestion_pipeline.engine.poll_handler import PollCounts, PollRunResult, fetch_feeds
from ingestion_pipeline.engine.system_spec import (
    REPORTED_EVENTS,
    PolledAsset,
    WorkAsset,
    WorkJob,
    WorkReport,
    WorkRun,
    WorkScope,
    WorkSpec,
    all_failed,
)
from ingestion_pipeline.orchestration import runs
from ingestion_pipeline.orchestration.checks import (
    changed_checks,
    checks_of,
    column_schema,
    reported_checks,
    written_contracts,
)
from ingestion_pipeline.orchestration.mount import AnyJob, Mount, RunContextParam, set_name, set_names, step_alone
from ingestion_pipeline.orchestration.runs import (
    AnyEvent,
    declared,
    is_fresh,
    refuse_unknown,
    refuse_unusable,
    register_keys,
    run_numbers,
    whole_run,
    why_late,
    with_current_expectations,
    with_expectations,
)
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.registry import approval_problems, definition_check, kind_specs, system_of, systems
from ingestion_pipeline.registry import declared as declare
from ingestion_pipeline.settings.logs import key_values
from ingestion_pipeline.sources import Kind, Source, SourceStatus, Tier
from ingestion_pipeline.sources.files import refresh_source
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_tasks import POLL, lock_polls, measured_pace, pace_name
from ingestion_pipeline.sources.registry import enable
from ingestion_pipeline.sources.scheduling.tiers import load_measurements, save_measurements
from ingestion_pipeline.sources.status import lock_sources, mark_reported, unreported
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline.tasks.errors import Resource

# There is no other way for one run to take many partitions.
MANY = dg.BackfillPolicy.multi_run(max_partitions_per_run=500)


def ingest_job(mount: Mount, kind: Kind, *assets: str) -> AnyJob:
    """Return the job that materializes a partition of these assets, of one source of the kind."""
    return mount.asset_job(
        f"ingest_{kind.value}",
        *assets,
        has_checks=False,  # they would be planned and then skipped: the ops log their events themselves
        description=f"Ingest one source of the kind {kind} now; needs the tag dagster/partition.",
    )


StepContext = dg.OpExecutionContext | dg.AssetExecutionContext


def requested_keys(context: StepContext, example: str) -> list[str]:
    """Return the requested partitions; fail, naming the tag to set, if there is none."""
    if context.has_partition_key:  # Dagster refuses to list keys that a temporary instance does not have
        return [context.partition_key]
    if context.has_partition_key_range:
        return list(context.partition_keys)
    tags = '{"dagster/partition": "' + example + ':..."}'
    raise dg.Failure(f"{context.run.job_name} works on one source: name it with --tags '{tags}'", allow_retries=False)


def admit(context: StepContext, ctx: RunContext, keys: list[str], *, only: Kind | None = None) -> Mapping[str, Source]:
    """Return the requested sources and register their partitions; fail if one cannot be used."""
    with ctx.store.read() as connection:
        sources = sources_by_id(connection, keys)
    strange = [source for source in sources.values() if only is not None and source.kind is not only]
    if only is not None and strange:
        noun, kind = only.value.replace("_", " "), strange[0].kind.value
        raise dg.Failure(
            f"{context.run.job_name}: {strange[0].id} is no {noun}, but a source of kind {kind}", allow_retries=False
        )
    refuse_unusable(keys, sources)
    for kind in {source.kind for source in sources.values()}:
        own = [key for key in keys if sources[key].kind is kind]
        for name in set_names(kind, ctx.names):
            register_keys(context.instance, name, own)
    return sources


def network_problem(fetcher: HttpFetcher) -> str | None:
    """Return the outage of our own that the run met; None if it met none."""
    return fetcher.network.problem if fetcher.network is not None else None


def fail(problem: str | None) -> None:
    """Fail the run if there is a problem; what it released is claimed by a later run."""
    if problem is not None:
        raise dg.Failure(problem, allow_retries=False)


def shard_of(context: StepContext) -> int | None:
    """Return the shard that the run drains; None for all of them."""
    shard = context.run.tags.get(runs.SHARD)
    return None if shard is None else int(shard.rpartition(":")[2])


class Declaration(dg.Config):
    """Options for checking sources."""

    approve: bool = Field(
        default=False, description="poll those that were discovered and wait for approval, from now on"
    )


def _sources_asset(mount: Mount) -> dg.AssetsDefinition:
    """Return the asset of the declarations."""
    return dg.asset(
        key=mount.key("sources"),
        partitions_def=mount.partitions(),
        backfill_policy=MANY,
        kinds={"yaml", "sql"},
        description=(
            "The registered sources, one partition each. Materializing checks the declaration,"
            " recognises the platform and refreshes the row; it does not poll. With approve in its"
            " config, a discovered source that waits for approval is polled from now on."
            " Refreshed by the sensor `new_sources` when a source is added or a source file changes."
        ),
        metadata={"dagster/column_schema": column_schema("sources")},
        io_manager_key=mount.io_key,
        **mount.attributes("sources"),
    )(mount.bound(sources))


def sources(context: dg.AssetExecutionContext, config: Declaration, run_context: RunContextParam) -> None:
    """Check and refresh the declaration of every requested partition."""
    keys = requested_keys(context, "series")
    bad: list[str] = []
    run, folder = context.run, run_context.settings.sources
    with whole_run(run_context, run_id=run.run_id, job=run.job_name):
        with run_context.store.read() as connection:
            by_id = sources_by_id(connection, keys)
        refuse_unknown(keys, by_id)
        register_keys(context.instance, set_name(run_context.names), keys)
        if config.approve:
            waiting = [source for source in by_id.values() if source.status is SourceStatus.PENDING_VALIDATION]
            bad += _approve(run_context, waiting)
        for key in keys:
            refreshed = refresh_source(run_context.store, key, folder=folder, check=definition_check(folder))
            bad += [f"{key}: {problem}" for problem in refreshed.problems]
            if not refreshed.problems:  # start what it needs before it can be polled, again after a failure
                with run_context.store.begin() as connection:
                    declare(connection, [key], now=run_context.store.clock.now(connection), retries=True)
            context.add_asset_metadata(
                declared(run_context, refreshed.source, problems=len(refreshed.problems)), partition_key=key
            )
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


POLLED: dict[Kind, PolledAsset] = {kind: spec.asset for kind, spec in kind_specs().items() if spec.asset is not None}


def _by_kind(source_ids: Iterable[str]) -> dict[Kind, list[str]]:
    """Return the ids of polled sources by their kind, which is their prefix."""
    ids = list(source_ids)
    by_kind = {kind: [id_ for id_ in ids if id_.startswith(f"{kind.value}:")] for kind in POLLED}
    return {kind: own for kind, own in by_kind.items() if own}


Batch = dict[str, Any]  # ids and counts, never bodies; as JSON between steps


def _started_at(batch: Batch) -> datetime:
    return datetime.fromisoformat(batch["started_at"])


EVENTS_AT_ONCE = 20  # an event takes 14 ms on SQLite, which blocks other writers


def _kind_of_job(ctx: RunContext, job: str) -> Kind | None:
    """Return the kind whose job of one source it is."""
    return {ctx.names.job(f"ingest_{kind.value}"): kind for kind in POLLED}.get(job)


def fetch(context: dg.OpExecutionContext, run_context: RunContextParam) -> Batch:
    """Claim sources and fetch their feeds politely; store changed ones.

    Not an async op: Dagster drops the coroutine of one that is interrupted, and its claims would
    not be released. `asyncio.run` unwinds it.
    """
    kind = _kind_of_job(run_context, context.job_name)
    keys = None if runs.TIER in context.run.tags else requested_keys(context, kind.value if kind else "series")
    if keys is None and not runs.is_started_by_ours(context.run):  # no sensor imports them
        runs.import_sources(run_context, context.log)
        runs.log_polled_tiers(run_context, context.job_name, context.log)
    started_at = run_context.store.now().isoformat()
    claim_filter = _claim_filter(context, run_context, keys)
    with runs.working(run_context, run_id=context.run_id, job=context.job_name) as worker:
        fetched, requests, problem = asyncio.run(_fetch(run_context, worker, claim_filter))
    context.log.info("fetch finished %s", key_values(asdict(fetched.counts)))
    return {
        "owner": fetched.owner,
        "batch_ids": fetched.batch_ids,
        "counts": asdict(fetched.counts),
        "keys": keys,
        "started_at": started_at,
        "new": 0,
        "written": [],
        "requests": requests,
        "network_problem": problem,
    }


async def _fetch(ctx: RunContext, worker: Worker, claim_filter: ClaimFilter) -> tuple[PollRunResult, int, str | None]:
    """Return what was fetched, the number of requests, and the network outage that ended it."""
    async with open_fetcher(ctx.settings) as fetcher:
        fetched = await fetch_feeds(ctx, worker, fetcher, claim_filter)
        return fetched, fetcher.requests, network_problem(fetcher)


def extract(context: dg.OpExecutionContext, run_context: RunContextParam, batch: Batch) -> Batch:
    """Parse the stored feeds; one that cannot be parsed fails its own poll."""
    counts = PollCounts(**batch["counts"])
    with _poll_worker(context, run_context, batch) as worker:
        for batch_id in batch["batch_ids"]:
            counts += extract_batch(run_context, worker, batch_id)
    return {**batch, "counts": asdict(counts)}


def ingest(context: dg.OpExecutionContext, run_context: RunContextParam, batch: Batch) -> Batch:
    """Commit the parsed feeds, fenced: rows, source, task and outbox in one transaction."""
    counts = PollCounts(**batch["counts"])
    new = 0
    written: set[str] = set()
    with _poll_worker(context, run_context, batch) as worker:
        for batch_id in batch["batch_ids"]:
            ingestion = ingest_batch(run_context, worker, batch_id)
            counts += ingestion.counts
            new += sum(source.new for source in ingestion.ingested)
            written |= {source.source_id for source in ingestion.ingested if source.has_written}
    return {**batch, "counts": asdict(counts), "new": new, "written": sorted(written)}


def report(context: dg.OpExecutionContext, run_context: RunContextParam, batch: Batch) -> Iterator[Any]:
    """Report each source that changed or was requested; then fail the run if all failed."""
    with _poll_worker(context, run_context, batch):
        yield from _materializations(context, run_context, batch)
        yield from changed_checks(context.instance, run_context, reported_checks(batch["keys"]))
        # Requested sources are reported again even if unchanged: a check must not be older.
        source_ids = sorted({*batch["written"], *(batch["keys"] or ())})
        written = {POLLED[kind].name: ids for kind, ids in _by_kind(source_ids).items()}
        yield from written_contracts(context.instance, run_context, written)
    _record_pace(context, run_context, batch)
    runs.end_run(run_context.store, run_id=context.run_id)
    yield from _poll_numbers(context, batch)
    _fail_if_no_success(run_context, batch)


def _record_pace(context: dg.OpExecutionContext, ctx: RunContext, batch: Batch) -> None:
    """Store how fast runs of this tier are, for splitting the next work into shards."""
    tier = context.run.tags.get(runs.TIER)
    if batch["keys"] is not None or tier is None:
        return
    counts = PollCounts(**batch["counts"])
    polls = counts.changed + counts.unchanged + counts.started + counts.failed
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        before = load_measurements(connection).get(pace_name(tier))
        seconds = (now - _started_at(batch)).total_seconds()
        pace = measured_pace(before, polls=polls, seconds=seconds)
        if pace is not None and pace != before:
            save_measurements(connection, {pace_name(tier): pace}, now=now)


def _poll_numbers(context: dg.OpExecutionContext, batch: Batch) -> Iterator[dg.Output[None]]:
    """Log the run's numbers; as an asset's output they would be a materialization more."""
    counts = PollCounts(**batch["counts"])
    numbers = run_numbers(counts, new=batch["new"], requests=batch["requests"])
    context.log.info("poll run finished %s", key_values(numbers))
    if batch["keys"] is None:
        yield dg.Output(None, metadata=numbers)


def _claim_filter(context: dg.OpExecutionContext, ctx: RunContext, keys: list[str] | None) -> ClaimFilter:
    if keys is not None:
        admit(context, ctx, keys, only=_kind_of_job(ctx, context.job_name))
        return ClaimFilter(kind=POLL, source_ids=keys)
    return ClaimFilter(
        kind=POLL,
        priority=Tier(context.run.tags[runs.TIER]).priority,
        shard=shard_of(context),
        shards=int(context.run.tags.get(runs.SHARDS) or ctx.settings.polling.shards),
    )


def _poll_worker(context: dg.OpExecutionContext, ctx: RunContext, batch: Batch) -> AbstractContextManager[Worker]:
    return runs.working(ctx, run_id=context.run_id, job=context.job_name, owner=batch["owner"])


def _materializations(context: dg.OpExecutionContext, ctx: RunContext, batch: Batch) -> Iterator[AnyEvent]:
    """Yield events of requested sources that succeeded, or of unreported changes.

    Reported and marked in one transaction, a few at a time: two runs that report at the same moment
    report no change twice, and later changes are not taken for reported.
    """
    if batch["keys"] is not None:
        with ctx.store.read() as connection:
            requested = sources_by_id(connection, batch["keys"]).values()
        fresh = sorted(source.id for source in requested if is_fresh(source, since=_started_at(batch)))
        for start in range(0, len(fresh), EVENTS_AT_ONCE):
            with ctx.store.begin() as connection:
                batch_ids = fresh[start : start + EVENTS_AT_ONCE]
                lock_sources(connection, batch_ids)
                yield from _report_sources(context, ctx, connection, batch_ids)
        return
    limit = REPORTED_EVENTS
    for reported in range(0, limit, EVENTS_AT_ONCE):
        with ctx.store.begin() as connection:
            batch_ids = min(EVENTS_AT_ONCE, limit - reported)
            changed = unreported(connection, POLLED.keys(), limit=batch_ids)
            yield from _report_sources(context, ctx, connection, changed)
        if not changed:
            return


def _report_sources(
    context: dg.OpExecutionContext, ctx: RunContext, connection: Connection, source_ids: Sequence[str]
) -> Iterator[AnyEvent]:
    for kind, ids in _by_kind(source_ids).items():
        now = ctx.store.clock.now(connection)
        events = with_expectations(ctx, connection, POLLED[kind].events(connection, ids), now=now)
        register_keys(context.instance, set_name(ctx.names, kind), ids)
        yield from events
    mark_reported(connection, source_ids)


def _fail_if_no_success(ctx: RunContext, batch: Batch) -> None:
    """Fail the run if our network was down, or if every source of it failed."""
    fail(batch["network_problem"])
    with ctx.store.read() as connection:
        requested = sources_by_id(connection, batch["keys"] or [])
    late = [source for source in requested.values() if not is_fresh(source, since=_started_at(batch))]
    if requested and len(late) == len(requested):
        reasons = "; ".join(why_late(source, since=_started_at(batch)) for source in late[:5])
        raise dg.Failure(f"no source succeeded. {reasons}", allow_retries=False)
    if not requested:  # otherwise some of the requested sources succeeded
        fail(all_failed(batch["counts"], "polled sources"))


Steps = Callable[..., Any]  # the ops of a poll, one after the other


def _poll_steps(mount: Mount) -> Steps:
    fetching = mount.op(fetch, ins={"sources": dg.In(dg.Nothing)}, tags={"kind": "fetch"})
    extracting = mount.op(extract, tags={"kind": "extract"})
    ingesting = mount.op(ingest, tags={"kind": "ingest"})
    reporting = mount.op(report, is_required=False, tags={"kind": "report"})
    return lambda *after: reporting(ingesting(extracting(fetching(*after))))


def _poll_job(mount: Mount, tier: Tier, steps: Steps) -> dg.JobDefinition:
    def poll() -> None:
        steps()

    return mount.job(
        poll,
        name=f"poll_{tier.value}",
        tags={runs.TIER: tier.value},
        description=f"Poll the {tier.value.upper()} sources that are due: a batch, then the next.",
    )


_POLLED_BY = (
    "Refreshed by the jobs `poll_hot`, `poll_warm` and `poll_cold`: the schedules `hot_polling`, `warm_polling` and"
    " `cold_polling` start them, and the sensor `pending_work` for retries."
)


def _polled_asset(mount: Mount, kind: Kind, asset: PolledAsset, steps: Steps) -> dg.AssetsDefinition:
    """Return a graph asset on the same partition of the first that it follows; any partition of the others is used."""

    def poll(**followed: None) -> None:
        return steps(list(followed.values()))

    # Dagster takes the names of the assets from the parameters.
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in asset.after]
    poll.__signature__ = Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    first, *others = asset.after
    mappings = {first: dg.IdentityPartitionMapping(), **dict.fromkeys(others, dg.AllPartitionMapping())}
    return dg.graph_asset(
        name=asset.name,
        key_prefix=list(mount.names.key_prefix) or None,
        partitions_def=mount.partitions(kind),
        backfill_policy=MANY,
        kinds={"http", "sql"},
        ins={
            name: dg.AssetIn(mount.key(name), dagster_type=dg.Nothing, partition_mapping=mapping)
            for name, mapping in mappings.items()
        },
        description=f"{asset.description} {_POLLED_BY}",
        metadata={"dagster/column_schema": column_schema(asset.name)},
        **mount.attributes(system_of(kind).name),
    )(poll)


def _run_work(
    context: StepContext, ctx: RunContext, spec: WorkSpec, scope: WorkScope
) -> Generator[Any, None, WorkReport]:
    """Do the work and report it; each event is logged here, and none is made of an output.

    Not an async op: Dagster drops the coroutine of one that is interrupted, and its claims would
    not be released. `asyncio.run` unwinds it.
    """
    run = context.run
    try:
        with runs.working(ctx, run_id=run.run_id, job=run.job_name) as worker:
            report, problem = asyncio.run(_work(ctx, worker, spec, scope))
    except DagsterExecutionInterruptedError:
        if spec.after_cancel is not None:
            context.log.warning("%s", spec.after_cancel(ctx, scope))
        raise
    runs.end_run(ctx.store, run_id=run.run_id)
    context.log.info("%s finished %s", spec.name, key_values(dict(report.numbers)) or "tasks=0")
    if report.message is not None:
        context.log.info("%s", report.message)
    if report.warning is not None:
        context.log.warning("%s", report.warning)
    kind_set = set_name(ctx.names, Kind(spec.kind))
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


def _draining_job(mount: Mount, spec: WorkSpec, job: WorkJob) -> dg.JobDefinition:
    def drain(context: dg.OpExecutionContext, run_context: RunContextParam) -> Iterator[Any]:
        if not runs.is_started_by_ours(context.run):  # no sensor imports them
            runs.import_sources(run_context, context.log)
        scope = WorkScope(shard=shard_of(context) if job.is_sharded else None)
        report = yield from _run_work(context, run_context, spec, scope)
        yield dg.Output(None, metadata=dict(report.numbers))

    tags = {} if job.is_sharded else {runs.SHARD: mount.names.job(job.name)}
    step = mount.op(drain, name=spec.name, is_required=False)
    return mount.job(step_alone(step), name=job.name, tags=tags, description=job.description)


def _asset_spec(mount: Mount, system: str, asset: WorkAsset, job: WorkJob | None) -> dg.AssetSpec:
    refreshed_by = "" if job is None else f" Refreshed by the job `{job.name}`, which the sensor `pending_work` starts."
    return dg.AssetSpec(
        mount.key(asset.name),
        deps=[dg.AssetDep(mount.key(asset.after), partition_mapping=dg.IdentityPartitionMapping())],
        description=asset.description + refreshed_by,
        kinds=set(asset.technologies),
        metadata={"dagster/column_schema": column_schema(asset.name)},
        skippable=True,  # reported by events of their own, each with its partition
        **mount.attributes(system),
    ).with_io_manager_key(mount.io_key)


def _work_assets(mount: Mount, system: str, spec: WorkSpec) -> dg.AssetsDefinition:
    kind = Kind(spec.kind)

    def materialize(context: dg.AssetExecutionContext, run_context: RunContextParam) -> Iterator[Any]:
        keys = requested_keys(context, kind.value)
        admit(context, run_context, keys, only=kind)
        _request_work(context, run_context, spec, keys)
        yield from _run_work(context, run_context, spec, WorkScope(source_ids=keys))

    return dg.multi_asset(
        name=mount.names.job(f"{spec.name}_partitions"),
        specs=[_asset_spec(mount, system, asset, spec.job) for asset in spec.assets],
        partitions_def=mount.partitions(kind),
        backfill_policy=MANY,
        can_subset=True,
    )(mount.bound(materialize))


def _request_work(context: StepContext, ctx: RunContext, spec: WorkSpec, keys: list[str]) -> None:
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
KIND_OF_ASSET = {asset.name: kind for kind, asset in POLLED.items()}
KIND_OF_ASSET |= {asset.name: Kind(spec.kind) for _, spec in _WORK for asset in spec.assets}
JOB_OF_ASSET = {asset: f"ingest_{kind.value}" for asset, kind in KIND_OF_ASSET.items()}
JOB_OF_ASSET |= {"notices": "deliver_notices", "source_health": "maintain"}


def poll_jobs(mount: Mount, steps: Steps) -> list[AnyJob]:
    """Return the poll job of each tier."""
    return [_poll_job(mount, tier, steps) for tier in Tier]


def source_jobs(mount: Mount) -> list[AnyJob]:
    """Return the jobs of one source: other assets are made from theirs, and are materialized on their own."""
    polled = [ingest_job(mount, kind, asset.name) for kind, asset in POLLED.items()]
    return polled + [
        ingest_job(mount, Kind(spec.kind), *(asset.name for asset in spec.assets))
        for _, spec in _WORK
        if any(asset.after == "sources" for asset in spec.assets)
    ]


def source_definitions(mount: Mount) -> dg.Definitions:
    """Return the partitioned assets and their jobs."""
    steps = _poll_steps(mount)
    polled = [_polled_asset(mount, kind, asset, steps) for kind, asset in POLLED.items()]
    work = [_work_assets(mount, system, spec) for system, spec in _WORK if spec.assets]
    draining = [_draining_job(mount, spec, spec.job) for _, spec in _WORK if spec.job is not None]
    return dg.Definitions(
        assets=[_sources_asset(mount), *polled, *work],
        jobs=[*poll_jobs(mount, steps), *draining, *source_jobs(mount)],
    )
