"""Pages sent up the ladder, with a scripted model at the top of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ingestion_pipeline.catalogs.extraction import (
    EntityType,
    PageContent,
    PageReading,
    Selectors,
    entity_type,
    read_page,
)
from ingestion_pipeline.catalogs.extraction.prompts import answer_schema
from ingestion_pipeline.demo.model_server import ModelRequest, Reply, Say, Script, ScriptedModel, blank
from ingestion_pipeline.reading import cleaned_text
from ingestion_pipeline.reading.llm import Billing, ModelClient
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.reading.models.asking import leading_to

COURSE = entity_type("course")
URL = "https://college.test/catalog/page"
BILLING = Billing(call_site="extract", source_id="catalog:a", page_id=4, extraction_id=7)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)

# No code in front, no credits: rules make nothing of it, people do.
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


def a_page(html: str, *, url: str = URL, text: str | None = None) -> PageContent:
    return PageContent(url=url, body=html, text=cleaned_text(html) if text is None else text)


def answer(*records: Mapping[str, Any], kind: EntityType = COURSE, count: int | None = None, **more: Any) -> Say:
    """An answer by the schema of the type, null wherever a record says nothing."""
    schema = answer_schema(kind).schema
    empty = dict.fromkeys(schema["properties"]["records"]["items"]["properties"])
    said = blank(schema) | {
        "records_on_page": len(records) if count is None else count,
        "records": [empty | dict(record) for record in records],
    }
    return Say(text=json.dumps(said | more))


def is_alone(asked: ModelRequest) -> bool:
    return "part about a single" in asked.text


def about(replies: Mapping[str, Reply], *, otherwise: Reply | None = None) -> Script:
    """The reply whose key stands in what the model is shown of the page."""

    def reply(asked: ModelRequest) -> Reply:
        shown = asked.text.split("===")[2]
        found = (one for key, one in replies.items() if key in shown)
        return next(found, otherwise or answer())

    return reply


def climb(
    store: Store,
    settings: Settings,
    page: PageContent,
    *,
    kind: EntityType = COURSE,
    selectors: Selectors | None = None,
    billing: Billing = BILLING,
) -> PageReading:
    async def reading() -> PageReading:
        async with ModelClient(store, settings) as client:
            return await read_page(
                kind, page, client=client, billing=billing, settings=settings, now=NOW, selectors=selectors
            )

    return asyncio.run(reading())


def climb_with(
    store: Store, settings: Settings, page: PageContent, script: Script, **more: Any
) -> tuple[PageReading, list[ModelRequest]]:
    """The reading, and what the model was asked."""
    variables = {key: more.pop(key) for key in list(more) if key.startswith("INGESTION_")}
    with ScriptedModel(script) as model:
        leading = leading_to(model.base_url, settings, **variables)
        return climb(store, leading, page, **more), model.requests


def read_alone(page: PageContent, settings: Settings, **more: Any) -> PageReading:
    """The reading without any model."""
    kind = more.pop("kind", COURSE)
    return asyncio.run(read_page(kind, page, client=None, billing=BILLING, settings=settings, now=NOW, **more))


def values(reading: PageReading, name: str) -> Sequence[Any]:
    return [record.fields[name] for record in reading.records]


def codes(reading: PageReading) -> list[str | None]:
    return [problem.code for problem in reading.problems]
