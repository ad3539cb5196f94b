"""The demo's model answers in any schema: truly about one page, with an invention about another."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from ingestion_pipeline.demo.courses import NAVIGATION, TIDAL_BIOLOGY, Programme
from ingestion_pipeline.demo.model_script import INVENTED, demo_model
from ingestion_pipeline.demo.model_server import ScriptedModel
from ingestion_pipeline.reading.llm.schema import AnswerSchema

TEXT: dict[str, Any] = {"type": "string"}
MAYBE: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "null"}]}
CATEGORY: dict[str, Any] = {"type": ["string", "null"], "enum": ["course_objectives", "outcomes", None]}


def an_object(**fields: Any) -> dict[str, Any]:
    closed = {"required": list(fields), "additionalProperties": False}
    return {"type": "object", "properties": fields, **closed}


RECORD = an_object(
    text={"type": ["string", "null"]},
    competency_category=CATEGORY,
    competency_category_evidence={"type": ["string", "null"]},
    competency_framework=MAYBE,
)
PROVED = an_object(text=an_object(value=TEXT, quote=TEXT), confidence={"type": "number"})


def answer(page: Programme | str | None, schema: dict[str, Any], said: str = "") -> Any:
    """The answer over the wire, by the strict way of asking; it has the form asked for."""
    text = page if isinstance(page, str) else "Nothing of ours."
    if isinstance(page, Programme):
        text = " ".join([page.title, *page.paragraphs])
    form = {"type": "json_schema", "name": "demo", "schema": schema, "strict": True}
    body = {"model": "demo-cheap", "input": [{"role": "user", "content": f"{said}\n{text}"}]}
    with ScriptedModel(demo_model) as model:
        reply = httpx.post(f"{model.base_url}/responses", json=body | {"text": {"format": form}})
    found = json.loads(reply.json()["output"][0]["content"][0]["text"])
    assert AnswerSchema(name="demo", schema=schema).problems(found) == ()
    return found


@pytest.mark.parametrize(
    ("page", "learned"),
    [(NAVIGATION, NAVIGATION.learned), (TIDAL_BIOLOGY, (*TIDAL_BIOLOGY.learned, *INVENTED))],
    ids=["true", "one is invented"],
)
def test_a_list_of_records_has_all_that_the_model_says(page: Programme, learned: tuple[str, ...]) -> None:
    schema = an_object(records={"type": "array", "items": RECORD}, count={"type": ["integer", "null"]})

    found = answer(page, schema)

    assert [one["text"] for one in found["records"]] == list(learned)
    assert {one["competency_category"] for one in found["records"]} == {"outcomes"}
    assert {one["competency_category_evidence"] for one in found["records"]} == {page.title}
    assert {one["competency_framework"] for one in found["records"]} == {None}
    assert found["count"] == len(learned)


def test_a_value_with_its_proof_repeats_the_sentence() -> None:
    definitions = {"$defs": {"record": PROVED}}
    records = {"type": "array", "items": {"$ref": "#/$defs/record"}}

    found = answer(NAVIGATION, an_object(records=records) | definitions)["records"][0]

    said = NAVIGATION.learned[0]
    assert found == {"text": {"value": said, "quote": said}, "confidence": 0.9}


def test_whether_a_page_has_any_is_said_of_the_pages_that_have() -> None:
    schema = an_object(
        has_list={"type": "boolean"}, heading={"type": ["string", "null"]}, explore={"type": "array", "items": TEXT}
    )

    said = {"has_list": True, "heading": NAVIGATION.title, "explore": []}
    assert answer(NAVIGATION, schema) == said
    assert answer(None, schema) == {"has_list": False, "heading": None, "explore": []}


def test_asked_alone_about_its_invention_the_model_insists() -> None:
    assert answer(TIDAL_BIOLOGY, RECORD, said=f"Where does it say {INVENTED[0]!r}?")["text"] in (INVENTED)
    assert answer(TIDAL_BIOLOGY, RECORD)["text"] == TIDAL_BIOLOGY.learned[0]


def test_a_part_of_a_page_is_known_and_the_invention_is_repeated() -> None:
    schema = an_object(records={"type": "array", "items": RECORD})

    part = answer(TIDAL_BIOLOGY.paragraphs[1], schema)["records"]

    assert part[-1]["text"] in INVENTED


def test_the_invention_is_on_no_page() -> None:
    pages = [" ".join(one.paragraphs) for one in (NAVIGATION, TIDAL_BIOLOGY)]

    assert [said for said in INVENTED for page in pages if said in page] == []
