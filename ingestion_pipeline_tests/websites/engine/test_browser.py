"""A home page that is empty without JavaScript: shown by a browser where there is one."""

from __future__ import annotations

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store.tables import dead_letters
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pages.visiting import SHELL, FakeBrowser
from ingestion_pipeline_tests.pollers import given_sources, rows
from ingestion_pipeline_tests.websites.engine.analysing import a_website, analysis, poll, work
from ingestion_pipeline_tests.websites.sites import ACME


def test_a_page_that_is_empty_without_a_browser_is_read_with_one(ctx: RunContext, web: FakeWeb) -> None:
    web.routes |= ACME | {"/": SHELL}
    browser = FakeBrowser([ACME["/"] + "<p>Invoices that bakeries like. " * 40])
    given_sources(ctx.store, a_website())
    poll(ctx, web)

    work(ctx, web.port, renderer=browser)

    found = analysis(ctx.store)
    assert (found.status, found.info["name"]) == ("completed", "Acme Tools")
    assert [url for url, _ in browser.asked] == ["http://acme.test/"]  # the others need none
    assert len(found.info["pages"]) == 4


def test_without_a_browser_the_reason_names_what_is_missing(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["/"] = SHELL
    given_sources(ctx.store, a_website())
    poll(ctx, web)

    work(ctx, web.port)

    [dead_letter] = rows(ctx.store, dead_letters)
    assert (dead_letter.error_code, analysis(ctx.store).status) == ("needs_browser", "failed")
    assert "browser" in analysis(ctx.store).failure
