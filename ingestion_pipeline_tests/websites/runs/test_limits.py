"""Slots, queue limits and order of analyses, and the metrics of their phases; waiting costs no attempt."""

import threading
import time
from asyncio import StreamWriter
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import event

from ingestion_pipeline.demo.model_server import ModelRequest, Say, ScriptedModel
from ingestion_pipeline.demo.model_server import Reply as ModelReply
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.operations.retention import maintain
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import tasks, website_analyses
from ingestion_pipeline.websites.analysis_reports import PhaseMetrics, phase_metrics
from ingestion_pipeline.websites.states import KINDS, PHASES
from ingestion_pipeline_tests.fakes import FakeWeb, RawAnswer
from ingestion_pipeline_tests.polling_runs import (
    RunningClock,
    a_run_context,
    add_sources,
    rows,
    source_row,
    wait_until,
    with_settings,
)
from ingestion_pipeline_tests.websites.website_runs import (
    SMALL_PAGE,
    a_website,
    analyse,
    answer_pairs,
    phase_tasks,
    poll,
    process_analyses,
    provider_settings,
    start,
    statuses,
)

pytestmark = pytest.mark.both_databases


class ConcurrencyCounter:
    """A slow provider that records the highest number of concurrent requests."""

    def __init__(self, seconds: float) -> None:
        self.most = 0
        self._seconds = seconds
        self._now = 0
        self._lock = threading.Lock()

    def __call__(self, request: ModelRequest) -> ModelReply:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(self._seconds)  # the long phase itself
        with self._lock:
            self._now -= 1
        return Say(text="Acme.")


def own_config(prompt: str = "Who bakes?") -> dict[str, object]:
    return {"business": {"name": "Acme"}, "prompts": [prompt]}


@pytest.mark.slow
def test_waiting_for_a_slot_costs_no_attempt_and_is_never_lost(ctx: RunContext, web: FakeWeb) -> None:
    counter = ConcurrencyCounter(0.1)
    long_calls: list[str] = []
    stuck: list[int] = []

    def longer_than_a_lease(request: ModelRequest) -> ModelReply:
        if len(long_calls) < 10:
            long_calls.append(request.text)
            # A claim would renew the leases too: the earlier phases are done, and no slot is free.
            wait_until(lambda: set(statuses(ctx.store)) <= {"model-analysis", "completed"})
            time.sleep(4.2)  # the long phase itself; only heartbeats keep its claim
            with ctx.store.read() as connection:
                now = ctx.store.clock.now(connection)
                stuck.extend(phase.lost for phase in phase_metrics(connection, now=now))
        return counter(request)

    with ScriptedModel(longer_than_a_lease) as model:
        changes = provider_settings(one=model.base_url) | {"website__answer_seconds": "60"}
        long_ctx = with_settings(ctx, **changes, work__lease_seconds="4")
        counts = analyse(long_ctx, web, *(a_website(f"w{n}", config=own_config()) for n in range(31)))

    assert counts["website_analysis_done"] == 31
    assert set(counts) == {"website_info_done", "website_prompts_done", "website_analysis_done"}
    assert statuses(ctx.store) == {"completed": 31}
    assert {(task.attempts, task.fence) for task in phase_tasks(ctx.store)} == {(1, 1)}
    assert 2 <= counter.most <= 10
    assert (len(stuck), set(stuck)) == (30, {0})


@pytest.mark.slow
def test_two_concurrent_schedulers_run_each_phase_once(
    ctx: RunContext, web: FakeWeb, database_url: str, provider: ScriptedModel
) -> None:
    start(ctx, web, *(a_website(f"w{n}") for n in range(12)))
    with closing(open_store(database_url, clock=ctx.store.clock)) as second:
        contexts = [ctx, a_run_context(second, ctx.settings)]
        with ThreadPoolExecutor(2) as pool:
            run_counts = list(pool.map(lambda run_ctx: process_analyses(run_ctx, web.port), contexts))

    assert sum(sum(counts.values()) for counts in run_counts) == 36
    assert {task.fence for task in phase_tasks(ctx.store)} == {1}
    assert len(provider.requests) == 24
    assert set(answer_pairs(ctx.store).values()) == {1}


