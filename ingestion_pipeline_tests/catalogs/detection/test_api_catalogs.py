"""A vendor's API that detection found: read to its end, or cancelled when its attempts are over."""

from __future__ import annotations

from typing import Any

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store.tables import data_items, extractions, outbox, pages
from ingestion_pipeline_tests.catalogs.detection import sites
from ingestion_pipeline_tests.catalogs.detection.finding import a_found_catalog, detect, recipe_row
from ingestion_pipeline_tests.crawlers import crawl_all, found_pages
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.pollers import given_sources, rows

API = "/api/cm/demo_school/courses/search/$filters"


def api_routes(count: int) -> dict[str, Any]:
    first = {"/api/ca/demo_school/catalogs": '[{"id": "c1"}]', "/": sites.coursedog_page()}
    lists = {
        f"{API}?catalogId=c1&limit=20&orderBy=code&skip={skip}": sites.coursedog_courses(count, skip)
        for skip in range(0, count, 20)
    }
    return first | lists


def test_a_vendors_api_is_found_and_read_to_its_reported_length(ctx: RunContext, web: FakeWeb) -> None:
    """Whose robots.txt does not govern it: it is an API, and not a page."""
    web.routes |= api_routes(45)
    web.routes["api.test/robots.txt"] = Reply(b"User-agent: *\nDisallow: /")
    given_sources(ctx.store, a_found_catalog("/", api_base="http://api.test/api"))

    detect(ctx, web)
    crawl_all(ctx, web.port)

    assert recipe_row(ctx.store).recipe["page_type"] == "API_REQUEST"
    assert [row.kind for row in rows(ctx.store, extractions)] == ["api"]
    assert [(one.status, one.step) for one in found_pages(ctx.store)] == [("SUCCESS", "root")] * 3


def test_an_api_that_was_read_is_complete_with_an_item_for_each_course_and_told_once(
    ctx: RunContext, web: FakeWeb
) -> None:
    web.routes |= api_routes(45)
    given_sources(ctx.store, a_found_catalog("/", api_base="http://api.test/api"))
    detect(ctx, web)

    crawl_all(ctx, web.port)

    items = rows(ctx.store, data_items)
    assert len({row.item_key for row in items}) == len(items) == 45
    assert {one["status"] for row in items for one in row.grounding.values()} == {"source"}
    assert [row.item_count for row in rows(ctx.store, pages)] == [20, 20, 5]
    assert all(row.reading_at and row.read_at for row in rows(ctx.store, pages))
    [extraction] = rows(ctx.store, extractions)
    assert (extraction.status, extraction.summary["items"]) == ("COMPLETE", 45)
    assert extraction.summary["cost"]["usd"] == "0"
    ends = [row for row in rows(ctx.store, outbox) if row.subject_kind == "extraction"]
    assert [row.payload["status"] for row in ends] == ["COMPLETE"]


def test_an_unchanged_api_still_leads_to_its_further_pages(ctx: RunContext, web: FakeWeb) -> None:
    web.routes |= api_routes(45)
    given_sources(ctx.store, a_found_catalog("/", api_base="http://api.test/api"))
    detect(ctx, web)

    first = crawl_all(ctx, web.port)
    again = crawl_all(ctx, web.port)

    assert (first.new, again.new, again.same) == (3, 0, 3)


def test_an_api_that_breaks_off_is_an_error_after_its_attempts(ctx: RunContext, web: FakeWeb) -> None:
    web.routes |= api_routes(45)
    broken = f"{API}?catalogId=c1&limit=20&orderBy=code&skip=20"
    web.routes[broken] = '{"listLength": 45, "data": [{'
    given_sources(ctx.store, a_found_catalog("/", api_base="http://api.test/api"))
    detect(ctx, web)

    crawl_all(ctx, web.port)

    [bad] = [one for one in found_pages(ctx.store) if one.status == "ERROR"]
    assert bad.failure is not None
    assert bad.failure["code"] == "not_json"
    assert len([path for path in web.paths if path == broken]) == 3
    [extraction] = rows(ctx.store, extractions)
    assert (extraction.status, extraction.failure["code"]) == ("CANCELLED", "not_json")
    ends = [row for row in rows(ctx.store, outbox) if row.subject_kind == "extraction"]
    assert len(ends) == 1
