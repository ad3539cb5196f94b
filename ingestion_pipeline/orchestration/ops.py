"""The four ops of a poll: fetch, extract, ingest, report. Each takes, calls, passes ids on.

The same ops serve the poll jobs, which drain what is due, and the assets `chapters` and
`job_listings`, which poll the partitions they were asked for, due or not.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

import dagster as dg
from sqlalchemy import Connection

from ingestion_pipeline.bootstrap import open_fetcher
from ingestion_pipeline.companies.boards.reporting import BoardReport, ShownListing, board_reports
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.polling.fetching import Fetching, FetchSlice
from ingestion_pipeline.engine.polling.ingesting import extract_batch, ingest_batch
from ingestion_pipeline.engine.polling.results import PollCounts
from ingestion_pipeline.orchestration import heartbeat, resources
from ingestion_pipeline.orchestration.check_events import (
    fail_if_all_failed,
    fail_if_network_down,
    network_problem,
)
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
from ingestion_pipeline.orchestration.requested import admit, asked_or_due, shard_of
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.series.reporting import reports
from ingestion_pipeline.sources import Kind, Tier
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_tasks import POLL
from ingestion_pipeline.sources.scheduling.budget import tune, tuned
from ingestion_pipeline.sources.scheduling.due import measured_pace, pace_name
from ingestion_pipeline.sources.status import lock_sources, mark_reported, unreported
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.worker import Worker


def board_materialization(report: BoardReport) -> dg.AssetMaterialization:
    """The board's jobs as they stand, and what happened since the last event of its own."""
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
    return dg.AssetMaterialization(
        asset_key="job_listings", partition=report.source_id, metadata=metadata
    )


def reason_table(reasons: Mapping[str, int]) -> str:
    """Why jobs were filtered, the commonest reason first."""
    if not reasons:
        return "nothing was filtered"
    most_first = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    return "\n".join(
        ["| reason | jobs |", "|---|--:|", *(f"| {plain(why)} | {n} |" for why, n in most_first)]
    )


def listing_table(listings: Sequence[ShownListing]) -> str:
    """The jobs as a Markdown table, in the order given."""
    if not listings:
        return "no jobs"
    lines = ["| job | company | where | posted (UTC) | verdict | |", "|---|---|---|---|---|---|"]
    for one in listings:
        cells = (
            plain(one.title),
            plain(one.company, limit=40),
            plain(one.location, limit=40),
            moment(one.posted_at),
            one.verdict or "",
        )
        lines.append(f"| {' | '.join(cells)} | {'**new**' if one.is_new else ''} |")
    return "\n".join(lines)


Events = Callable[[Connection, Collection[str]], list[dg.AssetMaterialization]]


def _of_series(connection: Connection, ids: Collection[str]) -> list[dg.AssetMaterialization]:
    return [materialization(one) for one in reports(connection, ids)]


def _of_boards(connection: Connection, ids: Collection[str]) -> list[dg.AssetMaterialization]:
    return [board_materialization(one) for one in board_reports(connection, ids)]


POLLED_EVENTS: dict[Kind, Events] = {Kind.SERIES: _of_series, Kind.JOB_BOARD: _of_boards}


def polled_events(source_ids: Iterable[str]) -> list[tuple[Kind, list[str]]]:
    """The ids by their kind, which each begins with."""
    ids = list(source_ids)
    by_kind = [
        (kind, [one for one in ids if one.startswith(f"{kind.value}:")]) for kind in POLLED_EVENTS
    ]
    return [(kind, some) for kind, some in by_kind if some]


Batch = dict[str, Any]  # ids and counts, never bodies
TOLD_AT_ONCE = 20  # an event takes 14 ms on SQLite, and so long no other run can write


