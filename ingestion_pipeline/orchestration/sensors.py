"""The sensors: no network, one or two indexed queries, and a reason for every tick that skips."""

import json
import warnings
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import dagster as dg

from ingestion_pipeline.catalogs.crawling.frontier import waiting_sources
from ingestion_pipeline.catalogs.crawling.runs import KINDS
from ingestion_pipeline.catalogs.recipes.registry import ensure_all, waits
from ingestion_pipeline.companies.matching.runs import are_listings_waiting
from ingestion_pipeline.companies.rescoring import is_scoring_due
from ingestion_pipeline.companies.runs import is_work_waiting as is_company_waiting
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.protocol import CrawlFilter
from ingestion_pipeline.notices.registry import declare
from ingestion_pipeline.notices.tasks import is_work_waiting
from ingestion_pipeline.operations.alerts import RUN_FAILED, beat, note_run_failure
from ingestion_pipeline.orchestration import heartbeat, resources
from ingestion_pipeline.orchestration.catalogs import (
    DETECT_SHARD,
    crawl_catalogs,
    crawl_run,
    detect_recipes,
)
from ingestion_pipeline.orchestration.companies import COMPANIES_SHARD, process_companies
from ingestion_pipeline.orchestration.events import declared
from ingestion_pipeline.orchestration.extractions import extraction_completion
from ingestion_pipeline.orchestration.jobs import NOTICES_SHARD, POLL_JOBS, deliver_notices
from ingestion_pipeline.orchestration.matches import LISTINGS_SHARD, process_listings
from ingestion_pipeline.orchestration.partitions import SETS, SOURCES, differences
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.orchestration.schedules import run_for
from ingestion_pipeline.orchestration.websites import WEBSITES_SHARD, analyze_websites
from ingestion_pipeline.registry import definition_check
from ingestion_pipeline.sources import Kind, Tier
from ingestion_pipeline.sources.files import fingerprints
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.operator_changes import import_files, partition_keys
from ingestion_pipeline.sources.scheduling.due import (
    backlog,
    census,
    new_shards,
    unscheduled_shards,
)
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.tasks.heartbeats import lost_runs
from ingestion_pipeline.websites.runs.system import begin_first
from ingestion_pipeline.websites.runs.system import is_work_waiting as is_website_waiting

# Dagster warns about a parameter that nobody passed.
warnings.filterwarnings("ignore", message="Parameter `owners`", category=dg.BetaWarning)
RUNNING = dg.DefaultSensorStatus.RUNNING
# The daemon looks at its sensors every five seconds. One that asks for just these five is passed
# over whenever a look comes a moment early, and waits ten.
AT_EVERY_LOOK_SECONDS = 3
# Counts do not tell everything (one enabled and one removed between two ticks, a key that was added
# by hand): as often as this the partitions are compared in any case.
MIRROR_MINUTES = 5
# Jobs that drain all there is of their kind, one run at a time; in the order of `drained` below.
DRAINED = (detect_recipes, process_companies, process_listings, analyze_websites)
MOST_CRAWLED = 10_000  # catalogues looked at for the shards they are in


@dg.sensor(
    name="new_sources",
    jobs=[*POLL_JOBS.values(), analyze_websites],
    minimum_interval_seconds=AT_EVERY_LOOK_SECONDS,
    default_status=RUNNING,
    description="Rows and source files become partitions, and are polled for the first time.",
)
def new_sources(
    context: dg.SensorEvaluationContext, workshop: RunContextResource
) -> dg.SensorResult | dg.SkipReason:
    """Import changed files, mirror the partitions, request one run per shard with new sources."""
    before: dict[str, Any] = json.loads(context.cursor) if context.cursor else {}
    with workshop.open() as shop:
        files = fingerprints(shop.settings.sources)
        if files != before.get("files") or _has_lost_sources(shop, before):
            _import(context, shop)
        with shop.store.read() as connection:
            total, disabled, newest = census(connection)
            now = shop.store.clock.now(connection)
        after = {
            "files": files,
            "census": [total, disabled, newest and newest.isoformat()],
            "mirrored": f"{now:%Y%m%dT%H}{now.minute // MIRROR_MINUTES:02}",
        }
        nothing = f"nothing new among {total} sources"
        if after == before:
            return dg.SkipReason(nothing)
        requests = _first_analyses(context.instance, shop, now) + _first_runs(shop, now)
        partitions = _mirror(context, shop)
        events = _declared(shop, partitions)
    return dg.SensorResult(
        run_requests=requests,
        dynamic_partitions_requests=partitions,
        asset_events=events,
        cursor=json.dumps(after),
        skip_reason=None if requests or partitions else nothing,
    )


