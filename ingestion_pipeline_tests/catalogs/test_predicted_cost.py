"""The cost of the next extraction, predicted from the pages of the last one."""

from pathlib import Path

import pytest

from ingestion_pipeline.catalogs.reruns import DetailPage, cost_facts, predict_rerun, text_sizes
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline_tests.catalog_extractions import (
    CATALOG_ID,
    LINKS,
    LiveCatalog,
    link_page,
)
from ingestion_pipeline_tests.catalogs.course_pages import course_page


@pytest.mark.slow
def test_the_cost_of_the_next_extraction_is_predicted_from_the_last_one(live: LiveCatalog) -> None:
    live.serve({"/": link_page("/c/1", "/c/2"), "/c/1": link_page("/x"), "/c/2": link_page("/y")}, LINKS)
    live.poll()
    live.crawl()
    home = {"INGESTION_HOME": str(live.ctx.settings.home)}

    with live.store.read() as connection:
        source = sources_by_id(connection, [CATALOG_ID])[CATALOG_ID]
        free = cost_facts(connection, source, load_settings(home))
        priced = cost_facts(connection, source, load_settings(home | {"OPENAI_API_KEY": "k"}))

    assert free == {"predicted_cost": "no model is asked: 0 calls, 0 USD, for 2 pages"}
    prediction = str(priced["predicted_cost"])
    assert prediction.startswith("at most 4 calls, ")
    assert "USD, for 2 pages; a page that rules read, or that is unchanged, costs nothing" in prediction


def test_pages_that_wait_for_a_model_are_counted_without_a_model(live: LiveCatalog) -> None:
    live.serve(
        {"/": link_page("/c/1", "/c/2"), "/c/1": link_page("/x"), "/c/2": link_page("/y")},
        LINKS,
        config={"recipe": dict(LINKS), "entity": "credential"},
    )
    live.poll()
    live.crawl()
    bare = load_settings({"INGESTION_HOME": str(live.ctx.settings.home)})

    with live.store.read() as connection:
        source = sources_by_id(connection, [CATALOG_ID])[CATALOG_ID]
        prediction = str(cost_facts(connection, source, bare)["predicted_cost"])
        rerun = predict_rerun(connection, 1, settings=bare, content=live.ctx.content)

    assert prediction.startswith("once there is a model: at most 4 calls, ")
    assert "for 2 pages; no model configured (OPENAI_API_KEY" in prediction
    assert (rerun.pages, rerun.calls) == (2, 4)
    assert rerun.cost_usd is not None
    assert rerun.cost_usd > 0
    assert "no model configured" in rerun.note


def test_text_sizes_are_measured_where_stored_and_else_estimated_by_their_share(tmp_path: Path) -> None:
    content = ContentStore(tmp_path)
    stored = content.put(b"x" * 100)

    pages = [DetailPage(1_000, stored), DetailPage(500, "0" * 64), DetailPage(2_000, None)]

    assert text_sizes(pages, content) == [100, 50, 200]
    assert text_sizes([DetailPage(70, None)], content) == [70]


@pytest.mark.slow
def test_a_rerun_is_predicted_by_the_stored_pages_that_rules_cannot_read(live: LiveCatalog) -> None:
    live.serve({"/": link_page("/c/1", "/c/2"), "/c/1": course_page(101), "/c/2": link_page("/y")}, LINKS)
    live.poll()
    live.crawl()
    model = load_settings({"INGESTION_HOME": str(live.ctx.settings.home), "OPENAI_API_KEY": "k"})

    with live.store.read() as connection:
        prediction = predict_rerun(connection, 1, settings=model, content=live.ctx.content)
        free = predict_rerun(connection, 1, settings=live.ctx.settings, content=live.ctx.content)

    assert (prediction.pages, prediction.calls) == (2, 2)  # of the one page that rules cannot read, two models
    assert prediction.cost_usd is not None
    assert prediction.cost_usd > 0
    assert (free.calls, free.cost_usd, free.note) == (0, 0, "")
