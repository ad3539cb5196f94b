"""Catalogs whose pages are listed by a sitemap, on a loopback web."""

import gzip
from datetime import datetime, timedelta
from typing import Any

import pytest

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.sources.source import Definition
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.catalog_extractions import a_catalog, crawl_all, crawled_pages, link_page
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.polling_runs import RunningClock, add_sources

SITEMAP = {"page_type": "SITEMAP", "link_pattern": "/c/"}


def sitemap(*urls: str, changed: str | None = None) -> str:
    lastmod = f"<lastmod>{changed}</lastmod>" if changed else ""
    entries = "".join(f"<url><loc>http://a.test{url}</loc>{lastmod}</url>" for url in urls)
    return f'<?xml version="1.0"?><urlset>{entries}</urlset>'


def sitemap_index(*urls: str) -> str:
    entries = "".join(f"<sitemap><loc>http://a.test{url}</loc></sitemap>" for url in urls)
    return f'<?xml version="1.0"?><sitemapindex>{entries}</sitemapindex>'


def sitemap_catalog(recipe: dict[str, Any] = SITEMAP) -> Definition:
    return a_catalog(recipe, url="http://a.test/sitemap.xml")


def page_outcomes(store: Store) -> dict[str, str | None]:
    return {page.path: page.outcome for page in crawled_pages(store)}


@pytest.mark.slow
def test_an_index_leads_to_sitemaps_and_they_to_pages(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    packed = gzip.compress(sitemap("/c/2", "/c/3").encode())
    web.routes |= {
        "/sitemap.xml": sitemap_index("/one.xml", "/two.xml.gz"),
        "/one.xml": sitemap("/c/1", "/c/2", "/about"),
        "/two.xml.gz": Reply(packed, headers={"Content-Type": "application/gzip"}),
    }
    web.routes |= {f"/c/{number}": link_page(text=str(number)) for number in (1, 2, 3)}
    add_sources(store, sitemap_catalog())

    counts = crawl_all(ctx, web.port)

    assert (counts.new, counts.failed) == (6, 0)
    assert set(page_outcomes(store)) == {*("/sitemap.xml", "/one.xml", "/two.xml.gz"), *("/c/1", "/c/2", "/c/3")}


@pytest.mark.slow
def test_pages_unchanged_since_they_were_fetched_are_not_requested(
    ctx: RunContext, store: Store, web: FakeWeb, now: datetime, clock: RunningClock
) -> None:
    old = f"{now - timedelta(days=9):%Y-%m-%d}"
    web.routes |= {"/sitemap.xml": sitemap("/c/1", "/c/2", changed=old)}
    web.routes |= {f"/c/{number}": link_page(text=str(number)) for number in (1, 2)}
    add_sources(store, sitemap_catalog())
    crawl_all(ctx, web.port)
    request_count = len(web.requests)
    clock.advance(days=8)
    lately = f"{now + timedelta(days=7):%Y-%m-%dT%H:%M:%SZ}"
    news = sitemap("/c/2", changed=lately).removeprefix('<?xml version="1.0"?><urlset>')
    web.routes["/sitemap.xml"] = sitemap("/c/1", changed=old).replace("</urlset>", news)
    web.routes["/c/2"] = link_page(text="changed")

    counts = crawl_all(ctx, web.port)

    assert [request.path for request in web.requests[request_count:]] == ["/sitemap.xml", "/c/2"]
    assert (counts.new, counts.same, counts.failed) == (2, 1, 0)


@pytest.mark.slow
def test_a_page_fetched_on_the_day_of_its_change_is_requested_again(
    ctx: RunContext, store: Store, web: FakeWeb, now: datetime, clock: RunningClock
) -> None:
    """Most sitemaps state the day alone: the change may be later that day."""
    web.routes |= {"/sitemap.xml": sitemap("/c/1", changed=f"{now:%Y-%m-%d}")}
    web.routes |= {"/c/1": link_page(text="morning")}
    add_sources(store, sitemap_catalog())
    crawl_all(ctx, web.port)
    clock.advance(days=8)
    web.routes["/c/1"] = link_page(text="evening")

    assert crawl_all(ctx, web.port).new == 1


def test_pages_of_other_hosts_are_not_followed(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"/sitemap.xml": sitemap("/c/1").replace("a.test", "evil.test", 1)}
    add_sources(store, sitemap_catalog({"page_type": "SITEMAP"}))

    crawl_all(ctx, web.port)

    [root] = crawled_pages(store)
    assert root.failure is not None
    assert root.failure["code"] == "nothing_to_do"
    assert {request.host for request in web.requests} == {"a.test"}


@pytest.mark.parametrize(
    ("body", "code"), [("<html><p>Sorry", "not_a_sitemap"), ('<!DOCTYPE x [<!ENTITY a "b">]><urlset/>', "xml_entity")]
)
def test_a_response_that_is_no_sitemap_is_an_error(
    ctx: RunContext, store: Store, web: FakeWeb, body: str, code: str
) -> None:
    web.routes |= {"/sitemap.xml": body}
    add_sources(store, sitemap_catalog())

    crawl_all(ctx, web.port)

    [root] = crawled_pages(store)
    assert root.failure is not None
    assert root.failure["code"] == code
