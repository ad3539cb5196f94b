import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from ingestion_pipeline.demo.model_server import ModelRequest, Reply, ScriptedModel
from ingestion_pipeline.reading.llm import Answered, Billing, Usage, ledger
from ingestion_pipeline.reading.llm.ledger import Ledger, Overrun, Reserved, Scope
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline_tests.processes import Child
from ingestion_pipeline_tests.reading.llm.model_questions import (
    a_call,
    a_question,
    a_reply,
    ask,
    ask_in_a_process,
    held_by_scope,
    in_turn,
    model_call_rows,
    settings_with_model,
)

pytestmark = pytest.mark.both_databases

# Only input costs, and a server that reports no usage is charged its reservation: no call
# releases money, so a budget for five calls allows five in any order of the workers.
READING_COSTS = {"INGESTION_MODELS__PRICES": "cheap=3/3/0"}
BILLING = Billing(call_site="extract", source_id="catalog:a")


@pytest.mark.slow
def test_with_a_budget_for_five_calls_five_of_twenty_workers_reach_the_model(
    store: Store, settings: Settings, clock: FixedClock
) -> None:
    barrier = threading.Barrier(20)

    def work(number: int) -> object:
        barrier.wait(30)
        return outcome_of(lambda: ask(store, model_settings, a_question(f"Page {number:02}"), BILLING))

    with ScriptedModel(in_turn(a_reply(has_usage=False))) as model:
        ask(store, settings_with_model(model.base_url, settings, **READING_COSTS), a_question("Page .."))
        budget = f"{model_call_rows(store)[0].reserved_usd * 5:f}"
        more = {"INGESTION_MODEL_BUDGET_MONTH_USD": budget, **READING_COSTS}
        model_settings = settings_with_model(model.base_url, settings, **more)
        clock.at += timedelta(days=31)  # the next month: the spending that measured the price is over

        with ThreadPoolExecutor(20) as pool:
            ends = list(pool.map(work, range(20)))

        assert len(model.requests) == 1 + 5
        assert ends.count(Answered) == 5
        assert ends.count(datetime(2026, 5, 1, tzinfo=UTC)) == 15
        assert held_by_scope(store)["month:2026-04"] == Decimal(budget)
        clock.at = datetime(2026, 5, 1, tzinfo=UTC)
        assert outcome_of(lambda: ask(store, model_settings, a_question("Page xx"), BILLING)) is Answered


def outcome_of(requested: Callable[[], object]) -> object:
    try:
        return type(requested())
    except Resource as error:
        return error.until


@pytest.mark.slow
def test_concurrent_reservations_and_settlements_lose_nothing_and_never_deadlock(
    store: Store, settings: Settings
) -> None:
    book = Ledger(store, settings_with_model("", settings, INGESTION_MODEL_BUDGET_USD="none"))

    def work(number: int) -> None:
        for turn in range(12):
            # Different sources and extractions that share the month: different orders of counters.
            billing = Billing(call_site="x", source_id=f"{'za'[turn % 2]}:{number % 3}", extraction_id=turn % 4)
            reserved = book.reserve(a_call(output_tokens=7, billing=billing))
            assert isinstance(reserved, Reserved)
            book.settle(reserved, Usage(output_tokens=3), "answered", latency_ms=1)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))

    assert held_by_scope(store)["month:2026-03"] == 8 * 12 * 3 * Decimal("0.000002")
    assert {row.status for row in model_call_rows(store)} == {"settled"}


@pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)])
def test_a_reservation_that_waits_for_another_sees_it(store: Store, now: datetime) -> None:
    scopes = [Scope(key="month:x", name="this month", limit_usd=Decimal(1), until=now)]
    overruns: list[Overrun | None] = []

    def second() -> None:
        with store.begin() as connection:
            overruns.append(ledger.reserve_counters(connection, scopes, Decimal("0.6"), now=now))

    with store.begin() as connection:
        assert ledger.reserve_counters(connection, scopes, Decimal("0.1"), now=now) is None
    with store.begin() as connection:
        assert ledger.reserve_counters(connection, scopes, Decimal("0.6"), now=now) is None
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
    waiting.join(10)

    assert [overrun and overrun.held_usd for overrun in overruns] == [Decimal("0.7")]
    assert held_by_scope(store) == {"month:x": Decimal("0.7")}


@pytest.mark.slow
def test_a_worker_killed_during_a_call_leaves_its_reservation_counted(store: Store, settings: Settings) -> None:
    came, release = threading.Event(), threading.Event()

    def script(_: ModelRequest) -> Reply:
        came.set()
        release.wait(30)
        return a_reply()

    with ScriptedModel(script) as model:
        child = Child(ask_in_a_process, settings.database_url, str(settings.home), model.base_url)
        assert came.wait(60)
        child.kill()
        release.set()

    row = model_call_rows(store)[0]
    assert (row.status, row.cost_usd) == ("reserved", None)
    assert set(held_by_scope(store).values()) == {row.reserved_usd}
