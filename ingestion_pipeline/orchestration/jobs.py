"""The jobs without partitions: notices, maintenance, adding sources, replays, exports, and extractions.

The sensor `extraction_completion` stands beside the op `complete` of its job.
"""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME
from pydantic import BaseModel, Field

from ingestion_pipeline.bootstrap import open_channels
from ingestion_pipeline.catalogs.catalog_runs import dataset_reports, run_action
from ingestion_pipeline.catalogs.datasets.finishing import Ended, running, update_completions, without_tasks
from ingestion_pipeline.catalogs.extraction.entity_type import BadEntityType, UnknownEntityType
from ingestion_pipeline.catalogs.extraction.source_selectors import entity_folder
from ingestion_pipeline.catalogs.extraction_reports import dataset_event, end_metadata
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.model_batches import run_model_batches
from ingestion_pipeline.engine.system_spec import preview_table
from ingestion_pipeline.exports.export_request import ITEMS, TABLES, ExportRequest
from ingestion_pipeline.exports.exporting import ExportResult, export_all_or_changes, export_published
from ingestion_pipeline.exports.formats import Format, private_folder
from ingestion_pipeline.notices.delivery import Delivered, run_deliveries
from ingestion_pipeline.notices.queries import count_notices, newest_notices
from ingestion_pipeline.operations.retention import maintain as run_maintenance
from ingestion_pipeline.orchestration import runs
from ingestion_pipeline.orchestration.assets import JOB_OF_ASSET, WORK_JOBS
from ingestion_pipeline.orchestration.checks import (
    CHECKS,
    changed_checks,
    changed_contracts,
    checks_of,
    column_schema,
    published_items,
    refreshed,
)
from ingestion_pipeline.orchestration.exports import own_assets
from ingestion_pipeline.orchestration.mount import (
    Mount,
    RunContextParam,
    asset_key,
    set_name,
    set_names,
)
from ingestion_pipeline.orchestration.runs import (
    AnyEvent,
    declared,
    in_sync,
    metadata_value,
    register_keys,
    table_address,
    whole_run,
    with_current_expectations,
)
from ingestion_pipeline.registry import declared as begin_declared
from ingestion_pipeline.registry import definition_check, requeue_dead_letters
from ingestion_pipeline.settings.logs import key_values
from ingestion_pipeline.sources import Kind, Tier
from ingestion_pipeline.sources.declarations import TIERS, BadField, definition_of
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.registry import SourceExists, add
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline.tasks.ended_tasks import DeadLetterFilter, ReplayResult, open_ids
from ingestion_pipeline.tasks.errors import ErrorClass

MAINTENANCE_RUNS_SECONDS = 3 * 86_400  # one run each five minutes
ENDED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_EVENTS = 500  # storage ids per statement


def delete_runs(
    instance: dg.DagsterInstance,
    *,
    before: datetime,
    at_most: int,
    job: str | None = None,
    assets: Collection[dg.AssetKey] | None = None,
    dry_run: bool = False,
) -> int:
    """Delete runs that ended before, oldest first; return their number.

    With a `job` only its runs; with `assets` only those that materialized nothing else.

    A run that has the newest materialization of an asset's partition stays however old it is:
    without it the partition would be shown as missing. Two callers at a time do no harm. A dry run
    only counts.
    """
    ended = dg.RunsFilter(statuses=list(ENDED), updated_before=before, job_name=job)
    newest_first = instance.get_run_ids(ended) if assets is None else _runs_of_assets(instance, ended, assets)
    if not newest_first:  # the usual case: avoid the queries below
        return 0
    kept_ids = _with_newest_materializations(instance)
    chosen = list(islice((run_id for run_id in reversed(newest_first) if run_id not in kept_ids), at_most))
    if not dry_run:
        for run_id in chosen:
            instance.delete_run(run_id)
    return len(chosen)


def _runs_of_assets(instance: dg.DagsterInstance, ended: dg.RunsFilter, assets: Collection[dg.AssetKey]) -> list[str]:
    """Return the runs that materialized some of these assets and nothing else, newest first."""
    runs = [(run.run_id, run.asset_selection or ()) for run in instance.get_runs(ended)]
    return [run_id for run_id, keys in runs if keys and all(key in assets for key in keys)]


