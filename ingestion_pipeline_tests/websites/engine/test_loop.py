"""An analysis from its poll to its ranking, phase by phase, in one run."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from asyncio import StreamWriter

import pytest
from sqlalchemy import update

from ingestion_pipeline.demo.model_server import ModelRequest, Say, ScriptedModel, blank
from ingestion_pipeline.demo.model_server import Reply as Said
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.sources.source import Tier
from ingestion_pipeline.store.tables import (
    businesses,
    dead_letters,
    tasks,
    website_analyses,
    website_answers,
    website_rankings,
)
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline.websites.runs.starting import NotAWebsite, request_analyses
from ingestion_pipeline.websites.runs.system import start_first_analyses
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import GoingClock, changed, given_sources, rows, source_row, wait_until
from ingestion_pipeline_tests.websites.asking import says
from ingestion_pipeline_tests.websites.engine.analysing import (
    SMALL,
    a_website,
    analysis,
    phase_tasks,
    poll,
    provided,
    statuses,
    work,
)
from ingestion_pipeline_tests.websites.sites import ACME


def test_a_website_is_analysed_by_one_warm_run_in_less_than_three_seconds(
    ctx: RunContext, web: FakeWeb, provider: ScriptedModel
) -> None:
    import openai  # noqa: F401 - a warm process has it

    web.routes |= ACME
    began = time.monotonic()
    given_sources(ctx.store, a_website())
    poll(ctx, web)
    counts = work(ctx, web.port)
    took = time.monotonic() - began

    found = analysis(ctx.store)
    done = ("website_info_done", "website_prompts_done", "website_analysis_done")
    assert counts == dict.fromkeys(done, 1)
    assert (found.status, found.current_step) == ("completed", "completed")
    assert (found.progress_percent, found.failure) == (100, None)
    assert [row.name for row in rows(ctx.store, businesses)] == ["Acme Tools"]
    assert [row.visibility for row in rows(ctx.store, website_rankings)] == [1.0]
    assert len(rows(ctx.store, website_answers)) == len(provider.requests) == 2
    assert {task.status for task in phase_tasks(ctx.store)} == {"SUCCESS"}
    assert {task.tracking_id for task in phase_tasks(ctx.store)} == {found.tracking_id}
    assert source_row(ctx.store, "website:acme").last_outcome.startswith("visible in 100%")
    assert took < 3, took


def test_an_analysis_begins_not_started_and_each_phase_says_how_far_it_is(ctx: RunContext, web: FakeWeb) -> None:
    seen: list[tuple[str, str, int]] = []
    may_answer = threading.Event()

    def see() -> tuple[str, str, int]:
        row = analysis(ctx.store)
        return row.status, row.current_step, row.progress_percent

    async def home_page(writer: StreamWriter) -> None:
        seen.append(await asyncio.to_thread(see))
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + SMALL.encode())

    def form(asked: ModelRequest) -> Said:
        if "questions" in asked.schema.get("properties", {}):
            seen.append(see())
        return Say(text=json.dumps(blank(asked.schema)))

    def first(_: ModelRequest) -> Said:
        """Answers when the other provider has been asked."""
        may_answer.wait(30)
        return Say(text="Acme Tools.")

    def last(_: ModelRequest) -> Said:
        """Answers when the other provider is done."""
        seen.append(see())
        may_answer.set()
        wait_until(lambda: see()[2] == 75)
        seen.append(see())
        return Say(text="Acme Tools.")

    web.routes["/"] = home_page
    with ScriptedModel(form) as model, ScriptedModel(first) as quick, ScriptedModel(last) as slow:
        changes = provided(quick=quick.base_url, slow=slow.base_url)
        changes |= {"website__prompts": "2", "openai_base_url": model.base_url}
        two = changed(ctx, **changes)
        given_sources(ctx.store, a_website())
        poll(two, web)
        begun = analysis(ctx.store)
        work(two, web.port)

    assert (begun.status, begun.progress_percent, begun.started_at) == ("not-started", 0, None)
    assert list(dict.fromkeys(seen)) == [
        ("not-started", "not-started", 10),
        ("prompt-forming", "prompt-forming", 30),
        ("model-analysis", "model-analysis", 50),
        ("model-analysis", "model-analysis", 75),
    ]
    assert analysis(ctx.store).progress_percent == 100
    ended = analysis(ctx.store)
    assert set(ended.phase_times) == {"website-analysis", "prompt-forming", "model-analysis"}
    assert all(one["began"] <= one["ended"] for one in ended.phase_times.values())
    assert ended.started_at <= ended.finished_at


def test_what_an_operator_says_is_believed_and_nothing_is_fetched_or_formed(
    ctx: RunContext, web: FakeWeb, provider: ScriptedModel
) -> None:
    config = {"business": {"name": "Globex"}, "prompts": ["Who makes the best bread?"]}
    given_sources(ctx.store, a_website(config=config))
    poll(ctx, web)
    work(ctx, web.port)

    assert web.requests == web.robots_requests == []
    assert [one.text for one in provider.requests] == ["Who makes the best bread?"]
    found = analysis(ctx.store)
    assert (found.status, found.is_manual, found.info["confidence"]) == ("completed", True, 100)
    assert [row.visibility for row in rows(ctx.store, website_rankings)] == [1.0]


def test_a_website_is_analysed_again_when_its_tier_says_so(ctx: RunContext, web: FakeWeb, clock: GoingClock) -> None:
    given_sources(ctx.store, a_website(tier=Tier.HOT))
    for days in (0, 0.5, 0.6):
        clock.advance(days=days)
        poll(ctx, web)
        work(ctx, web.port)

    first, second = rows(ctx.store, website_analyses)
    assert (first.is_recurring, second.is_recurring) == (False, True)
    assert second.priority == first.priority + 2
    assert second.business_id == first.business_id
    assert len(rows(ctx.store, website_rankings)) == 2


def test_a_poll_begins_no_second_analysis_while_one_goes_on(ctx: RunContext, web: FakeWeb, clock: GoingClock) -> None:
    given_sources(ctx.store, a_website())
    poll(ctx, web)
    clock.advance(days=40)
    poll(ctx, web)

    assert statuses(ctx.store) == {"not-started": 1}
    assert source_row(ctx.store, "website:acme").last_outcome == "analysis 1 is running: not-started"


def test_one_website_is_analysed_on_demand_and_the_others_wait(ctx: RunContext, web: FakeWeb) -> None:
    given_sources(ctx.store, a_website(), a_website("other"))
    poll(ctx, web)
    said = request_analyses(ctx, ["website:acme"])
    work(ctx, web.port, ["website:acme"])

    assert said == {"website:acme": "analysis 1 is running: not-started"}
    found = {row.source_id: row.status for row in rows(ctx.store, website_analyses)}
    assert found == {"website:acme": "completed", "website:other": "not-started"}


def test_an_analysis_on_demand_counts_as_the_poll(
    ctx: RunContext, web: FakeWeb, provider: ScriptedModel, clock: GoingClock
) -> None:
    given_sources(ctx.store, a_website(tier=Tier.HOT))
    request_analyses(ctx, ["website:acme"])
    work(ctx, web.port, ["website:acme"])
    start_first_analyses(ctx)
    poll(ctx, web)
    work(ctx, web.port)

    assert statuses(ctx.store) == {"completed": 1}
    assert len(provider.requests) == 2
    source = source_row(ctx.store, "website:acme")
    assert source.last_checked_at is not None

    clock.advance(hours=20)  # the next poll of a day is near: a second analysis counts as it
    request_analyses(ctx, ["website:acme"])
    work(ctx, web.port)
    clock.advance(hours=12)
    poll(ctx, web)
    assert statuses(ctx.store) == {"completed": 2}


def test_only_a_website_is_analysed(ctx: RunContext) -> None:
    given_sources(ctx.store, a_definition())
    with pytest.raises(NotAWebsite, match="only websites are analysed"):
        request_analyses(ctx, ["series:solo"])


def test_a_new_website_begins_without_a_run_and_only_once(ctx: RunContext, web: FakeWeb) -> None:
    given_sources(ctx.store, a_website(), a_website("bad", config={"prompts": 7}))

    assert [start_first_analyses(ctx), start_first_analyses(ctx)] == [1, 0]
    poll(ctx, web)  # finds nothing due
    assert statuses(ctx.store) == {"not-started": 1}
    acme, bad = (source_row(ctx.store, f"website:{name}") for name in ("acme", "bad"))
    assert acme.next_check_at > ctx.store.now()
    assert "config.prompts" in bad.last_outcome
    assert [dead_letter.error_code for dead_letter in rows(ctx.store, dead_letters)] == ["bad_config"]


def test_who_has_lost_its_claim_writes_no_progress(ctx: RunContext, web: FakeWeb) -> None:
    taken: list[Task] = []

    def sentiment(_: ModelRequest) -> Said:
        """Asked when the answer is stored: meanwhile the lease ends, and another takes the task."""
        with ctx.store.begin() as connection:
            mine = update(tasks).where(tasks.c.status == "PROCESSING")
            connection.execute(mine.values(lease_until=ctx.store.clock.now(connection)))
        other = Worker(ctx.store, lease_seconds=60)
        taken.extend(other.claim(ClaimFilter(kind="website_analysis"), limit=1))
        return Say(text='{"sentiment": "positive", "quote": "Acme is the best baker"}')

    with ScriptedModel(says("Acme is the best baker.")) as provider, ScriptedModel(sentiment) as model:
        changes = provided(one=provider.base_url) | {"openai_base_url": model.base_url}
        own = {"business": {"name": "Acme"}, "prompts": ["Who bakes?"]}
        given_sources(ctx.store, a_website(config=own))
        slow = changed(ctx, **changes)
        poll(slow, web)
        counts = work(slow, web.port)

    assert [task.fence for task in taken] == [2]
    assert (counts["lost"], counts["website_analysis_done"]) == (1, 0)
    assert (analysis(ctx.store).status, analysis(ctx.store).progress_percent) == ("model-analysis", 50)