def _has_lost_sources(shop: RunContext, before: dict[str, Any]) -> bool:
    """Whether the store holds fewer than it did: another database, or a new one."""
    with shop.store.read() as connection:
        return census(connection)[0] < before["census"][0]


def _import(context: dg.SensorEvaluationContext, shop: RunContext) -> None:
    result = import_files(
        shop.store, shop.settings.sources, check=definition_check(shop.settings.sources)
    )
    for problem in result.problems:
        context.log.warning("not imported: %s", problem)
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        ensure_all(connection, now=now)
        told = declare(connection, result.recipients, now=now)
    context.log.info("source files: %s, recipients: %s", result.registered, told)


def _first_analyses(
    instance: dg.DagsterInstance, shop: RunContext, now: datetime
) -> list[dg.RunRequest]:
    """New websites are polled here, and a run analyses them; one that works already finds them."""
    if not begin_first(shop) or _is_queued(instance, WEBSITES_SHARD, *WORKING):
        return []
    key = f"{WEBSITES_SHARD}:new:{now:%Y%m%dT%H%M%S}"
    return [dg.RunRequest(job_name=analyze_websites.name, run_key=key)]


def _first_runs(shop: RunContext, now: datetime) -> list[dg.RunRequest]:
    """One run per shard with a source that waits for its first poll, however long it is known.

    By age alone an entry that was switched on after a while would wait for its tier's next tick.
    """
    with shop.store.read() as connection:
        shards = new_shards(connection, now=now, shards=shop.settings.polling.shards)
    return [run_for(tier, shard, key=f"new:{now:%Y%m%dT%H%M%S}") for tier, shard in shards]


def _mirror(context: dg.SensorEvaluationContext, shop: RunContext) -> list[Any]:
    """Dagster's sets become what the store holds."""
    with shop.store.read() as connection:
        by_kind = partition_keys(connection, limit=shop.settings.polling.partition_limit)
    wanted = {SOURCES: [key for keys in by_kind.values() for key in keys]}
    wanted |= {SETS[kind]: by_kind.get(kind, []) for kind in Kind if kind in SETS}
    requests: list[Any] = []
    for definition, keys in wanted.items():
        known = context.instance.get_dynamic_partitions(definition.name or "")
        missing, gone = differences(keys, known)
        if missing:
            requests.append(definition.build_add_request(missing))
        if gone:
            requests.append(definition.build_delete_request(gone))
    return requests


def _declared(shop: RunContext, requests: list[Any]) -> list[dg.AssetMaterialization]:
    """A new source's declaration has been checked: its partition of `sources` is materialized.

    At most as many as a run would tell; the rest can be materialized by hand, and need not be.
    """
    added = [
        key
        for request in requests
        if isinstance(request, dg.AddDynamicPartitionsRequest)
        and request.partitions_def_name == SOURCES.name
        for key in request.partition_keys
    ]
    with shop.store.read() as connection:
        found = sources_by_id(connection, added[: shop.settings.polling.reported_events])
    return [
        dg.AssetMaterialization("sources", partition=key, metadata=declared(one, problems=0))
        for key, one in sorted(found.items())
    ]


