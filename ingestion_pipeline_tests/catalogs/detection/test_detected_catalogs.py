"""Catalogs crawled by a detected recipe: vendor APIs, and session ids in every link."""

import itertools
import json
import re
from typing import Any

import pytest

from ingestion_pipeline.store.tables import data_items, datasets, extractions, outbox, pages
from ingestion_pipeline_tests.catalog_extractions import LiveCatalog
from ingestion_pipeline_tests.catalogs.detection import sites
from ingestion_pipeline_tests.catalogs.detection.sites import declare, detect, recipe_row
from ingestion_pipeline_tests.fakes import Reply, RoutesByFunction

API = "/api/cm/demo_school/courses/search/$filters"


def api_routes(count: int) -> dict[str, Any]:
    first = {"/api/ca/demo_school/catalogs": '[{"id": "c1"}]', "/": sites.coursedog_page()}
    lists = {
        f"{API}?catalogId=c1&limit=20&orderBy=code&skip={skip}": sites.coursedog_courses(count, skip)
        for skip in range(0, count, 20)
    }
    return first | lists


@pytest.mark.slow
def test_a_vendors_api_is_detected_and_read_to_its_reported_length(live: LiveCatalog) -> None:
    """The robots.txt of an API does not apply: it is no page."""
    live.web.routes |= api_routes(45)
    live.web.routes["api.test/robots.txt"] = Reply(b"User-agent: *\nDisallow: /")
    declare(live, "/", api_base="http://api.test/api")

    detect(live)
    live.crawl_all()

    assert recipe_row(live.store).recipe["page_type"] == "API_REQUEST"
    assert [row.kind for row in live.rows(extractions)] == ["api"]
    assert [(page.status, page.step) for page in live.pages()] == [("SUCCESS", "root")] * 3


@pytest.mark.slow
def test_an_api_is_complete_with_an_item_for_each_course_and_notified_once(live: LiveCatalog) -> None:
    live.web.routes |= api_routes(45)
    declare(live, "/", api_base="http://api.test/api")
    detect(live)

    live.crawl_all()

    items = live.rows(data_items)
    assert len({row.item_key for row in items}) == len(items) == 45
    assert {proof["status"] for row in items for proof in row.grounding.values()} == {"source"}
    assert [row.item_count for row in live.rows(pages)] == [20, 20, 5]
    assert all(row.read_started_at and row.read_at for row in live.rows(pages))
    [extraction] = live.rows(extractions)
    assert (extraction.status, extraction.summary["items"]) == ("COMPLETE", 45)
    assert extraction.summary["cost"]["usd"] == "0"
    ends = [row for row in live.rows(outbox) if row.subject_kind == "extraction"]
    assert [row.payload["status"] for row in ends] == ["COMPLETE"]


@pytest.mark.slow
def test_an_unchanged_api_still_leads_to_its_further_pages(live: LiveCatalog) -> None:
    live.web.routes |= api_routes(45)
    declare(live, "/", api_base="http://api.test/api")
    detect(live)

    first = live.crawl_all()
    again = live.crawl_all()

    assert (first.new, again.new, again.same) == (3, 0, 3)


@pytest.mark.slow
def test_a_truncated_api_answer_is_an_error_after_its_attempts(live: LiveCatalog) -> None:
    live.web.routes |= api_routes(45)
    broken = f"{API}?catalogId=c1&limit=20&orderBy=code&skip=20"
    live.web.routes[broken] = '{"listLength": 45, "data": [{'
    declare(live, "/", api_base="http://api.test/api")
    detect(live)

    live.crawl_all()

    [failed_page] = [page for page in live.pages() if page.status == "ERROR"]
    assert failed_page.failure is not None
    assert failed_page.failure["code"] == "not_json"
    assert len([path for path in live.web.paths if path == broken]) == 3
    [extraction] = live.rows(extractions)
    assert (extraction.status, extraction.failure["code"]) == ("CANCELLED", "not_json")
    ends = [row for row in live.rows(outbox) if row.subject_kind == "extraction"]
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
def test_session_ids_enter_neither_recipe_nor_pages_of_a_categorized_catalog(live: LiveCatalog, kind: str) -> None:
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

    live.web.routes = RoutesByFunction(answer)
    declare(live, "/catalog")

    live.poll()
    assert detect(live).found == 1
    live.web.requests.clear()
    live.crawl_all()

    assert not re.search(r"sess|sid=|S\(|utm", json.dumps(recipe_row(live.store).recipe))
    details = [page for page in live.pages() if page.step == "root/links/links"]
    assert sorted(page.path for page in details) == sorted(catalog.courses)
    assert len(live.web.paths) == len(set(live.web.paths))
    [dataset] = live.rows(datasets)
    assert (dataset.status, dataset.item_count) == ("published", len(catalog.courses))