@dg.op(ins={"sources": dg.In(dg.Nothing)}, tags={"kind": "fetch"})
def fetch(context: dg.OpExecutionContext, workshop: RunContextResource) -> Batch:
    """Claim sources and fetch their listings politely; changed ones go into the content store.

    Not an async op: Dagster drops the coroutine of one that is interrupted, and nothing that it
    holds would be given back. `asyncio.run` unwinds it.
    """
    example = "job_board" if context.job_name == "ingest_job_board" else "series"
    keys = asked_or_due(context, resources.TIER, example)
    with workshop.open() as shop:
        started_at = shop.store.now()
        wanted = _wanted(context, shop, keys)
        with heartbeat.working(shop, run_id=context.run_id, job=context.job_name) as worker:
            fetched, requests, problem = asyncio.run(_fetch(shop, worker, wanted))
    context.log.info("fetched: %s", asdict(fetched.counts))
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


async def _fetch(
    shop: RunContext, worker: Worker, wanted: ClaimFilter
) -> tuple[Fetching, int, str | None]:
    """Return what was fetched, by how many requests, and the outage of ours that ended it."""
    async with open_fetcher(shop.settings) as fetcher:
        fetched = await FetchSlice(shop, worker, fetcher).run(wanted)
        return fetched, fetcher.requests, network_problem(fetcher)


@dg.op(tags={"kind": "extract"})
def extract(context: dg.OpExecutionContext, workshop: RunContextResource, batch: Batch) -> Batch:
    """Read the stored listings; what cannot be read fails its own poll."""
    counts = PollCounts(**batch["counts"])
    with workshop.open() as shop, _working(context, shop, batch) as worker:
        for batch_id in batch["batch_ids"]:
            counts += extract_batch(shop, worker, batch_id)
    return {**batch, "counts": asdict(counts)}


@dg.op(tags={"kind": "ingest"})
def ingest(context: dg.OpExecutionContext, workshop: RunContextResource, batch: Batch) -> Batch:
    """Commit the readings, fenced: rows, source, task and outbox in one transaction."""
    counts = PollCounts(**batch["counts"])
    new = 0
    written: set[str] = set()
    with workshop.open() as shop, _working(context, shop, batch) as worker:
        for batch_id in batch["batch_ids"]:
            ingestion = ingest_batch(shop, worker, batch_id)
            counts += ingestion.counts
            new += sum(one.new for one in ingestion.ingested)
            written |= {one.source_id for one in ingestion.ingested if one.has_written}
    return {**batch, "counts": asdict(counts), "new": new, "written": sorted(written)}


@dg.op(out=dg.Out(is_required=False), tags={"kind": "report"})
def report(
    context: dg.OpExecutionContext, workshop: RunContextResource, batch: Batch
) -> Iterator[Any]:
    """One materialization per source that changed or was asked for; then the run's verdict."""
    with workshop.open() as shop:
        with _working(context, shop, batch):
            yield from _materializations(context, shop, batch)
            yield from changed_checks(context.instance, shop, reported_checks(batch["keys"]))
            # What was asked for is told again though nothing was written: no check may be older.
            told = sorted({*batch["written"], *(batch["keys"] or ())})
            yield from _contracts(context, shop, told)
        _remember_pace(context, shop, batch)
        heartbeat.end(shop.store, run_id=context.run_id)
        yield from _numbers(context, batch)
        _pass_verdict(shop, batch)


def _contracts(
    context: dg.OpExecutionContext, shop: RunContext, source_ids: Sequence[str]
) -> Iterator[dg.AssetCheckEvaluation]:
    """What the rows of this run say of their contracts, by the kind of their sources."""
    for kind, ids in polled_events(source_ids):
        asset = POLLED_ASSETS[kind.value].to_user_string()
        yield from written_contracts(context.instance, shop, [asset], ids)


def _remember_pace(context: dg.OpExecutionContext, shop: RunContext, batch: Batch) -> None:
    """How fast runs of this tier are, for whoever parts the next work."""
    tier = context.run.tags.get(resources.TIER)
    if batch["keys"] is not None or tier is None:
        return
    counts = PollCounts(**batch["counts"])
    polls = counts.changed + counts.unchanged + counts.begun + counts.failed
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        before = tuned(connection).get(pace_name(tier))
        seconds = (now - batch["started_at"]).total_seconds()
        pace = measured_pace(before, polls=polls, seconds=seconds)
        if pace is not None and pace != before:
            tune(connection, {pace_name(tier): pace}, now=now)


