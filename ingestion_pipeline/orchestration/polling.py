"""The four ops of a poll: fetch, extract, ingest, report; they pass on ids, never bodies.

The poll jobs use them to drain what is due; the asset of each polled kind, such as `chapters`, and its
job use them to poll the requested partitions, due or not.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

import dagster as dg
from sqlalchemy import Connection

from ingestion_pipeline.bootstrap import open_fetcher
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.polling.ingesting import extract_batch, ingest_batch
from ingestion_pipeline.engine.polling.poll_handler import PollCounts, PollRunResult, fetch_feeds
from ingestion_pipeline.engine.system_spec import PolledAsset, all_failed
from ingestion_pipeline.orchestration import heartbeat, resources
from ingestion_pipeline.orchestration.checks import changed_checks, reported_checks, written_contracts
from ingestion_pipeline.orchestration.events import is_fresh, run_numbers, why_late, with_expectations
from ingestion_pipeline.orchestration.resources import SETS, RunContextParam, register_keys
from ingestion_pipeline.orchestration.steps import (
    admit,
    fail,
    ingest_job,
    network_problem,
    partitioned_asset,
    requested_keys,
    shard_of,
)
from ingestion_pipeline.registry import kind_specs, system_of
from ingestion_pipeline.settings.logs import key_values
from ingestion_pipeline.sources import Kind, Tier
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_tasks import POLL
from ingestion_pipeline.sources.scheduling.budget import load_measurements, save_measurements
from ingestion_pipeline.sources.scheduling.due import measured_pace, pace_name
from ingestion_pipeline.sources.status import lock_sources, mark_reported, unreported
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.worker import Worker

POLLED: dict[Kind, PolledAsset] = {kind: spec.asset for kind, spec in kind_specs().items() if spec.asset is not None}


def _by_kind(source_ids: Iterable[str]) -> dict[Kind, list[str]]:
    """Return the ids of polled sources by their kind, which is their prefix."""
    ids = list(source_ids)
    by_kind = {kind: [id_ for id_ in ids if id_.startswith(f"{kind.value}:")] for kind in POLLED}
    return {kind: own for kind, own in by_kind.items() if own}


Batch = dict[str, Any]  # ids and counts, never bodies
_KIND_OF_JOB = {f"ingest_{kind.value}": kind for kind in POLLED}
EVENTS_AT_ONCE = 20  # an event takes 14 ms on SQLite, which blocks other writers


@dg.op(ins={"sources": dg.In(dg.Nothing)}, tags={"kind": "fetch"})
def fetch(context: dg.OpExecutionContext, run_context: RunContextParam) -> Batch:
    """Claim sources and fetch their feeds politely; store changed ones.

    Not an async op: Dagster drops the coroutine of one that is interrupted, and its claims would
    not be released. `asyncio.run` unwinds it.
    """
    kind = _KIND_OF_JOB.get(context.job_name)
    keys = None if resources.TIER in context.run.tags else requested_keys(context, kind.value if kind else "series")
    started_at = run_context.store.now()
    claim_filter = _claim_filter(context, run_context, keys)
    with heartbeat.working(run_context, run_id=context.run_id, job=context.job_name) as worker:
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


@dg.op(tags={"kind": "extract"})
def extract(context: dg.OpExecutionContext, run_context: RunContextParam, batch: Batch) -> Batch:
    """Parse the stored feeds; one that cannot be parsed fails its own poll."""
    counts = PollCounts(**batch["counts"])
    with _working(context, run_context, batch) as worker:
        for batch_id in batch["batch_ids"]:
            counts += extract_batch(run_context, worker, batch_id)
    return {**batch, "counts": asdict(counts)}


@dg.op(tags={"kind": "ingest"})
def ingest(context: dg.OpExecutionContext, run_context: RunContextParam, batch: Batch) -> Batch:
    """Commit the parsed feeds, fenced: rows, source, task and outbox in one transaction."""
    counts = PollCounts(**batch["counts"])
    new = 0
    written: set[str] = set()
    with _working(context, run_context, batch) as worker:
        for batch_id in batch["batch_ids"]:
            ingestion = ingest_batch(run_context, worker, batch_id)
            counts += ingestion.counts
            new += sum(source.new for source in ingestion.ingested)
            written |= {source.source_id for source in ingestion.ingested if source.has_written}
    return {**batch, "counts": asdict(counts), "new": new, "written": sorted(written)}


@dg.op(out=dg.Out(is_required=False), tags={"kind": "report"})
def report(context: dg.OpExecutionContext, run_context: RunContextParam, batch: Batch) -> Iterator[Any]:
    """Report each source that changed or was requested; then fail the run if all failed."""
    with _working(context, run_context, batch):
        yield from _materializations(context, run_context, batch)
        yield from changed_checks(context.instance, run_context, reported_checks(batch["keys"]))
        # Requested sources are reported again even if unchanged: a check must not be older.
        source_ids = sorted({*batch["written"], *(batch["keys"] or ())})
        written = {POLLED[kind].name: ids for kind, ids in _by_kind(source_ids).items()}
        yield from written_contracts(context.instance, run_context, written)
    _record_pace(context, run_context, batch)
    heartbeat.end_run(run_context.store, run_id=context.run_id)
    yield from _numbers(context, batch)
    _fail_if_no_success(run_context, batch)


def _record_pace(context: dg.OpExecutionContext, ctx: RunContext, batch: Batch) -> None:
    """Store how fast runs of this tier are, for splitting the next work into shards."""
    tier = context.run.tags.get(resources.TIER)
    if batch["keys"] is not None or tier is None:
        return
    counts = PollCounts(**batch["counts"])
    polls = counts.changed + counts.unchanged + counts.started + counts.failed
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        before = load_measurements(connection).get(pace_name(tier))
        seconds = (now - batch["started_at"]).total_seconds()
        pace = measured_pace(before, polls=polls, seconds=seconds)
        if pace is not None and pace != before:
            save_measurements(connection, {pace_name(tier): pace}, now=now)


def _numbers(context: dg.OpExecutionContext, batch: Batch) -> Iterator[dg.Output[None]]:
    """Log the run's numbers; as an asset's output they would be a materialization more."""
    counts = PollCounts(**batch["counts"])
    numbers = run_numbers(counts, new=batch["new"], requests=batch["requests"])
    context.log.info("poll run finished %s", key_values(numbers))
    if batch["keys"] is None:
        yield dg.Output(None, metadata=numbers)


def _claim_filter(context: dg.OpExecutionContext, ctx: RunContext, keys: list[str] | None) -> ClaimFilter:
    if keys is not None:
        admit(context, ctx, keys, only=_KIND_OF_JOB.get(context.job_name))
        return ClaimFilter(kind=POLL, source_ids=keys)
    return ClaimFilter(
        kind=POLL,
        priority=Tier(context.run.tags[resources.TIER]).priority,
        shard=shard_of(context),
        shards=int(context.run.tags.get(resources.SHARDS) or ctx.settings.polling.shards),
    )


def _working(context: dg.OpExecutionContext, ctx: RunContext, batch: Batch) -> AbstractContextManager[Worker]:
    return heartbeat.working(ctx, run_id=context.run_id, job=context.job_name, owner=batch["owner"])


def _materializations(
    context: dg.OpExecutionContext, ctx: RunContext, batch: Batch
) -> Iterator[dg.AssetMaterialization]:
    """Yield events of requested sources that succeeded, or of unreported changes.

    Reported and marked in one transaction, a few at a time: two runs that report at the same moment
    report no change twice, and later changes are not taken for reported.
    """
    if batch["keys"] is not None:
        with ctx.store.read() as connection:
            requested = sources_by_id(connection, batch["keys"]).values()
        fresh = sorted(source.id for source in requested if is_fresh(source, since=batch["started_at"]))
        for start in range(0, len(fresh), EVENTS_AT_ONCE):
            with ctx.store.begin() as connection:
                batch_ids = fresh[start : start + EVENTS_AT_ONCE]
                lock_sources(connection, batch_ids)
                yield from _report_sources(context, ctx, connection, batch_ids)
        return
    limit = ctx.settings.polling.reported_events
    for reported in range(0, limit, EVENTS_AT_ONCE):
        with ctx.store.begin() as connection:
            batch_ids = min(EVENTS_AT_ONCE, limit - reported)
            changed = unreported(connection, POLLED.keys(), limit=batch_ids)
            yield from _report_sources(context, ctx, connection, changed)
        if not changed:
            return


def _report_sources(
    context: dg.OpExecutionContext, ctx: RunContext, connection: Connection, source_ids: Sequence[str]
) -> Iterator[dg.AssetMaterialization]:
    for kind, ids in _by_kind(source_ids).items():
        now = ctx.store.clock.now(connection)
        events = with_expectations(connection, POLLED[kind].events(connection, ids), now=now, settings=ctx.settings)
        register_keys(context.instance, SETS[kind].name or "", ids)
        yield from events
    mark_reported(connection, source_ids)


def _fail_if_no_success(ctx: RunContext, batch: Batch) -> None:
    """Fail the run if our network was down, or if every source of it failed."""
    fail(batch["network_problem"])
    with ctx.store.read() as connection:
        requested = sources_by_id(connection, batch["keys"] or [])
    late = [source for source in requested.values() if not is_fresh(source, since=batch["started_at"])]
    if requested and len(late) == len(requested):
        reasons = "; ".join(why_late(source, since=batch["started_at"]) for source in late[:5])
        raise dg.Failure(f"no source succeeded. {reasons}", allow_retries=False)
    if not requested:  # otherwise some of the requested sources succeeded
        fail(all_failed(batch["counts"], "polled sources"))


def _poll_job(tier: Tier) -> dg.JobDefinition:
    @dg.job(
        name=f"poll_{tier.value}",
        tags={resources.TIER: tier.value},
        description=f"Poll the {tier.value.upper()} sources that are due: a batch, then the next.",
    )
    def poll() -> None:
        report(ingest(extract(fetch())))

    return poll


def _polled_asset(kind: Kind, asset: PolledAsset) -> dg.AssetsDefinition:
    @partitioned_asset(
        asset.name,
        of=SETS[kind],
        follows=("sources", "sources"),
        group=system_of(kind).name,
        kinds={"http", "sql"},
        description=asset.description,
    )
    def poll(sources: None) -> None:
        return report(ingest(extract(fetch(sources))))

    return poll


POLL_JOBS: dict[Tier, dg.JobDefinition] = {tier: _poll_job(tier) for tier in Tier}
POLLED_ASSETS = [_polled_asset(kind, asset) for kind, asset in POLLED.items()]
POLLED_JOBS = [ingest_job(kind, asset.name) for kind, asset in POLLED.items()]
