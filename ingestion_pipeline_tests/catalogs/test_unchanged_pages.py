"""Second crawls: pages that only look unchanged, and unchanged pages whose content is lost."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ingestion_pipeline.catalogs.catalog_runs import CrawlCounts, start_now
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages import Fetched
from ingestion_pipeline.pages.visits.page import Rendered, RenderingOptions
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import extractions, snapshots
from ingestion_pipeline_tests.catalog_extractions import (
    CATALOG_ID,
    LiveCatalog,
    complete_extractions,
    crawl_until_done,
    link_page,
)
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.polling_runs import a_fetcher, fetch, rows

CLICK_RECIPE = {
    "page_type": "DETAIL_LINKS",
    "link_pattern": "/c/",
    "render": True,
    "click_discovery": {"selector": "#b"},
}


def list_page(*links: str) -> Reply:
    """Return a list whose links all have the same text."""
    anchors = "".join(f'<li><a href="{link}">Details</a></li>' for link in links)
    body = f"<html><body><h1>Courses</h1><ul>{anchors}</ul></body></html>".encode()
    return Reply(body, headers={"ETag": f'"{"".join(links)}"'})


class ClickingBrowser:
    """In place of the browser: its page leads to courses by clicks alone."""

    def __init__(self, *links: str) -> None:
        self.links = links
        self.rendered: list[RenderingOptions] = []

    async def render(
        self, url: str, rendering: RenderingOptions, *, check_url: Callable[[str], None] | None = None
    ) -> Rendered:
        self.rendered.append(rendering)
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


def crawl_with_browser(ctx: RunContext, web: FakeWeb, browser: ClickingBrowser) -> CrawlCounts:
    async def run() -> CrawlCounts:
        async with a_fetcher(ctx.settings, web.port) as fetcher:
            return await crawl_until_done(ctx, [CATALOG_ID], fetcher, renderer=browser)

    counts = asyncio.run(run())
    complete_extractions(ctx)
    return counts


def extraction_results(store: Store) -> list[tuple[str, int]]:
    """Return status and page count of each extraction."""
    return [(row.status, row.page_count) for row in rows(store, extractions)]


@pytest.mark.slow
def test_a_list_with_new_links_under_the_same_text_is_followed_now_and_later(live: LiveCatalog) -> None:
    live.web.routes |= {f"/c/{number}": link_page(text=str(number)) for number in (1, 2, 7)}
    live.web.routes["/"] = list_page("/c/1", "/c/2")
    live.register()
    live.crawl_all()
    live.web.routes["/"] = list_page("/c/1", "/c/7")

    for _ in range(2):  # the second time it is the new list that is unchanged
        live.web.requests.clear()
        live.crawl_all()

        assert sorted(live.web.paths) == ["/", "/c/1", "/c/7"]
    assert len([row for row in live.rows(snapshots) if row.url == "http://a.test/"]) == 1


@pytest.mark.slow
def test_an_extraction_on_demand_counts_as_the_poll(live: LiveCatalog) -> None:
    live.serve({"/": list_page("/c/1"), "/c/1": link_page(text="1")})
    start_now(live.ctx, [CATALOG_ID])
    live.crawl_all()
    fetch(live.ctx, live.web)

    assert len(live.rows(extractions)) == 1
    assert live.source_row().next_check_at > live.store.now()


@pytest.mark.slow
def test_links_found_by_clicks_are_followed_again_when_the_page_is_unchanged(live: LiveCatalog) -> None:
    live.serve(
        {"/": link_page(), "/c/1": link_page(text="1"), "/c/2": link_page(text="2")},
        {**CLICK_RECIPE, "links": {"page_type": "DETAIL"}},
    )
    browser = ClickingBrowser("http://a.test/c/1", "http://a.test/c/2")
    crawl_with_browser(live.ctx, live.web, browser)

    counts = crawl_with_browser(live.ctx, live.web, browser)

    assert (counts.new, counts.same, len(browser.rendered)) == (0, 3, 1)
    assert extraction_results(live.store) == [("COMPLETE", 3)] * 2


@pytest.mark.slow
def test_a_corrected_recipe_renders_an_unchanged_page_again(live: LiveCatalog) -> None:
    live.web.routes |= {"/": link_page(), "/c/1": link_page(text="1")}
    recipe = {**CLICK_RECIPE, "page_type": "EXPLORATORY"}
    browser = ClickingBrowser("http://a.test/c/1")
    live.register({**recipe, "content_selector": "#wrong"})
    crawl_with_browser(live.ctx, live.web, browser)

    live.register({**recipe, "content_selector": "#right"})
    crawl_with_browser(live.ctx, live.web, browser)

    assert [options.content_selector for options in browser.rendered][:2] == ["#wrong", "#right"]
    assert "/c/1" in live.web.paths


def delete_content(content: Path) -> None:
    shutil.rmtree(content)


def damage_content(content: Path) -> None:
    for path in content.glob("??/*"):
        path.write_bytes(b"not what was put")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [delete_content, damage_content])
def test_a_list_whose_stored_body_is_missing_or_damaged_is_fetched_again_and_followed(
    live: LiveCatalog, damage: Callable[[Path], None]
) -> None:
    live.serve({"/": list_page("/c/1"), "/c/1": link_page(text="1")})
    live.crawl_all()

    damage(live.ctx.settings.home / "content")
    live.crawl_all()

    assert extraction_results(live.store) == [("COMPLETE", 2)] * 2
    [body] = [row.body_hash for row in live.rows(snapshots) if row.url == "http://a.test/"]
    assert b"/c/1" in live.ctx.content.get(body)


@pytest.mark.slow
def test_an_unchanged_course_whose_stored_content_is_missing_is_stored_again(live: LiveCatalog) -> None:
    course = Reply(link_page(text="1").encode(), headers={"ETag": '"1"'})
    live.serve({"/": list_page("/c/1"), "/c/1": course})
    live.crawl_all()
    delete_content(live.ctx.settings.home / "content")

    live.crawl_all()

    for row in live.rows(snapshots):
        assert all(map(live.ctx.content.get, (row.body_hash, row.text_hash, row.markdown_hash)))
