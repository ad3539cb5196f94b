"""An analysis from its poll to its ranking, phase by phase, in one run."""

import asyncio
import json
import threading
import time
from asyncio import StreamWriter

import pytest

from ingestion_pipeline.demo.model_server import ModelRequest, Say, ScriptedModel, blank
from ingestion_pipeline.demo.model_server import Reply as ModelReply
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.sources.source import Tier
from ingestion_pipeline.store.tables import (
    businesses,
    dead_letters,
    website_analyses,
    website_answers,
    website_rankings,
)
from ingestion_pipeline.websites.analysis_rows import NotAWebsite, request_analyses, start_first_analyses
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pages.page_fetches import SHELL, FakeBrowser
from ingestion_pipeline_tests.polling_runs import RunningClock, add_sources, rows, source_row, wait_until, with_settings
from ingestion_pipeline_tests.websites.website_runs import (
    ACME_PAGES,
    SMALL_PAGE,
    a_website,
    analyse,
    only_analysis,
    phase_tasks,
    poll,
    process_analyses,
    provider_settings,
    start,
    statuses,
)

pytestmark = pytest.mark.both_databases


@pytest.mark.slow
def test_a_website_is_analysed_by_one_warm_run_in_less_than_three_seconds(
    ctx: RunContext, web: FakeWeb, provider: ScriptedModel
) -> None:
    import openai  # noqa: F401 - a warm process has it

    web.routes |= ACME_PAGES
    began = time.monotonic()
    counts = analyse(ctx, web, a_website())
    took = time.monotonic() - began

    analysis = only_analysis(ctx.store)
    counters = ("website_info_done", "website_prompts_done", "website_analysis_done")
    assert counts == dict.fromkeys(counters, 1)
    assert (analysis.status, analysis.current_step) == ("completed", "completed")
    assert (analysis.progress_percent, analysis.failure) == (100, None)
    assert [row.name for row in rows(ctx.store, businesses)] == ["Acme Tools"]
    assert [row.visibility for row in rows(ctx.store, website_rankings)] == [1.0]
    assert len(rows(ctx.store, website_answers)) == len(provider.requests) == 2
    assert {task.status for task in phase_tasks(ctx.store)} == {"SUCCESS"}
    assert {task.tracking_id for task in phase_tasks(ctx.store)} == {analysis.tracking_id}
    assert source_row(ctx.store, "website:acme").last_outcome.startswith("visible in 100%")
    assert took < 3, took


@pytest.mark.slow
def test_an_analysis_starts_as_not_started_and_each_phase_reports_progress(ctx: RunContext, web: FakeWeb) -> None:
    progress_log: list[tuple[str, str, int]] = []
    may_answer = threading.Event()

    def progress() -> tuple[str, str, int]:
        row = only_analysis(ctx.store)
        return row.status, row.current_step, row.progress_percent

    async def home_page(writer: StreamWriter) -> None:
        progress_log.append(await asyncio.to_thread(progress))
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + SMALL_PAGE.encode())

    def form_prompts(request: ModelRequest) -> ModelReply:
        if "questions" in request.schema.get("properties", {}):
            progress_log.append(progress())
        return Say(text=json.dumps(blank(request.schema)))

    def first(_: ModelRequest) -> ModelReply:
        """Answer after the other provider was asked."""
        may_answer.wait(30)
        return Say(text="Acme Tools.")

    def last(_: ModelRequest) -> ModelReply:
        """Answer after the other provider is done."""
        progress_log.append(progress())
        may_answer.set()
        wait_until(lambda: progress()[2] == 75)
        progress_log.append(progress())
        return Say(text="Acme Tools.")

    web.routes["/"] = home_page
    with ScriptedModel(form_prompts) as model, ScriptedModel(first) as quick, ScriptedModel(last) as slow:
        changes = provider_settings(quick=quick.base_url, slow=slow.base_url)
        changes |= {"website__prompts": "2", "openai_base_url": model.base_url}
        two_provider_ctx = with_settings(ctx, **changes)
        start(two_provider_ctx, web, a_website())
        queued = only_analysis(ctx.store)
        process_analyses(two_provider_ctx, web.port)

    assert (queued.status, queued.progress_percent, queued.started_at) == ("not-started", 0, None)
    assert list(dict.fromkeys(progress_log)) == [
        ("not-started", "not-started", 10),
        ("prompt-forming", "prompt-forming", 30),
        ("model-analysis", "model-analysis", 50),
        ("model-analysis", "model-analysis", 75),
    ]
    assert only_analysis(ctx.store).progress_percent == 100
    ended = only_analysis(ctx.store)
    assert set(ended.phase_times) == {"website-analysis", "prompt-forming", "model-analysis"}
    assert all(times["began"] <= times["ended"] for times in ended.phase_times.values())
    assert ended.started_at <= ended.finished_at