@pytest.mark.slow
def test_a_full_queue_refuses_with_a_reason_and_no_attempt_is_counted(
    ctx: RunContext, web: FakeWeb, clock: RunningClock
) -> None:
    limited_ctx = with_settings(ctx, **provider_settings(one="http://127.0.0.1:9"), website__queue_limit="2")
    start(limited_ctx, web, *(a_website(f"w{n}", config=own_config()) for n in range(5)))

    assert statuses(ctx.store) == {"not-started": 2}
    refused = [row for row in rows(ctx.store, tasks) if row.error_code == "queue_full"]
    assert len(refused) == 3
    assert {(row.status, row.attempts) for row in refused} == {("PENDING", 0)}
    assert refused[0].error == "queue_full: 2 analyses are waiting in website-analysis"
    assert source_row(ctx.store, refused[0].source_id).failure_count == 0

    for _ in range(2):
        process_analyses(ctx, web.port)
        clock.advance(minutes=2)
        poll(limited_ctx, web)
    process_analyses(ctx, web.port)
    assert statuses(ctx.store) == {"completed": 5}


@pytest.mark.slow
def test_a_phase_waits_while_the_next_queue_is_full(ctx: RunContext, web: FakeWeb, clock: RunningClock) -> None:
    no_provider_ctx = with_settings(ctx, website__providers="", website__queue_limit="2")
    analyse(no_provider_ctx, web, *(a_website(f"w{n}", config=own_config()) for n in range(2)))
    analyse(no_provider_ctx, web, *(a_website(f"x{n}", config=own_config()) for n in range(2)))

    assert statuses(ctx.store) == {"model-analysis": 2, "prompt-forming": 2}
    waiting = phase_tasks(ctx.store, "website_prompts")[2:]
    assert {(row.status, row.attempts) for row in waiting} == {("PENDING", 0)}


@pytest.mark.slow
def test_higher_priority_runs_first_and_then_the_older(
    ctx: RunContext, web: FakeWeb, provider: ScriptedModel, clock: RunningClock
) -> None:
    one_slot_ctx = with_settings(ctx, **provider_settings(one=provider.base_url), website__slots="1")
    for name in ("first", "second"):
        start(one_slot_ctx, web, a_website(name, config={"prompts": [f"Is it {name}?"]}))
        clock.advance(seconds=1)
    analyse(one_slot_ctx, web, a_website("manual", config=own_config("Is it manual?")))

    prompts = [request.text for request in provider.requests]
    assert prompts == ["Is it manual?", "Is it first?", "Is it second?"]


@pytest.mark.slow
def test_no_more_analyses_run_concurrently_than_there_are_slots(ctx: RunContext, web: FakeWeb) -> None:
    counter = ConcurrencyCounter(0.1)
    with ScriptedModel(counter) as model:
        limited_ctx = with_settings(ctx, **provider_settings(one=model.base_url), website__slots="2")
        analyse(limited_ctx, web, *(a_website(f"w{n}", config=own_config()) for n in range(6)))

    assert counter.most == 2


@pytest.mark.slow
def test_a_cycle_claims_at_most_three_of_a_phase_and_only_into_free_slots(ctx: RunContext, web: FakeWeb) -> None:
    analyse(ctx, web, *(a_website(f"w{n}", config=own_config()) for n in range(8)))

    # Tasks claimed in one cycle have the same start time.
    cycles = Counter(
        (queue, times["began"]) for row in rows(ctx.store, website_analyses) for queue, times in row.phase_times.items()
    )
    first = [count for (queue, _), count in sorted(cycles.items()) if queue == "website-analysis"]
    assert first == [3, 3, 2]
    assert max(cycles.values()) == 3


