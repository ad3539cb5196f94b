"""The jobs `deliver_notices`, `maintain` and `add_source`."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import dagster as dg
from pydantic import Field

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.operations.retention import maintain as run_maintenance
from ingestion_pipeline.orchestration import resources
from ingestion_pipeline.orchestration.checks import CHECKS, changed_checks
from ingestion_pipeline.orchestration.contracts import changed_contracts
from ingestion_pipeline.orchestration.events import declared
from ingestion_pipeline.orchestration.health import refreshed
from ingestion_pipeline.orchestration.heartbeat import whole_run
from ingestion_pipeline.orchestration.partitions import register_keys, set_names
from ingestion_pipeline.orchestration.resources import RunContextParam
from ingestion_pipeline.registry import declared as begin_declared
from ingestion_pipeline.registry import definition_check
from ingestion_pipeline.settings.logs import key_values
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.sources.definition import TIERS, definition_of
from ingestion_pipeline.sources.file_model import BadField
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.registry import SourceExists, add

MAINTENANCE_RUNS_SECONDS = 3 * 86_400  # one run each five minutes
ENDED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_EVENTS = 500  # storage ids per statement


def delete_runs(
    instance: dg.DagsterInstance, *, before: datetime, at_most: int, job: str | None = None, dry_run: bool = False
) -> int:
    """Delete runs (of the job, if named) that ended before, oldest first; return their number.

    A run that has the newest materialization of an asset's partition stays however old it is:
    without it the partition would be shown as missing. Two callers at a time do no harm. A dry run
    only counts.
    """
    ended = dg.RunsFilter(statuses=list(ENDED), updated_before=before, job_name=job)
    newest_first = instance.get_run_ids(ended)
    if not newest_first:  # the usual case: avoid the queries below
        return 0
    kept_ids = _with_newest_materializations(instance)
    chosen = list(islice((run_id for run_id in reversed(newest_first) if run_id not in kept_ids), at_most))
    if not dry_run:
        for run_id in chosen:
            instance.delete_run(run_id)
    return len(chosen)


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


NOTICES_SHARD = "notices"  # one delivery run at a time

deliver_notices = dg.define_asset_job(
    "deliver_notices",
    selection=dg.AssetSelection.assets("notices"),
    tags={resources.SHARD: NOTICES_SHARD},
    description="Turn new chapters into notices and deliver what is due.",
)


class MaintainConfig(dg.Config):
    """Whether to run maintenance, or to count what it would do."""

    dry_run: bool = Field(default=False, description="count what each sweep would change; change nothing")


@dg.op(out=dg.Out(is_required=False))
def keep(context: dg.OpExecutionContext, config: MaintainConfig, run_context: RunContextParam) -> Iterator[Any]:
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
    """Delete old runs of all jobs, and those of `maintain` sooner: it runs every five minutes."""
    keep = ctx.settings.retention
    with ctx.store.read() as connection:
        now = ctx.store.clock.now(connection)
    seconds = {None: keep.dagster_runs_seconds, maintain.name: MAINTENANCE_RUNS_SECONDS}
    return sum(
        delete_runs(
            context.instance,
            before=now - timedelta(seconds=age),
            at_most=keep.dagster_runs_at_once,
            job=job,
            dry_run=dry_run,
        )
        for job, age in seconds.items()
    )


@dg.job(description="Maintenance: retention, tiers, checks, alerts, `source_health`.")
def maintain() -> None:
    """Run `keep`."""
    keep()


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
        default_factory=dict, description="the platform's own keys; docs/operating.md has them"
    )
    company: str | None = Field(default=None, description="for kinds that belong to a company")


# The config that the Launchpad opens with; it is refused until it is filled in.
BLANK_SOURCE: dict[str, Any] = {
    "ops": {"register": {"config": {"id": "series:NAME", "kind": "series", "url": "https://", "platform": "rss"}}}
}


def _refuse_secrets(config: Mapping[str, Any]) -> list[BadField]:
    """Refuse secrets: the Launchpad has no login, and a secret is sent where its source says."""
    if "auth" not in config:
        return []
    cure = "a source that sends a secret is declared in a file of INGESTION_SOURCES"
    return [BadField("config.auth", f"is not taken from the Launchpad; {cure}")]


@dg.op
def register(context: dg.OpExecutionContext, config: NewSource, run_context: RunContextParam) -> None:
    """Check the declaration, add the row and the partition; its first poll is due at once."""
    raw = {key: value for key, value in config.model_dump().items() if value not in (None, {})}
    definition, bad = definition_of(raw, check=definition_check(run_context.settings.sources))
    bad += _refuse_secrets(config.config)
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
    for name in set_names(definition.kind):
        register_keys(context.instance, name, [definition.id])
    metadata = declared(added, problems=0)
    context.log_event(dg.AssetMaterialization("sources", partition=added.id, metadata=metadata))
    message = "source added source=%s platform=%s; it is due now, and polled in a few seconds if the sensors run"
    if needs_detection:
        message = "source added source=%s platform=%s; its recipe is detected in a few seconds if the sensors run"
    context.log.info(message, added.id, added.platform)


@dg.job(
    config=BLANK_SOURCE, description="Add one source from the Launchpad; mistakes are listed, nothing is half-added."
)
def add_source() -> None:
    """Run `register`."""
    register()


JOBS: list[Any] = [deliver_notices, maintain, add_source]
