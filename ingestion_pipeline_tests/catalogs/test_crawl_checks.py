"""A crawl that got through all the same: what its checks have to say."""

from __future__ import annotations

from ingestion_pipeline.catalogs.crawling.checks import empty_shells, failed_pages
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.sources.health import Finding
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.crawlers import SHOP, a_catalog, a_page, crawl_all
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pages.visiting import SHELL
from ingestion_pipeline_tests.pollers import given_sources


def failures(store: Store, *, failed_share: float = 0.2) -> list[Finding]:
    with store.read() as connection:
        return failed_pages(connection, failed_share=failed_share)


def shells(store: Store) -> list[Finding]:
    with store.read() as connection:
        return empty_shells(connection)


def test_a_share_of_pages_that_failed_is_found(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"/": a_page(*(f"/c/{n}" for n in range(9)))}
    web.routes |= {f"/c/{n}": 410 if n < 3 else a_page(text=str(n)) for n in range(9)}
    given_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    assert failures(store) == [Finding(subject=SHOP, message="3 of 10 pages failed")]
    assert failures(store, failed_share=0.3) == []


def test_a_few_pages_that_failed_are_an_accident(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"/": a_page("/c/1", "/c/2"), "/c/1": 410, "/c/2": a_page()}
    given_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    assert failures(store) == []


def test_a_page_that_is_nothing_without_a_browser_is_found(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"/": a_page("/c/1", "/c/2"), "/c/1": SHELL, "/c/2": a_page()}
    given_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    [found] = shells(store)
    assert (found.subject, "1" in found.message) == (SHOP, True)


def test_a_crawl_without_mishaps_has_nothing_to_report(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"/": a_page("/c/1"), "/c/1": a_page()}
    given_sources(store, a_catalog())

    crawl_all(ctx, web.port)

    assert (failures(store), shells(store)) == ([], [])
