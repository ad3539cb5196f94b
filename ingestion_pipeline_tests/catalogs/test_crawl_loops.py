"""Loops, URL variants and endless lists: each page is fetched once and every crawl ends."""

import re
from collections import Counter
from collections.abc import Callable

import pytest
from sqlalchemy import select

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import audit_log, datasets, extractions
from ingestion_pipeline_tests.catalog_extractions import CATALOG_ID, LiveCatalog, link_page
from ingestion_pipeline_tests.catalogs.detection.sites import course
from ingestion_pipeline_tests.fakes import RoutesByFunction
from ingestion_pipeline_tests.polling_runs import with_settings


def refused_spawns(store: Store) -> list[tuple[str, str]]:
    with store.read() as connection:
        query = select(audit_log).where(audit_log.c.action == "spawn.refused")
        return [(row.detail["reason"], row.detail["source"]) for row in connection.execute(query)]


@pytest.mark.slow
def test_an_endless_calendar_ends_at_the_depth_limit_and_is_logged_once(
    live: LiveCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    live.web.routes |= {"/": link_page("/day/0", "/", "/#top", "/?utm_source=x", "http://A.test/")}
    live.serve(
        {f"/day/{n}": link_page(f"/day/{n + 1}", f"/day/{max(n - 1, 0)}", f"/day/{n + 1}/", "/") for n in range(50)},
        {"page_type": "EXPLORATORY"},
    )
    live.ctx = with_settings(live.ctx, work__spawn_depth="5")

    live.crawl_all()

    assert Counter(live.web.paths) == dict.fromkeys(["/", *(f"/day/{n}" for n in range(5))], 1)
    assert refused_spawns(live.store) == [("too_deep", CATALOG_ID)]
    [extraction] = live.rows(extractions)
    assert (extraction.status, extraction.too_deep) == ("COMPLETE", 1)
    assert len([line for line in caplog.messages if "not followed" in line]) == 1


@pytest.mark.slow
def test_pages_beyond_the_budget_are_counted_and_audited_once(live: LiveCatalog) -> None:
    live.web.routes |= {"/": link_page(*(f"/x{n}" for n in range(6)))}
    live.web.routes |= {f"/x{n}": link_page(f"/y{n}", "/x0") for n in range(6)}
    live.serve({f"/y{n}": link_page() for n in range(6)}, {"page_type": "EXPLORATORY"})
    live.ctx = with_settings(live.ctx, crawl__max_pages="9")

    live.crawl_all()

    [extraction] = live.rows(extractions)
    assert (extraction.page_count, extraction.over_budget) == (9, 4)
    assert len(live.web.paths) == len(set(live.web.paths)) == 9
    assert refused_spawns(live.store) == [("over_budget", CATALOG_ID)]


@pytest.mark.slow
def test_pages_that_link_to_each_other_are_fetched_once_each(live: LiveCatalog) -> None:
    live.web.routes |= {"/": link_page("/a", "/b"), "/a": link_page("/b", "/"), "/b": link_page("/a/", "/A")}
    live.serve({"/A": link_page("/a")}, {"page_type": "EXPLORATORY"})

    live.crawl_all()

    assert Counter(live.web.paths) == {"/": 1, "/a": 1, "/b": 1, "/A": 1}
    assert refused_spawns(live.store) == []


def list_page(number: int, links: list[str], *, noise: str = "") -> str:
    """Return a page of a list that always has a next page."""
    following = f"<div class=pagination><a href='/list?page={number + 1}'>Next</a></div>"
    return link_page(*links, text=noise).replace("</body>", f"{following}</body>")


NEXT_LINKS = {"pagination": {"next": "rel"}}
ENDLESS_LISTS: dict[str, Callable[[int], list[str]]] = {
    "the last page again": lambda number: [f"/c/{min(number, 4)}-{at}" for at in range(3)],
    "empty pages": lambda number: [f"/c/{number}-{at}" for at in range(3)] if number < 5 else [],
    "round and round": lambda number: [f"/c/{(number - 1) % 4 + 1}-{at}" for at in range(3)],
    "known ones by chance": lambda number: (
        [f"/c/{number}-{at}" for at in range(3)] if number < 5 else [f"/c/{number % 4 + 1}-1"]
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDLESS_LISTS)
def test_an_endless_next_link_ends_after_a_few_pages_without_new_links(live: LiveCatalog, name: str) -> None:
    def answer(path: str) -> str:
        match = re.fullmatch(r"/(?:list\?page=(\d+))?", path)
        number = int((match and match[1]) or 1)
        return list_page(number, ENDLESS_LISTS[name](number), noise=f"{number}") if match else link_page()

    live.web.routes = RoutesByFunction(answer)
    live.register({"page_type": "DETAIL_LINKS", "link_pattern": "/c/", **NEXT_LINKS})

    live.crawl_all()

    courses = {f"/c/{number}-{at}" for number in range(1, 5) for at in range(3)}
    assert {path for path in live.web.paths if "/c/" in path} == courses
    assert len(live.web.paths) - len(courses) <= 8
    [extraction] = live.rows(extractions)
    assert (extraction.status, extraction.over_budget) == ("COMPLETE", 0)


@pytest.mark.slow
@pytest.mark.parametrize("remark", ["one of many", "{}"], ids=["always the same", "changing"])
def test_an_endless_list_of_records_ends_after_a_few_pages_without_new_records(live: LiveCatalog, remark: str) -> None:
    def answer(path: str) -> str:
        number = int(path.partition("=")[2] or 1)
        records = "".join(course(at) for at in range(4 * number, 4 * number + 4) if at < 20)
        noise = f"{number} of many, at 12:0{number}, {remark.format('ha' * number)}"
        return list_page(number, [], noise=noise).replace("<ul>", f"{records}<ul>")

    live.web.routes = RoutesByFunction(answer)
    live.register({"page_type": "DETAIL", **NEXT_LINKS})

    live.crawl_all()

    assert 4 < len(live.web.paths) <= 9
    [dataset] = live.rows(datasets)
    assert dataset.item_count == 16


@pytest.mark.slow
def test_a_list_that_repeats_other_lists_is_followed_to_its_own_entries(live: LiveCatalog) -> None:
    """Links that are new to the list count, though the catalog has them."""
    live.web.routes |= {"/": link_page("/l/science", "/l/stem")}
    for name, count in (("science", 6), ("stem", 7)):
        for number in range(1, count + 1):
            following = f"/l/{name}?page={number + 1}"
            pager = f"<a rel=next href='{following}'>Next</a>" if number < count else ""
            html = link_page(f"/c/{number}").replace("</body>", f"{pager}</body>")
            live.web.routes[f"/l/{name}?page={number}"] = html
        live.web.routes[f"/l/{name}"] = live.web.routes[f"/l/{name}?page=1"]
    live.web.routes |= {f"/c/{number}": link_page() for number in range(1, 8)}
    inner = {"page_type": "DETAIL_LINKS", "link_pattern": "/c/", **NEXT_LINKS}
    recipe = {"page_type": "CATEGORY_LINKS", "link_pattern": "/l/", "links": inner}
    live.register(recipe)

    live.crawl_all()

    assert "/c/7" in live.web.paths
