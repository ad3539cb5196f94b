"""The jobs `complete_extractions` and `control_extraction`, and the sensor of the first."""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from ingestion_pipeline.catalogs.crawling.runs import ask_for
from ingestion_pipeline.catalogs.datasets.completion import update_completions
from ingestion_pipeline.catalogs.datasets.finishing import Ended
from ingestion_pipeline.catalogs.datasets.progress import running
from ingestion_pipeline.catalogs.operations import control
from ingestion_pipeline.catalogs.operations.rerun import predict_rerun, rerun
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration.checks import TOLD_BY_COMPLETION, changed_checks
from ingestion_pipeline.orchestration.contracts import written_contracts
from ingestion_pipeline.orchestration.datasets import dataset_materialization, dataset_reports
from ingestion_pipeline.orchestration.events import expecting
from ingestion_pipeline.orchestration.heartbeat import whole_run
from ingestion_pipeline.orchestration.partitions import CATALOGS, register_keys
from ingestion_pipeline.orchestration.resources import RunContextResource

TICK_SECONDS = 120  # as often as the documents have the completion looked at
WAITING = (
    *(dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED),
    *(dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED),
)


@dg.op(out=dg.Out(is_required=False), tags={"kind": "complete"})
def complete(context: dg.OpExecutionContext, workshop: RunContextResource) -> Iterator[Any]:
    """Count what changed, end what is over, and tell of it."""
    with workshop.open() as shop, whole_run(shop, run_id=context.run_id, job=context.job_name):
        done = update_completions(shop)
        yield from reported(context, shop, done.ended)
        yield from changed_checks(context.instance, shop, TOLD_BY_COMPLETION)
        ids = [one.source_id for one in done.ended if one.dataset is not None]
        yield from written_contracts(context.instance, shop, ["datasets"], ids)
    numbers = {"running": done.running, "changed": done.changed, "ended": len(done.ended)}
    context.log.info("%s", ", ".join(f"{name} {count}" for name, count in numbers.items()))
    yield dg.Output(None, metadata=numbers)


def reported(
    context: dg.OpExecutionContext, shop: RunContext, ended: Sequence[Ended]
) -> Iterator[dg.AssetMaterialization]:
    """An event of `datasets` for each extraction that has just ended, as full as any other."""
    register_keys(context.instance, CATALOGS.name or "", [one.source_id for one in ended])
    for one in ended:
        context.log.info("extraction %s of %s is %s", one.id, one.source_id, one.status.value)
        reports, more = dataset_reports(shop, [one.source_id]), end_metadata(one)
        yield from expecting(shop, [dataset_materialization(report, more) for report in reports])


def end_metadata(ended: Ended) -> dict[str, dg.MetadataValue]:
    """How an extraction ended, and what became of its dataset."""
    metadata: dict[str, dg.MetadataValue] = {
        "extraction": dg.MetadataValue.text(f"{ended.id}, {ended.status.value}"),
        "pages": dg.MetadataValue.int(ended.page_count),
    }
    if ended.failure is not None:
        metadata["why"] = dg.MetadataValue.text(str(ended.failure["message"])[:500])
    if (dataset := ended.dataset) is not None:
        metadata |= {
            "items": dg.MetadataValue.int(dataset.items),
            "flagged": dg.MetadataValue.int(dataset.flagged),
            "version": dg.MetadataValue.int(dataset.version),
            "status": dg.MetadataValue.text(dataset.status.value),
            "is_unchanged": dg.MetadataValue.bool(dataset.is_confirmed),
            "kept_of_failed_pages": dg.MetadataValue.int(dataset.kept),
        }
        if dataset.findings:
            said = "\n".join(one["message"] for one in dataset.findings)
            metadata["findings"] = dg.MetadataValue.text(said)
    return metadata


@dg.job(description="Count what extractions have done, end those that are over, and tell of them.")
def complete_extractions() -> None:
    """One op."""
    complete()


