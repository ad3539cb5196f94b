"""A home page that is empty without JavaScript: shown by a browser where there is one."""

from __future__ import annotations

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store.tables import dead_letters
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pages.visiting import SHELL, FakeBrowser
from ingestion_pipeline_tests.pollers import given_sources, rows
from ingestion_pipeline_tests.websites.engine.analysing import a_website, analysis, poll, work
from ingestion_pipeline_tests.websites.sites import ACME


def test_a_page_that_is_empty_without_a_browser_is_read_with_one(
    shop: RunContext, web: FakeWeb
) -> None:
    web.routes |= ACME | {"/": SHELL}
    browser = FakeBrowser([ACME["/"] + "<p>Invoices that bakeries like. " * 40])
    given_sources(shop.store, a_website())
    poll(shop, web)

    work(shop, web.port, renderer=browser)

    found = analysis(shop.store)
    assert (found.status, found.info["name"]) == ("completed", "Acme Tools")
    assert [url for url, _ in browser.asked] == ["http://acme.test/"]  # the others need none
    assert len(found.info["pages"]) == 4


def test_without_a_browser_the_reason_names_what_is_missing(shop: RunContext, web: FakeWeb) -> None:
    web.routes["/"] = SHELL
    given_sources(shop.store, a_website())
    poll(shop, web)

    work(shop, web.port)

    [letter] = rows(shop.store, dead_letters)
    assert (letter.error_code, analysis(shop.store).status) == ("needs_browser", "failed")
    assert "browser" in analysis(shop.store).failure