def _with_newest_materializations(instance: dg.DagsterInstance) -> set[str]:
    """Return the runs that the asset pages show."""
    runs: set[str] = set()
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    for key in instance.all_asset_keys():
        latest = instance.get_latest_materialization_event(key)
        if latest is not None:
            runs.add(latest.run_id)
        numbers = sorted(instance.get_latest_storage_id_by_partition(key, kind).values())
        for start in range(0, len(numbers), _EVENTS):
            records_filter = dg.AssetRecordsFilter(key, storage_ids=numbers[start : start + _EVENTS])
            materializations = instance.fetch_materializations(records_filter, limit=_EVENTS)
            runs |= {record.run_id for record in materializations.records}
    return runs


SHOWN_NOTICES = 10
NOTICES_SHARD = "notices"  # one delivery run at a time
MODEL_BATCHES_JOB = "settle_model_batches"


class MaintainConfig(dg.Config):
    """Whether to run maintenance, or to count what it would do."""

    dry_run: bool = Field(default=False, description="count what each sweep would change; change nothing")


def sweep(context: dg.OpExecutionContext, config: MaintainConfig, run_context: RunContextParam) -> Iterator[Any]:
    """Run retention, tiers, health and checks; one failing sweep does not stop the others."""
    with whole_run(run_context, run_id=context.run_id, job=context.job_name):
        swept = run_maintenance(run_context, dry_run=config.dry_run)
        forgotten = _delete_old_runs(context, run_context, dry_run=config.dry_run)
        if not config.dry_run:
            yield from changed_checks(context.instance, run_context, CHECKS)
            yield from changed_contracts(context.instance, run_context)
            yield from refreshed(context.instance, run_context)
    counts = dict(swept.counts) | {"dagster_runs": forgotten}
    context.log.info("maintenance finished dry_run=%s %s", config.dry_run, key_values(counts))
    if swept.errors:
        raise dg.Failure("; ".join(swept.errors), allow_retries=False)
    yield dg.Output(None, metadata=counts)


def _delete_old_runs(context: dg.OpExecutionContext, ctx: RunContext, *, dry_run: bool) -> int:
    """Delete old runs of our jobs and assets, and those of `maintain` sooner: it runs every five minutes."""
    keep = ctx.settings.retention
    with ctx.store.read() as connection:
        now = ctx.store.clock.now(connection)
    deleted = 0
    own_keys = {asset_key(ctx.names, asset) for asset in own_assets(ctx.settings)}
    for job in (*sorted(own_jobs()), IMPLICIT_ASSET_JOB_NAME):
        is_of_assets = job == IMPLICIT_ASSET_JOB_NAME
        age = MAINTENANCE_RUNS_SECONDS if job == "maintain" else keep.dagster_runs_seconds
        deleted += delete_runs(
            context.instance,
            before=now - timedelta(seconds=age),
            at_most=keep.dagster_runs_at_once - deleted,
            job=job if is_of_assets else ctx.names.job(job),
            assets=own_keys if is_of_assets else None,
            dry_run=dry_run,
        )
    return deleted


def own_jobs() -> set[str]:
    """Return the names of our jobs, without a prefix."""
    return {*(f"poll_{tier.value}" for tier in Tier), *WORK_JOBS, *STEP_JOBS, MODEL_BATCHES_JOB, *JOB_OF_ASSET.values()}


class NewSource(dg.Config):
    """A source, as in a source file."""

    id: str = Field(description="kind:name of a-z 0-9 : . _ -; the partition key; never changes")
    kind: str = Field(description=f"one of {', '.join(Kind)}; the prefix of the id")
    url: str = Field(description="what is polled: http or https, without credentials")
    platform: str | None = Field(
        default=None, description="its platform, such as rss; by default recognised by the URL"
    )
    series: str | None = Field(
        default=None, description="the series it belongs to, one for all its sources; else the id's name"
    )
    name: str | None = Field(default=None, description="for people; the title of a new series")
    tier: str | None = Field(default=None, description=f"one of {', '.join(TIERS)}; auto adapts")
    config: dict[str, Any] = Field(
        default_factory=dict, description="the platform's own keys; docs/sources.md has them"
    )
    company: str | None = Field(default=None, description="for kinds that belong to a company")


# The config that the Launchpad opens with; it is refused until it is filled in.
BLANK_SOURCE: dict[str, Any] = {"id": "series:NAME", "kind": "series", "url": "https://", "platform": "rss"}


