"""Catalogs crawled by a detected recipe: vendor APIs, and session ids in every link."""

import itertools
import json
import re
from typing import Any

import pytest

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store.tables import data_items, datasets, extractions, outbox, pages
from ingestion_pipeline_tests.catalog_extractions import crawl_all, crawled_pages, poll_catalogs
from ingestion_pipeline_tests.catalogs.detection import sites
from ingestion_pipeline_tests.catalogs.detection.sites import catalog_without_recipe, detect, recipe_row
from ingestion_pipeline_tests.fakes import FakeWeb, Reply, RoutesByFunction
from ingestion_pipeline_tests.polling_runs import add_sources, rows

API = "/api/cm/demo_school/courses/search/$filters"


def api_routes(count: int) -> dict[str, Any]:
    first = {"/api/ca/demo_school/catalogs": '[{"id": "c1"}]', "/": sites.coursedog_page()}
    lists = {
        f"{API}?catalogId=c1&limit=20&orderBy=code&skip={skip}": sites.coursedog_courses(count, skip)
        for skip in range(0, count, 20)
    }
    return first | lists


@pytest.mark.slow
def test_a_vendors_api_is_detected_and_read_to_its_reported_length(ctx: RunContext, web: FakeWeb) -> None:
    """The robots.txt of an API does not apply: it is no page."""
    web.routes |= api_routes(45)
    web.routes["api.test/robots.txt"] = Reply(b"User-agent: *\nDisallow: /")
    add_sources(ctx.store, catalog_without_recipe("/", api_base="http://api.test/api"))

    detect(ctx, web)
    crawl_all(ctx, web.port)

    assert recipe_row(ctx.store).recipe["page_type"] == "API_REQUEST"
    assert [row.kind for row in rows(ctx.store, extractions)] == ["api"]
    assert [(page.status, page.step) for page in crawled_pages(ctx.store)] == [("SUCCESS", "root")] * 3


@pytest.mark.slow
def test_an_api_is_complete_with_an_item_for_each_course_and_notified_once(ctx: RunContext, web: FakeWeb) -> None:
    web.routes |= api_routes(45)
    add_sources(ctx.store, catalog_without_recipe("/", api_base="http://api.test/api"))
    detect(ctx, web)

    crawl_all(ctx, web.port)

    items = rows(ctx.store, data_items)
    assert len({row.item_key for row in items}) == len(items) == 45
    assert {proof["status"] for row in items for proof in row.grounding.values()} == {"source"}
    assert [row.item_count for row in rows(ctx.store, pages)] == [20, 20, 5]
    assert all(row.read_started_at and row.read_at for row in rows(ctx.store, pages))
    [extraction] = rows(ctx.store, extractions)
    assert (extraction.status, extraction.summary["items"]) == ("COMPLETE", 45)
    assert extraction.summary["cost"]["usd"] == "0"
    ends = [row for row in rows(ctx.store, outbox) if row.subject_kind == "extraction"]
    assert [row.payload["status"] for row in ends] == ["COMPLETE"]


@pytest.mark.slow
def test_an_unchanged_api_still_leads_to_its_further_pages(ctx: RunContext, web: FakeWeb) -> None:
    web.routes |= api_routes(45)
    add_sources(ctx.store, catalog_without_recipe("/", api_base="http://api.test/api"))
    detect(ctx, web)

    first = crawl_all(ctx, web.port)
    again = crawl_all(ctx, web.port)

    assert (first.new, again.new, again.same) == (3, 0, 3)


@pytest.mark.slow
def test_a_truncated_api_answer_is_an_error_after_its_attempts(ctx: RunContext, web: FakeWeb) -> None:
    web.routes |= api_routes(45)
    broken = f"{API}?catalogId=c1&limit=20&orderBy=code&skip=20"
    web.routes[broken] = '{"listLength": 45, "data": [{'
    add_sources(ctx.store, catalog_without_recipe("/", api_base="http://api.test/api"))
    detect(ctx, web)

    crawl_all(ctx, web.port)

    [failed_page] = [page for page in crawled_pages(ctx.store) if page.status == "ERROR"]
    assert failed_page.failure is not None
    assert failed_page.failure["code"] == "not_json"
    assert len([path for path in web.paths if path == broken]) == 3
    [extraction] = rows(ctx.store, extractions)
    assert (extraction.status, extraction.failure["code"]) == ("CANCELLED", "not_json")
    ends = [row for row in rows(ctx.store, outbox) if row.subject_kind == "extraction"]
    assert len(ends) == 1


SESSIONS = {
    "java": lambda path, number: f"{path};jsessionid={number:032X}",
    "php": lambda path, number: f"{path}{'&' if '?' in path else '?'}PHPSESSID=s{number}",
    "hex": lambda path, number: f"{path}{'&' if '?' in path else '?'}sid={number * 7919:x}a1b2c3",
    "asp": lambda path, number: f"/(S({number:024}))/{path.lstrip('/')}",
    "campaign": lambda path, number: f"{path}{'&' if '?' in path else '?'}utm_term=x{number}",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SESSIONS)
def test_session_ids_enter_neither_recipe_nor_pages_of_a_categorized_catalog(
    ctx: RunContext, web: FakeWeb, kind: str
) -> None:
    """Every response has another session in all of its links; 40 courses in seven categories."""
    catalog = sites.CategorizedSite()
    site, numbers = catalog.pages(), itertools.count(1)

    def answer(requested_path: str) -> str | None:
        number = next(numbers)
        path = re.sub(r";jsessionid=\w+|/\(S\(\w+\)\)|[?&](PHPSESSID|sid|utm_term)=\w+", "", requested_path)
        html = site.get(path)
        if html is None:
            return None
        link = re.compile("(?<=href=')[^']+")
        return link.sub(lambda match: SESSIONS[kind](match[0], number), html)

    web.routes = RoutesByFunction(answer)
    add_sources(ctx.store, catalog_without_recipe("/catalog"))

    poll_catalogs(ctx, web)
    assert detect(ctx, web).found == 1
    web.requests.clear()
    crawl_all(ctx, web.port)

    assert not re.search(r"sess|sid=|S\(|utm", json.dumps(recipe_row(ctx.store).recipe))
    details = [page for page in crawled_pages(ctx.store) if page.step == "root/links/links"]
    assert sorted(page.path for page in details) == sorted(catalog.courses)
    assert len(web.paths) == len(set(web.paths))
    [dataset] = rows(ctx.store, datasets)
    assert (dataset.status, dataset.item_count) == ("published", len(catalog.courses))
