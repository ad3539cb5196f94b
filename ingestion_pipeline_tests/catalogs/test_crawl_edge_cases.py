"""Edge cases of a crawl: links that are too long, unwritable pages, redirects between hosts."""

import asyncio
import itertools
from typing import Any

import pytest
from sqlalchemy import event

from ingestion_pipeline.pages.visits.page import Rendered, RenderingOptions
from ingestion_pipeline.sources import registry
from ingestion_pipeline.store.tables import extractions
from ingestion_pipeline_tests.catalog_extractions import (
    CATALOG_ID,
    LINKS,
    LiveCatalog,
    crawl_until_done,
    link_page,
)
from ingestion_pipeline_tests.fakes import redirect
from ingestion_pipeline_tests.polling_runs import a_fetcher, with_settings

LONG = "/c/" + "漢" * 700  # 2,100 bytes, and three times as many characters once escaped


@pytest.mark.slow
def test_a_link_that_is_too_long_once_escaped_is_skipped(live: LiveCatalog) -> None:
    live.serve({"/": link_page("/c/1", LONG), "/c/1": link_page()})

    live.crawl_all()

    assert [page.path for page in live.pages()] == ["/", "/c/1"]
    assert [row.status for row in live.rows(extractions)] == ["COMPLETE"]


@pytest.mark.slow
def test_a_page_that_cannot_be_written_fails_alone(live: LiveCatalog) -> None:
    links = [f"/c/{number}" for number in range(1, 5)]
    live.web.routes |= {"/": link_page(*links), **dict.fromkeys(links, link_page())}
    live.web.routes["/c/3"] = link_page(text="\N{BELL}unwritable")
    live.register()

    @event.listens_for(live.store.engine, "before_cursor_execute")
    def refuse(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if "INSERT INTO snapshots" in statement and "/c/3" in str(parameters):
            raise_database_error()

    try:
        live.crawl_all()
    finally:
        event.remove(live.store.engine, "before_cursor_execute", refuse)

    failed = {page.path: page.failure["code"] for page in live.pages() if page.status == "ERROR" and page.failure}
    assert failed == {"/c/3": "not_written"}
    assert [row.status for row in live.rows(extractions)] == ["COMPLETE"]


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


def test_a_page_that_redirects_a_browser_to_another_host_fails_once(live: LiveCatalog) -> None:
    live.serve({"/": link_page("/c/1")}, {**LINKS, "render": True})
    browser = RedirectedBrowser()

    async def run() -> None:
        async with a_fetcher(live.ctx.settings, live.web.port) as fetcher:
            await crawl_until_done(live.ctx, [CATALOG_ID], fetcher, renderer=browser)

    asyncio.run(run())

    [root] = live.pages()
    assert (root.status, root.failure and root.failure["code"]) == ("ERROR", "leads_elsewhere")
    assert browser.rendered == 1


@pytest.mark.slow
def test_an_exploratory_crawl_stays_on_its_host_wherever_a_redirect_leads(live: LiveCatalog) -> None:
    live.web.routes |= {"a.test/": link_page("/about", "/out"), "a.test/about": link_page()}
    live.serve(
        {"a.test/out": redirect("http://evil.test/"), "evil.test/": link_page("/1", "/2")}, {"page_type": "EXPLORATORY"}
    )

    live.crawl_all()

    assert [page.path for page in live.pages()] == ["/", "/about", "/out"]


@pytest.mark.slow
def test_a_redirect_back_to_a_host_waits_for_its_delay(live: LiveCatalog) -> None:
    live.ctx = with_settings(live.ctx, crawl__delay_seconds="0.3", hosts__delay_seconds="0")
    live.web.routes |= {"a.test/": redirect("http://b.test/x")}
    live.web.routes |= {"b.test/x": redirect("http://a.test/back")}
    live.serve({"a.test/back": link_page("/c/1"), "a.test/c/1": link_page()})

    live.crawl_all()

    request_times = sorted(request.at for request in live.web.requests if request.host == "a.test")
    assert len(request_times) == 3
    assert min(after - before for before, after in itertools.pairwise(request_times)) >= 0.29


@pytest.mark.parametrize("when", ["before", "while its pages wait"])
def test_a_crawl_of_a_disabled_source_ends_without_a_request(live: LiveCatalog, when: str) -> None:
    live.serve({"/": link_page("/c/1"), "/c/1": link_page()})
    if when != "before":
        live.poll()
    with live.store.begin() as connection:
        now = live.store.clock.now(connection)
        registry.disable(connection, CATALOG_ID, actor="ann", reason="later", now=now)

    live.crawl_all()

    assert live.web.paths == []
