"""Exploratory crawls: links of the page, to its own host, limited in depth."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

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
from ingestion_pipeline.store.tables import crawl_steps, data_items, datasets, extractions, pages, tasks
from ingestion_pipeline_tests.catalog_extractions import (
    CATALOG_ID,
    LiveCatalog,
    a_catalog,
    fetch_pages,
    link_page,
    poll_catalogs,
    read_pages,
)
from ingestion_pipeline_tests.catalogs.detection.sites import MENU, anchors, course, detail, page
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import add_sources, with_settings


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
def test_exploring_ends_at_its_depth(live: LiveCatalog) -> None:
    """Trap 12: the root does not count towards the depth."""
    live.ctx = with_settings(live.ctx, extraction__explore_depth="3")
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
        url="http://a.test/x/",
        body='<a href="y">y</a> <a href="http://b.test/z">z</a> http://a.test/written',
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
