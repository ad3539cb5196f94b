"""Catalogs whose pages are listed by a sitemap, on a loopback web."""

import gzip
from datetime import datetime, timedelta
from typing import Any

import pytest

from ingestion_pipeline.sources.source import Definition
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.catalog_extractions import LiveCatalog, a_catalog, crawled_pages, link_page
from ingestion_pipeline_tests.fakes import Reply
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
def test_an_index_leads_to_sitemaps_and_they_to_pages(live: LiveCatalog) -> None:
    packed = gzip.compress(sitemap("/c/2", "/c/3").encode())
    live.web.routes |= {
        "/sitemap.xml": sitemap_index("/one.xml", "/two.xml.gz"),
        "/one.xml": sitemap("/c/1", "/c/2", "/about"),
        "/two.xml.gz": Reply(packed, headers={"Content-Type": "application/gzip"}),
    }
    live.web.routes |= {f"/c/{number}": link_page(text=str(number)) for number in (1, 2, 3)}
    add_sources(live.store, sitemap_catalog())

    counts = live.crawl_all()

    assert (counts.new, counts.failed) == (6, 0)
    assert set(page_outcomes(live.store)) == {*("/sitemap.xml", "/one.xml", "/two.xml.gz"), *("/c/1", "/c/2", "/c/3")}


@pytest.mark.slow
def test_pages_unchanged_since_they_were_fetched_are_not_requested(
    live: LiveCatalog, now: datetime, clock: RunningClock
) -> None:
    old = f"{now - timedelta(days=9):%Y-%m-%d}"
    live.web.routes |= {"/sitemap.xml": sitemap("/c/1", "/c/2", changed=old)}
    live.web.routes |= {f"/c/{number}": link_page(text=str(number)) for number in (1, 2)}
    add_sources(live.store, sitemap_catalog())
    live.crawl_all()
    request_count = len(live.web.requests)
    clock.advance(days=8)
    lately = f"{now + timedelta(days=7):%Y-%m-%dT%H:%M:%SZ}"
    news = sitemap("/c/2", changed=lately).removeprefix('<?xml version="1.0"?><urlset>')
    live.web.routes["/sitemap.xml"] = sitemap("/c/1", changed=old).replace("</urlset>", news)
    live.web.routes["/c/2"] = link_page(text="changed")

    counts = live.crawl_all()

    assert [request.path for request in live.web.requests[request_count:]] == ["/sitemap.xml", "/c/2"]
    assert (counts.new, counts.same, counts.failed) == (2, 1, 0)


@pytest.mark.slow
def test_a_page_fetched_on_the_day_of_its_change_is_requested_again(
    live: LiveCatalog, now: datetime, clock: RunningClock
) -> None:
    """Most sitemaps state the day alone: the change may be later that day."""
    live.web.routes |= {"/sitemap.xml": sitemap("/c/1", changed=f"{now:%Y-%m-%d}")}
    live.web.routes |= {"/c/1": link_page(text="morning")}
    add_sources(live.store, sitemap_catalog())
    live.crawl_all()
    clock.advance(days=8)
    live.web.routes["/c/1"] = link_page(text="evening")

    assert live.crawl_all().new == 1


def test_pages_of_other_hosts_are_not_followed(live: LiveCatalog) -> None:
    live.web.routes |= {"/sitemap.xml": sitemap("/c/1").replace("a.test", "evil.test", 1)}
    add_sources(live.store, sitemap_catalog({"page_type": "SITEMAP"}))

    live.crawl_all()

    [root] = live.pages()
    assert root.failure is not None
    assert root.failure["code"] == "nothing_to_do"
    assert {request.host for request in live.web.requests} == {"a.test"}


@pytest.mark.parametrize(
    ("body", "code"), [("<html><p>Sorry", "not_a_sitemap"), ('<!DOCTYPE x [<!ENTITY a "b">]><urlset/>', "xml_entity")]
)
def test_a_response_that_is_no_sitemap_is_an_error(live: LiveCatalog, body: str, code: str) -> None:
    live.web.routes |= {"/sitemap.xml": body}
    add_sources(live.store, sitemap_catalog())

    live.crawl_all()

    [root] = live.pages()
    assert root.failure is not None
    assert root.failure["code"] == code
