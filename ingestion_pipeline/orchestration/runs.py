"""Runs of Dagster: start one here, open its context, keep its heartbeat, check its keys, form its events.

A run's claims live as long as its heartbeat. The partition sets mirror the store, which is the truth about sources.
"""

import logging
import sys
import threading
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    DEFAULT_DATA_VERSION,
    NULL_EVENT_POINTER,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)
from dagster._core.errors import DagsterExecutionInterruptedError, DagsterHomeNotSetError
from dagster._core.remote_origin import ManagedGrpcPythonEnvCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster_shared.error import SerializableErrorInfo
from sqlalchemy import Connection, make_url
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from ingestion_pipeline.engine.context import MountNames, RunContext
from ingestion_pipeline.engine.poll_handler import PollCounts
from ingestion_pipeline.engine.system_spec import AssetEvent, DataTable, EventValue, Markdown, Url
from ingestion_pipeline.exports.contracts import CONTRACTS
from ingestion_pipeline.exports.export_request import RowsVersion, item_versions, rows_versions
from ingestion_pipeline.notices.subscriptions import declare as declare_recipients
from ingestion_pipeline.orchestration.mount import asset_key, set_names
from ingestion_pipeline.pages.politeness import hosts
from ingestion_pipeline.pages.politeness.hosts import repair_clock_step
from ingestion_pipeline.registry import declared as begin_declared
from ingestion_pipeline.registry import definition_check, kind_specs, systems
from ingestion_pipeline.settings.logs import logging_for
from ingestion_pipeline.sources import Kind, Source, SourceStatus
from ingestion_pipeline.sources.files import import_files
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_tasks import tier_counts
from ingestion_pipeline.sources.scheduling.tiers import REPEATED, PollingBudget, current_budget, expectation
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import Worker

# Errors are returned; Dagster's own log would also show the traceback of Ctrl-C.
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
INTERRUPT = DagsterExecutionInterruptedError.__name__
CODE_LOCATION = "ingestion_pipeline"  # as `ingest dev` and workspace.yaml name it


def run_job(definitions: dg.Definitions, name: str, *, partition_key: str | None = None) -> tuple[bool, list[str]]:
    """Run the job, of the source if it is partitioned; return whether it succeeded, and its errors.

    Raises:
        KeyboardInterrupt: the run was stopped by Ctrl-C.
    """
    try:
        instance = dg.DagsterInstance.get()
    except DagsterHomeNotSetError:
        instance = dg.DagsterInstance.ephemeral()
    with instance:
        job = definitions.resolve_job_def(name)
        # The UI lists a run under Jobs and in Timeline by its origin, which Dagster gives only to what it launches.
        listed: Any = instance
        listed.create_run_for_job = partial(instance.create_run_for_job, remote_job_origin=_origin(definitions, name))
        if partition_key is not None:
            for set_name in set_names(Kind(partition_key.partition(":")[0])):
                register_keys(instance, set_name, [partition_key])
        result = job.execute_in_process(
            instance=instance, run_config=QUIET, raise_on_error=False, partition_key=partition_key
        )
    errors = [error for event in result.all_events if (error := _error_of(event)) is not None]
    if any(_is_interrupt(error) for error in errors):
        raise KeyboardInterrupt
    return result.success, list(dict.fromkeys(map(_text_of, errors)))


def _text_of(error: SerializableErrorInfo) -> str:
    """Return the reason alone where we raised it, else everything with the stack."""
    is_ours = error.cls_name == dg.Failure.__name__
    return error.message.partition(": ")[2].strip() if is_ours else error.to_string()


def _origin(definitions: dg.Definitions, job: str) -> RemoteJobOrigin:
    target = LoadableTargetOrigin(executable_path=sys.executable, module_name=CODE_LOCATION)
    location = ManagedGrpcPythonEnvCodeLocationOrigin(target, location_name=CODE_LOCATION)
    return RemoteJobOrigin(RemoteRepositoryOrigin(location, definitions.get_repository_def().name), job)


def _error_of(event: dg.DagsterEvent) -> SerializableErrorInfo | None:
    if event.is_step_failure:
        return event.step_failure_data.error
    return event.job_failure_data.error if event.is_job_failure else None