def register(context: dg.OpExecutionContext, config: NewSource, run_context: RunContextParam) -> None:
    """Check the declaration, add the row and the partition; its first poll is due at once."""
    raw = {key: value for key, value in config.model_dump().items() if value not in (None, {})}
    definition, bad = definition_of(raw, check=definition_check(run_context.settings.sources))
    if "auth" in config.config:  # the Launchpad has no login, and a secret is sent where its source says
        cure = "a source that sends a secret is declared in a file of INGESTION_SOURCES"
        bad += [BadField("config.auth", f"is not taken from the Launchpad; {cure}")]
    if definition is None or bad:
        message = "\n".join(f"{problem.field}: {problem.message}" for problem in bad)
        raise dg.Failure(f"the source was not added:\n{message}", allow_retries=False)
    try:
        with (
            whole_run(run_context, run_id=context.run_id, job=context.job_name),
            run_context.store.begin() as connection,
        ):
            now = run_context.store.clock.now(connection)
            add(connection, definition, actor="dagster", now=now)
            needs_detection = begin_declared(connection, [definition.id], now=now)
            added = sources_by_id(connection, [definition.id])[definition.id]
    except SourceExists as error:
        raise dg.Failure(f"the source was not added:\n{error}", allow_retries=False) from error
    for name in set_names(definition.kind, run_context.names):
        register_keys(context.instance, name, [definition.id])
    key = asset_key(run_context.names, "sources")
    metadata = declared(run_context, added, problems=0)
    context.log_event(dg.AssetMaterialization(key, partition=added.id, metadata=metadata))
    next_step = "its recipe is detected" if needs_detection else "it is due now, and polled"
    message = "source added source=%s platform=%s; %s in a few seconds if the sensors run"
    context.log.info(message, added.id, added.platform, next_step)


def _notices_asset(mount: Mount) -> dg.AssetsDefinition:
    """Return the asset of the notices."""
    return dg.asset(
        key=mount.key("notices"),
        kinds={"http", "sql"},
        deps=[mount.key(parent) for parent in runs.PARENTS["notices"]],
        description=(
            "Notices and their delivery, each sent once. Materializing turns new chapters into notices"
            " and delivers what is due: by webhook, mail or your own services, within the limits of"
            " each recipient. Refreshed by the job `deliver_notices`, which the sensor `pending_work` starts."
        ),
        metadata={"dagster/column_schema": column_schema("notices")},
        io_manager_key=mount.io_key,
        **mount.attributes("notices"),
    )(mount.bound(notices))


def notices(context: dg.AssetExecutionContext, run_context: RunContextParam) -> dg.MaterializeResult:
    """Expand and deliver; a recipient that cannot be reached does not fail the run."""
    run = context.run
    with runs.working(run_context, run_id=run.run_id, job=run.job_name) as worker:
        done = asyncio.run(_deliver(run_context, worker))
    runs.end_run(run_context.store, run_id=run.run_id)
    with run_context.store.read() as connection:
        left, newest = count_notices(connection), newest_notices(connection, limit=SHOWN_NOTICES)
    context.log.info("delivery finished %s", key_values(asdict(done)))
    counts = {
        "expanded": done.expanded.notices,
        "muted": done.expanded.muted,
        "messages": done.messages,
        "sent": done.sent,
        "retried": done.retried,
        "failed": done.failed,
        "pending": left["pending"],
        "failed_in_all": left["failed"],
    }
    metadata: dict[str, Any] = {"newest": metadata_value(preview_table(newest))} if newest else {}
    metadata |= counts | {"dagster/row_count": sum(left.values())} | table_address(run_context, "notices")
    if done.delay_seconds is not None:
        metadata["median_delay_seconds"] = round(done.delay_seconds, 1)
    return dg.MaterializeResult(metadata=metadata, tags=in_sync(run_context.names, "notices"))


async def _deliver(ctx: RunContext, worker: Worker) -> Delivered:
    async with open_channels(ctx.settings) as channels:
        return await run_deliveries(ctx, worker, channels)


def settle_batches(context: dg.OpExecutionContext, run_context: RunContextParam) -> None:
    """Send and settle the batches of questions that are due."""
    with runs.working(run_context, run_id=context.run_id, job=context.job_name) as worker:
        counts = asyncio.run(run_model_batches(run_context, worker))
    runs.end_run(run_context.store, run_id=context.run_id)
    context.log.info("batches of questions finished %s", key_values(counts))


CLASSES = [error_class.value for error_class in ErrorClass]
SHOWN = 50  # of the table; the log has them all


