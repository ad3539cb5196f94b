"""Exploratory crawls: links of the page, to its own host, limited in depth."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

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
from ingestion_pipeline.reading.llm import Billing
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import crawl_steps, data_items, datasets, extractions, pages, tasks
from ingestion_pipeline_tests.catalog_extractions import (
    CATALOG_ID,
    a_catalog,
    complete_extractions,
    crawl_all,
    crawled_pages,
    fetch_pages,
    link_page,
    poll_catalogs,
    read_pages,
)
from ingestion_pipeline_tests.catalogs.detection.sites import MENU, anchors, course, detail, page
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import add_sources, rows, with_settings


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
def test_explored_links_are_followed_once_and_loops_end(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    web.routes |= {
        "/": ROOT_PAGE,
        "/c/1": outcome_page("/d/2", "/c/1", "http://b.test/d/3"),
        "/d/2": outcome_page("/c/1", "/d/2"),
    }
    two, strange = "http://a.test/d/2", "http://a.test/invented"

    crawl_and_explore(ctx, web, 4, c_1=(two, two, "http://b.test/d/3", strange), d_2=("http://a.test/c/1", two))

    assert Counter(web.paths) == {"/": 1, "/c/1": 1, "/d/2": 1}
    assert [(page.path, page.step, page.status) for page in crawled_pages(store)] == [
        ("/", "root", "SUCCESS"),
        ("/c/1", "root/links", "SUCCESS"),
        ("/d/2", "root/links/explored", "SUCCESS"),
    ]
    keys = [row.key for row in rows(store, crawl_steps)]
    assert keys == ["root", "root/links", "root/links/explored", "root/links/explored/explored"]
    assert {row.status for row in rows(store, tasks) if row.kind != "poll"} == {"SUCCESS"}
    assert [row.model for row in rows(store, data_items)] == ["m", "m"]


@pytest.mark.slow
def test_exploring_ends_at_its_depth(
    ctx: RunContext, store: Store, web: FakeWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap 12: the root does not count towards the depth."""
    monkeypatch.setattr(frontier, "EXPLORE_DEPTH", 3)
    web.routes |= {"/": ROOT_PAGE, **{f"/c/{n}": outcome_page(f"/c/{n + 1}") for n in range(1, 6)}}

    crawl_and_explore(ctx, web, 6, **{f"c_{n}": (f"http://a.test/c/{n + 1}",) for n in range(1, 6)})

    assert [page.path for page in crawled_pages(store)] == ["/", "/c/1", "/c/2", "/c/3"]


@pytest.mark.slow
def test_a_page_without_records_is_not_explored(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    page = '<html><body><h1>Page</h1><a href="/c/1">1</a><a href="/d/2">2</a></body></html>'
    web.routes |= {"/": page, "/c/1": page}

    crawl_and_explore(ctx, web, 2, c_1=("http://a.test/d/2",))

    assert len(rows(store, pages)) == 2


@pytest.mark.slow
def test_only_types_that_explore_follow_explored_links(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    """A15: a model that names links on a page of courses is not followed."""
    web.routes |= {"/": ROOT_PAGE, "/c/1": outcome_page("/d/2"), "/d/2": outcome_page()}

    crawl_and_explore(ctx, web, 2, "course", c_1=("http://a.test/d/2",))

    assert [page.path for page in crawled_pages(store)] == ["/", "/c/1"]
    assert len(rows(store, data_items)) == 1


@pytest.mark.slow
def test_an_unchanged_page_leads_to_the_same_explored_pages_without_being_read(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    ctx = with_settings(ctx, extraction__quiet_seconds="0")
    web.routes |= {"/": ROOT_PAGE, "/c/1": outcome_page("/d/2"), "/d/2": outcome_page("/d/3"), "/d/3": outcome_page()}
    explored = {"c_1": ("http://a.test/d/2",), "d_2": ("http://a.test/d/3",)}
    crawl_and_explore(ctx, web, 4, **explored)
    complete_extractions(ctx)
    start_now(ctx, [CATALOG_ID])
    crawl_and_explore(ctx, web, 4)  # a page that is read now has nothing to explore

    complete_extractions(ctx)

    assert Counter(web.paths) == {"/": 2, "/c/1": 2, "/d/2": 2, "/d/3": 2}
    assert [row.status for row in rows(store, extractions)] == ["COMPLETE", "COMPLETE"]
    [dataset] = rows(store, datasets)
    assert dataset.confirmed_at is not None
    assert len(rows(store, data_items)) == 3


@pytest.mark.slow
def test_a_rerun_explores_nothing_since_it_fetches_nothing(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    ctx = with_settings(ctx, extraction__quiet_seconds="0")
    web.routes |= {"/": ROOT_PAGE, "/c/1": outcome_page("/d/2"), "/d/2": outcome_page()}
    crawl_and_explore(ctx, web, 1)
    complete_extractions(ctx)
    [first] = rows(store, extractions)
    web.requests.clear()
    with store.begin() as connection:
        rerun(connection, first.id, actor="ann", now=store.clock.now(connection))

    crawl_and_explore(ctx, web, 2, c_1=("http://a.test/d/2",))

    assert web.paths == []
    assert {page.path for page in crawled_pages(store)} == {"/", "/c/1"}


def test_only_links_on_the_page_to_its_own_host_are_explored() -> None:
    page = PageContent(
        url="http://a.test/x/",
        body='<a href="y">y</a> <a href="http://b.test/z">z</a> http://a.test/written',
        text="y z http://a.test/written",
    )
    config = ["y", "http://a.test/x/y/", "http://b.test/z", "http://a.test/written", "not a url"]

    assert links_on(page, config, known_as="http://a.test/x") == ("http://a.test/x/y",)


@pytest.mark.slow
def test_an_exploratory_crawl_reads_the_records_of_every_page_it_fetches(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    """Lists, a detail page and courses beside links; the second crawl reads none of them."""
    web.routes |= {
        "/": link_page("/arts", "/science", "/about"),
        "/arts": link_page("/arts/1", text="Arts"),
        "/arts/1": detail(1, "ARTS"),
        "/science": page(course(2, "SCI") + course(3, "SCI") + anchors({"/science/4": "More"})),
        "/science/4": detail(4, "SCI"),
        "/about": link_page(text="About us"),
        **{f"/{name}": link_page(text=name) for name in (*MENU, "imprint")},
    }
    add_sources(store, a_catalog({"page_type": "EXPLORATORY"}))

    crawl_all(ctx, web.port)
    items = {item.data["course_name"] for item in rows(store, data_items)}
    crawl_all(ctx, web.port)

    assert items == {"Botany 1", "Chemistry 2", "Drawing 3", "Economics 4"}
    assert {page.status for page in crawled_pages(store)} == {"SUCCESS"}
    [dataset] = rows(store, datasets)
    assert (dataset.status, dataset.item_count) == ("published", 4)
    second_pages = [row for row in rows(store, pages) if row.extraction_id == 2]
    assert len(second_pages) == 12
    assert all(row.carried_from is not None for row in second_pages)
