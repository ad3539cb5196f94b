"""The job `replay_dead_letters`: requeue failed work from the Launchpad."""

from typing import Any

import dagster as dg
from pydantic import Field

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration.heartbeat import whole_run
from ingestion_pipeline.orchestration.resources import RunContextParam
from ingestion_pipeline.registry import requeue_dead_letters
from ingestion_pipeline.tasks.dead_letters import DeadLetterFilter, ReplayResult, open_ids
from ingestion_pipeline.tasks.errors import ErrorClass

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
CAREFUL: dict[str, Any] = {"ops": {"replay": {"config": {"error_class": "transient", "dry_run": True}}}}


@dg.op
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
    context.add_output_metadata(
        {
            "to_replay" if config.dry_run else "replayed": again,
            "left_open": len(done) - again,
            "letters": dg.MetadataValue.md(_table(done)),
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


@dg.job(
    config=CAREFUL,
    description=(
        "Queue failed work again, by ids, error class or source. The default config is a dry"
        " run of the transient ones: it reports what would happen, and changes nothing."
    ),
)
def replay_dead_letters() -> None:
    """Run `replay`."""
    replay()


DEAD_LETTER_JOBS: list[Any] = [replay_dead_letters]
