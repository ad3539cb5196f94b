"""The jobs `complete_extractions` and `control_extraction`, and the completion sensor."""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from ingestion_pipeline.catalogs.catalog_runs import dataset_reports, start_now
from ingestion_pipeline.catalogs.datasets.completion import update_completions
from ingestion_pipeline.catalogs.datasets.finishing import Ended
from ingestion_pipeline.catalogs.datasets.progress import running
from ingestion_pipeline.catalogs.extraction_reports import dataset_event, end_metadata
from ingestion_pipeline.catalogs.operations import control
from ingestion_pipeline.catalogs.operations.rerun import predict_rerun, rerun
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration.checks import changed_checks, checks_of, published_items
from ingestion_pipeline.orchestration.events import with_current_expectations
from ingestion_pipeline.orchestration.heartbeat import whole_run
from ingestion_pipeline.orchestration.resources import SETS, RunContextParam, register_keys
from ingestion_pipeline.settings.logs import key_values
from ingestion_pipeline.sources import Kind

TICK_SECONDS = 120  # as documented
WAITING = (
    *(dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED),
    *(dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED),
)


@dg.op(out=dg.Out(is_required=False), tags={"kind": "complete"})
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


def reported(
    context: dg.OpExecutionContext, ctx: RunContext, ended: Sequence[Ended]
) -> Iterator[dg.AssetMaterialization]:
    """Yield an event of `datasets` for each extraction that has just finished."""
    register_keys(context.instance, SETS[Kind.CATALOG].name or "", [extraction.source_id for extraction in ended])
    for extraction in ended:
        context.log.info(
            "extraction finished extraction=%s source=%s status=%s",
            extraction.id,
            extraction.source_id,
            extraction.status.value,
        )
        reports, more = dataset_reports(ctx, [extraction.source_id]), end_metadata(extraction)
        yield from with_current_expectations(ctx, [dataset_event(report, more) for report in reports])


@dg.job(description="Update the counts of extractions, finish those that are done, and report them.")
def complete_extractions() -> None:
    """Run `complete`."""
    complete()


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
BLANK_CONTROL: dict[str, Any] = {
    "ops": {"steer": {"config": {"action": "resume", "extraction": 0, "actor": "dagster"}}}
}


@dg.op
def steer(context: dg.OpExecutionContext, config: Control, run_context: RunContextParam) -> None:
    """Run the action, or fail with the reason; nothing is half-done."""
    with whole_run(run_context, run_id=context.run_id, job=context.job_name):
        try:
            outcome = _run_action(run_context, config)
        except (LookupError, ValueError) as error:
            raise dg.Failure(f"nothing was changed: {error}", allow_retries=False) from error
    context.log.info("%s", outcome)
    context.add_output_metadata({"done": outcome})


def _run_action(ctx: RunContext, config: Control) -> str:
    """Run the action and return a message about it."""
    if config.action == "start":
        if not config.source:
            raise ValueError("start needs `source`, the id of a catalogue")
        return f"{config.source}: {start_now(ctx, [config.source])[config.source]}"
    if config.extraction is None:
        raise ValueError(f"{config.action} needs `extraction`, an extraction's id")
    actions = {
        "cancel": _cancel,
        "resume": _requeue,
        "retry": _requeue,
        "rerun": _rerun,
        "publish": _publish,
        "accept": _publish,
    }
    if config.action not in actions:
        names = ", ".join(["start", *actions])
        raise ValueError(f"action: {config.action!r} is none; there are: {names}")
    return actions[config.action](ctx, config, config.extraction)


def _cancel(ctx: RunContext, config: Control, id_: int) -> str:
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        ended = control.cancel(connection, id_, actor=config.actor, now=now, settings=ctx.settings, random=ctx.random)
    return f"extraction {ended.id} of {ended.source_id} is cancelled"


def _requeue(ctx: RunContext, config: Control, id_: int) -> str:
    act = control.resume if config.action == "resume" else control.retry
    with ctx.store.begin() as connection:
        done = act(connection, id_, actor=config.actor, now=ctx.store.clock.now(connection))
    return f"extraction {id_} continues: {done.fetched} pages to fetch, {done.read} to read"


def _rerun(ctx: RunContext, config: Control, id_: int) -> str:
    if config.dry_run:
        with ctx.store.read() as connection:
            prediction = predict_rerun(connection, id_, settings=ctx.settings, content=ctx.content)
        cost = "no price is known" if prediction.cost_usd is None else f"{prediction.cost_usd:f} dollars"
        return f"{prediction.pages} pages, {prediction.calls} model calls at most, {cost}. {prediction.note}".strip()
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        made = rerun(connection, id_, actor=config.actor, now=now, publish=config.publish)
    read = f"extraction {made.extraction_id} reads {made.pages} stored pages of {id_} again"
    return f"{read}, into a new dataset: {made.outlook}"


def _publish(ctx: RunContext, config: Control, id_: int) -> str:
    with ctx.store.begin() as connection:
        version = control.publish(connection, id_, actor=config.actor, now=ctx.store.clock.now(connection))
    return f"version {version} of extraction {id_} is published"


@dg.job(
    config=BLANK_CONTROL,
    description=(
        "Start, cancel, resume, retry, rerun or publish an extraction from the Launchpad;"
        " audited with the actor, and refused with the cure if it is not possible."
    ),
)
def control_extraction() -> None:
    """Run `steer`."""
    steer()


@dg.sensor(
    name="extraction_completion",
    job=complete_extractions,
    minimum_interval_seconds=TICK_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Check every two minutes whether running extractions are complete.",
)
def extraction_completion(
    context: dg.SensorEvaluationContext, run_context: RunContextParam
) -> dg.RunRequest | dg.SkipReason:
    """Request one run at a time while extractions are running."""
    with run_context.store.read() as connection:
        now, count = run_context.store.clock.now(connection), len(running(connection))
    if not count:
        return dg.SkipReason("no extraction is running")
    looking = dg.RunsFilter(job_name=complete_extractions.name, statuses=list(WAITING))
    if context.instance.get_runs_count(looking):
        return dg.SkipReason("a run is checking them already")
    return dg.RunRequest(run_key=f"completion:{now:%Y%m%dT%H%M%S}")


EXTRACTION_JOBS: list[Any] = [complete_extractions, control_extraction]
