"""Numbers of the phases: how many, how long, how well."""

from __future__ import annotations

from asyncio import StreamWriter

from ingestion_pipeline.demo.model_server import ModelRequest, Say, ScriptedModel
from ingestion_pipeline.demo.model_server import Reply as Said
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.operations.retention import maintain
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import tasks
from ingestion_pipeline.websites.metrics import KINDS, PhaseMetrics, phase_metrics
from ingestion_pipeline_tests.fakes import FakeWeb, Raw
from ingestion_pipeline_tests.pollers import GoingClock, changed, given_sources, rows
from ingestion_pipeline_tests.websites.engine.analysing import SMALL, a_website, poll, provided, work


def measured(store: Store) -> dict[str, PhaseMetrics]:
    with store.read() as connection:
        found = phase_metrics(connection, now=store.clock.now(connection))
    return {one.queue: one for one in found}


def test_each_phase_counts_what_waits_what_ended_and_what_was_tried_again(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["broken.test/"] = 500
    given_sources(ctx.store, a_website(), a_website("broken"))
    poll(ctx, web)
    before = measured(ctx.store)["website-analysis"]
    work(ctx, web.port)
    first, second, third = measured(ctx.store).values()

    assert (before.waiting, before.running, before.success_rate) == (2, 0, None)
    assert (first.waiting, first.running, first.lost) == (0, 0, 0)
    assert (first.succeeded, first.failed, first.retries) == (1, 1, 2)
    assert (first.success_rate, second.success_rate, third.success_rate) == (0.5, 1, 1)
    assert 0 <= (third.waiting_seconds or -1) < 60
    assert 0 < (third.processing_seconds or 0) < 60


def test_each_phase_measures_how_long_it_waited_and_how_long_it_worked(
    ctx: RunContext, web: FakeWeb, clock: GoingClock
) -> None:
    async def read_for_30_seconds(writer: StreamWriter) -> None:
        clock.advance(seconds=30)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + SMALL.encode())

    def answer_after_40_seconds(_: ModelRequest) -> Said:
        clock.advance(seconds=40)
        return Say(text="Acme.")

    web.routes["/"] = read_for_30_seconds
    with ScriptedModel(answer_after_40_seconds) as model:
        one = changed(ctx, **provided(one=model.base_url) | {"website__prompts": "1"})
        given_sources(ctx.store, a_website())
        poll(one, web)
        clock.advance(seconds=90)
        work(one, web.port)
    first, second, third = measured(ctx.store).values()

    # In steps of ten: a busy machine adds a second or two of its own.
    assert [(phase.waiting_seconds or 0) // 10 for phase in (first, second, third)] == [9, 0, 0]
    assert [(phase.processing_seconds or 0) // 10 for phase in (first, second, third)] == [3, 0, 4]


def test_the_times_of_a_phase_are_means_and_of_several_attempts_the_last(
    ctx: RunContext, web: FakeWeb, clock: GoingClock
) -> None:
    def taking(seconds: float, status: str = "200 OK") -> Raw:
        async def answer(writer: StreamWriter) -> None:
            clock.advance(seconds=seconds)
            head = f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + SMALL.encode())

        return answer

    web.routes["quick.test/"] = taking(30)
    web.routes["again.test/"] = [taking(60, "500 Error"), taking(50)]
    for name in ("quick", "again"):
        given_sources(ctx.store, a_website(name))
        poll(ctx, web)
        work(ctx, web.port)
    clock.advance(seconds=1)  # the retry is due
    work(ctx, web.port)
    first = measured(ctx.store)["website-analysis"]

    # In steps of ten: a busy machine adds a second or two of its own.
    assert ((first.waiting_seconds or 0) // 10, (first.processing_seconds or 0) // 10) == (0, 4)
    assert first.retries == 1


def test_the_share_of_successes_is_the_same_when_the_tasks_are_gone(
    ctx: RunContext, web: FakeWeb, clock: GoingClock
) -> None:
    """It was 0.5, and 0 an hour later: successes are kept for an hour, failures for a week."""
    web.routes["broken.test/"] = 500
    given_sources(ctx.store, a_website(), a_website("broken"))
    poll(ctx, web)
    work(ctx, web.port)
    before = [counted(phase) for phase in measured(ctx.store).values()]

    for days in (1, 8):
        clock.advance(days=days)
        assert maintain(ctx).errors == []
        assert maintain(ctx).errors == []

        assert [counted(phase) for phase in measured(ctx.store).values()] == before
    assert before == [(1, 1, 2, 0.5), (1, 0, 0, 1.0), (1, 0, 0, 1.0)]
    assert [row for row in rows(ctx.store, tasks) if row.kind in KINDS] == []


def counted(phase: PhaseMetrics) -> tuple[int, int, int, float | None]:
    return phase.succeeded, phase.failed, phase.retries, phase.success_rate


def test_without_analyses_there_are_no_times(store: Store) -> None:
    found = measured(store).values()

    assert [one.processing_seconds for one in found] == [None] * 3
    assert {one.waiting for one in found} == {0}
