import asyncio
import logging
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from ingestion_pipeline.demo.model_server import Fail, ModelRequest, Reply, ScriptedModel
from ingestion_pipeline.reading.llm import Answered, Billing, ModelClient, OverBudget, PageText, Usage, ledger
from ingestion_pipeline.reading.llm.ledger import FIRST_OUTPUT_TOKENS, InFlight, Ledger, Reserved, costs
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline_tests.reading.llm.model_questions import (
    BILLING,
    VALID_ANSWER,
    HeldReply,
    a_call,
    a_question,
    a_reply,
    ask,
    held_by_scope,
    in_turn,
    model_call_rows,
    settings_with_model,
)

pytestmark = pytest.mark.both_databases

MONTH, DAY, EXTRACTION = "month:2026-03", "day:2026-03-01:catalog:a", "extraction:7"


def test_a_call_is_recorded_before_it_is_sent_and_settled_by_its_usage(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    during: list[object] = []

    def script(_: ModelRequest) -> Reply:
        during.extend((row.status, row.reserved_usd, row.cost_usd) for row in model_call_rows(store))
        during.append(held_by_scope(store)[MONTH])
        return a_reply(cached_tokens=40)

    with ScriptedModel(script) as model:
        answer = ask(store, settings_with_model(model.base_url, settings))

    row = model_call_rows(store)[0]
    status, reserved, cost = during[0]  # pyright: ignore[reportGeneralTypeIssues]
    assert (status, cost, during[1]) == ("reserved", None, reserved)
    assert isinstance(answer, Answered)
    assert (row.status, row.outcome, row.reserved_usd) == ("settled", "answered", reserved)
    paid = (row.input_tokens - 40) * Decimal("1e-6") + 40 * Decimal("1e-7")
    assert row.cost_usd == paid + row.output_tokens * Decimal("2e-6")
    assert row.cost_usd < reserved
    assert held_by_scope(store) == dict.fromkeys((MONTH, DAY, EXTRACTION), row.cost_usd)
    assert (row.source_id, row.page_id, row.extraction_id) == ("catalog:a", 4, 7)
    assert (row.call_site, row.model, row.format) == ("extract", "cheap", "responses")
    assert (row.provider, row.prompt_version) == (model.base_url, "course@1.1")
    assert (row.cached_input_tokens, row.created_at) == (40, clock.at)


def test_a_call_that_is_cancelled_is_settled_at_once_at_its_expected_cost(store: Store, settings: Settings) -> None:
    came, release = threading.Event(), threading.Event()

    def script(_: ModelRequest) -> Reply:
        came.set()
        release.wait(10)
        return a_reply()

    async def die(base_url: str) -> None:
        async with ModelClient(store, settings_with_model(base_url, settings)) as client:
            asking = asyncio.create_task(client.ask(a_question(), BILLING))
            await asyncio.to_thread(came.wait, 10)
            asking.cancel()

    with ScriptedModel(script) as model:
        asyncio.run(die(model.base_url))
        release.set()

    row = model_call_rows(store)[0]
    assert (row.status, row.outcome) == ("failed", "cancelled")
    assert row.cost_usd == row.reserved_usd > 0
    assert held_by_scope(store)[MONTH] == row.cost_usd


def test_an_answer_is_booked_though_its_caller_is_cancelled_before_a_thread_is_free(
    store: Store, settings: Settings
) -> None:
    reply = HeldReply(a_reply())

    async def ask_and_cancel(model_settings: Settings) -> None:
        async with ModelClient(store, model_settings) as client:
            await reply.cancel_before_booking(client.ask(a_question(), BILLING))

    with ScriptedModel(reply) as model:
        model_settings = settings_with_model(model.base_url, settings)
        asyncio.run(ask_and_cancel(model_settings))
        again = ask(store, model_settings)

    assert isinstance(again, Answered)
    assert (again.is_cached, len(model.requests)) == (True, 1)
    assert [row.outcome for row in model_call_rows(store) if row.status == "settled"] == ["answered"]


def test_an_extraction_over_its_budget_has_its_own_outcome_and_sends_nothing(store: Store, settings: Settings) -> None:
    with ScriptedModel(in_turn(a_reply())) as model:
        model_settings = settings_with_model(model.base_url, settings, INGESTION_MODEL_BUDGET_USD="0.0001")
        answer = ask(store, model_settings)

    assert isinstance(answer, OverBudget)
    assert (answer.extraction_id, answer.limit_usd) == (7, Decimal("0.0001"))
    assert "raise INGESTION_MODEL_BUDGET_USD" in str(answer)
    assert model.requests == []
    assert model_call_rows(store) == []
    assert set(held_by_scope(store).values()) == {Decimal(0)}


@pytest.mark.parametrize(
    ("variable", "until"),
    [
        ("INGESTION_MODEL_BUDGET_MONTH_USD", datetime(2026, 4, 1, tzinfo=UTC)),
        ("INGESTION_MODELS__SOURCE_DAY_USD", datetime(2026, 3, 2, tzinfo=UTC)),
    ],
)
def test_a_period_over_its_budget_postpones_calls_to_the_next_period(
    store: Store, settings: Settings, clock: FixedClock, variable: str, until: datetime
) -> None:
    with ScriptedModel(in_turn(a_reply())) as model:
        model_settings = settings_with_model(model.base_url, settings, **{variable: "0.0006"})
        ask(store, model_settings)
        with pytest.raises(Resource) as caught:
            ask(store, model_settings, a_question("Another page"))
        assert len(model.requests) == 1

        clock.at = caught.value.until
        ask(store, model_settings, a_question("Another page"))

    assert (caught.value.until, caught.value.code) == (until, "model_budget")
    assert len(model.requests) == 2


def test_the_last_second_of_a_year_is_followed_by_the_next_year(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    clock.at = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)
    model_settings = settings_with_model("http://127.0.0.1:1/v1", settings, INGESTION_MODEL_BUDGET_MONTH_USD="0")

    with pytest.raises(Resource) as caught:
        ask(store, model_settings)

    assert caught.value.until - clock.at == timedelta(seconds=1)


def test_five_calls_of_a_fifth_each_fit_a_budget_exactly(store: Store, settings: Settings) -> None:
    """Ten tenths do not add up to one as doubles; a budget must not lose its last call."""
    model_settings = settings_with_model(
        "http://127.0.0.1:1/v1", settings, INGESTION_MODELS__PRICES="cheap=0/0/0.1", INGESTION_MODEL_BUDGET_USD="1"
    )
    book = Ledger(store, model_settings)

    for _ in range(10):
        reserved = book.reserve(a_call(output_tokens=1_000_000))
        assert isinstance(reserved, Reserved)
        book.settle(reserved, Usage(output_tokens=1_000_000), "answered", latency_ms=1)

    assert isinstance(book.reserve(a_call(output_tokens=1_000_000)), OverBudget)
    assert held_by_scope(store)[EXTRACTION] == Decimal(1)


@pytest.mark.slow
def test_a_budget_is_spent_by_actual_and_not_by_maximum_cost(store: Store, settings: Settings) -> None:
    """Thirty concurrent calls with a budget of twenty cents cost three cents together."""
    question = a_question(max_output_tokens=8_192)  # 1.6 cents each if it were used

    async def ask_all(base_url: str) -> list[object]:
        model_settings = settings_with_model(base_url, settings, INGESTION_MODEL_BUDGET_USD="0.20")
        async with ModelClient(store, model_settings) as client:
            pages = [replace(question, page=PageText(text=f"Page {n}")) for n in range(30)]
            return await asyncio.gather(*(client.ask(page, BILLING) for page in pages))

    with ScriptedModel(in_turn(a_reply({**VALID_ANSWER, "url": None, "title": "A" * 2_000}))) as model:
        answers = asyncio.run(ask_all(model.base_url))

    assert {type(answer) for answer in answers} == {Answered}
    assert sum(row.cost_usd for row in model_call_rows(store)) < Decimal("0.20")


@pytest.mark.slow
def test_a_call_waits_while_reservations_in_flight_fill_the_budget(store: Store, settings: Settings) -> None:
    first_came, may_answer = threading.Event(), threading.Event()

    def script(_: ModelRequest) -> Reply:
        if not first_came.is_set():
            first_came.set()
            may_answer.wait(30)
        return a_reply()

    async def ask_both(base_url: str) -> list[object]:
        # One call of 285 tokens and 100 expected ones fits, two do not.
        model_settings = settings_with_model(base_url, settings, INGESTION_MODEL_BUDGET_USD="0.0009")
        async with ModelClient(store, model_settings) as client, asyncio.TaskGroup() as group:
            first = group.create_task(client.ask(a_question(), BILLING))
            await asyncio.to_thread(first_came.wait, 30)
            second = group.create_task(client.ask(a_question("Another page"), BILLING))
            other_ledger = Ledger(store, model_settings)
            assert isinstance(await asyncio.to_thread(other_ledger.reserve, a_call(output_tokens=300)), InFlight)
            assert len(model.requests) == 1
            may_answer.set()
        return [first.result(), second.result()]

    with ScriptedModel(script) as model:
        answers = asyncio.run(ask_both(model.base_url))

    assert [type(answer) for answer in answers] == [Answered, Answered]


def test_a_reservation_of_a_killed_worker_is_waited_for_no_longer_than_a_call_takes(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    model_settings = settings_with_model("http://127.0.0.1:1/v1", settings, INGESTION_MODEL_BUDGET_MONTH_USD="0.0003")
    book = Ledger(store, model_settings)
    assert isinstance(book.reserve(a_call(output_tokens=100)), Reserved)

    assert isinstance(book.reserve(a_call(output_tokens=100)), InFlight)
    clock.at += timedelta(minutes=10)
    with pytest.raises(Resource, match="this month is used up"):
        book.reserve(a_call(output_tokens=100))


def test_the_expected_output_follows_earlier_answers(store: Store, settings: Settings) -> None:
    book = Ledger(store, settings_with_model("", settings))
    reserves: list[Decimal] = []
    for _ in range(3):
        reserved = book.reserve(a_call(output_tokens=8_000))
        assert isinstance(reserved, Reserved)
        reserves.append(reserved.amount)
        book.settle(reserved, Usage(output_tokens=3_000), "answered", latency_ms=1)

    assert reserves[0] == FIRST_OUTPUT_TOKENS * Decimal("2e-6")
    assert reserves[1] == reserves[2] == 3_000 * Decimal("2e-6")


def test_a_failed_call_costs_nothing_where_the_server_refused_it(store: Store, settings: Settings) -> None:
    with ScriptedModel(in_turn(Fail(status=500), a_reply())) as model:
        ask(store, settings_with_model(model.base_url, settings))

    failed, successful = model_call_rows(store)
    assert (failed.status, failed.outcome, failed.cost_usd) == ("failed", "http_500", Decimal(0))
    assert held_by_scope(store)[EXTRACTION] == successful.cost_usd


def test_a_model_without_a_price_is_logged_once_and_its_tokens_are_counted(
    store: Store, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    ledger._warned.clear()
    with ScriptedModel(in_turn(a_reply())) as model, caplog.at_level(logging.WARNING):
        model_settings = settings_with_model(model.base_url, settings, INGESTION_MODELS__PRICES="other=1/1/1")
        for text in ("one page", "another page"):
            ask(store, model_settings, a_question(text))

    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["model without price model=cheap"]
    rows = model_call_rows(store)
    assert [(row.cost_usd, row.reserved_usd) for row in rows] == [(None, None)] * 2
    assert all(row.input_tokens > 0 for row in rows)


def test_a_dated_release_has_the_price_of_its_model(store: Store, settings: Settings) -> None:
    with ScriptedModel(in_turn(a_reply())) as model:
        dated = "cheap-2026-01-31"
        ask(store, settings_with_model(model.base_url, settings, INGESTION_MODEL_CHEAP=dated))

    assert model_call_rows(store)[0].cost_usd > 0


def test_the_same_question_is_paid_for_once_and_audited_as_cached(store: Store, settings: Settings) -> None:
    with ScriptedModel(in_turn(a_reply())) as model:
        model_settings = settings_with_model(model.base_url, settings)
        first, second = ask(store, model_settings), ask(store, model_settings)

    assert len(model.requests) == 1
    assert isinstance(first, Answered)
    assert isinstance(second, Answered)
    assert (first.is_cached, second.is_cached) == (False, True)
    assert first.data == second.data == VALID_ANSWER
    row = model_call_rows(store)[1]
    assert (row.status, row.cost_usd, row.format) == ("cached", Decimal(0), "cache")
    assert row.cache_key == model_call_rows(store)[0].cache_key


def test_a_request_is_not_repeated_once_another_process_has_stored_its_answer(store: Store, settings: Settings) -> None:
    def script(_: ModelRequest) -> Reply:
        if len(model.requests) > 1:
            return a_reply()
        ask(store, model_settings)  # another process, while the server is busy for this one
        return Fail(status=429)

    with ScriptedModel(script) as model:
        model_settings = settings_with_model(model.base_url, settings)
        answer = ask(store, model_settings)

    assert len(model.requests) == 2
    assert isinstance(answer, Answered)
    assert answer.is_cached
    assert answer.data == VALID_ANSWER


def test_the_strong_models_answer_is_cached_and_the_cheap_model_is_not_called_again(
    store: Store, settings: Settings
) -> None:
    with ScriptedModel(in_turn(a_reply({}), a_reply({}), a_reply())) as model:
        model_settings = settings_with_model(model.base_url, settings)
        ask(store, model_settings)
        second = ask(store, model_settings)

    assert len(model.requests) == 3
    assert isinstance(second, Answered)
    assert (second.is_cached, second.model) == (True, "strong")


def test_a_cached_answer_needs_no_model(store: Store, settings: Settings) -> None:
    with ScriptedModel(in_turn(a_reply())) as model:
        model_settings = settings_with_model(model.base_url, settings)
        ask(store, model_settings)

    offline = settings_with_model("", settings)

    assert not offline.has_model
    assert isinstance(ask(store, offline), Answered)


def test_costs_of_an_extraction_are_grouped_by_call_site_and_model(store: Store, settings: Settings) -> None:
    with ScriptedModel(in_turn(a_reply({}), a_reply({}), a_reply())) as model:
        model_settings = settings_with_model(model.base_url, settings)
        ask(store, model_settings)
        ask(store, model_settings)
        ask(store, model_settings, a_question("Other"), Billing(call_site="detect", extraction_id=8))
    book = Ledger(store, settings_with_model("", settings))
    book.reserve(a_call(output_tokens=10))

    with store.read() as connection:
        lines = costs(connection, extraction_id=7)

    assert [(line.call_site, line.model, line.calls) for line in lines] == [
        ("extract", "cheap", 3),
        ("extract", "strong", 1),
    ]
    paid = {row.model: Decimal(0) for row in model_call_rows(store)}
    for row in model_call_rows(store):
        paid[row.model] += row.cost_usd or 0 if row.extraction_id == 7 else 0
    assert {line.model: line.cost_usd for line in lines} == paid
    assert [line.open_usd > 0 for line in lines] == [True, False]