def _numbers(context: dg.OpExecutionContext, batch: Batch) -> Iterator[dg.Output[None]]:
    """The run's numbers, on its page; an output of the asset's would be a materialization more."""
    counts = PollCounts(**batch["counts"])
    numbers = run_numbers(counts, new=batch["new"], requests=batch["requests"])
    context.log.info("%s", ", ".join(f"{name} {count}" for name, count in numbers.items()))
    if batch["keys"] is None:
        yield dg.Output(None, metadata=numbers)


def _wanted(
    context: dg.OpExecutionContext, shop: RunContext, keys: list[str] | None
) -> ClaimFilter:
    if keys is not None:
        is_of_boards = context.job_name == "ingest_job_board"
        admit(context, shop, keys, only=Kind.JOB_BOARD if is_of_boards else None)
        return ClaimFilter(kind=POLL, source_ids=keys)
    return ClaimFilter(
        kind=POLL,
        priority=Tier(context.run.tags[resources.TIER]).priority,
        shard=shard_of(context),
        shards=int(context.run.tags.get(resources.SHARDS) or shop.settings.polling.shards),
    )


def _working(
    context: dg.OpExecutionContext, shop: RunContext, batch: Batch
) -> AbstractContextManager[Worker]:
    return heartbeat.working(
        shop, run_id=context.run_id, job=context.job_name, owner=batch["owner"]
    )


def _materializations(
    context: dg.OpExecutionContext, shop: RunContext, batch: Batch
) -> Iterator[dg.AssetMaterialization]:
    """Of what was asked for and succeeded; of a poll's, everything changed and not told yet.

    Told and marked in one transaction, a few at a time: two runs that report at the same moment
    tell of no change twice, and what changes meanwhile is not taken for told.
    """
    if batch["keys"] is not None:
        with shop.store.read() as connection:
            asked = sources_by_id(connection, batch["keys"]).values()
        fresh = sorted(one.id for one in asked if is_fresh(one, since=batch["started_at"]))
        for start in range(0, len(fresh), TOLD_AT_ONCE):
            with shop.store.begin() as connection:
                some = fresh[start : start + TOLD_AT_ONCE]
                lock_sources(connection, some)
                yield from _tell(context, shop, connection, some)
        return
    limit = shop.settings.polling.reported_events
    for told in range(0, limit, TOLD_AT_ONCE):
        with shop.store.begin() as connection:
            some = min(TOLD_AT_ONCE, limit - told)
            changed = unreported(connection, POLLED_EVENTS.keys(), limit=some)
            yield from _tell(context, shop, connection, changed)
        if not changed:
            return


def _tell(
    context: dg.OpExecutionContext,
    shop: RunContext,
    connection: Connection,
    source_ids: Sequence[str],
) -> Iterator[dg.AssetMaterialization]:
    for kind, ids in polled_events(source_ids):
        now = shop.store.clock.now(connection)
        found = with_expectations(
            connection, POLLED_EVENTS[kind](connection, ids), now=now, settings=shop.settings
        )
        register_keys(context.instance, SETS[kind].name or "", ids)
        yield from found
    mark_reported(connection, source_ids)


def _pass_verdict(shop: RunContext, batch: Batch) -> None:
    """Fail the run if our network was down, or if every source of it failed."""
    fail_if_network_down(batch["network_problem"])
    with shop.store.read() as connection:
        asked = sources_by_id(connection, batch["keys"] or [])
    late = [one for one in asked.values() if not is_fresh(one, since=batch["started_at"])]
    if asked and len(late) == len(asked):
        said = "; ".join(why_late(one, since=batch["started_at"]) for one in late[:5])
        raise dg.Failure(f"no source got through. {said}", allow_retries=False)
    if not asked:  # of those asked for some got through
        fail_if_all_failed(batch["counts"], "polled sources")