def queue_analyses_in_each_phase(ctx: RunContext, web: FakeWeb, count: int) -> None:
    """Queue this number of analyses in each phase."""
    no_provider_ctx = with_settings(ctx, website__providers="", website__queue_limit=str(count))
    for name in ("last", "middle", "first"):
        start(no_provider_ctx, web, *(a_website(f"{name}{n}", config=own_config()) for n in range(count)))
        if name != "first":
            process_analyses(no_provider_ctx, web.port)
    waiting = {"model-analysis": count, "prompt-forming": count, "not-started": count}
    assert statuses(ctx.store) == waiting


@pytest.mark.slow
def test_a_cycle_claims_three_of_each_phase_and_not_three_in_all(
    ctx: RunContext, web: FakeWeb, provider: ScriptedModel
) -> None:
    queue_analyses_in_each_phase(ctx, web, 4)
    process_analyses(ctx, web.port)

    # Only the phase in which each analysis waited; tasks claimed in one cycle have the same start time.
    began = Counter(
        (row.phase_times[queue]["began"], queue)
        for name, queue in (("first", "website-analysis"), ("middle", "prompt-forming"), ("last", "model-analysis"))
        for row in rows(ctx.store, website_analyses)
        if row.source_id.startswith(f"website:{name}")
    )
    first = min(moment for moment, _ in began)
    assert [began[first, phase.queue] for phase in PHASES] == [3, 3, 3]


@pytest.mark.slow
def test_each_phase_has_its_own_slots(ctx: RunContext, web: FakeWeb) -> None:
    def answer(_: ModelRequest) -> ModelReply:
        """Answer when the earlier phases are done, although the only slot of the last phase is taken."""
        wait_until(lambda: set(statuses(ctx.store)) <= {"model-analysis", "completed"})
        return Say(text="Acme.")

    with ScriptedModel(answer) as model:
        add_sources(ctx.store, *(a_website(f"w{n}", config=own_config()) for n in range(4)))
        changes = provider_settings(one=model.base_url) | {"website__answer_seconds": "20"}
        one_slot_ctx = with_settings(ctx, **changes, website__slots="1")
        poll(one_slot_ctx, web)
        counts = process_analyses(one_slot_ctx, web.port)

    assert counts["website_analysis_done"] == 4
    assert {task.attempts for task in phase_tasks(ctx.store)} == {1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "database", ["sqlite"]
)  # statements of PostgreSQL are prepared, their parameters not visible here
def test_a_cycle_claims_in_the_order_of_phases(ctx: RunContext, web: FakeWeb) -> None:
    queue_analyses_in_each_phase(ctx, web, 2)
    kinds = [phase.kind for phase in PHASES]
    claimed: list[str] = []

    def record_claims(
        _connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool
    ) -> None:
        if statement.lstrip().startswith(("WITH due", "UPDATE tasks")):
            values = parameters.values() if isinstance(parameters, dict) else parameters
            claimed.extend(value for value in values if value in kinds)

    event.listen(ctx.store.engine, "before_cursor_execute", record_claims)
    process_analyses(ctx, web.port)

    assert claimed[:3] == kinds


def metrics_by_queue(store: Store) -> dict[str, PhaseMetrics]:
    with store.read() as connection:
        metrics = phase_metrics(connection, now=store.clock.now(connection))
    return {phase.queue: phase for phase in metrics}