def _is_interrupt(error: SerializableErrorInfo) -> bool:
    return error.cls_name == INTERRUPT or (error.cause is not None and _is_interrupt(error.cause))


def register_keys(instance: dg.DagsterInstance, name: str, keys: Iterable[str]) -> None:
    """Add the keys that the instance does not have; a temporary instance starts without any."""
    missing = _unknown(instance, name, keys)
    while missing:
        try:
            instance.add_dynamic_partitions(name, missing)
        except IntegrityError:
            # On SQLite Dagster selects, then inserts: another run registered one in between.
            if (still := _unknown(instance, name, missing)) == missing:
                raise
            missing = still
        else:
            return


def _unknown(instance: dg.DagsterInstance, name: str, keys: Iterable[str]) -> list[str]:
    registered = set(instance.get_dynamic_partitions(name))  # one query, however many keys
    return [key for key in dict.fromkeys(keys) if key not in registered]


def differences(expected: Collection[str], registered: Collection[str]) -> tuple[list[str], list[str]]:
    """Return which keys to add and which to remove."""
    expected, registered = set(expected), set(registered)
    return sorted(expected - registered), sorted(registered - expected)


def is_started_by_ours(run: dg.DagsterRun) -> bool:
    """Return whether the daemon, the UI or a command of ours started the run, and not `dagster job execute`."""
    return run.remote_job_origin is not None


def import_sources(ctx: RunContext, log: logging.Logger) -> None:
    """Register what the source files declare; log each mistake and what was added."""
    result = import_files(ctx.store, ctx.settings.sources, check=definition_check(ctx.settings.sources))
    for problem in result.problems:
        log.warning("not imported: %s", problem)
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        begin_declared(connection, now=now)
        # A shadow notifies nobody.
        recipients = declare_recipients(connection, () if ctx.settings.shadow else result.recipients, now=now)
    sources = result.registered
    if sources.added or sources.updated or recipients.added or recipients.updated:
        log.info(
            "source files imported sources_added=%d sources_updated=%d recipients_added=%d recipients_updated=%d",
            *(sources.added, sources.updated, recipients.added, recipients.updated),
        )


def log_polled_tiers(ctx: RunContext, job: str, log: logging.Logger) -> None:
    """Log how many active sources the job polls, and which jobs poll the others."""
    with ctx.store.read() as connection:
        counts = tier_counts(connection)
    by_job = {ctx.names.job(f"poll_{tier}"): f"{count} {tier.upper()}" for tier, count in counts.items()}
    others = ", ".join(f"{text} by {name}" for name, text in by_job.items() if name != job)
    log.info("%s polls the due ones of %s sources%s", job, by_job[job], f"; others: {others}")


PARTITION = "dagster/partition"


def register_partition(context: dg.InitResourceContext, ctx: RunContext) -> None:
    """Register the run's partition: Dagster checks it first, and no sensor may have registered it yet."""
    key = context.run.tags.get(PARTITION) if context.run else None
    if key is None or context.instance is None:
        return
    with ctx.store.read() as connection:
        sources = sources_by_id(connection, [key])
    for source in sources.values():
        for name in set_names(source.kind, ctx.names):
            register_keys(context.instance, name, [source.id])


TIER = "ingestion/tier"
SHARD = "ingestion/shard"  # tier:number, so that a cold run never blocks a hot one; or the name of a job
SHARDS = "ingestion/shards"  # number of shards, if it differs from the settings
PRIORITY = "dagster/priority"


log = logging.getLogger(__name__)


@contextmanager
def working(ctx: RunContext, *, run_id: str, job: str, owner: str | None = None) -> Generator[Worker]:
    """Yield the worker of this step; a thread renews the run and its claims meanwhile."""
    worker = Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds, owner=owner)
    lease = timedelta(seconds=ctx.settings.runs.lease_seconds)
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        repair_clock_step(connection, now=now, longest_lease=max(worker.lease, lease))
        claims.begin_run(connection, run_id=run_id, owner=worker.owner, job=job, now=now, lease=lease)
    stop = threading.Event()
    thread = threading.Thread(target=_send_heartbeats, args=(ctx, worker, run_id, stop), daemon=True)
    thread.start()
    try:
        try:
            with logging_for(run=run_id, job=job):
                yield worker
        finally:  # before claims are released: a late heartbeat would renew them
            stop.set()
            thread.join()
    except BaseException:
        release_run(ctx.store, run_id=run_id)
        raise