def test_values_of_an_operator_are_used_without_fetching_or_forming_prompts(
    ctx: RunContext, web: FakeWeb, provider: ScriptedModel
) -> None:
    config = {"business": {"name": "Globex"}, "prompts": ["Who makes the best bread?"]}
    analyse(ctx, web, a_website(config=config))

    assert web.requests == web.robots_requests == []
    assert [request.text for request in provider.requests] == ["Who makes the best bread?"]
    analysis = only_analysis(ctx.store)
    assert (analysis.status, analysis.is_manual, analysis.info["confidence"]) == ("completed", True, 100)
    assert [row.visibility for row in rows(ctx.store, website_rankings)] == [1.0]


@pytest.mark.slow
def test_a_website_is_analysed_again_at_the_interval_of_its_tier(
    ctx: RunContext, web: FakeWeb, clock: RunningClock
) -> None:
    add_sources(ctx.store, a_website(tier=Tier.HOT))
    for days in (0, 0.5, 0.6):
        clock.advance(days=days)
        poll(ctx, web)
        process_analyses(ctx, web.port)

    first, second = rows(ctx.store, website_analyses)
    assert (first.is_recurring, second.is_recurring) == (False, True)
    assert second.priority == first.priority + 2
    assert second.business_id == first.business_id
    assert len(rows(ctx.store, website_rankings)) == 2


def test_a_poll_starts_no_second_analysis_while_one_is_active(
    ctx: RunContext, web: FakeWeb, clock: RunningClock
) -> None:
    start(ctx, web, a_website())
    clock.advance(days=40)
    poll(ctx, web)

    assert statuses(ctx.store) == {"not-started": 1}
    assert source_row(ctx.store, "website:acme").last_outcome == "analysis 1 is running: not-started"


@pytest.mark.slow
def test_a_website_is_analysed_on_demand_while_others_wait(ctx: RunContext, web: FakeWeb) -> None:
    start(ctx, web, a_website(), a_website("other"))
    messages = request_analyses(ctx, ["website:acme"])
    process_analyses(ctx, web.port, ["website:acme"])

    assert messages == {"website:acme": "analysis 1 is running: not-started"}
    status_by_source = {row.source_id: row.status for row in rows(ctx.store, website_analyses)}
    assert status_by_source == {"website:acme": "completed", "website:other": "not-started"}


@pytest.mark.slow
def test_an_analysis_on_demand_counts_as_the_poll(
    ctx: RunContext, web: FakeWeb, provider: ScriptedModel, clock: RunningClock
) -> None:
    add_sources(ctx.store, a_website(tier=Tier.HOT))
    request_analyses(ctx, ["website:acme"])
    process_analyses(ctx, web.port, ["website:acme"])
    start_first_analyses(ctx)
    poll(ctx, web)
    process_analyses(ctx, web.port)

    assert statuses(ctx.store) == {"completed": 1}
    assert len(provider.requests) == 2
    source = source_row(ctx.store, "website:acme")
    assert source.last_checked_at is not None

    clock.advance(hours=20)  # the daily poll is near: a second analysis replaces it
    request_analyses(ctx, ["website:acme"])
    process_analyses(ctx, web.port)
    clock.advance(hours=12)
    poll(ctx, web)
    assert statuses(ctx.store) == {"completed": 2}


def test_only_a_website_can_be_analysed(ctx: RunContext) -> None:
    add_sources(ctx.store, a_definition())
    with pytest.raises(NotAWebsite, match="only websites are analysed"):
        request_analyses(ctx, ["series:solo"])


def test_a_new_website_starts_its_analysis_once_without_a_poll(ctx: RunContext, web: FakeWeb) -> None:
    add_sources(ctx.store, a_website(), a_website("bad", config={"prompts": 7}))

    assert [start_first_analyses(ctx), start_first_analyses(ctx)] == [1, 0]
    poll(ctx, web)  # nothing is due
    assert statuses(ctx.store) == {"not-started": 1}
    acme, bad = (source_row(ctx.store, f"website:{name}") for name in ("acme", "bad"))
    assert acme.next_check_at > ctx.store.now()
    assert "config.prompts" in bad.last_outcome
    assert [dead_letter.error_code for dead_letter in rows(ctx.store, dead_letters)] == ["bad_config"]


@pytest.mark.slow
def test_a_page_that_needs_javascript_is_read_with_a_browser(ctx: RunContext, web: FakeWeb) -> None:
    web.routes |= ACME_PAGES | {"/": SHELL}
    browser = FakeBrowser([ACME_PAGES["/"] + "<p>Invoices that bakeries like. " * 40])
    start(ctx, web, a_website())

    process_analyses(ctx, web.port, renderer=browser)

    row = only_analysis(ctx.store)
    assert (row.status, row.info["name"]) == ("completed", "Acme Tools")
    assert [url for url, _ in browser.requests] == ["http://acme.test/"]  # the other pages need no browser
    assert len(row.info["pages"]) == 4
