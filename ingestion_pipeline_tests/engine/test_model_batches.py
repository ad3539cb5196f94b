"""Batches of questions against a scripted provider that counts what it was sent."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from sqlalchemy import update

from ingestion_pipeline.demo.model_server import ScriptedModel
from ingestion_pipeline.engine.model_batches import run_model_batches
from ingestion_pipeline.reading.llm import Answered, Question
from ingestion_pipeline.reading.llm.batch_lines import MAX_LINES, MODEL_BATCH, OPEN, SUBMITTING
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import model_batch_lines, model_batches, tasks
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline_tests.catalog_extractions import catalog_harness
from ingestion_pipeline_tests.polling_runs import a_run_context, rows
from ingestion_pipeline_tests.reading.llm.model_questions import (
    BILLING,
    a_question,
    a_reply,
    ask,
    held_by_scope,
    in_turn,
    model_call_rows,
    settings_with_model,
)

PATIENT = replace(BILLING, may_wait=True)
AT_ONCE = {"INGESTION_MODELS__BATCH": "auto", "INGESTION_MODELS__BATCH_SECONDS": "0"}
SLOWLY = {"INGESTION_MODELS__BATCH": "auto", "INGESTION_MODELS__BATCH_SECONDS": "3600"}


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(lambda _: a_reply()) as model:
        yield model


@pytest.fixture
def with_batches(model: ScriptedModel, settings: Settings) -> Settings:
    return settings_with_model(model.base_url, settings, **AT_ONCE)


def wait_for(store: Store, settings: Settings, question: Question | None = None) -> Resource:
    """Ask a question that may wait, and return why it waits."""
    with pytest.raises(Resource) as raised:
        ask(store, settings, question, PATIENT)
    return raised.value


def run_batches(store: Store, settings: Settings) -> Counter[str]:
    async def run() -> Counter[str]:
        worker = Worker(store, lease_seconds=settings.work.lease_seconds)
        return await run_model_batches(a_run_context(store, settings), worker)

    return asyncio.run(run())


@pytest.mark.both_databases
def test_questions_that_may_wait_are_answered_by_one_batch_at_half_the_price(
    store: Store, model: ScriptedModel, with_batches: Settings
) -> None:
    questions = [a_question(f"Page {number}") for number in range(3)]
    ask(store, with_batches, a_question("Page 9"))
    [at_once] = model_call_rows(store)
    assert [wait_for(store, with_batches, question).code for question in questions] == [MODEL_BATCH] * 3

    counts = run_batches(store, with_batches)

    assert counts["batches"] == len(model.batches.submitted) == 1
    answers = [ask(store, with_batches, question, PATIENT) for question in questions]
    assert all(isinstance(answer, Answered) and answer.is_cached for answer in answers)
    in_batch = [row for row in model_call_rows(store)[1:] if row.status == "settled"]
    assert [row.cost_usd for row in in_batch] == [at_once.cost_usd / 2] * 3
    assert held_by_scope(store)["month:2026-03"] == at_once.cost_usd * Decimal("2.5")
    assert len(model.requests) == 4
    assert rows(store, model_batch_lines) == []


def test_only_questions_that_may_wait_wait_and_only_if_batches_are_on(
    store: Store, model: ScriptedModel, settings: Settings, with_batches: Settings
) -> None:
    without = settings_with_model(model.base_url, settings)

    assert isinstance(ask(store, without, a_question("Page 1"), PATIENT), Answered)
    assert isinstance(ask(store, with_batches, a_question("Page 2"), BILLING), Answered)


def test_a_question_that_waits_to_be_sent_is_answered_at_once_for_someone_who_cannot_wait(
    store: Store, model: ScriptedModel, with_batches: Settings
) -> None:
    wait_for(store, with_batches)

    assert isinstance(ask(store, with_batches, billing=BILLING), Answered)
    run_batches(store, with_batches)

    assert (len(model.requests), model.batches.submitted) == (1, {})


def test_a_question_that_was_sent_in_a_batch_is_not_paid_twice_by_someone_who_cannot_wait(
    store: Store, model: ScriptedModel, settings: Settings
) -> None:
    model.batches.polls_needed = 2
    slowly = settings_with_model(model.base_url, settings, **SLOWLY)
    wait_for(store, settings_with_model(model.base_url, settings, **AT_ONCE))
    run_batches(store, slowly)

    with pytest.raises(Resource, match="waits in a batch"):
        ask(store, slowly, billing=BILLING)
    assert model.requests == []


def test_an_answer_that_breaks_the_schema_is_corrected_at_once(store: Store, settings: Settings) -> None:
    with ScriptedModel(in_turn(a_reply({"title": 3}), a_reply())) as model:
        with_batches = settings_with_model(model.base_url, settings, **AT_ONCE)
        wait_for(store, with_batches)
        run_batches(store, with_batches)

        answer = ask(store, with_batches, billing=PATIENT)

        assert isinstance(answer, Answered)
        assert [failed.fault for failed in answer.before] == ["violated"]
        assert "was not accepted" in model.requests[-1].text
        assert len(model.requests) == 2


def test_a_server_without_batches_is_asked_at_once_and_not_offered_another(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    with ScriptedModel(in_turn(a_reply())) as model:
        model.batches.is_offered = False
        with_batches = settings_with_model(model.base_url, settings, **AT_ONCE)
        wait_for(store, with_batches)
        run_batches(store, with_batches)

        assert isinstance(ask(store, with_batches, billing=PATIENT), Answered)
        assert isinstance(ask(store, with_batches, a_question("Page 2"), PATIENT), Answered)
        assert [row.cost_usd for row in model_call_rows(store) if row.status == "failed"] == [Decimal(0)]
        clock.at += timedelta(days=31)
        assert wait_for(store, with_batches, a_question("Page 3")).code == MODEL_BATCH


def test_lines_that_expire_are_free_and_asked_at_once(
    store: Store, model: ScriptedModel, settings: Settings, with_batches: Settings
) -> None:
    model.batches.polls_needed = 99
    wait_for(store, with_batches)
    run_batches(store, settings_with_model(model.base_url, settings, **SLOWLY))
    model.batches.submitted["batch_1"]["status"] = "expired"
    with store.begin() as connection:
        connection.execute(update(tasks).values(not_before=store.now()))

    run_batches(store, with_batches)

    assert [(row.status, row.outcome, row.cost_usd) for row in model_call_rows(store)] == [("failed", "expired", 0)]
    assert isinstance(ask(store, with_batches, billing=PATIENT), Answered)
    assert held_by_scope(store)["month:2026-03"] == model_call_rows(store)[-1].cost_usd


@pytest.mark.both_databases
def test_reservations_of_a_batch_do_not_use_up_the_month(
    store: Store, model: ScriptedModel, settings: Settings, clock: FixedClock
) -> None:
    ask(store, settings_with_model(model.base_url, settings), a_question("Page 9"))
    reserved = model_call_rows(store)[0].reserved_usd
    budget = {"INGESTION_MODEL_BUDGET_MONTH_USD": f"{reserved * Decimal('1.3'):f}"}
    clock.at += timedelta(days=31)
    model.batches.polls_needed = 2
    wait_for(store, settings_with_model(model.base_url, settings, **AT_ONCE, **budget))
    slowly = settings_with_model(model.base_url, settings, **SLOWLY, **budget)
    run_batches(store, slowly)
    clock.at += timedelta(hours=2)  # longer than any request in flight

    with pytest.raises(Resource) as raised:
        ask(store, slowly, a_question("Page 2"), BILLING)

    assert (raised.value.code, raised.value.until) == ("model_reserved", clock.at + timedelta(hours=1))
    run_batches(store, slowly)
    assert isinstance(ask(store, slowly, a_question("Page 2"), BILLING), Answered)


def test_a_line_that_reserves_leave_no_room_for_goes_into_a_later_batch(
    store: Store, model: ScriptedModel, settings: Settings
) -> None:
    ask(store, settings_with_model(model.base_url, settings), a_question("Page 9"))
    [call] = model_call_rows(store)
    budget = {"INGESTION_MODEL_BUDGET_MONTH_USD": f"{call.cost_usd + call.reserved_usd * Decimal('0.7'):f}"}
    with_batches = settings_with_model(model.base_url, settings, **AT_ONCE, **budget)
    for number in range(2):
        wait_for(store, with_batches, a_question(f"Page {number}"))

    run_batches(store, with_batches)

    assert len(model.batches.submitted) == 2
    assert [row.outcome for row in rows(store, model_batches)] == ["completed", "completed"]


def test_a_batch_whose_submission_was_not_noted_is_found_at_the_provider(
    store: Store, model: ScriptedModel, settings: Settings, with_batches: Settings
) -> None:
    model.batches.polls_needed = 2
    wait_for(store, with_batches)
    run_batches(store, settings_with_model(model.base_url, settings, **SLOWLY))
    with store.begin() as connection:  # as a worker leaves it that dies before it reads the reply
        connection.execute(update(model_batches).values(status=SUBMITTING, remote_id=None, submitted_at=None))
        connection.execute(update(tasks).values(not_before=store.now()))

    run_batches(store, with_batches)

    assert len(model.batches.submitted) == len(model.requests) == 1
    assert isinstance(ask(store, with_batches, billing=PATIENT), Answered)


def test_questions_wait_no_longer_than_a_day_for_a_server_that_takes_no_batch(
    store: Store, model: ScriptedModel, clock: FixedClock, with_batches: Settings
) -> None:
    wait_for(store, with_batches)
    clock.at += timedelta(hours=26)  # it was down all the time

    run_batches(store, with_batches)

    assert model.batches.submitted == {}
    assert isinstance(ask(store, with_batches, billing=PATIENT), Answered)


def test_a_full_batch_is_followed_by_another(store: Store, with_batches: Settings) -> None:
    wait_for(store, with_batches, a_question("Page 1"))
    with store.begin() as connection:
        connection.execute(update(model_batches).values(line_count=MAX_LINES))

    wait_for(store, with_batches, a_question("Page 2"))

    assert [row.status for row in rows(store, model_batches)] == [OPEN, OPEN]


def test_questions_of_a_cancelled_extraction_are_not_sent(
    store: Store, settings: Settings, model: ScriptedModel, with_batches: Settings
) -> None:
    harness = catalog_harness(store, settings, store.now())
    harness.add_source()
    extraction = harness.start_extraction({})
    with pytest.raises(Resource):
        ask(store, with_batches, billing=replace(PATIENT, extraction_id=extraction))
    harness.cancel(extraction)

    run_batches(store, with_batches)

    assert model.batches.submitted == {}
    assert [row.outcome for row in rows(store, model_batches)] == ["empty"]