@contextmanager
def whole_run(ctx: RunContext, *, run_id: str, job: str) -> Generator[None]:
    """Keep a run of one step alive, and end it."""
    with working(ctx, run_id=run_id, job=job):
        yield
    end_run(ctx.store, run_id=run_id)


def _send_heartbeats(ctx: RunContext, worker: Worker, run_id: str, stop: threading.Event) -> None:
    lease = timedelta(seconds=ctx.settings.runs.lease_seconds)
    while not stop.wait(min(lease.total_seconds(), worker.lease.total_seconds()) / 3):
        try:
            with ctx.store.begin() as connection:
                now = ctx.store.clock.now(connection)
                claims.beat_run(connection, run_id=run_id, now=now, lease=lease)
            worker.renew()
        except SQLAlchemyError:  # the next heartbeat may succeed
            log.warning("heartbeat failed; the lease stays until it expires", exc_info=True)


def end_run(store: Store, *, run_id: str) -> None:
    """Mark the run as ended; it holds nothing."""
    with store.begin() as connection:
        claims.end_run(connection, run_id=run_id, now=store.clock.now(connection))


def release_run(store: Store, *, run_id: str) -> int:
    """Free the claims and hosts of a dead run; return how many claims it still had."""
    with store.begin() as connection:
        now = store.clock.now(connection)
        owner = claims.end_run(connection, run_id=run_id, now=now)
        if owner is None:
            return 0
        freed = claims.expire(connection, owner=owner, now=now)  # tasks before hosts: the lock order
        hosts.release_owner(connection, owner=owner, now=now)
        return freed


# What each asset is made from.
PARENTS: dict[str, tuple[str, ...]] = {
    **{spec.asset.name: spec.asset.after for spec in kind_specs().values() if spec.asset is not None},
    **{asset.name: (asset.after,) for system in systems() for spec in system.work for asset in spec.assets},
    "notices": ("chapters", "datasets", "job_matches"),
    "source_health": ("sources",),
}


OWN_ASSETS = {"sources", *PARENTS}


# What Dagster shows as the version of the code; of an asset that only copies rows a constant.
CODE_VERSIONS: dict[str, str] = {
    **{spec.asset.name: spec.asset.code_version for spec in kind_specs().values() if spec.asset is not None},
    **{asset.name: asset.code_version for system in systems() for spec in system.work for asset in spec.assets},
    **dict.fromkeys(("sources", "notices", "source_health"), "1"),
}


_HEALTH_WINDOW = timedelta(minutes=30)  # refreshed every five
QUIET_TIMES: dict[str, timedelta] = {
    **{spec.asset.name: timedelta(days=spec.asset.quiet_days) for spec in kind_specs().values() if spec.asset},
    **{asset.name: timedelta(days=asset.quiet_days) for system in systems() for w in system.work for asset in w.assets},
    "source_health": _HEALTH_WINDOW,
}


def versioned(spec: dg.AssetSpec) -> dg.AssetSpec:
    """Return the asset with its code version, its table, and when it counts as late: the pipeline may be dead.

    `sources` and `notices` change when somebody adds or follows one: no event of theirs is no sign.
    """
    name = spec.key.path[-1]
    if name not in CODE_VERSIONS:  # an export has its own
        return spec
    table = {"dagster/table_name": CONTRACTS[name].export} if name in CONTRACTS else {}
    spec = spec.replace_attributes(code_version=CODE_VERSIONS[name]).merge_attributes(metadata=table)
    if name not in QUIET_TIMES:
        return spec
    return dg.apply_freshness_policy(spec, dg.FreshnessPolicy.time_window(fail_window=QUIET_TIMES[name]))


def in_sync(names: MountNames, asset: str) -> dict[str, str]:
    """Return the tags by which Dagster takes the event's asset for as new as its parents.

    Without them the UI compares times, and shows "Unsynced" on whatever is older than its source's row.
    """
    tags = {CODE_VERSION_TAG: CODE_VERSIONS[asset]}
    for parent in (asset_key(names, name) for name in PARENTS[asset]):
        tags[get_input_data_version_tag(parent)] = DEFAULT_DATA_VERSION.value
        tags[get_input_event_pointer_tag(parent)] = NULL_EVENT_POINTER
    return tags


