"""Dead letters are replayed from the Launchpad."""

import dagster as dg
import pytest
from sqlalchemy import insert, select

from ingestion_pipeline.store.tables import audit_log, dead_letters, tasks
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.orchestration.installation import Installation, failure_message, run_job
from ingestion_pipeline_tests.polling_runs import add_sources


def a_dead_letter(installation: Installation, error_class: str = "transient") -> int:
    with installation.open() as ctx:
        add_sources(ctx.store, a_definition())
        with ctx.store.begin() as connection:
            statement = insert(dead_letters).values(
                task_id=connection.execute(select(tasks.c.id)).scalar_one(),
                task_kind="poll",
                source_id="series:solo",
                payload={},
                error_class=error_class,
                error_code="timeout",
                error="timed out",
                attempts=3,
                tracking_id="t",
                failed_at=ctx.store.clock.now(connection),
            )
            return connection.execute(statement.returning(dead_letters.c.id)).scalar_one()


def replay(instance: dg.DagsterInstance, **config: object) -> dg.ExecuteInProcessResult:
    run_config = {"ops": {"replay": {"config": {"actor": "ann", **config}}}}
    return run_job("replay_dead_letters", instance, config=run_config)


def numbers(result: dg.ExecuteInProcessResult) -> dict[str, object]:
    [event] = [event for event in result.all_events if event.is_successful_output]
    metadata = event.step_output_data.metadata
    return {name: value.value for name, value in metadata.items() if name != "letters"}


def audited_actions(installation: Installation) -> list[str]:
    with installation.open() as ctx, ctx.store.read() as connection:
        query = select(audit_log.c.actor).where(audit_log.c.action == "dead_letter.replay")
        return list(connection.execute(query).scalars())


@pytest.mark.slow
def test_a_dry_run_reports_and_the_real_run_replays_once(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    a_dead_letter(installation)

    tried = replay(instance, error_class="transient", dry_run=True)
    assert (numbers(tried), audited_actions(installation)) == ({"to_replay": 1, "left_open": 0}, [])

    result = replay(instance, error_class="transient")
    assert (numbers(result), audited_actions(installation)) == ({"replayed": 1, "left_open": 0}, ["ann"])
    assert numbers(replay(instance, source="series:solo")) == {"replayed": 0, "left_open": 0}


@pytest.mark.slow
def test_a_bad_launchpad_config_is_reported_and_nothing_is_replayed(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    dead_letter_id = a_dead_letter(installation)

    wrong = [{}, {"ids": [dead_letter_id], "source": "series:solo"}, {"ids": [99]}, {"error_class": "odd"}]
    failure = [failure_message(replay(instance, **config)) for config in wrong]

    select = "select dead letters"
    cures = [select, select, "no dead letter 99", "is none of transient"]
    assert all(cure in message for cure, message in zip(cures, failure, strict=True)), failure
    assert audited_actions(installation) == []
