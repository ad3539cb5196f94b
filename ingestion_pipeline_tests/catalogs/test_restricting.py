"""A recipe that names the content of its pages: only that is read, and the whole proves it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select, update

from ingestion_pipeline.catalogs.extraction.page_reader import content_selectors
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import data_items, extractions, snapshots, sources
from ingestion_pipeline_tests.catalogs.courses import a_course, names
from ingestion_pipeline_tests.crawlers import LINKS, SHOP, a_catalog, crawl_all, found_pages
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import given_sources, rows

PAGE = f"<html><body><h1>Courses</h1><aside>Also: {a_course(900)}</aside><main>{a_course(101)}</main></body></html>"


def recipe(selector: str) -> dict[str, Any]:
    return {**LINKS, "links": {"page_type": "DETAIL", "content_selector": selector}}


def given_page(store: Store, web: FakeWeb, selector: str) -> None:
    web.routes |= {"/": '<a href="/c/101">101</a>', "/c/101": PAGE}
    given_sources(store, a_catalog(recipe(selector)))


def test_only_the_content_is_read_and_its_spans_are_those_of_the_stored_text(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    given_page(store, web, "main")

    crawl_all(ctx, web.port)

    assert names(store) == ["MATH 101"]
    [item] = rows(store, data_items)
    with store.read() as connection:
        query = select(snapshots.c.text_hash).where(snapshots.c.id == item.snapshot_id)
        text = ctx.content.get(connection.execute(query).scalar_one()).decode()
    proof = item.grounding["course_id"]
    assert proof["start"] > text.index("MATH 900")
    assert text[proof["start"] : proof["end"]] == "MATH 101"


def test_a_selector_that_matches_nothing_is_an_error_also_of_an_unchanged_page(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    given_page(store, web, "main")
    crawl_all(ctx, web.port)
    with store.begin() as connection:
        changed = {"recipe": recipe("main#nothing")}
        connection.execute(update(sources).where(sources.c.id == SHOP).values(config=changed))

    crawl_all(ctx, web.port)

    failed = found_pages(store)[-1]
    assert (failed.path, failed.status) == ("/c/101", "ERROR")
    assert failed.failure is not None
    assert failed.failure["code"] == "content_selector"
    assert "main#nothing" in failed.failure["message"]
    assert names(store) == ["MATH 101"]
    assert len(rows(store, extractions)) == 2


def test_every_level_of_a_recipe_may_call_something_its_content() -> None:
    assert list(content_selectors(recipe("main"))) == ["", "main"]
