"""The four ops of a poll: fetch, extract, ingest, report; they pass on ids, never bodies.

The poll jobs use them to drain what is due, the assets `chapters` and `job_listings` to poll the
requested partitions, due or not.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

import dagster as dg
from sqlalchemy import Connection

from ingestion_pipeline.bootstrap import open_fetcher
from ingestion_pipeline.companies.boards.reporting import BoardReport, ListingSummary, board_reports
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.polling.fetching import PollRun, PollRunResult
from ingestion_pipeline.engine.polling.ingesting import extract_batch, ingest_batch
from ingestion_pipeline.engine.polling.results import PollCounts
from ingestion_pipeline.orchestration import heartbeat, resources
from ingestion_pipeline.orchestration.check_events import fail_if_all_failed, fail_if_network_down, network_problem
from ingestion_pipeline.orchestration.checks import POLLED_ASSETS, changed_checks, reported_checks
from ingestion_pipeline.orchestration.contracts import written_contracts
from ingestion_pipeline.orchestration.events import (
    is_fresh,
    materialization,
    moment,
    plain,
    run_numbers,
    why_late,
    with_expectations,
)
from ingestion_pipeline.orchestration.partitions import SETS, register_keys
from ingestion_pipeline.orchestration.requested import admit, requested_or_due_keys, shard_of
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.series.reporting import reports
from ingestion_pipeline.settings.logs import key_values
from ingestion_pipeline.sources import Kind, Tier
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_tasks import POLL
from ingestion_pipeline.sources.scheduling.budget import load_measurements, save_measurements
from ingestion_pipeline.sources.scheduling.due import measured_pace, pace_name
from ingestion_pipeline.sources.status import lock_sources, mark_reported, unreported
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.worker import Worker


def board_materialization(report: BoardReport) -> dg.AssetMaterialization:
    """Return the event of the board's jobs and of what happened since its last event."""
    counts = {
        "polled": report.polls,
        "changed": report.changes,
        "found": report.found,
        "new": report.new,
        "duplicate": report.duplicate,
        "updated": report.updated,
        "closed": report.closed,
        "filtered": sum(report.filtered.values()),
        "skipped": report.skipped,
        "matched": report.matched,
        "not_judged_yet": report.waiting,
    }
    metadata: dict[str, dg.MetadataValue] = {
        "outcome": dg.MetadataValue.text(report.outcome[:2_000]),
        "url": dg.MetadataValue.url(report.url),
        "tier": dg.MetadataValue.text(report.tier),
        **{name: dg.MetadataValue.int(count) for name, count in counts.items()},
        "filtered_by_reason": dg.MetadataValue.md(reason_table(report.filtered)),
        "newest": dg.MetadataValue.md(listing_table(report.newest)),
    }
    if report.company:
        metadata["company"] = dg.MetadataValue.text(report.company[:200])
    return dg.AssetMaterialization(asset_key="job_listings", partition=report.source_id, metadata=metadata)


def reason_table(reasons: Mapping[str, int]) -> str:
    """Return why jobs were filtered, the commonest reason first."""
    if not reasons:
        return "nothing was filtered"
    most_first = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    return "\n".join(["| reason | jobs |", "|---|--:|", *(f"| {plain(why)} | {n} |" for why, n in most_first)])


def listing_table(listings: Sequence[ListingSummary]) -> str:
    """Return the jobs as a Markdown table, in the order given."""
    if not listings:
        return "no jobs"
    lines = ["| job | company | where | posted (UTC) | decision | |", "|---|---|---|---|---|---|"]
    for listing in listings:
        cells = (
            plain(listing.title),
            plain(listing.company, limit=40),
            plain(listing.location, limit=40),
            moment(listing.posted_at),
            listing.decision or "",
        )
        lines.append(f"| {' | '.join(cells)} | {'**new**' if listing.is_new else ''} |")
    return "\n".join(lines)


Events = Callable[[Connection, Collection[str]], list[dg.AssetMaterialization]]


def _of_series(connection: Connection, ids: Collection[str]) -> list[dg.AssetMaterialization]:
    return [materialization(report) for report in reports(connection, ids)]


def _of_boards(connection: Connection, ids: Collection[str]) -> list[dg.AssetMaterialization]:
    return [board_materialization(report) for report in board_reports(connection, ids)]


POLLED_EVENTS: dict[Kind, Events] = {Kind.SERIES: _of_series, Kind.JOB_BOARD: _of_boards}


def polled_events(source_ids: Iterable[str]) -> list[tuple[Kind, list[str]]]:
    """Return the ids grouped by their kind, which is their prefix."""
    ids = list(source_ids)
    by_kind = [
        (kind, [source_id for source_id in ids if source_id.startswith(f"{kind.value}:")]) for kind in POLLED_EVENTS
    ]
    return [(kind, kind_ids) for kind, kind_ids in by_kind if kind_ids]


Batch = dict[str, Any]  # ids and counts, never bodies
EVENTS_AT_ONCE = 20  # an event takes 14 ms on SQLite, which blocks other writers


