"""Failed phases: retried, waiting or dead-lettered; and failing providers."""

import asyncio
import threading
from datetime import timedelta

import pytest
from sqlalchemy import update

from ingestion_pipeline.demo.model_server import Fail, ModelRequest, Say, ScriptedModel
from ingestion_pipeline.demo.model_server import Reply as ModelReply
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.registry import replay
from ingestion_pipeline.sources.registry import disable
from ingestion_pipeline.store.tables import dead_letters, model_calls, tasks, website_analyses, website_answers
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline.tasks.task import Suspicion
from ingestion_pipeline.websites.phases import run_analyses
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.polling_runs import (
    RunningClock,
    a_fetcher,
    add_sources,
    rows,
    source_row,
    wait_until,
    with_settings,
)
from ingestion_pipeline_tests.websites.provider_answers import always
from ingestion_pipeline_tests.websites.website_runs import (
    FAST_SETTINGS,
    SMALL_PAGE,
    a_website,
    analyse,
    answer_pairs,
    only_analysis,
    phase_tasks,
    poll,
    process_analyses,
    provider_settings,
    start,
)

OWN = {"business": {"name": "Acme"}, "prompts": ["Who bakes?", "Who bakes best?"]}


@pytest.mark.slow
def test_the_third_failure_is_terminal_at_once_with_a_reason(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["/"] = 500
    counts = analyse(ctx, web, a_website())

    assert counts == {"retried": 2, "failed": 1}
    assert len(web.requests) == 3
    row = only_analysis(ctx.store)
    assert (row.status, row.current_step) == ("failed", "failed")
    assert row.finished_at is not None
    assert "500" in row.failure
    [dead_letter] = rows(ctx.store, dead_letters)
    assert (dead_letter.task_kind, dead_letter.attempts) == ("website_info", 3)
    source = source_row(ctx.store, "website:acme")
    assert (source.failure_count, "500" in source.last_outcome) == (1, True)


def test_a_site_that_killed_its_workers_is_failed_without_a_request(ctx: RunContext, web: FakeWeb) -> None:
    start(ctx, web, a_website())
    with ctx.store.begin() as connection:
        lost = {"attempts": 3, "suspicion": Suspicion.ALONE}
        connection.execute(update(tasks).where(tasks.c.kind == "website_info").values(lost))

    process_analyses(ctx, web.port)

    assert web.requests == []
    [dead_letter] = rows(ctx.store, dead_letters)
    assert (dead_letter.source_id, dead_letter.error_code) == ("website:acme", "worker_lost")
    assert "worker lost 3 times" in dead_letter.error
    assert only_analysis(ctx.store).status == "failed"


@pytest.mark.slow
def test_a_website_that_robots_txt_blocks_is_neither_a_strike_nor_a_dead_letter(
    ctx: RunContext, web: FakeWeb, clock: RunningClock
) -> None:
    web.routes["/robots.txt"] = Reply(b"User-agent: *\nDisallow: /")
    add_sources(ctx.store, a_website())
    for _ in range(6):  # more failures than the circuit breaker allows
        poll(ctx, web)
        assert process_analyses(ctx, web.port) == {"forbidden": 1}
        clock.advance(days=40)

    assert web.requests == rows(ctx.store, dead_letters) == []
    source = source_row(ctx.store, "website:acme")
    assert (source.failure_count, source.strike_count, source.status) == (0, 0, "active")
    assert "robots.txt" in source.last_outcome
    row = rows(ctx.store, website_analyses)[-1]
    assert (row.status, "robots.txt" in row.failure) == ("failed", True)

    web.routes["/robots.txt"] = 404
    poll(ctx, web)
    process_analyses(ctx, web.port)
    assert rows(ctx.store, website_analyses)[-1].status == "completed"


def test_a_retry_waits_longer_each_time_with_lower_priority(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["/"] = 500
    slow_ctx = with_settings(ctx, **{**FAST_SETTINGS, "website__backoff_base_seconds": "300"})
    start(slow_ctx, web, a_website())
    [before] = phase_tasks(ctx.store)
    process_analyses(slow_ctx, web.port)

    [task] = phase_tasks(ctx.store)
    assert (task.status, task.attempts) == ("PENDING", 1)
    assert task.priority == before.priority + 1
    assert timedelta(seconds=290) < task.not_before - ctx.store.now() < timedelta(seconds=340)
    assert "attempt 1 of 3 failed" in only_analysis(ctx.store).progress_message


@pytest.mark.slow
def test_a_failed_phase_resumes_when_its_dead_letter_is_replayed(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["/"] = 404
    analyse(ctx, web, a_website())
    assert only_analysis(ctx.store).status == "failed"

    web.routes["/"] = SMALL_PAGE
    [dead_letter] = rows(ctx.store, dead_letters)
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        assert replay(connection, dead_letter.id, actor="test", now=now) == "queued"
    process_analyses(ctx, web.port)

    assert only_analysis(ctx.store).status == "completed"
    assert source_row(ctx.store, "website:acme").failure_count == 0


@pytest.mark.slow
def test_without_a_provider_the_last_phase_waits_until_one_is_configured(
    ctx: RunContext, web: FakeWeb, provider: ScriptedModel
) -> None:
    no_provider_ctx = with_settings(ctx, **FAST_SETTINGS)
    analyse(no_provider_ctx, web, a_website(config=OWN))

    waiting = only_analysis(ctx.store)
    [task] = phase_tasks(ctx.store, "website_analysis")
    assert (waiting.status, task.status, task.attempts) == ("model-analysis", "PENDING", 0)
    assert "no provider configured" in waiting.progress_message

    process_analyses(ctx, web.port)
    assert only_analysis(ctx.store).status == "completed"


@pytest.mark.slow
def test_when_no_provider_answers_the_phase_fails_without_a_failure_of_the_source(
    ctx: RunContext, web: FakeWeb
) -> None:
    with ScriptedModel(always(Fail(status=500))) as broken:
        start(ctx, web, a_website(config=OWN))
        process_analyses(with_settings(ctx, **provider_settings(one=broken.base_url)), web.port)

    row = only_analysis(ctx.store)
    assert row.status == "failed"
    assert row.failure.startswith("model-analysis: no provider answered: http_500")
    assert [task.attempts for task in phase_tasks(ctx.store, "website_analysis")] == [3]
    assert source_row(ctx.store, "website:acme").failure_count == 0


@pytest.mark.slow
def test_a_worker_whose_task_was_reclaimed_makes_no_further_requests(ctx: RunContext, web: FakeWeb) -> None:
    calls: list[str] = []

    def busy_while_another_takes_over(request: ModelRequest) -> ModelReply:
        calls.append(request.text)
        later = ctx.store.now() + timedelta(minutes=5)
        new_claim = {"fence": tasks.c.fence + 1, "lease_owner": "another", "lease_until": later}
        with ctx.store.begin() as connection:
            connection.execute(update(tasks).where(tasks.c.kind == "website_analysis").values(new_claim))
        return Fail(status=503)

    with ScriptedModel(busy_while_another_takes_over) as provider:
        start(ctx, web, a_website(config=OWN | {"prompts": ["Who bakes?"]}))
        process_analyses(with_settings(ctx, **provider_settings(one=provider.base_url)), web.port)

    assert calls == ["Who bakes?"]
    assert rows(ctx.store, website_answers) == []
    assert [call.status for call in rows(ctx.store, model_calls)] == ["failed"]
    [task] = phase_tasks(ctx.store, "website_analysis")
    assert (task.status, task.lease_owner) == ("PROCESSING", "another")


@pytest.mark.slow
def test_a_stopped_run_releases_its_task_and_the_next_run_requests_only_missing_answers(
    ctx: RunContext, web: FakeWeb
) -> None:
    is_over = threading.Event()

    def answer(request: ModelRequest) -> ModelReply:
        if request.text == OWN["prompts"][1]:
            is_over.wait(20)
        return Say(text="Acme.")

    async def stop_after_one_answer(model_ctx: RunContext) -> None:
        worker = Worker(model_ctx.store, lease_seconds=60)
        async with a_fetcher(model_ctx.settings, web.port) as fetcher:
            run = asyncio.create_task(run_analyses(model_ctx, worker, fetcher, None, None))
            await asyncio.to_thread(wait_until, lambda: bool(rows(ctx.store, website_answers)))
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)

    with ScriptedModel(answer) as model:
        model_ctx = with_settings(ctx, **provider_settings(one=model.base_url))
        start(model_ctx, web, a_website(config=OWN))
        asyncio.run(stop_after_one_answer(model_ctx))
        [task] = phase_tasks(ctx.store, "website_analysis")
        assert (task.status, task.attempts) == ("PENDING", 0)
        is_over.set()
        process_analyses(model_ctx, web.port)

        assert [model_request.text for model_request in model.requests].count(OWN["prompts"][0]) == 1
    assert only_analysis(ctx.store).status == "completed"
    assert sorted(answer_pairs(ctx.store).values()) == [1, 1]


def test_an_analysis_of_a_disabled_source_ends_without_requests(
    ctx: RunContext, web: FakeWeb, provider: ScriptedModel, clock: RunningClock
) -> None:
    start(ctx, web, a_website())
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        disable(connection, "website:acme", actor="test", reason="enough", now=now)

    assert process_analyses(ctx, web.port) == {"unwanted": 1}
    assert provider.requests == web.requests == []
    row = only_analysis(ctx.store)
    assert (row.status, "enough" in row.failure) == ("failed", True)
