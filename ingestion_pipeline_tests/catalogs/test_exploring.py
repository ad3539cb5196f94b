"""Exploring: few links, near the root, of the page's own host, and really on the page."""

from __future__ import annotations

from collections import Counter

import pytest

from ingestion_pipeline.catalogs.exploring import links_on
from ingestion_pipeline.catalogs.reader import PageContent
from ingestion_pipeline.pages.workshop import Workshop
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import crawl_steps, pages, tasks
from ingestion_pipeline_tests.catalogs.courses import a_course
from ingestion_pipeline_tests.catalogs.test_reading import ScriptedReader
from ingestion_pipeline_tests.crawlers import a_catalog, begin, fetch_pages, found_pages, read_pages
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import changed, given_sources, rows


@pytest.fixture
def exploring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Courses explore, since rules read them."""
    from ingestion_pipeline.catalogs import reading_slice, reader

    def kind_of(name: str, settings: object) -> object:
        return reader.entity_type(name).model_copy(update={"explores": True})

    monkeypatch.setattr(reading_slice, "kind_of", kind_of)


def a_linked_course(number: int, *links: str) -> str:
    anchors = "".join(f'<a href="{link}">more</a>' for link in links)
    return f"<html><body>{a_course(number)}{anchors}</body></html>"


def walk(shop: Workshop, web: FakeWeb, reader: ScriptedReader, turns: int) -> None:
    given_sources(shop.store, a_catalog())
    begin(shop, web)
    for _ in range(turns):
        fetch_pages(shop, web)
        read_pages(shop, reader=reader)


def test_a_page_with_records_leads_to_others_once_and_loops_end(
    shop: Workshop, store: Store, web: FakeWeb, exploring: None
) -> None:
    web.routes |= {
        "/": '<html><body><h1>Catalogue</h1><a href="/c/1">1</a></body></html>',
        "/c/1": a_linked_course(1, "/d/2", "/c/1", "http://b.test/d/3"),
        "/d/2": a_linked_course(2, "/c/1", "/d/2"),
    }
    strange = "http://a.test/invented"
    reader = ScriptedReader(
        shop,
        explored={
            "/c/1": ("http://a.test/d/2", "http://a.test/d/2", "http://b.test/d/3", strange),
            "/d/2": ("http://a.test/c/1", "http://a.test/d/2"),
        },
    )

    walk(shop, web, reader, turns=4)

    assert Counter(web.paths) == {"/": 1, "/c/1": 1, "/d/2": 1}
    assert [(one.path, one.step, one.status) for one in found_pages(store)] == [
        ("/", "root", "SUCCESS"),
        ("/c/1", "root/links", "SUCCESS"),
        ("/d/2", "root/links/explored", "SUCCESS"),
    ]
    keys = [row.key for row in rows(store, crawl_steps)]
    assert keys == ["root", "root/links", "root/links/explored", "root/links/explored/explored"]
    assert {row.status for row in rows(store, tasks) if row.kind != "poll"} == {"SUCCESS"}


def test_exploring_ends_at_its_depth(
    shop: Workshop, store: Store, web: FakeWeb, exploring: None
) -> None:
    shop = changed(shop, extraction__explore_depth="3")
    web.routes |= {"/": '<html><body><h1>Catalogue</h1><a href="/c/1">1</a></body></html>'}
    web.routes |= {f"/c/{n}": a_linked_course(n, f"/c/{n + 1}") for n in range(1, 6)}
    reader = ScriptedReader(
        shop, explored={f"/c/{n}": (f"http://a.test/c/{n + 1}",) for n in range(1, 6)}
    )

    walk(shop, web, reader, turns=6)

    assert [one.path for one in found_pages(store)] == ["/", "/c/1", "/c/2", "/c/3"]


def test_a_page_without_records_leads_nowhere(
    shop: Workshop, store: Store, web: FakeWeb, exploring: None
) -> None:
    page = '<html><body><h1>Page</h1><a href="/c/1">1</a><a href="/d/2">2</a></body></html>'
    web.routes |= {"/": page, "/c/1": page}
    reader = ScriptedReader(shop, explored={"/c/1": ("http://a.test/d/2",)})

    walk(shop, web, reader, turns=2)

    assert len(rows(store, pages)) == 2


def test_only_what_the_page_links_to_counts() -> None:
    page = PageContent(
        url="http://a.test/x/",
        body=b'<a href="y">y</a> <a href="http://b.test/z">z</a> http://a.test/written',
        content_type="text/html",
        stored_text=str,
    )
    wanted = ["y", "http://a.test/x/y/", "http://b.test/z", "http://a.test/written", "not a url"]

    assert links_on(page, wanted, known_as="http://a.test/x") == ("http://a.test/x/y",)