class Replay(dg.Config):
    """Which dead letters to replay: by ids, or all open ones of a class, a source, or both."""

    ids: list[int] = Field(default_factory=list, description="as `ingest dead-letters list` shows")
    error_class: str = Field(default="", description=f"all open ones of it: {', '.join(CLASSES)}")
    source: str = Field(default="", description="all open ones of it: a source's id")
    dry_run: bool = Field(default=False, description="only report what would happen to each")
    actor: str = Field(default="dagster", description="actor for the audit log")


# The config that the Launchpad opens with: a dry run.
CAREFUL: dict[str, Any] = {"error_class": "transient", "dry_run": True}


def replay(context: dg.OpExecutionContext, config: Replay, run_context: RunContextParam) -> None:
    """Requeue the work of each dead letter; one that cannot run again stays open with a reason."""
    with whole_run(run_context, run_id=context.run_id, job=context.job_name):
        try:
            done = _replayed(run_context, config)
        except (LookupError, ValueError) as error:
            raise dg.Failure(f"nothing was replayed: {error}", allow_retries=False) from error
    for outcome in done:
        context.log.info("dead letter %d: %s", outcome.dead_letter_id, outcome.outcome)
    again = sum(outcome.runs_again for outcome in done)
    verb = "to replay" if config.dry_run else "replayed"
    context.log.info("%d dead letters %s, %d left open", again, verb, len(done) - again)
    context.add_output_metadata(
        {
            "to_replay" if config.dry_run else "replayed": again,
            "left_open": len(done) - again,
            "dead_letters": dg.MetadataValue.md(_table(done)),
        }
    )


def _replayed(ctx: RunContext, config: Replay) -> list[ReplayResult]:
    chosen = DeadLetterFilter(error_class=config.error_class or None, source_id=config.source or None)
    if bool(config.ids) == (chosen != DeadLetterFilter()):
        raise ValueError("select dead letters: either `ids`, or `error_class` and/or `source`")
    if chosen.error_class not in (None, *CLASSES):
        raise ValueError(f"error_class: {config.error_class!r} is none of {', '.join(CLASSES)}")
    ids = config.ids
    if not ids:
        with ctx.store.read() as connection:
            ids = open_ids(connection, chosen)
    return list(requeue_dead_letters(ctx.store, ids, actor=config.actor, dry_run=config.dry_run))


def _table(done: list[ReplayResult]) -> str:
    rows = [f"| {replayed.dead_letter_id} | {replayed.outcome} |" for replayed in done[:SHOWN]]
    more = [f"\n{len(done) - SHOWN} more are in the log"] if len(done) > SHOWN else []
    return "\n".join(["| dead letter | outcome |", "|---:|---|", *rows, *more])


LISTED = 100  # files in the metadata; the log has all


class Export(dg.Config):
    """What is written; by default every table and dataset, as Parquet."""

    format: str = Field(default=Format.PARQUET.value, description=f"one of {', '.join(Format)}")
    sources: list[str] = Field(
        default_factory=list, description="ids of sources; none: all that have a published dataset"
    )
    evidence: bool = Field(default=False, description="also columns with the evidence of each field")
    names: list[str] = Field(
        default_factory=list,
        description="what is exported, as for `ingest export`; none: every table that has rows, and"
        " every published dataset (with `sources` only these)",
    )
    since_last: bool = Field(default=False, description="only changes since the last export, into new files")


def write_datasets(context: dg.OpExecutionContext, config: Export, run_context: RunContextParam) -> dg.Output[None]:
    """Write all rows, or those that changed; each file is replaced atomically."""
    try:
        form = Format(config.format)
    except ValueError as error:
        problem = f"there is no format {config.format!r}; there are: {', '.join(Format)}"
        raise dg.Failure(problem, allow_retries=False) from error
    with whole_run(run_context, run_id=context.run_id, job=context.job_name):
        try:
            written = list(_written(run_context, config, form))
        except (LookupError, ValueError, UnknownEntityType, BadEntityType) as error:
            raise dg.Failure(str(error), allow_retries=False) from error
    for exported in written:
        context.log.info("file exported path=%s rows=%s", exported.path, exported.rows)
    if not written:
        context.log.info("nothing to export; no file written")
    return dg.Output(None, metadata=_metadata(written))


