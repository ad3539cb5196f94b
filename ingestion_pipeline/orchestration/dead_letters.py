"""The job `replay_dead_letters`: given-up work is tried again from the Launchpad."""

from typing import Any

import dagster as dg
from pydantic import Field

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration.heartbeat import whole_run
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.registry import requeue_dead_letters
from ingestion_pipeline.tasks.dead_letters import Chosen, Replayed, open_ids
from ingestion_pipeline.tasks.errors import ErrorClass

CLASSES = [one.value for one in ErrorClass]
SHOWN = 50  # of the table; the log has them all


class Replay(dg.Config):
    """Which letters: by ids, or all open ones of a class, a source, or both."""

    ids: list[int] = Field(default_factory=list, description="as `ingest dead-letters list` shows")
    error_class: str = Field(default="", description=f"all open ones of it: {', '.join(CLASSES)}")
    source: str = Field(default="", description="all open ones of it: a source's id")
    dry_run: bool = Field(default=False, description="only tell what would become of each")
    actor: str = Field(default="dagster", description="who wants it, for the audit log")


# What the Launchpad opens with: it tells, and changes nothing.
CAREFUL: dict[str, Any] = {
    "ops": {"replay": {"config": {"error_class": "transient", "dry_run": True}}}
}


@dg.op
def replay(context: dg.OpExecutionContext, config: Replay, workshop: RunContextResource) -> None:
    """Queue the work of each letter; what cannot run again says why and stays open."""
    with workshop.open() as shop, whole_run(shop, run_id=context.run_id, job=context.job_name):
        try:
            done = _replayed(shop, config)
        except (LookupError, ValueError) as error:
            raise dg.Failure(f"nothing was replayed: {error}", allow_retries=False) from error
    for one in done:
        context.log.info("dead letter %d: %s", one.letter_id, one.outcome)
    again = sum(one.runs_again for one in done)
    context.add_output_metadata(
        {
            "to_replay" if config.dry_run else "replayed": again,
            "left_open": len(done) - again,
            "letters": dg.MetadataValue.md(_table(done)),
        }
    )


def _replayed(shop: RunContext, config: Replay) -> list[Replayed]:
    chosen = Chosen(error_class=config.error_class or None, source_id=config.source or None)
    if bool(config.ids) == (chosen != Chosen()):
        raise ValueError("say which: either `ids`, or `error_class` and/or `source`")
    if chosen.error_class not in (None, *CLASSES):
        raise ValueError(f"error_class: {config.error_class!r} is none of {', '.join(CLASSES)}")
    ids = config.ids
    if not ids:
        with shop.store.read() as connection:
            ids = open_ids(connection, chosen)
    return list(requeue_dead_letters(shop.store, ids, actor=config.actor, dry_run=config.dry_run))


def _table(done: list[Replayed]) -> str:
    rows = [f"| {one.letter_id} | {one.outcome} |" for one in done[:SHOWN]]
    more = [f"\n{len(done) - SHOWN} more are in the log"] if len(done) > SHOWN else []
    return "\n".join(["| dead letter | became |", "|---:|---|", *rows, *more])


@dg.job(
    config=CAREFUL,
    description=(
        "Try given-up work again, by ids, error class or source. As it stands it is a dry run"
        " of the transient ones: it tells what would happen, and changes nothing."
    ),
)
def replay_dead_letters() -> None:
    """One op."""
    replay()


LETTER_JOBS: list[Any] = [replay_dead_letters]
