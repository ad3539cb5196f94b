"""Loops, variants of URLs, endless calendars: each page once, and an end to all of it."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import select

from ingestion_pipeline.pages.workshop import Workshop
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import audit_log, extractions
from ingestion_pipeline_tests.crawlers import SHOP, a_catalog, a_page, crawl_all
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import changed, given_sources, rows


def refused(store: Store) -> list[tuple[str, str]]:
    with store.read() as connection:
        query = select(audit_log).where(audit_log.c.action == "spawn.refused")
        return [(row.detail["reason"], row.detail["source"]) for row in connection.execute(query)]


def test_an_endless_calendar_ends_at_the_depth_and_is_told_once(
    shop: Workshop, store: Store, web: FakeWeb, caplog: pytest.LogCaptureFixture
) -> None:
    web.routes |= {"/": a_page("/day/0", "/", "/#top", "/?utm_source=x", "http://A.test/")}
    web.routes |= {
        f"/day/{n}": a_page(f"/day/{n + 1}", f"/day/{max(n - 1, 0)}", f"/day/{n + 1}/", "/")
        for n in range(50)
    }
    given_sources(store, a_catalog({"page_type": "EXPLORATORY"}))
    shop = changed(shop, work__spawn_depth="5")

    crawl_all(shop, web.port)

    assert Counter(web.paths) == dict.fromkeys(["/", *(f"/day/{n}" for n in range(5))], 1)
    assert refused(store) == [("too_deep", SHOP)]
    [extraction] = rows(store, extractions)
    assert (extraction.status, extraction.too_deep) == ("COMPLETE", 1)
    assert len([line for line in caplog.messages if "not followed" in line]) == 1


def test_pages_beyond_the_budget_are_counted_and_told_once(
    shop: Workshop, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"/": a_page(*(f"/x{n}" for n in range(6)))}
    web.routes |= {f"/x{n}": a_page(f"/y{n}", "/x0") for n in range(6)}
    web.routes |= {f"/y{n}": a_page() for n in range(6)}
    given_sources(store, a_catalog({"page_type": "EXPLORATORY"}))
    shop = changed(shop, crawl__max_pages="9")

    crawl_all(shop, web.port)

    [extraction] = rows(store, extractions)
    assert (extraction.page_count, extraction.over_budget) == (9, 4)
    assert len(web.paths) == len(set(web.paths)) == 9
    assert refused(store) == [("over_budget", SHOP)]


def test_two_pages_that_lead_to_each_other_are_each_visited_once(
    shop: Workshop, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"/": a_page("/a", "/b"), "/a": a_page("/b", "/"), "/b": a_page("/a/", "/A")}
    web.routes |= {"/A": a_page("/a")}
    given_sources(store, a_catalog({"page_type": "EXPLORATORY"}))

    crawl_all(shop, web.port)

    assert Counter(web.paths) == {"/": 1, "/a": 1, "/b": 1, "/A": 1}
    assert refused(store) == []
