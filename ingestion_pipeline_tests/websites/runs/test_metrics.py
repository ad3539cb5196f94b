"""Metrics of the phases: counts, times and success rates."""

from asyncio import StreamWriter

import pytest

from ingestion_pipeline.demo.model_server import ModelRequest, Say, ScriptedModel
from ingestion_pipeline.demo.model_server import Reply as ModelReply
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.operations.retention import maintain
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import tasks
from ingestion_pipeline.websites.analysis_reports import KINDS, PhaseMetrics, phase_metrics
from ingestion_pipeline_tests.fakes import FakeWeb, RawAnswer
from ingestion_pipeline_tests.polling_runs import RunningClock, add_sources, rows, with_settings
from ingestion_pipeline_tests.websites.website_runs import (
    SMALL_PAGE,
    a_website,
    poll,
    process_analyses,
    provider_settings,
)

pytestmark = pytest.mark.both_databases


def metrics_by_queue(store: Store) -> dict[str, PhaseMetrics]:
    with store.read() as connection:
        metrics = phase_metrics(connection, now=store.clock.now(connection))
    return {phase.queue: phase for phase in metrics}


@pytest.mark.slow
def test_each_phase_counts_waiting_finished_and_retried_tasks(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["broken.test/"] = 500
    add_sources(ctx.store, a_website(), a_website("broken"))
    poll(ctx, web)
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
        add_sources(ctx.store, a_website())
        poll(model_ctx, web)
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
        add_sources(ctx.store, a_website(name))
        poll(ctx, web)
        process_analyses(ctx, web.port)
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
    add_sources(ctx.store, a_website(), a_website("broken"))
    poll(ctx, web)
    process_analyses(ctx, web.port)
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
