"""A catalogue with a page that only JavaScript fills, crawled with a real Chromium."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import select

from ingestion_pipeline.catalogs.crawling.runs import crawl_until_done
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.crawling.protocol import CrawlCounts
from ingestion_pipeline.pages import Guard
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import pages, snapshots
from ingestion_pipeline_tests.crawlers import LINKS, SHOP, a_catalog, a_page, found_pages
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pages.rendering import a_renderer
from ingestion_pipeline_tests.pollers import a_fetcher, given_sources, names_of, rows

pytestmark = pytest.mark.browser

FILLED = "Drawing Ships has seats"
SHELL = """<!doctype html><title>Courses</title><div id=root></div><script>
const words = ["Drawing", "Ships", "has", "seats", "for", "all", "who", "like", "the", "sea"];
document.getElementById("root").innerHTML = ("<p>" + words.join(" ") + ".</p>").repeat(20);
</script>"""


def crawl_with_chromium(ctx: RunContext, web: FakeWeb) -> tuple[CrawlCounts, int, int]:
    """What the crawl came to, how many browsers were started, and how many pages they showed."""

    async def run() -> tuple[CrawlCounts, int, int]:
        guard = Guard(ctx.settings.allowed_hosts, names_of(web.port))
        async with a_fetcher(ctx.settings, web.port) as fetcher, a_renderer(guard) as renderer:
            counts = await crawl_until_done(ctx, [SHOP], fetcher, renderer=renderer)
            return counts, renderer.browsers_started, renderer.pages_rendered

    return asyncio.run(run())


def test_a_page_that_only_javascript_fills_is_kept_and_unchanged_opens_no_browser(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"/": a_page("/c/plain", "/c/ships"), "/c/plain": a_page(), "/c/ships": SHELL}
    given_sources(store, a_catalog())

    first, *opened_first = crawl_with_chromium(ctx, web)
    second, *opened_second = crawl_with_chromium(ctx, web)

    assert (first.new, first.failed, opened_first) == (3, 0, [1, 1])
    assert (second.same, second.new, opened_second) == (3, 0, [0, 0])
    assert {one.status for one in found_pages(store)} == {"SUCCESS", "EXTRACTED_NO_DATA"}
    with store.read() as connection:
        query = select(snapshots).where(snapshots.c.rendered_at.is_not(None))
        shown = connection.execute(query).one()
    assert shown.url == "http://a.test/c/ships"
    of_it = [row.snapshot_id for row in rows(store, pages) if row.url == shown.url]
    assert of_it == [shown.id] * 2
    assert b"Drawing" in ctx.content.get(shown.body_hash)
    assert FILLED in ctx.content.get(shown.markdown_hash).decode()
    assert FILLED in ctx.content.get(shown.text_hash).decode()
    assert ctx.content.get(shown.screenshot_hash).startswith(b"\xff\xd8\xff")


def test_a_source_that_asks_for_it_has_every_page_shown_by_the_browser(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"/": a_page("/c/1"), "/c/1": a_page()}
    given_sources(store, a_catalog(config={"recipe": dict(LINKS), "render": True}))

    counts, browsers, shown = crawl_with_chromium(ctx, web)

    assert (counts.new, counts.failed, browsers, shown) == (2, 0, 1, 2)
    assert all(row.rendered_at is not None for row in rows(store, snapshots))