def _written(ctx: RunContext, config: Export, form: Format) -> Iterator[ExportResult]:
    """Export the tables, then the datasets; a table without rows gives no file."""
    folder = private_folder(ctx.settings.home / "exports")
    entities = entity_folder(ctx.settings)
    everything = [*TABLES, ITEMS] if not config.sources else [ITEMS]
    for name in config.names or everything:
        if name == ITEMS and not config.since_last:
            yield from export_published(
                ctx.store,
                folder,
                form,
                source_ids=config.sources,
                evidence=config.evidence,
                entities=entities,
                honours_rights=ctx.settings.rights.honour,
            )
            continue
        for source_id in config.sources or [None]:
            evidence = config.evidence and name not in TABLES
            request = ExportRequest(
                name=name,
                source_id=source_id,
                evidence=evidence,
                entities=entities,
                honours_rights=ctx.settings.rights.honour,
            )
            exported = export_all_or_changes(ctx.store, request, form, folder, since_last=config.since_last)
            if exported is not None:
                yield exported


def _metadata(written: list[ExportResult]) -> dict[str, dg.MetadataValue]:
    columns = {"source": "string", "version": "int", "rows": "int", "path": "string"}
    schema = dg.TableSchema(columns=[dg.TableColumn(name, kind) for name, kind in columns.items()])
    records: list[dg.TableRecord] = []
    for exported in written[:LISTED]:
        dataset = exported.datasets[0] if exported.datasets else None
        values = (dataset and dataset.source_id, dataset and dataset.version, exported.rows, str(exported.path))
        records.append(dg.TableRecord(dict(zip(columns, values, strict=True))))
    return {
        "files": dg.MetadataValue.int(len(written)),
        "rows": dg.MetadataValue.int(sum(exported.rows for exported in written)),
        "written": dg.MetadataValue.table(records, schema=schema),
    }


TICK_SECONDS = 15  # an extraction is published within a minute of its last page
PROGRESS_SECONDS = 600  # between two checks of extractions whose pages still wait
WAITING = (
    *(dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED),
    *(dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED),
)


def complete(context: dg.OpExecutionContext, run_context: RunContextParam) -> Iterator[Any]:
    """Update the counts of running extractions, finish those that are done, and report."""
    with whole_run(run_context, run_id=context.run_id, job=context.job_name):
        done = update_completions(run_context)
        yield from reported(context, run_context, done.ended)
        yield from changed_checks(context.instance, run_context, checks_of("datasets"))
        ids = [extraction.source_id for extraction in done.ended if extraction.dataset is not None]
        yield from published_items(context.instance, run_context, ids)
    numbers = {"running": done.running, "changed": done.changed, "ended": len(done.ended)}
    context.log.info("completion run finished %s", key_values(numbers))
    yield dg.Output(None, metadata=numbers)


def reported(context: dg.OpExecutionContext, ctx: RunContext, ended: Sequence[Ended]) -> Iterator[AnyEvent]:
    """Yield an event of `datasets` for each extraction that has just finished."""
    register_keys(context.instance, set_name(ctx.names, Kind.CATALOG), [extraction.source_id for extraction in ended])
    for extraction in ended:
        context.log.info(
            "extraction finished extraction=%s source=%s status=%s",
            extraction.id,
            extraction.source_id,
            extraction.status.value,
        )
        reports, more = dataset_reports(ctx, [extraction.source_id]), end_metadata(extraction)
        yield from with_current_expectations(ctx, [dataset_event(report, more) for report in reports])


class Control(dg.Config):
    """The action, and the extraction it applies to."""

    action: str = Field(description="start (a source); cancel, resume, retry, rerun, accept (an extraction)")
    extraction: int | None = Field(default=None, description="its id, as `ingest extractions list` shows it")
    source: str | None = Field(default=None, description="for start: the source's id")
    dry_run: bool = Field(default=False, description="for rerun: only report pages, model calls and cost")
    publish: bool = Field(
        default=False, description="for rerun: publish it even if a later crawl's dataset is published"
    )
    actor: str = Field(default="dagster", description="actor for the audit log")


# The config that the Launchpad opens with; it is refused until it is filled in.
BLANK_CONTROL: dict[str, Any] = {"action": "resume", "extraction": 0, "actor": "dagster"}


def control(context: dg.OpExecutionContext, config: Control, run_context: RunContextParam) -> None:
    """Run the action, or fail with the reason; nothing is half-done."""
    with whole_run(run_context, run_id=context.run_id, job=context.job_name):
        try:
            outcome = run_action(run_context, **config.model_dump())
        except (LookupError, ValueError) as error:
            raise dg.Failure(f"nothing was changed: {error}", allow_retries=False) from error
    context.log.info("%s", outcome)
    context.add_output_metadata({"done": outcome})


