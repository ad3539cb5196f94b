"""Readings of one page: by rules alone, or with a scripted model."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, entity_type
from ingestion_pipeline.catalogs.extraction.model_methods import answer_schema
from ingestion_pipeline.catalogs.extraction.pipeline import read_page
from ingestion_pipeline.catalogs.extraction.record import ExtractionResult, PageContent
from ingestion_pipeline.catalogs.extraction.source_selectors import EntityConfig, Selectors
from ingestion_pipeline.demo.model_server import ModelRequest, Say, Script, ScriptedModel, blank
from ingestion_pipeline.reading import cleaned_text
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.llm import Billing, ModelClient
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.reading.llm.model_questions import settings_with_model

COURSE = entity_type("course")
URL = "https://college.test/catalog/page"
BILLING = Billing(call_site="extract", source_id="catalog:a", page_id=4, extraction_id=7)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)

# No leading code, no credits: rules find no course in it, people do.
PROSE = """<h1>Our garden school</h1>
<p>We teach botany to all who come.</p>
<h2>The quiet life of mosses</h2>
<p>Reference GRD-7. Participants learn how mosses grow on the north side of walls. It earns 3 points
on the garden card.</p>"""
MOSSES = {
    "course_id": "GRD-7",
    "course_name": "The quiet life of mosses",
    "course_description": "Participants learn how mosses grow on the north side of walls.",
    "course_credits_max": 3,
}


def page_content(html: str, *, url: str = URL, text: str | None = None) -> PageContent:
    return PageContent(document=Document(html, url=url), text=cleaned_text(html) if text is None else text)


def model_answer(*records: Mapping[str, Any], kind: EntityType = COURSE, count: int | None = None, **more: Any) -> Say:
    """Return an answer by the schema of the type, null wherever a record lacks a field."""
    schema = answer_schema(kind).schema
    empty = dict.fromkeys(schema["properties"]["records"]["items"]["properties"])
    content = blank(schema) | {
        "records_on_page": len(records) if count is None else count,
        "records": [empty | dict(record) for record in records],
    }
    return Say(text=json.dumps(content | more))


def is_single_record_request(request: ModelRequest) -> bool:
    return "part about a single" in request.text


def read_with_client(
    store: Store,
    settings: Settings,
    page: PageContent,
    *,
    kind: EntityType = COURSE,
    selectors: Selectors | None = None,
    billing: Billing = BILLING,
) -> ExtractionResult:
    async def reading() -> ExtractionResult:
        async with ModelClient(store, settings) as client:
            return await read_page(
                EntityConfig(kind=kind, selectors=selectors),
                page,
                client=client,
                billing=billing,
                settings=settings,
                now=NOW,
            )

    return asyncio.run(reading())


def read_with_model(
    store: Store, settings: Settings, page: PageContent, script: Script, **more: Any
) -> tuple[ExtractionResult, list[ModelRequest]]:
    """Return the reading and the requests that the model received."""
    variables = {key: more.pop(key) for key in list(more) if key.startswith("INGESTION_")}
    with ScriptedModel(script) as model:
        model_settings = settings_with_model(model.base_url, settings, **variables)
        return read_with_client(store, model_settings, page, **more), model.requests


def read_without_model(page: PageContent, settings: Settings, **more: Any) -> ExtractionResult:
    config = EntityConfig(kind=more.pop("kind", COURSE), **more)
    return asyncio.run(read_page(config, page, client=None, billing=BILLING, settings=settings, now=NOW))


def field_values(reading: ExtractionResult, name: str) -> Sequence[Any]:
    return [record.fields[name] for record in reading.records]


def problem_codes(reading: ExtractionResult) -> list[str | None]:
    return [problem.code for problem in reading.problems]