@pytest.mark.slow
def test_each_phase_counts_waiting_finished_and_retried_tasks(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["broken.test/"] = 500
    start(ctx, web, a_website(), a_website("broken"))
    before = metrics_by_queue(ctx.store)["website-analysis"]
    process_analyses(ctx, web.port)
    first, second, third = metrics_by_queue(ctx.store).values()

    assert (before.waiting, before.running, before.success_rate) == (2, 0, None)
    assert (first.waiting, first.running, first.lost) == (0, 0, 0)
    assert (first.succeeded, first.failed, first.retries) == (1, 1, 2)
    assert (first.success_rate, second.success_rate, third.success_rate) == (0.5, 1, 1)
    assert 0 <= (third.waiting_seconds or -1) < 60
    assert 0 < (third.processing_seconds or 0) < 60


@pytest.mark.slow
def test_each_phase_measures_waiting_and_processing_times(ctx: RunContext, web: FakeWeb, clock: RunningClock) -> None:
    async def read_for_30_seconds(writer: StreamWriter) -> None:
        clock.advance(seconds=30)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + SMALL_PAGE.encode())

    def answer_after_40_seconds(_: ModelRequest) -> ModelReply:
        clock.advance(seconds=40)
        return Say(text="Acme.")

    web.routes["/"] = read_for_30_seconds
    with ScriptedModel(answer_after_40_seconds) as model:
        model_ctx = with_settings(ctx, **provider_settings(one=model.base_url) | {"website__prompts": "1"})
        start(model_ctx, web, a_website())
        clock.advance(seconds=90)
        process_analyses(model_ctx, web.port)
    first, second, third = metrics_by_queue(ctx.store).values()

    # In steps of ten seconds: a busy machine adds a second or two.
    assert [(phase.waiting_seconds or 0) // 10 for phase in (first, second, third)] == [9, 0, 0]
    assert [(phase.processing_seconds or 0) // 10 for phase in (first, second, third)] == [3, 0, 4]


@pytest.mark.slow
def test_times_of_a_phase_are_means_of_the_last_attempts(ctx: RunContext, web: FakeWeb, clock: RunningClock) -> None:
    def taking(seconds: float, status: str = "200 OK") -> RawAnswer:
        async def answer(writer: StreamWriter) -> None:
            clock.advance(seconds=seconds)
            head = f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + SMALL_PAGE.encode())

        return answer

    web.routes["quick.test/"] = taking(30)
    web.routes["again.test/"] = [taking(60, "500 Error"), taking(50)]
    for name in ("quick", "again"):
        analyse(ctx, web, a_website(name))
    clock.advance(seconds=1)  # the retry is due
    process_analyses(ctx, web.port)
    first = metrics_by_queue(ctx.store)["website-analysis"]

    # In steps of ten seconds: a busy machine adds a second or two.
    assert ((first.waiting_seconds or 0) // 10, (first.processing_seconds or 0) // 10) == (0, 4)
    assert first.retries == 1


@pytest.mark.slow
def test_the_success_rate_is_unchanged_after_retention_removes_the_tasks(
    ctx: RunContext, web: FakeWeb, clock: RunningClock
) -> None:
    """The rate was 0.5, and 0 an hour later: successful tasks are kept for an hour, failed ones for a week."""
    web.routes["broken.test/"] = 500
    analyse(ctx, web, a_website(), a_website("broken"))
    before = [outcome_counts(phase) for phase in metrics_by_queue(ctx.store).values()]

    for days in (1, 8):
        clock.advance(days=days)
        assert maintain(ctx).errors == []
        assert maintain(ctx).errors == []

        assert [outcome_counts(phase) for phase in metrics_by_queue(ctx.store).values()] == before
    assert before == [(1, 1, 2, 0.5), (1, 0, 0, 1.0), (1, 0, 0, 1.0)]
    assert [row for row in rows(ctx.store, tasks) if row.kind in KINDS] == []


def outcome_counts(phase: PhaseMetrics) -> tuple[int, int, int, float | None]:
    return phase.succeeded, phase.failed, phase.retries, phase.success_rate


def test_without_analyses_there_are_no_times(store: Store) -> None:
    metrics = metrics_by_queue(store).values()

    assert [phase.processing_seconds for phase in metrics] == [None] * 3
    assert {phase.waiting for phase in metrics} == {0}
