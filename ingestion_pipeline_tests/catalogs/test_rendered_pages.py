"""A catalog with a page that only JavaScript fills, crawled with a real Chromium."""

import asyncio

import pytest
from sqlalchemy import select

from ingestion_pipeline.catalogs.catalog_runs import CrawlCounts
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages import Guard
from ingestion_pipeline.store.tables import pages, snapshots
from ingestion_pipeline_tests.catalog_extractions import CATALOG_ID, LINKS, LiveCatalog, crawl_until_done, link_page
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pages.browser_sessions import a_renderer
from ingestion_pipeline_tests.polling_runs import a_fetcher, loopback_resolver

pytestmark = pytest.mark.browser

RENDERED_TEXT = "Drawing Ships has seats"
SHELL = """<!doctype html><title>Courses</title><div id=root></div><script>
const words = ["Drawing", "Ships", "has", "seats", "for", "all", "who", "like", "the", "sea"];
document.getElementById("root").innerHTML = ("<p>" + words.join(" ") + ".</p>").repeat(20);
</script>"""


def crawl_with_chromium(ctx: RunContext, web: FakeWeb) -> tuple[CrawlCounts, int, int]:
    """Crawl; return the counts, the browsers started and the pages rendered."""

    async def run() -> tuple[CrawlCounts, int, int]:
        guard = Guard(ctx.settings.allowed_hosts, loopback_resolver(web.port))
        async with a_fetcher(ctx.settings, web.port) as fetcher, a_renderer(guard) as renderer:
            counts = await crawl_until_done(ctx, [CATALOG_ID], fetcher, renderer=renderer)
            return counts, renderer.browsers_started, renderer.pages_rendered

    return asyncio.run(run())


def test_a_page_filled_by_javascript_is_stored_and_when_unchanged_opens_no_browser(live: LiveCatalog) -> None:
    live.serve({"/": link_page("/c/plain", "/c/ships"), "/c/plain": link_page(), "/c/ships": SHELL})

    first, *opened_first = crawl_with_chromium(live.ctx, live.web)
    second, *opened_second = crawl_with_chromium(live.ctx, live.web)

    assert (first.new, first.failed, opened_first) == (3, 0, [1, 1])
    assert (second.same, second.new, opened_second) == (3, 0, [0, 0])
    assert {page.status for page in live.pages()} == {"SUCCESS", "EXTRACTED_NO_DATA"}
    with live.store.read() as connection:
        query = select(snapshots).where(snapshots.c.rendered_at.is_not(None))
        snapshot = connection.execute(query).one()
    assert snapshot.url == "http://a.test/c/ships"
    snapshot_ids = [row.snapshot_id for row in live.rows(pages) if row.url == snapshot.url]
    assert snapshot_ids == [snapshot.id] * 2
    assert b"Drawing" in live.ctx.content.get(snapshot.body_hash)
    assert RENDERED_TEXT in live.ctx.content.get(snapshot.markdown_hash).decode()
    assert RENDERED_TEXT in live.ctx.content.get(snapshot.text_hash).decode()
    assert live.ctx.content.get(snapshot.screenshot_hash).startswith(b"\xff\xd8\xff")


def test_a_source_with_render_has_every_page_rendered(live: LiveCatalog) -> None:
    live.serve({"/": link_page("/c/1"), "/c/1": link_page()}, config={"recipe": dict(LINKS), "render": True})

    counts, browsers, rendered = crawl_with_chromium(live.ctx, live.web)

    assert (counts.new, counts.failed, browsers, rendered) == (2, 0, 1, 2)
    assert all(row.rendered_at is not None for row in live.rows(snapshots))
