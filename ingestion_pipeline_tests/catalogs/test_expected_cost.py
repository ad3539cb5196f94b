"""What the next extraction may cost, told by the pages of the last one; on both databases."""

from __future__ import annotations

from pathlib import Path

from ingestion_pipeline.catalogs.extraction.cost import DetailPage, cost_facts, text_sizes
from ingestion_pipeline.catalogs.operations.rerun import predict_rerun
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.catalogs.courses import a_course_page
from ingestion_pipeline_tests.crawlers import LINKS, SHOP, a_catalog, a_page, begin, crawl
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import given_sources


def test_the_pages_of_the_last_extraction_tell_what_the_next_may_cost(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"/": a_page("/c/1", "/c/2"), "/c/1": a_page("/x"), "/c/2": a_page("/y")}
    given_sources(store, a_catalog(LINKS))
    begin(ctx, web)
    crawl(ctx, web)
    home = {"INGESTION_HOME": str(ctx.settings.home)}

    with store.read() as connection:
        source = sources_by_id(connection, [SHOP])[SHOP]
        free = cost_facts(connection, source, load_settings(home))
        priced = cost_facts(connection, source, load_settings(home | {"OPENAI_API_KEY": "k"}))

    assert free == {"predicted_cost": "no model is asked: 0 calls, 0 USD, for 2 pages"}
    said = str(priced["predicted_cost"])
    assert said.startswith("at most 4 calls, ")
    assert "USD, for 2 pages; a page that rules read, or that is unchanged, costs nothing" in said


def test_pages_that_wait_for_a_model_are_counted_though_there_is_none(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"/": a_page("/c/1", "/c/2"), "/c/1": a_page("/x"), "/c/2": a_page("/y")}
    given_sources(store, a_catalog(LINKS, config={"recipe": dict(LINKS), "entity": "credential"}))
    begin(ctx, web)
    crawl(ctx, web)
    bare = load_settings({"INGESTION_HOME": str(ctx.settings.home)})

    with store.read() as connection:
        source = sources_by_id(connection, [SHOP])[SHOP]
        shown = str(cost_facts(connection, source, bare)["predicted_cost"])
        rerun = predict_rerun(connection, 1, settings=bare, content=ctx.content)

    assert shown.startswith("once there is a model: at most 4 calls, ")
    assert "for 2 pages; no model configured (OPENAI_API_KEY" in shown
    assert (rerun.pages, rerun.calls) == (2, 4)
    assert rerun.cost_usd is not None
    assert rerun.cost_usd > 0
    assert "no model configured" in rerun.note


def test_the_size_of_a_text_is_measured_where_it_can_be_and_else_taken_by_its_share(tmp_path: Path) -> None:
    content = ContentStore(tmp_path)
    kept = content.put(b"x" * 100)

    pages = [DetailPage(1_000, kept), DetailPage(500, "0" * 64), DetailPage(2_000, None)]

    assert text_sizes(pages, content) == [100, 50, 200]
    assert text_sizes([DetailPage(70, None)], content) == [70]


def test_a_rerun_is_predicted_by_what_rules_leave_open_of_the_stored_pages(
    ctx: RunContext, store: Store, web: FakeWeb
) -> None:
    web.routes |= {"/": a_page("/c/1", "/c/2"), "/c/1": a_course_page(101), "/c/2": a_page("/y")}
    given_sources(store, a_catalog(LINKS))
    begin(ctx, web)
    crawl(ctx, web)
    model = load_settings({"INGESTION_HOME": str(ctx.settings.home), "OPENAI_API_KEY": "k"})

    with store.read() as connection:
        found = predict_rerun(connection, 1, settings=model, content=ctx.content)
        free = predict_rerun(connection, 1, settings=ctx.settings, content=ctx.content)

    assert (found.pages, found.calls) == (2, 2)  # of the one page that rules cannot read, two models
    assert found.cost_usd is not None
    assert found.cost_usd > 0
    assert (free.calls, free.cost_usd, free.note) == (0, 0, "")
