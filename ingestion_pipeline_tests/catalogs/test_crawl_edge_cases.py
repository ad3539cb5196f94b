"""Edge cases of a crawl: links that are too long, unwritable pages, redirects between hosts."""

import asyncio
import itertools
from typing import Any

import pytest
from sqlalchemy import event

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.visits.page import Rendered, RenderingOptions
from ingestion_pipeline.sources import registry
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import extractions
from ingestion_pipeline_tests.catalog_extractions import (
    CATALOG_ID,
    LINKS,
    a_catalog,
    crawl_all,
    crawl_until_done,
    crawled_pages,
    link_page,
    poll_catalogs,
)
from ingestion_pipeline_tests.fakes import FakeWeb, redirect
from ingestion_pipeline_tests.polling_runs import a_fetcher, add_sources, rows, with_settings

LONG = "/c/" + "漢" * 700  # 2,100 bytes, and three times as many characters once escaped


@pytest.mark.slow
def test_a_link_that_is_too_long_once_escaped_is_skipped(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"/": link_page("/c/1", LONG), "/c/1": link_page()}
    add_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    assert [page.path for page in crawled_pages(store)] == ["/", "/c/1"]
    assert [row.status for row in rows(store, extractions)] == ["COMPLETE"]


@pytest.mark.slow
def test_a_page_that_cannot_be_written_fails_alone(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    links = [f"/c/{number}" for number in range(1, 5)]
    web.routes |= {"/": link_page(*links), **dict.fromkeys(links, link_page())}
    web.routes["/c/3"] = link_page(text="\N{BELL}unwritable")
    add_sources(store, a_catalog())

    @event.listens_for(store.engine, "before_cursor_execute")
    def refuse(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if "INSERT INTO snapshots" in statement and "/c/3" in str(parameters):
            raise_database_error()

    try:
        crawl_all(ctx, web.port)
    finally:
        event.remove(store.engine, "before_cursor_execute", refuse)

    failed = {
        page.path: page.failure["code"] for page in crawled_pages(store) if page.status == "ERROR" and page.failure
    }
    assert failed == {"/c/3": "not_written"}
    assert [row.status for row in rows(store, extractions)] == ["COMPLETE"]


def raise_database_error() -> None:
    from sqlalchemy.exc import DataError

    raise DataError("INSERT INTO snapshots", {}, Exception("a value it does not take"))


class RedirectedBrowser:
    """In place of the browser: it is redirected to another host."""

    rendered = 0

    async def render(self, url: str, rendering: RenderingOptions, *, check_url: Any = None) -> Rendered:
        self.rendered += 1
        check_url(url)
        check_url("http://sso.test/login")
        raise AssertionError("it went there")


def test_a_page_that_redirects_a_browser_to_another_host_fails_once(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"/": link_page("/c/1")}
    add_sources(store, a_catalog({**LINKS, "render": True}))
    browser = RedirectedBrowser()

    async def run() -> None:
        async with a_fetcher(ctx.settings, web.port) as fetcher:
            await crawl_until_done(ctx, [CATALOG_ID], fetcher, renderer=browser)

    asyncio.run(run())

    [root] = crawled_pages(store)
    assert (root.status, root.failure and root.failure["code"]) == ("ERROR", "leads_elsewhere")
    assert browser.rendered == 1


@pytest.mark.slow
def test_an_exploratory_crawl_stays_on_its_host_wherever_a_redirect_leads(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"a.test/": link_page("/about", "/out"), "a.test/about": link_page()}
    web.routes |= {"a.test/out": redirect("http://evil.test/"), "evil.test/": link_page("/1", "/2")}
    add_sources(store, a_catalog({"page_type": "EXPLORATORY"}))

    crawl_all(ctx, web.port)

    assert [page.path for page in crawled_pages(store)] == ["/", "/about", "/out"]


@pytest.mark.slow
def test_a_redirect_back_to_a_host_waits_for_its_delay(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    ctx = with_settings(ctx, crawl__delay_seconds="0.3", hosts__delay_seconds="0")
    web.routes |= {"a.test/": redirect("http://b.test/x")}
    web.routes |= {"b.test/x": redirect("http://a.test/back")}
    web.routes |= {"a.test/back": link_page("/c/1"), "a.test/c/1": link_page()}
    add_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    request_times = sorted(request.at for request in web.requests if request.host == "a.test")
    assert len(request_times) == 3
    assert min(after - before for before, after in itertools.pairwise(request_times)) >= 0.29


@pytest.mark.parametrize("when", ["before", "while its pages wait"])
def test_a_crawl_of_a_disabled_source_ends_without_a_request(
    ctx: RunContext, store: Store, web: FakeWeb, when: str
) -> None:
    web.routes |= {"/": link_page("/c/1"), "/c/1": link_page()}
    add_sources(store, a_catalog())
    if when != "before":
        poll_catalogs(ctx, web)
    with store.begin() as connection:
        now = store.clock.now(connection)
        registry.disable(connection, CATALOG_ID, actor="ann", reason="later", now=now)

    crawl_all(ctx, web.port)

    assert web.paths == []