def extraction_completion(
    context: dg.SensorEvaluationContext, run_context: RunContextParam
) -> dg.SensorResult | dg.SkipReason:
    """Request a run when an extraction may finish, or when progress was not counted for ten minutes.

    One that does not finish then is checked after its quiet time, and every ten minutes: a check changes nothing
    while pages are left without a task.
    """
    with run_context.store.read() as connection:
        now, count = run_context.store.clock.now(connection), len(running(connection))
        may_finish = without_tasks(connection)
    if not count:
        return dg.SkipReason("no extraction is running")
    looking = dg.RunsFilter(job_name=run_context.names.job("complete_extractions"), statuses=list(WAITING))
    if context.instance.get_runs_count(looking):
        return dg.SkipReason("a run is checking them already")
    before = _Requested.model_validate_json(context.cursor) if context.cursor else None
    after = _next_check(before, may_finish, now=now, quiet_seconds=run_context.settings.extraction.quiet_seconds)
    if after.at != now:
        reason = f"{count} running extractions were checked, and are checked again within ten minutes"
        return dg.SensorResult(skip_reason=reason, cursor=after.model_dump_json())
    request = dg.RunRequest(run_key=f"completion:{now:%Y%m%dT%H%M%S}")
    return dg.SensorResult(run_requests=[request], cursor=after.model_dump_json())


class _Requested(BaseModel):
    """The last run that the sensor requested, and the extractions without tasks: when one was last added to them."""

    at: datetime
    may_finish: list[int]
    since: datetime


def _next_check(before: _Requested | None, may_finish: list[int], *, now: datetime, quiet_seconds: float) -> _Requested:
    """Return the request that is due now, else the last one."""
    if before is None or set(may_finish) - set(before.may_finish):
        return _Requested(at=now, may_finish=may_finish, since=now)
    quiet_at = before.since + timedelta(seconds=quiet_seconds)
    is_quiet = bool(may_finish) and before.at < quiet_at <= now
    is_due = is_quiet or now - before.at >= timedelta(seconds=PROGRESS_SECONDS)
    return _Requested(at=now if is_due else before.at, may_finish=may_finish, since=before.since)


STEP_JOBS: dict[str, dict[str, Any]] = {  # the jobs of one op, by name
    "maintain": {
        "function": sweep,
        "is_required": False,
        "description": "Maintenance: retention, tiers, checks, alerts, `source_health`.",
    },
    "add_source": {
        "function": register,
        "config": BLANK_SOURCE,
        "description": "Add one source from the Launchpad; mistakes are listed, nothing is half-added.",
    },
    "replay_dead_letters": {
        "function": replay,
        "config": CAREFUL,
        "description": (
            "Queue failed work again, by ids, error class or source. The default config is a dry"
            " run of the transient ones: it reports what would happen, and changes nothing."
        ),
    },
    "export_datasets": {
        "function": write_datasets,
        "description": "Write every table and published dataset to a file in INGESTION_HOME/exports.",
    },
    "complete_extractions": {
        "function": complete,
        "is_required": False,
        "tags": {"kind": "complete"},
        "description": "Update the counts of extractions, finish those that are done, and report them.",
    },
    "control_extraction": {
        "function": control,
        "config": BLANK_CONTROL,
        "description": (
            "Start, cancel, resume, retry, rerun or publish an extraction from the Launchpad;"
            " audited with the actor, and refused with the cure if it is not possible."
        ),
    },
}


def job_definitions(mount: Mount) -> dg.Definitions:
    """Return the asset `notices`, and the jobs without partitions."""
    deliver_notices = mount.asset_job(
        "deliver_notices",
        "notices",
        has_checks=True,
        tags={runs.SHARD: mount.names.job(NOTICES_SHARD)},
        description="Turn new chapters into notices and deliver what is due.",
    )
    settle_model_batches = mount.step_job(
        MODEL_BATCHES_JOB,
        settle_batches,
        run_tags={runs.SHARD: mount.names.job(MODEL_BATCHES_JOB)},
        description="Send the questions that wait for half the price, and store the answers of their batches.",
    )
    others = [mount.step_job(name, **options) for name, options in STEP_JOBS.items()]
    return dg.Definitions(assets=[_notices_asset(mount)], jobs=[deliver_notices, settle_model_batches, *others])