AnyEvent = dg.AssetMaterialization | dg.AssetObservation


def asset_event(event: AssetEvent, names: MountNames | None = None, version: RowsVersion | None = None) -> AnyEvent:
    """Return the event as Dagster takes it; without data it is an observation, which turns no partition green.

    With the version of its rows, Dagster knows whether they differ from those of the event before.
    """
    names = names or MountNames()
    key = asset_key(names, event.asset)
    metadata = in_order({name: metadata_value(value) for name, value in event.metadata.items()})
    if not event.has_data:
        return dg.AssetObservation(key, partition=event.partition, metadata=metadata)
    tags = in_sync(names, event.asset)
    if version is not None:
        tags[DATA_VERSION_TAG] = version.version
        metadata["dagster/partition_row_count"] = dg.MetadataValue.int(version.rows)
    return dg.AssetMaterialization(key, partition=event.partition, metadata=metadata, tags=tags)


_PREVIEWS = (dg.TableMetadataValue, dg.MarkdownMetadataValue)
_NUMBERS = (int, float, dg.IntMetadataValue, dg.FloatMetadataValue)


def in_order(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables and pictures first, then the numbers, then the rest."""

    def place(entry: tuple[str, Any]) -> int:
        return 0 if isinstance(entry[1], _PREVIEWS) else 1 if isinstance(entry[1], _NUMBERS) else 2

    return dict(sorted(metadata.items(), key=place))


def metadata_value(value: EventValue) -> EventValue:
    """Return the value in the type that the UI shows it by; Dagster knows numbers, text and JSON."""
    match value:
        case Markdown():
            return dg.MetadataValue.md(value)
        case Url():
            return dg.MetadataValue.url(value)
        case DataTable():
            schema = dg.TableSchema(columns=[dg.TableColumn(name, kind) for name, kind in value.columns.items()])
            return dg.MetadataValue.table([dg.TableRecord(dict(row)) for row in value.rows], schema=schema)
        case _:
            return value


def expected(facts: Mapping[str, Any]) -> dict[str, dg.MetadataValue]:
    """Return the poll schedule of a source as metadata: numbers to plot and a reason."""
    stated = {name: fact for name, fact in facts.items() if fact is not None}
    return {
        name: dg.MetadataValue.text(fact) if isinstance(fact, str) else dg.MetadataValue.float(float(fact))
        for name, fact in stated.items()
    }


def declared(ctx: RunContext, source: Source, *, problems: int) -> dict[str, dg.MetadataValue]:
    """Return the declaration and status of a source as metadata."""
    metadata: dict[str, dg.MetadataValue] = {
        "url": dg.MetadataValue.url(source.url),
        "tier": dg.MetadataValue.text(source.tier.value + " (pinned)" * source.tier_pinned),
        "state": dg.MetadataValue.text(source.status.value),
        "declared_in": dg.MetadataValue.text(source.origin),
        "problems": dg.MetadataValue.int(problems),
        "records": dg.MetadataValue.int(source.record_count),
        "failures_in_a_row": dg.MetadataValue.int(source.failure_count),
        "dagster/partition_row_count": dg.MetadataValue.int(1),
        **table_address(ctx, "sources"),
    }
    texts = {"platform": source.platform, "why": source.status_reason, "last_outcome": source.last_outcome}
    metadata |= {name: dg.MetadataValue.text(text) for name, text in texts.items() if text}
    moments = {"next_check": source.next_check_at, "last_success": source.last_success_at}
    metadata |= {name: dg.MetadataValue.timestamp(at) for name, at in moments.items() if at}
    return metadata


def run_numbers(counts: PollCounts, *, new: int, requests: int) -> dict[str, int]:
    """Return what a poll run did, for the page of the run."""
    polled = counts.changed + counts.unchanged + counts.started + counts.failed
    return {"polled": polled, "new": new, **asdict(counts), "requests": requests}


def is_fresh(source: Source, *, since: datetime) -> bool:
    """Return whether the source was checked successfully since then."""
    return source.last_success_at is not None and source.last_success_at >= since


def why_late(source: Source, *, since: datetime) -> str:
    """Return why the source has not succeeded since then; an older outcome is not a reason."""
    if source.last_checked_at is not None and source.last_checked_at >= since:
        return f"{source.id}: {source.last_outcome or 'failed'}"
    why = "another run has it or its host at this moment, or it waits for a retry"
    return f"{source.id}: {why}; `ingest sources show {source.id}` shows which"


def refuse_unknown(keys: Collection[str], sources: Mapping[str, Source]) -> None:
    """Fail the run if a key is no source, so that no partition is made for a typo."""
    missing = [key for key in keys if key not in sources]
    if missing:
        raise dg.Failure(
            f"there is no source {', '.join(missing[:5])}: declare it in a source file, or"
            " `ingest sources add`; `ingest sources list` shows all",
            allow_retries=False,
        )


_OFF = (SourceStatus.DISABLED, SourceStatus.PENDING_VALIDATION)


def refuse_unusable(keys: Collection[str], sources: Mapping[str, Source]) -> None:
    """Fail the run if it was requested only for sources that cannot be polled."""
    refuse_unknown(keys, sources)
    off = [source for source in sources.values() if source.status in _OFF]
    if sources and len(off) == len(sources):
        details = "; ".join(f"{source.id} ({source.status_reason or 'disabled'})" for source in off[:5])
        word = "disabled" if off[0].status is SourceStatus.DISABLED else "waiting for approval"
        raise dg.Failure(f"{word}: {details}; `ingest sources enable ID` enables one", allow_retries=False)


def with_expectations(
    ctx: RunContext, connection: Connection, events: Iterable[AssetEvent], *, now: datetime
) -> list[AnyEvent]:
    """Return the events with the poll schedule of their source, if it still exists."""
    events, prices = list(events), current_budget(connection, ctx.settings)
    versions = _data_versions(connection, events)
    sources = sources_by_id(connection, [event.partition for event in events])
    return [
        reported.with_metadata(
            in_order({**reported.metadata, **expected(_facts(source, prices, now)), **table_address(ctx, event.asset)})
        )
        if (source := sources.get(event.partition))
        else reported
        for event in events
        for reported in [asset_event(event, ctx.names, versions.get((event.asset, event.partition)))]
    ]


def table_address(ctx: RunContext, asset: str) -> dict[str, dg.MetadataValue]:
    """Return where the rows are: the database without its password, and the table."""
    if asset not in CONTRACTS:
        return {}
    database = make_url(ctx.settings.store_url).set(username=None, password=None, query={})
    return {"dagster/uri": dg.MetadataValue.text(f"{database}#{CONTRACTS[asset].export}")}


# A crawl's pages are new rows each time: Dagster takes each materialization for a new version.
_WITHOUT_VERSION = frozenset({"sources", "pages", "notices", "source_health"})


def _data_versions(connection: Connection, events: Sequence[AssetEvent]) -> dict[tuple[str, str], RowsVersion]:
    """Return the version of the rows of each event's partition; of a dataset, of its items."""
    by_asset: dict[str, list[str]] = {}
    for event in events:
        if event.has_data and event.asset not in _WITHOUT_VERSION and event.asset in CONTRACTS:
            by_asset.setdefault(event.asset, []).append(event.partition)
    versions: dict[tuple[str, str], RowsVersion] = {}
    for asset, ids in by_asset.items():
        is_dataset = asset == "datasets"
        own = item_versions(connection, ids) if is_dataset else rows_versions(connection, CONTRACTS[asset].export, ids)
        versions |= {(asset, source_id): version for source_id, version in own.items()}
    return versions


def with_current_expectations(ctx: RunContext, events: Iterable[AssetEvent]) -> list[AnyEvent]:
    """Return the events with the current poll schedule of their source."""
    with ctx.store.read() as connection:
        now = ctx.store.clock.now(connection)
        return with_expectations(ctx, connection, events, now=now)


def _facts(source: Source, prices: PollingBudget, now: datetime) -> Mapping[str, Any]:
    """Return the schedule facts; only the reason for kinds whose changes are not learned."""
    facts = expectation(source, prices, now=now)
    if source.kind not in REPEATED:
        return facts
    return {"checked_when": facts["checked_when"]}
