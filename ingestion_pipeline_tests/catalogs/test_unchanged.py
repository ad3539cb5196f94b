"""Catalogues crawled again: what looks unchanged but is not, and what is unchanged but was lost.

On a real web, on both databases.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ingestion_pipeline.catalogs.crawling.runs import crawl_until_done, start_now
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.protocol import CrawlCounts
from ingestion_pipeline.pages import Fetched
from ingestion_pipeline.pages.visits.rendering import Rendered, RenderingOptions
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import extractions, snapshots
from ingestion_pipeline_tests.crawlers import SHOP, a_catalog, a_page, conclude, crawl_all
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.pollers import a_fetcher, fetch, given_sources, rows, source_row

CLICKS = {"page_type": "DETAIL_LINKS", "link_pattern": "/c/", "render": True, "click_discovery": {"selector": "#b"}}


def a_list(*links: str) -> Reply:
    """All links are called the same."""
    anchors = "".join(f'<li><a href="{link}">Details</a></li>' for link in links)
    body = f"<html><body><h1>Courses</h1><ul>{anchors}</ul></body></html>".encode()
    return Reply(body, headers={"ETag": f'"{"".join(links)}"'})


class Browser:
    """Stands where the browser is: the page it shows leads to courses by clicks alone."""

    def __init__(self, *links: str) -> None:
        self.links = links
        self.asked: list[RenderingOptions] = []

    async def render(
        self, url: str, rendering: RenderingOptions, *, check_url: Callable[[str], None] | None = None
    ) -> Rendered:
        self.asked.append(rendering)
        page = Fetched(
            url=url,
            final_url=url,
            status_code=200,
            body=("<h1>Courses</h1>" + "<p>Open to all who want to learn. " * 20).encode(),
            content_type="text/html; charset=utf-8",
            etag=None,
            last_modified=None,
        )
        is_right = rendering.content_selector != "#wrong"
        return Rendered(page=page, discovered=self.links if is_right else ())


def crawl_shown(ctx: RunContext, web: FakeWeb, browser: Browser) -> CrawlCounts:
    async def run() -> CrawlCounts:
        async with a_fetcher(ctx.settings, web.port) as fetcher:
            return await crawl_until_done(ctx, [SHOP], fetcher, renderer=browser)

    counts = asyncio.run(run())
    conclude(ctx)
    return counts


def ends(store: Store) -> list[tuple[str, int]]:
    """How each extraction ended, and of how many pages it was."""
    return [(row.status, row.page_count) for row in rows(store, extractions)]


def test_a_list_that_leads_elsewhere_under_the_same_words_is_followed_now_and_later(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {f"/c/{number}": a_page(text=str(number)) for number in (1, 2, 7)}
    web.routes["/"] = a_list("/c/1", "/c/2")
    given_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    web.routes["/"] = a_list("/c/1", "/c/7")

    for _ in range(2):  # the second time it is the new list that is unchanged
        web.requests.clear()
        crawl_all(ctx, web.port)

        assert sorted(web.paths) == ["/", "/c/1", "/c/7"]
    assert len([row for row in rows(store, snapshots) if row.url == "http://a.test/"]) == 1


def test_an_extraction_on_demand_counts_as_the_poll(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"/": a_list("/c/1"), "/c/1": a_page(text="1")}
    given_sources(store, a_catalog())
    start_now(ctx, [SHOP])
    crawl_all(ctx, web.port)
    fetch(ctx, web)

    assert len(rows(store, extractions)) == 1
    assert source_row(store, SHOP).next_check_at > store.now()


def test_what_only_clicks_found_is_followed_again_where_the_page_is_unchanged(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"/": a_page(), "/c/1": a_page(text="1"), "/c/2": a_page(text="2")}
    given_sources(store, a_catalog({**CLICKS, "links": {"page_type": "DETAIL"}}))
    browser = Browser("http://a.test/c/1", "http://a.test/c/2")
    crawl_shown(ctx, web, browser)

    counts = crawl_shown(ctx, web, browser)

    assert (counts.new, counts.same, len(browser.asked)) == (0, 3, 1)
    assert ends(store) == [("COMPLETE", 3)] * 2


def test_a_mended_recipe_is_shown_to_the_browser_though_the_page_is_unchanged(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"/": a_page(), "/c/1": a_page(text="1")}
    recipe = {**CLICKS, "page_type": "EXPLORATORY"}
    browser = Browser("http://a.test/c/1")
    given_sources(store, a_catalog({**recipe, "content_selector": "#wrong"}))
    crawl_shown(ctx, web, browser)

    given_sources(store, a_catalog({**recipe, "content_selector": "#right"}))
    crawl_shown(ctx, web, browser)

    assert [one.content_selector for one in browser.asked][:2] == ["#wrong", "#right"]
    assert "/c/1" in web.paths


def gone(content: Path) -> None:
    shutil.rmtree(content)


def damaged(content: Path) -> None:
    for path in content.glob("??/*"):
        path.write_bytes(b"not what was put")


@pytest.mark.parametrize("mishap", [gone, damaged])
def test_a_list_whose_stored_body_is_gone_or_damaged_is_got_again_and_followed(
    ctx: RunContext, store: Store, web: FakeWeb, mishap: Callable[[Path], None]
) -> None:
    web.routes |= {"/": a_list("/c/1"), "/c/1": a_page(text="1")}
    given_sources(store, a_catalog())
    crawl_all(ctx, web.port)

    mishap(ctx.settings.home / "content")
    crawl_all(ctx, web.port)

    assert ends(store) == [("COMPLETE", 2)] * 2
    [body] = [row.body_hash for row in rows(store, snapshots) if row.url == "http://a.test/"]
    assert b"/c/1" in ctx.content.get(body)


def test_an_unchanged_course_whose_stored_content_is_gone_is_kept_again(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    course = Reply(a_page(text="1").encode(), headers={"ETag": '"1"'})
    web.routes |= {"/": a_list("/c/1"), "/c/1": course}
    given_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    gone(ctx.settings.home / "content")

    crawl_all(ctx, web.port)

    for row in rows(store, snapshots):
        assert all(map(ctx.content.get, (row.body_hash, row.text_hash, row.markdown_hash)))
