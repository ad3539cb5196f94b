"""Second crawls of pages that are or look unchanged, the cache of known pages, and writes that pause fetches."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ingestion_pipeline.catalogs.catalog_runs import CrawlCounts, start_now
from ingestion_pipeline.catalogs.crawl_handler import CrawlHandler
from ingestion_pipeline.catalogs.frontier import KnownPageCache
from ingestion_pipeline.engine import worker_loop
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages import ContentStore, Fetched
from ingestion_pipeline.pages.visits.page import Rendered, RenderingOptions
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import extractions, snapshots
from ingestion_pipeline_tests.catalog_extractions import (
    CATALOG_ID,
    LiveCatalog,
    a_catalog,
    complete_extractions,
    crawl_all,
    crawl_until_done,
    crawled_pages,
    link_page,
)
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.polling_runs import a_fetcher, add_sources, fetch, rows

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


def damage_content(content: Path) -> None:
    for path in content.glob("??/*"):
        path.write_bytes(b"not what was put")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [shutil.rmtree, damage_content])
def test_a_list_whose_stored_body_is_missing_or_damaged_is_fetched_again_and_followed(
    live: LiveCatalog, damage: Callable[[Path], None]
) -> None:
    live.serve_and_crawl({"/": list_page("/c/1"), "/c/1": link_page(text="1")})

    damage(live.ctx.settings.home / "content")
    live.crawl_all()

    assert extraction_results(live.store) == [("COMPLETE", 2)] * 2
    [body] = [row.body_hash for row in live.rows(snapshots) if row.url == "http://a.test/"]
    assert b"/c/1" in live.ctx.content.get(body)


@pytest.mark.slow
def test_an_unchanged_course_whose_stored_content_is_missing_is_stored_again(live: LiveCatalog) -> None:
    course = Reply(link_page(text="1").encode(), headers={"ETag": '"1"'})
    live.serve_and_crawl({"/": list_page("/c/1"), "/c/1": course})
    shutil.rmtree(live.ctx.settings.home / "content")

    live.crawl_all()

    for row in live.rows(snapshots):
        assert all(map(live.ctx.content.get, (row.body_hash, row.text_hash, row.markdown_hash)))


def test_each_crawl_has_its_own_pages() -> None:
    cache = KnownPageCache()
    cache.add(1, {"/a", "/b"})

    assert set(cache.of(1)) == {"/a", "/b"}
    assert set(cache.of(2)) == set()


def test_a_full_cache_is_cleared() -> None:
    cache = KnownPageCache(most=3)
    cache.add(1, {"/a", "/b"})
    cache.add(1, {"/b"})
    cache.add(2, {"/c", "/d"})

    assert set(cache.of(1)) == set()
    assert set(cache.of(2)) == {"/c", "/d"}


def test_more_links_than_the_cache_holds_are_not_stored() -> None:
    cache = KnownPageCache(most=1)
    cache.add(1, {"/a", "/b"})

    assert set(cache.of(1)) == set()


LINKS = [f"/c/{number}" for number in range(12)]


class SlowDisk(ContentStore):
    """A content store that sleeps on each write and records when it was busy."""

    def __init__(self, root: Path, seconds: float) -> None:
        super().__init__(root)
        self._seconds = seconds
        self.busy: list[tuple[float, float]] = []

    def put_together(self, groups: Iterable[Sequence[Any]], **how: bool) -> list[list[str]]:
        started = time.monotonic()
        time.sleep(self._seconds)
        self.busy.append((started, time.monotonic()))
        return super().put_together(groups, **how)


def requests_during_writes(ctx: RunContext, store: Store, web: FakeWeb, disk: SlowDisk) -> list[float]:
    """Crawl; return how long after the start of a write each request came that came during one."""
    web.routes |= {"/": link_page(*LINKS), **dict.fromkeys(LINKS, link_page())}
    add_sources(store, a_catalog())
    crawl_all(replace(ctx, content=disk), web.port)
    assert len(crawled_pages(store)) == len(LINKS) + 1
    request_times = [request.at for request in web.requests]
    return [at - started for started, ended in disk.busy for at in request_times if started < at < ended]


@pytest.fixture
def small_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CrawlHandler, "flush_after", 3)


@pytest.mark.slow
@pytest.mark.usefixtures("small_flushes")
def test_no_page_is_fetched_while_others_are_written(live: LiveCatalog, tmp_path: Path) -> None:
    disk = SlowDisk(tmp_path / "slow", seconds=0.25)

    during = requests_during_writes(live.ctx, live.store, live.web, disk)

    assert len(disk.busy) >= 4
    assert [delay for delay in during if delay > 0.1] == [], "except the one already in flight"


@pytest.mark.slow
@pytest.mark.usefixtures("small_flushes")
def test_a_slow_disk_does_not_delay_every_fetch(
    live: LiveCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_loop, "PAUSE_SECONDS", 0.05)

    during = requests_during_writes(live.ctx, live.store, live.web, SlowDisk(tmp_path / "slow", seconds=0.4))

    assert any(delay > 0.05 for delay in during)
