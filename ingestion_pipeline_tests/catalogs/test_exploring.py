"""Exploring: few links, near the root, of the page's own host, and really on the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ingestion_pipeline.catalogs.crawling.following import links_on
from ingestion_pipeline.catalogs.crawling.runs import start_now
from ingestion_pipeline.catalogs.extraction.page_result import PageContent, PageReading
from ingestion_pipeline.catalogs.extraction.record import CandidateRecord, ExtractionMethod, record_of
from ingestion_pipeline.catalogs.extraction.source_config import EntityConfig
from ingestion_pipeline.catalogs.operations.rerun import rerun
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.reading.llm import Billing
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import crawl_steps, data_items, datasets, extractions, pages, tasks
from ingestion_pipeline_tests.catalogs.detection.sites import MENU, anchors, course, detail, page
from ingestion_pipeline_tests.crawlers import (
    SHOP,
    a_catalog,
    a_page,
    begin,
    conclude,
    crawl_all,
    fetch_pages,
    found_pages,
    read_pages,
)
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import changed, given_sources, rows


@dataclass
class ExploringReader:
    """Finds one record on each page that has a list item, and wants to see more pages."""

    explored: Mapping[str, tuple[str, ...]]

    async def read(self, config: EntityConfig, page: PageContent, billing: Billing) -> PageReading:
        path = page.url.removeprefix("http://a.test")
        found = CandidateRecord(fields=dict.fromkeys(config.kind.required, f"can do {path}"))
        has_list = "<li>" in page.body
        record = record_of(config.kind, found, method=ExtractionMethod.CHEAP_MODEL, model="m")
        records = (record,) if has_list else ()
        return PageReading(records=records, explored=self.explored.get(path, ()), model="m")


def a_list(*links: str) -> str:
    anchors = "".join(f'<a href="{link}">more</a>' for link in links)
    return f"<html><body><h1>Outcomes</h1><ul><li>an outcome</li></ul>{anchors}</body></html>"


ROOT = '<html><body><h1>Catalogue</h1><a href="/c/1">1</a></body></html>'


def walk(ctx: RunContext, web: FakeWeb, turns: int, entity: str = "competency", /, **explored: tuple[str, ...]) -> None:
    catalog = a_catalog()
    config = {**catalog.config, "entity": entity}
    given_sources(ctx.store, a_catalog(config=config))
    begin(ctx, web)
    reader = ExploringReader({f"/{path.replace('_', '/')}": to for path, to in explored.items()})
    for _ in range(turns):
        fetch_pages(ctx, web)
        read_pages(ctx, reader=reader)


def test_a_page_with_records_leads_to_others_once_and_loops_end(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {"/": ROOT, "/c/1": a_list("/d/2", "/c/1", "http://b.test/d/3"), "/d/2": a_list("/c/1", "/d/2")}
    two, strange = "http://a.test/d/2", "http://a.test/invented"

    walk(ctx, web, 4, c_1=(two, two, "http://b.test/d/3", strange), d_2=("http://a.test/c/1", two))

    assert Counter(web.paths) == {"/": 1, "/c/1": 1, "/d/2": 1}
    assert [(one.path, one.step, one.status) for one in found_pages(store)] == [
        ("/", "root", "SUCCESS"),
        ("/c/1", "root/links", "SUCCESS"),
        ("/d/2", "root/links/explored", "SUCCESS"),
    ]
    keys = [row.key for row in rows(store, crawl_steps)]
    assert keys == ["root", "root/links", "root/links/explored", "root/links/explored/explored"]
    assert {row.status for row in rows(store, tasks) if row.kind != "poll"} == {"SUCCESS"}
    assert [row.model for row in rows(store, data_items)] == ["m", "m"]


def test_exploring_ends_at_its_depth(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    """Trap 12: the root is no ancestor too many, the ninth step is."""
    ctx = changed(ctx, extraction__explore_depth="3")
    web.routes |= {"/": ROOT, **{f"/c/{n}": a_list(f"/c/{n + 1}") for n in range(1, 6)}}

    walk(ctx, web, 6, **{f"c_{n}": (f"http://a.test/c/{n + 1}",) for n in range(1, 6)})

    assert [one.path for one in found_pages(store)] == ["/", "/c/1", "/c/2", "/c/3"]


def test_a_page_without_records_leads_nowhere(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    page = '<html><body><h1>Page</h1><a href="/c/1">1</a><a href="/d/2">2</a></body></html>'
    web.routes |= {"/": page, "/c/1": page}

    walk(ctx, web, 2, c_1=("http://a.test/d/2",))

    assert len(rows(store, pages)) == 2


def test_only_a_type_that_says_so_explores(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    """A15: a model that names links on a page of courses is not followed."""
    web.routes |= {"/": ROOT, "/c/1": a_list("/d/2"), "/d/2": a_list()}

    walk(ctx, web, 2, "course", c_1=("http://a.test/d/2",))

    assert [one.path for one in found_pages(store)] == ["/", "/c/1"]
    assert len(rows(store, data_items)) == 1


def test_an_unchanged_page_leads_where_it_led_before_though_nobody_reads_it_again(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    ctx = changed(ctx, extraction__quiet_seconds="0")
    web.routes |= {"/": ROOT, "/c/1": a_list("/d/2"), "/d/2": a_list("/d/3"), "/d/3": a_list()}
    led = {"c_1": ("http://a.test/d/2",), "d_2": ("http://a.test/d/3",)}
    walk(ctx, web, 4, **led)
    conclude(ctx)
    start_now(ctx, [SHOP])
    walk(ctx, web, 4)  # whoever reads a page now finds nothing to explore

    conclude(ctx)

    assert Counter(web.paths) == {"/": 2, "/c/1": 2, "/d/2": 2, "/d/3": 2}
    assert [row.status for row in rows(store, extractions)] == ["COMPLETE", "COMPLETE"]
    [dataset] = rows(store, datasets)
    assert dataset.confirmed_at is not None
    assert len(rows(store, data_items)) == 3


def test_a_rerun_explores_nothing_since_it_asks_nobody(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    ctx = changed(ctx, extraction__quiet_seconds="0")
    web.routes |= {"/": ROOT, "/c/1": a_list("/d/2"), "/d/2": a_list()}
    walk(ctx, web, 1)
    conclude(ctx)
    [first] = rows(store, extractions)
    web.requests.clear()
    with store.begin() as connection:
        rerun(connection, first.id, actor="ann", now=store.clock.now(connection))

    walk(ctx, web, 2, c_1=("http://a.test/d/2",))

    assert web.paths == []
    assert {one.path for one in found_pages(store)} == {"/", "/c/1"}


def test_only_what_the_page_links_to_counts() -> None:
    page = PageContent(
        url="http://a.test/x/",
        body='<a href="y">y</a> <a href="http://b.test/z">z</a> http://a.test/written',
        text="y z http://a.test/written",
    )
    config = ["y", "http://a.test/x/y/", "http://b.test/z", "http://a.test/written", "not a url"]

    assert links_on(page, config, known_as="http://a.test/x") == ("http://a.test/x/y",)


def test_an_exploratory_crawl_reads_the_records_of_the_pages_it_walks(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    """Lists, a course on a page of its own and courses beside links; a second crawl reads none."""
    web.routes |= {
        "/": a_page("/arts", "/science", "/about"),
        "/arts": a_page("/arts/1", text="Arts"),
        "/arts/1": detail(1, "ARTS"),
        "/science": page(course(2, "SCI") + course(3, "SCI") + anchors({"/science/4": "More"})),
        "/science/4": detail(4, "SCI"),
        "/about": a_page(text="About us"),
        **{f"/{name}": a_page(text=name) for name in (*MENU, "imprint")},
    }
    given_sources(store, a_catalog({"page_type": "EXPLORATORY"}))

    crawl_all(ctx, web.port)
    items = {item.data["course_name"] for item in rows(store, data_items)}
    crawl_all(ctx, web.port)

    assert items == {"Botany 1", "Chemistry 2", "Drawing 3", "Economics 4"}
    assert {one.status for one in found_pages(store)} == {"SUCCESS"}
    [dataset] = rows(store, datasets)
    assert (dataset.status, dataset.item_count) == ("published", 4)
    again = [one for one in rows(store, pages) if one.extraction_id == 2]
    assert len(again) == 12
    assert all(one.carried_from is not None for one in again)
