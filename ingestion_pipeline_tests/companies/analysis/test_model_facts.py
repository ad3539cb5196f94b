"""A model as the last extraction method: asked for facts that the rules lack, stored where the pages ground them."""

import json
from dataclasses import replace
from typing import Any

from ingestion_pipeline.companies.analysis.company_pages import FIELDS
from ingestion_pipeline.demo.model_server import Fail, Say, ScriptedModel
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store.tables import model_calls
from ingestion_pipeline_tests.companies.company_sites import (
    a_company,
    a_page,
    company_row,
    poll_companies,
    process_companies,
    serve,
)
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import add_sources, rows
from ingestion_pipeline_tests.reading.llm.model_questions import in_turn, settings_with_model

STORY = (
    "Parcels are our life: since the first day the people of Acme have sorted them for shops and"
    " post offices in the logistics trade, with machines that we draw, build and repair ourselves."
)


def configure_model(ctx: RunContext, model: ScriptedModel) -> RunContext:
    settings = settings_with_model(model.base_url, ctx.settings, INGESTION_HOSTS__DELAY_SECONDS="0")
    return replace(ctx, settings=settings)


def model_reply(**facts: Any) -> Say:
    return Say(text=json.dumps(dict.fromkeys(FIELDS) | facts))


def analyse(ctx: RunContext, web: FakeWeb, *replies: Any) -> tuple[Any, ScriptedModel]:
    serve(web, {"/": a_page(f"<h1>Acme</h1><p>{STORY}</p>"), "/company/about-acme": 404})
    add_sources(ctx.store, a_company(name="acme"))
    poll_companies(ctx, web)
    with ScriptedModel(in_turn(*replies)) as model:
        process_companies(configure_model(ctx, model), web.port)
    return company_row(ctx.store), model


def test_grounded_facts_of_the_model_are_stored_and_others_dropped(ctx: RunContext, web: FakeWeb) -> None:
    row, _ = analyse(ctx, web, model_reply(about=STORY, industry="logistics", size="5,000 employees"))

    assert (row.about, row.industry, row.size) == (STORY, "logistics", None)
    assert row.evidence["industry"]["method"] == "model"
    assert row.quality["notes"] == ["unproved: size"]
    [call] = rows(ctx.store, model_calls)
    assert (call.call_site, call.source_id, call.model) == ("company", "company:acme", "cheap")


def test_an_unavailable_model_does_not_delay_the_analysis(ctx: RunContext, web: FakeWeb) -> None:
    row, _ = analyse(ctx, web, Fail(status=401))

    assert row.industry is None
    assert row.quality["notes"][0].startswith("no ")
    assert row.analyzed_at is not None
