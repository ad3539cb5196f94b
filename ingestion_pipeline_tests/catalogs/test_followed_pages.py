"""Pages that a crawl follows: loops and endless lists end, sitemaps, and explored links."""

import gzip
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from ingestion_pipeline.catalogs import frontier
from ingestion_pipeline.catalogs.catalog_runs import start_now
from ingestion_pipeline.catalogs.extraction.record import (
    CandidateRecord,
    ExtractionMethod,
    ExtractionResult,
    PageContent,
    record_of,
)
from ingestion_pipeline.catalogs.extraction.source_selectors import EntityConfig
from ingestion_pipeline.catalogs.frontier import links_on
from ingestion_pipeline.catalogs.reruns import rerun
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.llm import Billing
from ingestion_pipeline.sources.source import Definition
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import audit_log, crawl_steps, data_items, datasets, extractions, pages, tasks
from ingestion_pipeline_tests.catalog_extractions import (
    CATALOG_ID,
    LiveCatalog,
    a_catalog,
    crawled_pages,
    fetch_pages,
    link_page,
    poll_catalogs,
    read_pages,
)
from ingestion_pipeline_tests.catalogs.detection.sites import MENU, anchors, course, detail, page
from ingestion_pipeline_tests.fakes import FakeWeb, Reply, RoutesByFunction
from ingestion_pipeline_tests.polling_runs import RunningClock, add_sources, with_settings


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
    paths = {page.path for page in crawled_pages(live.store)}
    assert paths == {"/sitemap.xml", "/one.xml", "/two.xml.gz", "/c/1", "/c/2", "/c/3"}


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


@dataclass
class ExploringReader:
    """Finds one record on each page with a list item, and explores the given links."""

    explored: Mapping[str, tuple[str, ...]]

    async def read(self, config: EntityConfig, page: PageContent, billing: Billing) -> ExtractionResult:
        path = page.url.removeprefix("http://a.test")
        candidate = CandidateRecord(fields=dict.fromkeys(config.kind.required, f"can do {path}"))
        has_list = "<li>" in page.body
        record = record_of(config.kind, candidate, method=ExtractionMethod.CHEAP_MODEL, model="m")
        records = (record,) if has_list else ()
        return ExtractionResult(records=records, explored=self.explored.get(path, ()), model="m")


def outcome_page(*links: str) -> str:
    anchors = "".join(f'<a href="{link}">more</a>' for link in links)
    return f"<html><body><h1>Outcomes</h1><ul><li>an outcome</li></ul>{anchors}</body></html>"


ROOT_PAGE = '<html><body><h1>Catalogue</h1><a href="/c/1">1</a></body></html>'


def crawl_and_explore(
    ctx: RunContext, web: FakeWeb, turns: int, entity: str = "competency", /, **explored: tuple[str, ...]
) -> None:
    catalog = a_catalog()
    config = {**catalog.config, "entity": entity}
    add_sources(ctx.store, a_catalog(config=config))
    poll_catalogs(ctx, web)
    reader = ExploringReader({f"/{path.replace('_', '/')}": to for path, to in explored.items()})
    for _ in range(turns):
        fetch_pages(ctx, web)
        read_pages(ctx, reader=reader)


@pytest.mark.slow
def test_explored_links_are_followed_once_and_loops_end(live: LiveCatalog) -> None:
    live.web.routes |= {
        "/": ROOT_PAGE,
        "/c/1": outcome_page("/d/2", "/c/1", "http://b.test/d/3"),
        "/d/2": outcome_page("/c/1", "/d/2"),
    }
    two, strange = "http://a.test/d/2", "http://a.test/invented"

    crawl_and_explore(
        live.ctx, live.web, 4, c_1=(two, two, "http://b.test/d/3", strange), d_2=("http://a.test/c/1", two)
    )

    assert Counter(live.web.paths) == {"/": 1, "/c/1": 1, "/d/2": 1}
    assert [(page.path, page.step, page.status) for page in live.pages()] == [
        ("/", "root", "SUCCESS"),
        ("/c/1", "root/links", "SUCCESS"),
        ("/d/2", "root/links/explored", "SUCCESS"),
    ]
    keys = [row.key for row in live.rows(crawl_steps)]
    assert keys == ["root", "root/links", "root/links/explored", "root/links/explored/explored"]
    assert {row.status for row in live.rows(tasks) if row.kind != "poll"} == {"SUCCESS"}
    assert [row.model for row in live.rows(data_items)] == ["m", "m"]