@dg.op(ins={"sources": dg.In(dg.Nothing)}, tags={"kind": "fetch"})
def fetch(context: dg.OpExecutionContext, run_context: RunContextResource) -> Batch:
    """Claim sources and fetch their feeds politely; store changed ones.

    Not an async op: Dagster drops the coroutine of one that is interrupted, and its claims would
    not be released. `asyncio.run` unwinds it.
    """
    example = "job_board" if context.job_name == "ingest_job_board" else "series"
    keys = requested_or_due_keys(context, resources.TIER, example)
    with run_context.open() as ctx:
        started_at = ctx.store.now()
        claim_filter = _claim_filter(context, ctx, keys)
        with heartbeat.working(ctx, run_id=context.run_id, job=context.job_name) as worker:
            fetched, requests, problem = asyncio.run(_fetch(ctx, worker, claim_filter))
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
        fetched = await PollRun(ctx, worker, fetcher).run(claim_filter)
        return fetched, fetcher.requests, network_problem(fetcher)


@dg.op(tags={"kind": "extract"})
def extract(context: dg.OpExecutionContext, run_context: RunContextResource, batch: Batch) -> Batch:
    """Parse the stored feeds; one that cannot be parsed fails its own poll."""
    counts = PollCounts(**batch["counts"])
    with run_context.open() as ctx, _working(context, ctx, batch) as worker:
        for batch_id in batch["batch_ids"]:
            counts += extract_batch(ctx, worker, batch_id)
    return {**batch, "counts": asdict(counts)}


@dg.op(tags={"kind": "ingest"})
def ingest(context: dg.OpExecutionContext, run_context: RunContextResource, batch: Batch) -> Batch:
    """Commit the parsed feeds, fenced: rows, source, task and outbox in one transaction."""
    counts = PollCounts(**batch["counts"])
    new = 0
    written: set[str] = set()
    with run_context.open() as ctx, _working(context, ctx, batch) as worker:
        for batch_id in batch["batch_ids"]:
            ingestion = ingest_batch(ctx, worker, batch_id)
            counts += ingestion.counts
            new += sum(source.new for source in ingestion.ingested)
            written |= {source.source_id for source in ingestion.ingested if source.has_written}
    return {**batch, "counts": asdict(counts), "new": new, "written": sorted(written)}


@dg.op(out=dg.Out(is_required=False), tags={"kind": "report"})
def report(context: dg.OpExecutionContext, run_context: RunContextResource, batch: Batch) -> Iterator[Any]:
    """Report each source that changed or was requested; then fail the run if all failed."""
    with run_context.open() as ctx:
        with _working(context, ctx, batch):
            yield from _materializations(context, ctx, batch)
            yield from changed_checks(context.instance, ctx, reported_checks(batch["keys"]))
            # Requested sources are reported again even if unchanged: a check must not be older.
            source_ids = sorted({*batch["written"], *(batch["keys"] or ())})
            yield from _contracts(context, ctx, source_ids)
        _record_pace(context, ctx, batch)
        heartbeat.end_run(ctx.store, run_id=context.run_id)
        yield from _numbers(context, batch)
        _fail_if_no_success(ctx, batch)


def _contracts(
    context: dg.OpExecutionContext, ctx: RunContext, source_ids: Sequence[str]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield contract evaluations of the rows of this run, by the kind of their sources."""
    for kind, ids in polled_events(source_ids):
        asset = POLLED_ASSETS[kind.value].to_user_string()
        yield from written_contracts(context.instance, ctx, [asset], ids)


def _record_pace(context: dg.OpExecutionContext, ctx: RunContext, batch: Batch) -> None:
    """Store how fast runs of this tier are, for splitting the next work into shards."""
    tier = context.run.tags.get(resources.TIER)
    if batch["keys"] is not None or tier is None:
        return
    counts = PollCounts(**batch["counts"])
    polls = counts.changed + counts.unchanged + counts.begun + counts.failed
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
        is_of_boards = context.job_name == "ingest_job_board"
        admit(context, ctx, keys, only=Kind.JOB_BOARD if is_of_boards else None)
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
            changed = unreported(connection, POLLED_EVENTS.keys(), limit=batch_ids)
            yield from _report_sources(context, ctx, connection, changed)
        if not changed:
            return


def _report_sources(
    context: dg.OpExecutionContext, ctx: RunContext, connection: Connection, source_ids: Sequence[str]
) -> Iterator[dg.AssetMaterialization]:
    for kind, ids in polled_events(source_ids):
        now = ctx.store.clock.now(connection)
        events = with_expectations(connection, POLLED_EVENTS[kind](connection, ids), now=now, settings=ctx.settings)
        register_keys(context.instance, SETS[kind].name or "", ids)
        yield from events
    mark_reported(connection, source_ids)


def _fail_if_no_success(ctx: RunContext, batch: Batch) -> None:
    """Fail the run if our network was down, or if every source of it failed."""
    fail_if_network_down(batch["network_problem"])
    with ctx.store.read() as connection:
        requested = sources_by_id(connection, batch["keys"] or [])
    late = [source for source in requested.values() if not is_fresh(source, since=batch["started_at"])]
    if requested and len(late) == len(requested):
        reasons = "; ".join(why_late(source, since=batch["started_at"]) for source in late[:5])
        raise dg.Failure(f"no source succeeded. {reasons}", allow_retries=False)
    if not requested:  # otherwise some of the requested sources succeeded
        fail_if_all_failed(batch["counts"], "polled sources")
