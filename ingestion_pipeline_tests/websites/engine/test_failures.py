"""Phases that come to nothing: retried, waiting, given up; and providers that misbehave."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest
from sqlalchemy import update

from ingestion_pipeline.demo.model_server import Fail, Garble, ModelRequest, Say, ScriptedModel
from ingestion_pipeline.demo.model_server import Reply as Said
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.registry import replay
from ingestion_pipeline.sources.registry import disable
from ingestion_pipeline.store.tables import dead_letters, model_calls, tasks, website_analyses, website_answers
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline.websites.runs.system import run_analyses
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.pollers import GoingClock, a_fetcher, changed, given_sources, rows, source_row, wait_until
from ingestion_pipeline_tests.websites.asking import always, says
from ingestion_pipeline_tests.websites.engine.analysing import (
    QUICK,
    SMALL,
    a_website,
    analysis,
    answer_pairs,
    phase_tasks,
    poll,
    provided,
    work,
)

OWN = {"business": {"name": "Acme"}, "prompts": ["Who bakes?", "Who bakes best?"]}


def test_the_third_failure_is_terminal_at_once_and_says_why(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["/"] = 500
    given_sources(ctx.store, a_website())
    poll(ctx, web)
    counts = work(ctx, web.port)

    assert counts == {"retried": 2, "failed": 1}
    assert len(web.requests) == 3
    found = analysis(ctx.store)
    assert (found.status, found.current_step) == ("failed", "failed")
    assert found.finished_at is not None
    assert "500" in found.failure
    [dead_letter] = rows(ctx.store, dead_letters)
    assert (dead_letter.task_kind, dead_letter.attempts) == ("website_info", 3)
    source = source_row(ctx.store, "website:acme")
    assert (source.failure_count, "500" in source.last_outcome) == (1, True)


def test_a_website_that_robots_txt_blocks_is_neither_a_strike_nor_a_dead_letter(
    ctx: RunContext, web: FakeWeb, clock: GoingClock
) -> None:
    web.routes["/robots.txt"] = Reply(b"User-agent: *\nDisallow: /")
    given_sources(ctx.store, a_website())
    for _ in range(6):  # one strike more would open the breaker
        poll(ctx, web)
        assert work(ctx, web.port) == {"forbidden": 1}
        clock.advance(days=40)

    assert web.requests == rows(ctx.store, dead_letters) == []
    source = source_row(ctx.store, "website:acme")
    assert (source.failure_count, source.strike_count, source.status) == (0, 0, "active")
    assert "robots.txt" in source.last_outcome
    found = rows(ctx.store, website_analyses)[-1]
    assert (found.status, "robots.txt" in found.failure) == ("failed", True)

    web.routes["/robots.txt"] = 404
    poll(ctx, web)
    work(ctx, web.port)
    assert rows(ctx.store, website_analyses)[-1].status == "completed"


def test_a_retry_waits_longer_each_time_and_falls_back_in_the_queue(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["/"] = 500
    slow = changed(ctx, **{**QUICK, "website__backoff_base_seconds": "300"})
    given_sources(ctx.store, a_website())
    poll(slow, web)
    [before] = phase_tasks(ctx.store)
    work(slow, web.port)

    [task] = phase_tasks(ctx.store)
    assert (task.status, task.attempts) == ("PENDING", 1)
    assert task.priority == before.priority + 1
    assert timedelta(seconds=290) < task.not_before - ctx.store.now() < timedelta(seconds=340)
    assert "attempt 1 of 3 failed" in analysis(ctx.store).progress_message


def test_a_phase_that_failed_goes_on_when_its_dead_letter_is_replayed(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["/"] = 404
    given_sources(ctx.store, a_website())
    poll(ctx, web)
    work(ctx, web.port)
    assert analysis(ctx.store).status == "failed"

    web.routes["/"] = SMALL
    [dead_letter] = rows(ctx.store, dead_letters)
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        assert replay(connection, dead_letter.id, actor="test", now=now) == "queued"
    work(ctx, web.port)

    assert analysis(ctx.store).status == "completed"
    assert source_row(ctx.store, "website:acme").failure_count == 0


def test_without_a_provider_the_last_phase_waits_and_goes_on_when_there_is_one(
    ctx: RunContext, web: FakeWeb, provider: ScriptedModel
) -> None:
    nobody = changed(ctx, **QUICK)
    given_sources(ctx.store, a_website(config=OWN))
    poll(nobody, web)
    work(nobody, web.port)

    waiting = analysis(ctx.store)
    [task] = phase_tasks(ctx.store, "website_analysis")
    assert (waiting.status, task.status, task.attempts) == ("model-analysis", "PENDING", 0)
    assert "no provider configured" in waiting.progress_message

    work(ctx, web.port)
    assert analysis(ctx.store).status == "completed"


def test_when_no_provider_answers_the_phase_fails_and_the_site_is_not_blamed(ctx: RunContext, web: FakeWeb) -> None:
    with ScriptedModel(always(Fail(status=500))) as broken:
        given_sources(ctx.store, a_website(config=OWN))
        poll(ctx, web)
        work(changed(ctx, **provided(one=broken.base_url)), web.port)

    found = analysis(ctx.store)
    assert found.status == "failed"
    assert found.failure.startswith("model-analysis: no provider answered: http_500")
    assert [task.attempts for task in phase_tasks(ctx.store, "website_analysis")] == [3]
    assert source_row(ctx.store, "website:acme").failure_count == 0


def test_a_worker_whose_analysis_was_taken_over_asks_and_pays_for_nothing_more(ctx: RunContext, web: FakeWeb) -> None:
    calls: list[str] = []

    def busy_while_another_takes_over(asked: ModelRequest) -> Said:
        calls.append(asked.text)
        later = ctx.store.now() + timedelta(minutes=5)
        taken = {"fence": tasks.c.fence + 1, "lease_owner": "another", "lease_until": later}
        with ctx.store.begin() as connection:
            connection.execute(update(tasks).where(tasks.c.kind == "website_analysis").values(taken))
        return Fail(status=503)

    with ScriptedModel(busy_while_another_takes_over) as provider:
        given_sources(ctx.store, a_website(config=OWN | {"prompts": ["Who bakes?"]}))
        poll(ctx, web)
        work(changed(ctx, **provided(one=provider.base_url)), web.port)

    assert calls == ["Who bakes?"]
    assert rows(ctx.store, website_answers) == []
    assert [call.status for call in rows(ctx.store, model_calls)] == ["failed"]
    [task] = phase_tasks(ctx.store, "website_analysis")
    assert (task.status, task.lease_owner) == ("PROCESSING", "another")


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Fail(status=401), "http_401"),
        (Fail(status=429, headers={"Retry-After": "90"}), "http_429"),
        (Garble(body=b""), "garbled"),
        (Say(text="Acme " * 2_000_000), "too_long"),
    ],
    ids=["401", "429", "empty", "10 MB"],
)
def test_a_provider_that_misbehaves_is_told_apart_and_the_analysis_completes(
    ctx: RunContext, web: FakeWeb, reply: Said, code: str
) -> None:
    with ScriptedModel(says("Acme.")) as good, ScriptedModel(always(reply)) as bad:
        two = changed(ctx, **provided(good=good.base_url, bad=bad.base_url))
        given_sources(ctx.store, a_website(config=OWN))
        poll(two, web)
        work(two, web.port)

    found = analysis(ctx.store)
    assert (found.status, found.progress_percent) == ("completed", 100)
    assert list(found.analysis["by_provider"]) == ["good"]
    assert found.analysis["failures"]["bad"].startswith(f"2 unanswered: {code}")
    by_provider = {(row.provider, row.status) for row in rows(ctx.store, website_answers)}
    assert by_provider == {("good", "answered"), ("bad", "failed")}


def test_a_run_that_was_stopped_gives_back_and_the_next_asks_only_what_is_missing(
    ctx: RunContext, web: FakeWeb
) -> None:
    is_over = threading.Event()

    def answer(asked: ModelRequest) -> Said:
        if asked.text == OWN["prompts"][1]:
            is_over.wait(20)
        return Say(text="Acme.")

    async def stop_after_one_answer(halves: RunContext) -> None:
        worker = Worker(halves.store, lease_seconds=60)
        async with a_fetcher(halves.settings, web.port) as fetcher:
            run = asyncio.create_task(run_analyses(halves, worker, fetcher))
            await asyncio.to_thread(wait_until, lambda: bool(rows(ctx.store, website_answers)))
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)

    with ScriptedModel(answer) as model:
        halves = changed(ctx, **provided(one=model.base_url))
        given_sources(ctx.store, a_website(config=OWN))
        poll(halves, web)
        asyncio.run(stop_after_one_answer(halves))
        [task] = phase_tasks(ctx.store, "website_analysis")
        assert (task.status, task.attempts) == ("PENDING", 0)
        is_over.set()
        work(halves, web.port)

        assert [one.text for one in model.requests].count(OWN["prompts"][0]) == 1
    assert analysis(ctx.store).status == "completed"
    assert sorted(answer_pairs(ctx.store).values()) == [1, 1]


def test_an_analysis_whose_source_is_switched_off_ends_and_asks_nobody(
    ctx: RunContext, web: FakeWeb, provider: ScriptedModel, clock: GoingClock
) -> None:
    given_sources(ctx.store, a_website())
    poll(ctx, web)
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        disable(connection, "website:acme", actor="test", reason="enough", now=now)

    assert work(ctx, web.port) == {"unwanted": 1}
    assert provider.requests == web.requests == []
    found = analysis(ctx.store)
    assert (found.status, "enough" in found.failure) == ("failed", True)