class Control(dg.Config):
    """What to do to which extraction."""

    action: str = Field(
        description="start (a source); cancel, resume, retry, rerun, accept (an extraction)"
    )
    extraction: int | None = Field(
        default=None, description="its id, as `ingest extractions list` shows it"
    )
    source: str | None = Field(default=None, description="for start: the source's id")
    dry_run: bool = Field(
        default=False, description="for rerun: only tell pages, model calls and cost"
    )
    publish: bool = Field(
        default=False, description="for rerun: show it though a later crawl's dataset is shown"
    )
    actor: str = Field(default="dagster", description="who wants it, for the audit log")


# What the Launchpad opens with: to be filled in, and refused if it is not.
BLANK: dict[str, Any] = {
    "ops": {"steer": {"config": {"action": "resume", "extraction": 0, "actor": "dagster"}}}
}


@dg.op
def steer(context: dg.OpExecutionContext, config: Control, workshop: RunContextResource) -> None:
    """Do it, or say why not; nothing is half-done."""
    with workshop.open() as shop, whole_run(shop, run_id=context.run_id, job=context.job_name):
        try:
            said = _steered(shop, config)
        except (LookupError, ValueError) as error:
            raise dg.Failure(f"nothing was changed: {error}", allow_retries=False) from error
    context.log.info("%s", said)
    context.add_output_metadata({"done": said})


def _steered(shop: RunContext, config: Control) -> str:
    """What was done, in a word for people."""
    if config.action == "start":
        if not config.source:
            raise ValueError("start needs `source`, the id of a catalogue")
        return f"{config.source}: {ask_for(shop, [config.source])[config.source]}"
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
        known = ", ".join(["start", *actions])
        raise ValueError(f"action: {config.action!r} is none; there are: {known}")
    return actions[config.action](shop, config, config.extraction)


def _cancel(shop: RunContext, config: Control, id_: int) -> str:
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        ended = control.cancel(
            connection,
            id_,
            actor=config.actor,
            now=now,
            settings=shop.settings,
            random=shop.random,
        )
    return f"extraction {ended.id} of {ended.source_id} is cancelled"


def _requeue(shop: RunContext, config: Control, id_: int) -> str:
    act = control.resume if config.action == "resume" else control.retry
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        done = act(connection, id_, actor=config.actor, now=now)
    return f"extraction {id_} goes on: {done.fetched} pages to fetch, {done.read} to read"


def _rerun(shop: RunContext, config: Control, id_: int) -> str:
    if config.dry_run:
        with shop.store.read() as connection:
            one = predict_rerun(connection, id_, settings=shop.settings, content=shop.content)
        cost = "no price is known" if one.cost_usd is None else f"{one.cost_usd:f} dollars"
        return f"{one.pages} pages, {one.calls} model calls at most, {cost}. {one.note}".strip()
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        made = rerun(connection, id_, actor=config.actor, now=now, publish=config.publish)
    read = f"extraction {made.extraction_id} reads {made.pages} stored pages of {id_} again"
    return f"{read}, into a new dataset: {made.outlook}"


def _publish(shop: RunContext, config: Control, id_: int) -> str:
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        version = control.publish(connection, id_, actor=config.actor, now=now)
    return f"version {version} of extraction {id_} is published"


@dg.job(
    config=BLANK,
    description=(
        "Start, cancel, resume, retry, rerun or publish an extraction from the Launchpad;"
        " audited with who wanted it, and refused with the cure if it cannot be."
    ),
)
def control_extraction() -> None:
    """One op."""
    steer()


@dg.sensor(
    name="extraction_completion",
    job=complete_extractions,
    minimum_interval_seconds=TICK_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="While an extraction goes on, its completion is looked at every two minutes.",
)
def extraction_completion(
    context: dg.SensorEvaluationContext, workshop: RunContextResource
) -> dg.RunRequest | dg.SkipReason:
    """One run at a time, and none where nothing goes on."""
    with workshop.open() as shop, shop.store.read() as connection:
        now, count = shop.store.clock.now(connection), len(running(connection))
    if not count:
        return dg.SkipReason("no extraction goes on")
    looking = dg.RunsFilter(job_name=complete_extractions.name, statuses=list(WAITING))
    if context.instance.get_runs_count(looking):
        return dg.SkipReason("a run is looking at them already")
    return dg.RunRequest(run_key=f"completion:{now:%Y%m%dT%H%M%S}")


EXTRACTION_JOBS: list[Any] = [complete_extractions, control_extraction]