@pytest.mark.slow
def test_exploring_ends_at_its_depth(live: LiveCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 12: the root does not count towards the depth."""
    monkeypatch.setattr(frontier, "EXPLORE_DEPTH", 3)
    live.web.routes |= {"/": ROOT_PAGE, **{f"/c/{n}": outcome_page(f"/c/{n + 1}") for n in range(1, 6)}}

    crawl_and_explore(live.ctx, live.web, 6, **{f"c_{n}": (f"http://a.test/c/{n + 1}",) for n in range(1, 6)})

    assert [page.path for page in live.pages()] == ["/", "/c/1", "/c/2", "/c/3"]


@pytest.mark.slow
def test_a_page_without_records_is_not_explored(live: LiveCatalog) -> None:
    page = '<html><body><h1>Page</h1><a href="/c/1">1</a><a href="/d/2">2</a></body></html>'
    live.web.routes |= {"/": page, "/c/1": page}

    crawl_and_explore(live.ctx, live.web, 2, c_1=("http://a.test/d/2",))

    assert len(live.rows(pages)) == 2


@pytest.mark.slow
def test_only_types_that_explore_follow_explored_links(live: LiveCatalog) -> None:
    """A15: a model that names links on a page of courses is not followed."""
    live.web.routes |= {"/": ROOT_PAGE, "/c/1": outcome_page("/d/2"), "/d/2": outcome_page()}

    crawl_and_explore(live.ctx, live.web, 2, "course", c_1=("http://a.test/d/2",))

    assert [page.path for page in live.pages()] == ["/", "/c/1"]
    assert len(live.rows(data_items)) == 1


@pytest.mark.slow
def test_an_unchanged_page_leads_to_the_same_explored_pages_without_being_read(live: LiveCatalog) -> None:
    live.ctx = with_settings(live.ctx, extraction__quiet_seconds="0")
    live.web.routes |= {
        "/": ROOT_PAGE,
        "/c/1": outcome_page("/d/2"),
        "/d/2": outcome_page("/d/3"),
        "/d/3": outcome_page(),
    }
    explored = {"c_1": ("http://a.test/d/2",), "d_2": ("http://a.test/d/3",)}
    crawl_and_explore(live.ctx, live.web, 4, **explored)
    live.complete()
    start_now(live.ctx, [CATALOG_ID])
    crawl_and_explore(live.ctx, live.web, 4)  # a page that is read now has nothing to explore

    live.complete()

    assert Counter(live.web.paths) == {"/": 2, "/c/1": 2, "/d/2": 2, "/d/3": 2}
    assert [row.status for row in live.rows(extractions)] == ["COMPLETE", "COMPLETE"]
    [dataset] = live.rows(datasets)
    assert dataset.confirmed_at is not None
    assert len(live.rows(data_items)) == 3


@pytest.mark.slow
def test_a_rerun_explores_nothing_since_it_fetches_nothing(live: LiveCatalog) -> None:
    live.ctx = with_settings(live.ctx, extraction__quiet_seconds="0")
    live.web.routes |= {"/": ROOT_PAGE, "/c/1": outcome_page("/d/2"), "/d/2": outcome_page()}
    crawl_and_explore(live.ctx, live.web, 1)
    live.complete()
    [first] = live.rows(extractions)
    live.web.requests.clear()
    with live.store.begin() as connection:
        rerun(connection, first.id, actor="ann", now=live.store.clock.now(connection))

    crawl_and_explore(live.ctx, live.web, 2, c_1=("http://a.test/d/2",))

    assert live.web.paths == []
    assert {page.path for page in live.pages()} == {"/", "/c/1"}


def test_only_links_on_the_page_to_its_own_host_are_explored() -> None:
    page = PageContent(
        document=Document(
            '<a href="y">y</a> <a href="http://b.test/z">z</a> http://a.test/written', url="http://a.test/x/"
        ),
        text="y z http://a.test/written",
    )
    config = ["y", "http://a.test/x/y/", "http://b.test/z", "http://a.test/written", "not a url"]

    assert links_on(page, config, known_as="http://a.test/x") == ("http://a.test/x/y",)


@pytest.mark.slow
def test_an_exploratory_crawl_reads_the_records_of_every_page_it_fetches(live: LiveCatalog) -> None:
    """Lists, a detail page and courses beside links; the second crawl reads none of them."""
    live.serve(
        {
            "/": link_page("/arts", "/science", "/about"),
            "/arts": link_page("/arts/1", text="Arts"),
            "/arts/1": detail(1, "ARTS"),
            "/science": page(course(2, "SCI") + course(3, "SCI") + anchors({"/science/4": "More"})),
            "/science/4": detail(4, "SCI"),
            "/about": link_page(text="About us"),
            **{f"/{name}": link_page(text=name) for name in (*MENU, "imprint")},
        },
        {"page_type": "EXPLORATORY"},
    )

    live.crawl_all()
    items = {item.data["course_name"] for item in live.rows(data_items)}
    live.crawl_all()

    assert items == {"Botany 1", "Chemistry 2", "Drawing 3", "Economics 4"}
    assert {page.status for page in live.pages()} == {"SUCCESS"}
    [dataset] = live.rows(datasets)
    assert (dataset.status, dataset.item_count) == ("published", 4)
    second_pages = [row for row in live.rows(pages) if row.extraction_id == 2]
    assert len(second_pages) == 12
    assert all(row.carried_from is not None for row in second_pages)