@dg.sensor(
    name="pending_work",
    jobs=[*POLL_JOBS.values(), *DRAINED, crawl_catalogs, deliver_notices],
    minimum_interval_seconds=AT_EVERY_LOOK_SECONDS,
    default_status=RUNNING,
    description=(
        "Claimable work no schedule will remember soon: retries, what dead runs held, recipes and"
        " pages of catalogues, companies, their boards and listings, websites, and notices."
    ),
)
def pending_work(
    context: dg.SensorEvaluationContext, workshop: RunContextResource
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """At most one run a minute for each tier and shard that has such work; one for notices.

    One crawls a shard at a time: it goes on with what comes while it works.
    """
    with workshop.open() as shop, shop.store.read() as connection:
        now = shop.store.clock.now(connection)
        held_up = backlog(connection, now=now, limit=shop.settings.polling.backlog_limit)
        waiting: list[tuple[Tier, int]] = (
            []
            if held_up
            else unscheduled_shards(connection, now=now, shards=shop.settings.polling.shards)
        )
        is_news_waiting = is_work_waiting(connection, now=now)
        crawling = waiting_sources(
            connection, CrawlFilter(), now=now, limit=MOST_CRAWLED, kinds=KINDS
        )
        crawl_shards = sorted({one.shard % shop.settings.polling.shards for one in crawling})
        drained = {
            DETECT_SHARD: waits(connection, now=now),
            COMPANIES_SHARD: is_company_waiting(connection, now=now)
            or is_scoring_due(connection, shop.settings),
            LISTINGS_SHARD: are_listings_waiting(connection, shop.settings, now=now),
            WEBSITES_SHARD: is_website_waiting(connection, now=now),
        }
    if not (waiting or is_news_waiting or crawl_shards or any(drained.values())):
        yield dg.SkipReason(str(held_up or "no retry is due and no claim has expired"))
    for tier, shard in waiting:
        request = run_for(tier, shard, key=f"pending:{now:%Y%m%dT%H%M}")
        if not _is_queued(context.instance, request.tags[resources.SHARD]):
            yield request
    yield from _draining_runs(context.instance, drained, now)
    for shard in crawl_shards:
        request = crawl_run(shard, key=f"{now:%Y%m%dT%H%M}")
        if not _is_queued(context.instance, request.tags[resources.SHARD], *WORKING):
            yield request
    # One deliverer at a time finds all there is, also what comes while it works.
    if is_news_waiting and not _is_queued(context.instance, NOTICES_SHARD, *WORKING):
        yield dg.RunRequest(
            job_name=deliver_notices.name, run_key=_deliverer_key(context.instance, now)
        )


def _draining_runs(
    instance: dg.DagsterInstance, waiting: dict[str, bool], now: datetime
) -> Iterator[dg.RunRequest]:
    """One run for each of the jobs that drain everything, where work waits and none is at it."""
    for job, (shard, is_waiting) in zip(DRAINED, waiting.items(), strict=True):
        if is_waiting and not _is_queued(instance, shard, *WORKING):
            yield dg.RunRequest(job_name=job.name, run_key=f"{shard}:{now:%Y%m%dT%H%M%S}")


def _deliverer_key(instance: dg.DagsterInstance, now: datetime) -> str:
    """News is told at once; but where deliverers fail, one a minute is enough."""
    last = instance.get_runs(dg.RunsFilter(tags={resources.SHARD: NOTICES_SHARD}), limit=1)
    has_failed = bool(last) and last[0].status is dg.DagsterRunStatus.FAILURE
    return f"notices:{now:%Y%m%dT%H%M}" + ("" if has_failed else f"{now:%S}")


WORKING = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED)


def _is_queued(instance: dg.DagsterInstance, shard: str, *also: dg.DagsterRunStatus) -> bool:
    """Whether a run that will drain the shard waits already; another would find nothing."""
    waiting = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, *also]
    return (
        instance.get_runs_count(dg.RunsFilter(statuses=waiting, tags={resources.SHARD: shard})) > 0
    )


ALIVE = {dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.CANCELING}


@dg.sensor(
    name="stale_runs",
    minimum_interval_seconds=30,
    default_status=RUNNING,
    description="Runs that died without a word are reported as failed, their claims given back.",
)
def stale_runs(context: dg.SensorEvaluationContext, workshop: RunContextResource) -> dg.SkipReason:
    """A sensor needs no run slot: it works even when every slot is held by the dead.

    That it ticks is the daemon's sign of life.
    """
    with workshop.open() as shop:
        with shop.store.begin() as connection:
            beat(connection, shop.settings, now=shop.store.clock.now(connection))
        with shop.store.read() as connection:
            silent = lost_runs(connection, now=shop.store.clock.now(connection))
        for one in silent:
            run = context.instance.get_run_by_id(one.run_id)
            if run is not None and run.status in ALIVE:
                said = f"no heartbeat since {one.lease_until:%H:%M:%S} UTC"
                context.instance.report_run_failed(run, message=said)
            heartbeat.give_back(shop.store, run_id=one.run_id)
    return dg.SkipReason(f"{len(silent)} silent runs ended" if silent else "every run is alive")


@dg.run_failure_sensor(
    name="run_failures",
    default_status=RUNNING,
    minimum_interval_seconds=10,
    description=(
        "What a failed run held is claimable at once; the failure is in the audit log, and the"
        " first of a job in an hour is told."
    ),
)
def run_failures(context: dg.RunFailureSensorContext, workshop: RunContextResource) -> None:
    """Give back the run's claims and hosts."""
    run = context.dagster_run
    with workshop.open() as shop:
        freed = heartbeat.give_back(shop.store, run_id=run.run_id)
        with shop.store.begin() as connection:
            now = shop.store.clock.now(connection)
            audit(
                connection,
                actor="system",
                action=RUN_FAILED,
                subject=f"run:{run.run_id}",
                now=now,
                detail={"job": run.job_name, "freed": freed},
            )
            note_run_failure(connection, run.job_name, run_id=run.run_id, now=now)


SENSORS = [new_sources, pending_work, extraction_completion, stale_runs, run_failures]
